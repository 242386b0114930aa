r"""One spelling for answers that differ only in how they are written.

Comparing normal forms decides most pairs without math-verify. It also corrects what math-verify misreads: math-verify
takes "1 1/2" for 1, 3·4 for 3, and every word for a product of letters, so that "listen" would equal "silent".
"""

import re
from fractions import Fraction
from functools import lru_cache

from apportion.answers.magnitude import too_large

LONGEST = 1000
"""Answers with more characters than this are compared as text."""
REMEMBERED = 2**16
"""Normal forms kept in memory."""

SPELLINGS = str.maketrans({"−": "-", "×": r"\times ", "·": r"\cdot ", "π": r"\pi ", "∞": r"\infty ", "°": r"^\circ "})
REWRITES = (
    (re.compile(r"\\?\$"), ""),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"\\[dt]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\(?:left|right)(?=[()\[\]|\\])"), ""),
)
TEXT = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox)\{([^{}\\]*)\}")
WORDS = re.compile(r"(?=.*[^\W\d_]{3})[^\W\d_]+(?:[ '’.,;:!?-]+[^\W\d_]+)*[.!?]?")
THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:(?:,(?:\\!)?|\{,\}|\\,| )\d{3})+(?:\.\d+)?")
MIXED_NUMBER = re.compile(r"(?P<whole>-?\d+) (?P<over>\d+)/(?P<under>\d+)")
NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)")
DECIMAL = re.compile(r"-?\d+(?:\.\d{1,6})?")  # math-verify compares six places
FRACTION = re.compile(r"(-?)(?:(\d+)/(\d+)|\\frac\{(\d+)\}\{(\d+)\}|(\d+))")


@lru_cache(REMEMBERED)
def normal_form(answer: str) -> str:
    r"""Return ``answer`` with white space, dollars, fractions, fonts, numbers and the case of words made uniform.

    >>> [normal_form(answer) for answer in ("$1,000.0$", r"\text{No solution}", r"\dfrac{1}{2}", "+05", "1 1/2")]
    ['1000', 'no solution', '\\frac{1}{2}', '5', '1\\frac{1}{2}']
    """
    form = answer.strip()
    if len(form) > LONGEST:
        return form
    form = form.translate(SPELLINGS)
    for pattern, replacement in REWRITES:
        form = pattern.sub(replacement, form)
    form = " ".join(form.split()).rstrip(". ")
    if text := TEXT.fullmatch(form):
        form = text[1].strip()
    if WORDS.fullmatch(form):
        return form.rstrip(".!?").casefold()
    if THOUSANDS.fullmatch(form):
        form = re.sub(r"[^\d.+-]", "", form)
    if NUMBER.fullmatch(form):
        return _plain(form)
    mixed = MIXED_NUMBER.fullmatch(form)
    return rf"{mixed['whole']}\frac{{{mixed['over']}}}{{{mixed['under']}}}" if mixed else form


def equal_by_text(first: str, second: str) -> bool | None:
    """Return whether two normal forms mean the same; None if their text does not tell.

    >>> equal_by_text("18", "19"), equal_by_text("listen", "silent"), equal_by_text("1/2", "2/4")
    (False, False, True)
    >>> equal_by_text("1/2", "0.5") is None
    True
    """
    if first == second:
        return bool(first)
    if is_text(first) or is_text(second) or (DECIMAL.fullmatch(first) and DECIMAL.fullmatch(second)):
        return False
    fractions = _fraction(first), _fraction(second)
    return None if None in fractions else fractions[0] == fractions[1]


@lru_cache(REMEMBERED)
def is_text(form: str) -> bool:
    """Return whether ``form`` equals only the same text: words, no or long text, beyond ASCII, or a huge number."""
    return not form or len(form) > LONGEST or not form.isascii() or WORDS.fullmatch(form) is not None or too_large(form)


def is_plain_number(form: str) -> bool:
    """Return whether ``form`` is an integer, a decimal or a fraction of integers."""
    return DECIMAL.fullmatch(form) is not None or _fraction(form) is not None


@lru_cache(REMEMBERED)
def _fraction(form: str) -> Fraction | None:
    """Return the value of an integer or of a fraction of integers; None for any other form."""
    found = FRACTION.fullmatch(form)
    if found is None:
        return None
    sign, *digits = (group for group in found.groups() if group is not None)
    over, under = int(digits[0]), int(digits[1]) if len(digits) == 2 else 1
    return Fraction(-over if sign else over, under) if under else None


def _plain(number: str) -> str:
    """Return ``number`` without leading and trailing zeros and without a plus sign."""
    whole, _, decimals = number.lstrip("+-").partition(".")
    digits = f"{whole.lstrip('0') or '0'}.{decimals.rstrip('0')}".rstrip(".")
    return f"-{digits}" if number[0] == "-" and digits != "0" else digits
