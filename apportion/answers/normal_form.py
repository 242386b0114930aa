r"""What an answer says: a text in one spelling, and its value or its formula if all of it is mathematics.

Two answers are one only if all of both was read. So a formula holds only what the grammar of math-verify reads right.
It takes words for products of letters ("no" would be "on") and two numbers side by side for a product. It drops the
base of a number and the inner braces of a set. Answers with those are texts, which equal only the same text. It drops
primes and takes dy/dx for 0, so derivatives become symbols. Dates, telephone numbers and formulas of chemistry are
texts.

It takes ranges, scores and spans of years for differences. Here two numbers with a hyphen are a pair, and two pairs are
equal if their numbers are. A pair that falls, as 7-2 or 4-3, may be its difference too, because a range rises. With a
dash, with "to" or with a unit it is none.
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from apportion.answers.magnitude import too_large
from apportion.answers.measures import NAMES, PERCENT, SCALE, SCALES, VARIABLES, Measures, clock, summed, without_unit
from apportion.answers.spelling import latex

LONGEST = 1000
"""Answers with more characters than this are compared as text."""
REMEMBERED = 2**16
"""Normal forms kept in memory."""

PLACES = Fraction(5, 10**7)
SHARE = Fraction(1, 10**4)
"""A decimal equals a number that differs by at most ``PLACES``, half of the sixth, and by ``SHARE`` of the larger."""
MOST_DIGITS = 400
"""Powers of ten beyond this are left to mathematics."""

WHOLE = re.compile(r"^([\"'`])(.*)\1$|^\\text\{([^{}]*\d[^{}]*)\}$", re.DOTALL)
"""An answer in quotes, or in words with a number."""
CHOICE = re.compile(r"\(?([A-Za-z])\)?")
NAME = re.compile(r"[A-Z]{2,}")
THOUSANDS = re.compile(r"(?<![\d.,])(?:\d{1,3}(?:[, ]\d{3})+|\d{1,2}(?:,\d\d)+,\d{3})(?![\d,])(?:\.\d+)?")
"""A number with thousands, or with the lakhs of India."""
GROUPED = re.compile(r"(?<![\w.,'])\d{1,3}(?:(?:\.\d{3}){2,}(?:,\d+)?|(?:['_]\d{3})+)(?![\w.,'])")
"""A number with the thousands of other languages, whose points or apostrophes can be nothing else."""
MIXED = re.compile(r"(?<![\d.}])(\d+)\s*(?:\s(\d+)/(\d+)(?![\d.])|\\frac\{(\d+)\}\{(\d+)\})")
REPEATED = re.compile(
    r"(?P<whole>\d*)\.(?P<once>\d*?)(?:\\(?:overline|bar|dot)\{?\s*(?P<line>\d+)\s*\}?"
    r"|(?P<digit>\d)(?P=digit){2,}(?:\.\.\.|\\ldots\s?))"
)
NUMBER = re.compile(
    r"[-+]?\s?(?P<digits>\d+\.?\d*|\.\d+)"
    r"(?:[eE](?P<e>[-+]?\d+)|\s?(?:\\times|\\cdot|\*)\s?10\s?\^\s?\{?\s?(?P<ten>[-+]?\d+)\s?\}?)?"
)
FRACTION = re.compile(
    r"[-+]?\s?(?:(?P<whole>\d+)\s?(?=\\frac))?(?:(\d+)\s?/\s?(\d+)|\\frac\{\s?(-?\d+)\s?\}\{\s?(-?\d+)\s?\})"
)
ROUND = re.compile(r"^([-+]?\d*\.\d*)\((\d+)\)$")
EXPONENT = re.compile(r"(?<![\w.}])(\d+\.?\d*|\.\d+)[eE]([-+]?\d+)(?![\w.])")
AND = re.compile(r"\s*,?\s*(?<![\\A-Za-z])(?P<word>and|or)(?![A-Za-z])\s*")
RELATION = re.compile(r"[<>]|\\[lg]e(?![A-Za-z])")
RAY = re.compile(r"(?P<name>[A-Za-z])\s*(?P<sign><|>|\\le(?![A-Za-z])|\\ge(?![A-Za-z]))(?P<bound>[^<>=,]+)")
BUILT = re.compile(r"\\\{\s*([A-Za-z])(?:\s*\\in\s*\\mathbb\{R\})?\s*(?::|\\mid|\|)(.*)\\\}")
DERIVATIVE = re.compile(r"\\frac\{(?:d|\\partial) ?([A-Za-z])\}\{(?:d|\\partial) ?([A-Za-z])\}")
PRIMES = re.compile(r"(?<=[A-Za-z])'+")
SPAN = re.compile(
    r"(?P<money>(?:\\?[$£€¥₹]|Rs\.?)\s?)?(?P<low>\d+(?:\.\d+)?)(?:\s?\\?%|\s?\^\\circ\s?[CF]?)?"
    r"\s?(?:-|to|\\sim|\\text\{\s?to\s?\})\s?(?:\\?[$£€¥₹]|Rs\.?)?\s?(?P<high>\d+(?:\.\d+)?)(?P<unit>.*)"
)
"""A range, a score or a span of years."""
SEASON = re.compile(r"^(1[6-9]|20)(\d\d)-(\d\d)$")
"""A span of years whose second one is written with two digits, as in 2020-21."""
MONTHS = "janfebmaraprmayjunjulaugsepoctnovdec"
_MONTH = rf"(?:{'|'.join(re.findall('...', MONTHS))})[a-z]*"
DATE = re.compile(
    rf"(?:(?P<day>\d{{1,2}})(?:st|nd|rd|th)?\W?\s?(?:of\s)?(?P<month>{_MONTH})"
    rf"|(?P<before>{_MONTH})\.?\s?(?P<after>\d{{1,2}})(?:st|nd|rd|th)?)(?:,?\s?(?P<year>\d{{4}}))?",
    re.IGNORECASE,
)
ELEMENT = (
    "A[cglmrstu]|B[aehikr]?|C[adeflmnorsu]?|D[by]|E[rsu]|F[elmr]?|G[ade]|H[efgos]?|I[nr]?|Kr?|L[airuv]|M[cdgnot]"
    "|N[abdeiop]?|O[gs]?|P[abdmortu]?|R[abefghnu]|S[bcegimnr]?|T[abehilm]|[UVW]|Xe|Yb?|Z[nr]"
)
CHEMISTRY = re.compile(rf"(?=.*\d|(?:.*[A-Z]){{2}}.*[a-z])(?:\(?(?:{ELEMENT})\d*(?:\)\d*)?)+(?:\^?\d*[+-])?")
LETTERS_ONLY = re.compile(r"[A-Za-z ]+")
PRODUCT = re.compile(rf"{VARIABLES.pattern}|(?=\w{{2,3}}$)[^\W\daeiou_]*a[^\W\daeiou_]*")
NEIGHBOURS = re.compile(r"[A-Za-z]|[abcd]{2}|[u-z]{2,4}|[kmn]{2,3}|[p-t]{2,4}")
"""Letters that are a product also if nothing but letters is there. All other letters alone are words."""
NOT_READ = re.compile(
    r"\\(?:text|angle|triangle|overline|ldots|equiv)|^\d+-\d+-\d|\d/\d+/\d|(?<![\w.])0[xXbBoO]\w|\d\s+[\d.]"
    r"|\d\s+[A-Za-z]{2,}\s+\d|[\d)}]\s*_|\d:\d\d(?!\d)|:[^:]*:|\.\d+\.|\\\{(?:[^\\:]|\\[^{}])*(?::|\\\{)"
    r"|\\frac\{(?:d|\\partial)\}|[$\"'?@~`]|[^\x00-\x7f]"
)
LETTERS = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}\d*")
ENVIRONMENT = re.compile(r"\\(?:begin|end)\{[a-zA-Z]*matrix\}")
COMMAND = re.compile(r"\\(?:[A-Za-z]+|.)")


@dataclass(frozen=True)
class Form:
    """An answer as it is compared: by its ``text``, else by its ``value``, else by its ``formula`` in LaTeX.

    ``value`` is None and ``formula`` is empty if there is none. ``decimal`` says that the value was written as a
    decimal, so it may be rounded. ``measures`` are the known units. ``span`` are the ends of a range.
    """

    text: str
    formula: str = ""
    value: Fraction | None = None
    decimal: bool = False
    percent: bool = False
    measures: Measures = frozenset()
    span: tuple[Fraction, Fraction] | None = None


@lru_cache(REMEMBERED)
def normal_form(answer: str) -> Form:
    r"""Return what ``answer`` says.

    >>> [normal_form(answer).text for answer in ("$1,000.0$", r"\text{No solution}", r"\dfrac{1}{2}", "+05", "1 1/2")]
    ['1000', 'no solution', '1/2', '5', '3/2']
    >>> normal_form("2e3 dollars").value, normal_form("18 or more").value, normal_form("x + 1").formula
    (Fraction(2000, 1), None, 'x + 1')
    """
    answer = answer.strip()
    if not answer or len(answer) > LONGEST:
        return Form(answer)
    written = WHOLE.sub(r"\2\3", latex(_without_dollars(answer)).rstrip(". ").strip())
    if not re.search(r"[(\[]|\\\{", written):  # in (2,12,102) each comma separates
        written = THOUSANDS.sub(lambda found: re.sub(r"[^\d.]", "", found[0]), written.replace("{,}", ","))
        written = GROUPED.sub(lambda found: re.sub(r"[.'_]", "", found[0]).replace(",", "."), written)
    text = _text(written)
    if (time := clock(text) or _date(text) or summed(text)) is not None:
        return Form(time)
    formula = re.sub(r"\\text|[{}_\s]", "", written)
    if CHEMISTRY.fullmatch(formula):
        return Form(formula)
    if (found := SPAN.fullmatch(SEASON.sub(r"\1\2-\1\3", written))) and (span := _span(found, answer)):
        return span
    if letter := CHOICE.fullmatch(text):
        return Form(letter[1].casefold(), letter[1].casefold())
    if NAME.fullmatch(text):
        return Form(text)
    number, measures = without_unit(written)
    percent = PERCENT.fullmatch(number)
    number = _number((percent["head"] if percent else number).strip().rstrip("."))
    value, decimal = _value(number)
    if value is None and not is_formula(number):
        return Form(text.rstrip(".!?") or text)
    shown = _text(number) if value is None else str(value)
    shown += _unit_text(bool(percent), measures)
    return Form(shown, number, value, decimal, bool(percent), measures)


def is_formula(text: str) -> bool:
    """Return whether the grammar of math-verify would read ``text`` right, if it can read it."""
    if NOT_READ.search(text) or too_large(text):
        return False
    plain = COMMAND.sub(" ", ENVIRONMENT.sub(" ", text))
    product = NEIGHBOURS if LETTERS_ONLY.fullmatch(text) else PRODUCT
    return all(product.fullmatch(run[0]) and run[0] not in NAMES for run in LETTERS.finditer(plain))


def _span(found: re.Match[str], answer: str) -> Form | None:
    """Return a pair of numbers, and their difference if the text may be a span.

    Return None if something other than a unit follows.
    """
    number, measures = without_unit(f"{found['money'] or ''}{found['high']}{found['unit']}")
    percent = PERCENT.fullmatch(number)
    if (percent["head"] if percent else number).strip() != found["high"]:
        return None
    low, high = Fraction(found["low"]), Fraction(found["high"])
    text = f"{low}-{high}{_unit_text(bool(percent), measures)}"
    falls = low > high and not found["unit"] and re.search("[-−]", answer)
    return Form(text, text if falls else "", percent=bool(percent), measures=measures, span=(low, high))


def _unit_text(percent: bool, measures: Measures) -> str:
    powers = sorted(measures)
    return ("%" if percent else "") + "".join(f" {name}{'' if 0 <= to <= 1 else to}" for name, to in powers)


def _date(text: str) -> str | None:
    """Return a date with a named month in one spelling; None if ``text`` is none.

    >>> _date("14th of March"), _date("Mar.14"), _date("july 4,1776"), _date("march 2020")
    ('3-14', '3-14', '1776-7-4', None)
    """
    if (found := DATE.fullmatch(text)) is None:
        return None
    month = MONTHS.index((found["month"] or found["before"])[:3].lower()) // 3 + 1
    return f"{found['year']}-"[: 5 * bool(found["year"])] + f"{month}-{int(found['day'] or found['after'])}"


def equal_by_text(first: Form, second: Form) -> bool | None:
    """Return whether two forms mean the same; None if only mathematics can tell.

    >>> [equal_by_text(normal_form(a), normal_form(b)) for a, b in (("18", "19"), ("listen", "silent"), ("1/2", ".5"))]
    [False, False, True]
    >>> equal_by_text(normal_form("2x"), normal_form("x + x")) is None
    True
    """
    if first.text == second.text:
        return bool(first.text)
    if first.span and second.span:
        alike = (first.span, first.percent) == (second.span, second.percent)
        return alike and not _conflict(first.measures, second.measures)
    if not first.formula or not second.formula or _conflict(first.measures, second.measures):
        return False
    if first.value is None or second.value is None:
        return None
    if first.percent == second.percent:
        return close(first, second)
    return close(first, second) or close(_share(first), _share(second))


def close(first: Form, second: Form) -> bool:
    """Return whether two values are equal, up to rounding if one of them is a decimal."""
    assert first.value is not None and second.value is not None
    gap, size = abs(first.value - second.value), max(abs(first.value), abs(second.value))
    return gap == 0 or ((first.decimal or second.decimal) and gap <= PLACES and gap <= SHARE * size)


def _share(form: Form) -> Form:
    """Return the value of a percentage as a share. Return any other value unchanged."""
    return Form(form.text, value=form.value / 100, decimal=form.decimal) if form.percent and form.value else form


def _conflict(first: Measures, second: Measures) -> bool:
    """Return whether the units of the two differ, or both name kinds and neither set of kinds contains the other."""
    units, others = ({each for each in measures if each[1]} for measures in (first, second))
    kinds, other_kinds = first - units, second - others
    return bool(units and others and units != others) or not (kinds <= other_kinds or other_kinds <= kinds)


def _without_dollars(answer: str) -> str:
    """Return ``answer`` without the delimiters of mathematics. A dollar sign before a number is money."""
    text = re.sub(r"(?<!\\)\\[()\[\]]", "", answer) if re.search(r"(?<!\\)\\[(\[]", answer) else answer
    paired = re.fullmatch(r"\s*(\$\$?)(.*?)\1[.\s]*", text, re.DOTALL)
    if paired and "$" not in paired[2].replace("\\$", ""):
        return paired[2]
    return re.sub(r"(?<!\\)\$([^$]*?[^$\\])\$", r"\1", text)


def _text(written: str) -> str:
    """Return a text in one spelling: no fonts, single spaces only between words, words in lower case."""
    text = re.sub(r"\\text\{([^{}]*)\}", r" \1 ", written)
    text = re.sub(r"(?<!\w)\s+|\s+(?!\w)", "", " ".join(text.split()))
    if re.search(r"(?<![\\A-Za-z])[^\W\d_]{3}", text) or re.fullmatch(r"[A-Z][a-z]\.?|NO", text):
        text = text.casefold()
    return text.rstrip(".") or written


def _number(text: str) -> str:
    """Return ``text`` with repeated decimals, mixed numbers and powers of ten as the grammar reads them."""
    if scaled := SCALE.fullmatch(text):
        text, _ = without_unit(f"{_times(scaled['head'], SCALES[scaled['scale']])} {scaled['rest']}".strip())
    text = REPEATED.sub(_as_fraction, ROUND.sub(r"\1\\overline{\2}", _listed(BUILT.sub(r"\2", text).strip())))
    text = PRIMES.sub(lambda found: f"_{{{'p' * len(found[0])}}}", DERIVATIVE.sub(r"\1_{\2}", text))
    text = EXPONENT.sub(lambda found: rf"{found[1]} \times 10^{{{int(found[2])}}}", text)
    return MIXED.sub(lambda found: rf"{found[1]}\frac{{{found[2] or found[4]}}}{{{found[3] or found[5]}}}", text)


def _listed(text: str) -> str:
    """Return ``text`` with commas for "and" and "or". Inequalities with "or" are a union if they bound one variable."""
    words = [found["word"] for found in AND.finditer(text)]
    if "or" not in words or not RELATION.search(text):
        return AND.sub(", ", text)
    rays = [RAY.fullmatch(part) for part in AND.split(text)[::2]]
    if "and" in words or None in rays or len({ray["name"] for ray in rays if ray}) > 1:
        return text
    return r" \cup ".join(_interval(ray["sign"], ray["bound"].strip()) for ray in rays if ray)


def _interval(sign: str, bound: str) -> str:
    if sign in ("<", r"\le"):
        return rf"(-\infty, {bound}{')' if sign == '<' else ']'}"
    return rf"{'(' if sign == '>' else '['}{bound}, \infty)"


def _times(digits: str, scale: int) -> str:
    value = Fraction(digits.replace(",", "")) * scale
    return str(value) if value.denominator == 1 else f"{value.numerator}/{value.denominator}"


def _as_fraction(found: re.Match[str]) -> str:
    """Return a repeated decimal such as 0.1666... as a fraction."""
    once, again = found["once"], found["line"] or found["digit"]
    scale, cycle = 10 ** len(once), 10 ** len(again) - 1
    value = Fraction(int(f"{found['whole'] or 0}{once}") * cycle + int(again), scale * cycle)
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


def _value(text: str) -> tuple[Fraction | None, bool]:
    """Return the value of an integer, a decimal, a power of ten or a fraction, and whether it may be rounded."""
    sign = -1 if text.startswith("-") else 1
    if found := NUMBER.fullmatch(text):
        power = int(found["e"] or found["ten"] or 0)
        if abs(power) > MOST_DIGITS:
            return None, False
        value = Fraction(found["digits"]) * Fraction(10) ** power
        return sign * value, "." in found["digits"]
    if found := FRACTION.fullmatch(text):
        over, under = (int(digits) for digits in found.groups()[1:] if digits is not None)
        if under:
            value = Fraction(over, under) + int(found["whole"] or 0)
            return sign * value, False
    return None, False
