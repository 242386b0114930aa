r"""One LaTeX spelling for the ways in which people, models and keyboards write the same formula.

Nothing is dropped here but what carries no meaning: fonts, sizes of brackets, white space, characters without width.
Whatever this file does not know stays, so that the grammar of math-verify refuses it.
"""

import re
import unicodedata

SYMBOLS = str.maketrans(
    dict.fromkeys("\u2212\u2010\u2011\u2012\u2013\u2014\u2015\ufe63\uff0d", "-")
    | dict.fromkeys("\u00b7\u2219\u22c5\u2022\u30fb", r"\cdot ")
    | dict.fromkeys("\u3002\uff0e", ".")
    | dict.fromkeys("\u3001\uff0c\uff1b", ",")
    | dict.fromkeys("\u2044\u2215", "/")
    | {
        "×": r"\times ", "÷": "/", "±": r"\pm ", "∓": r"\mp ", "≤": r"\le ", "⩽": r"\le ", "≥": r"\ge ", "⩾": r"\ge ",
        "≠": r"\ne ", "≈": r"\approx ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∉": r"\notin ", "∖": r"\setminus ",
        "∅": r"\emptyset ", "∞": r"\infty ", "°": r"^\circ ", "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}",
        "ℕ": r"\mathbb{N}", "ℚ": r"\mathbb{Q}", "ℂ": r"\mathbb{C}", "∧": r"\wedge ", "∨": r"\vee ", "→": r"\to ",
        "∆": r"\Delta ", "△": r"\triangle ", "∠": r"\angle ", "⟨": r"\langle ", "⟩": r"\rangle ", "≡": r"\equiv ",
        "…": r"\ldots ", "⋯": r"\ldots ", "’": "'", "‘": "'", "“": '"', "”": '"', "‖": "|",
    }
)  # fmt: skip
GREEK = {
    chr(code): rf"\{unicodedata.name(chr(code)).rpartition(' ')[2].lower().replace('lamda', 'lambda')} "
    for code in range(0x3B1, 0x3CA)
    if code != 0x3C2
}
RAISED = {"⁰": "0", "¹": "1", "²": "2", "³": "3", "⁴": "4", "⁵": "5", "⁶": "6", "⁷": "7", "⁸": "8", "⁹": "9"}
RAISED |= {"⁺": "+", "⁻": "-", "⁼": "=", "⁽": "(", "⁾": ")", "ⁿ": "n", "ⁱ": "i"}
LOWERED = {chr(0x2080 + digit): str(digit) for digit in range(10)} | {"₊": "+", "₋": "-", "ₙ": "n"}
LEVEL = str.maketrans(RAISED | LOWERED)
SHIFTED = re.compile(f"(?P<up>[{''.join(RAISED)}]+)|(?P<down>[{''.join(LOWERED)}]+)")
ROOT = re.compile(r"(?P<sign>[√∛∜])\s*(?:(?P<plain>\d+(?:\.\d+)?|[A-Za-z](?![A-Za-z]))|(?=[({\\]))")
ROOTS = {"√": r"\sqrt", "∛": r"\sqrt[3]", "∜": r"\sqrt[4]"}

SIZES = re.compile(
    r"\\m?(?:left|right|middle|[bB]igg?[lrm]?)(?![A-Za-z])\.?"
    r"|\\(?:displaystyle|textstyle|scriptstyle|limits|nolimits|rm|bf|it|sf|tt)(?![A-Za-z])"
)
CLOSER = re.compile(r"(?<!\\)\\!\s*")
SPACES = re.compile(r"(?<!\\)\\[,;:> ]|\\(?:q?quad|hspace\{[^{}]*\}|thinspace|enspace|hfill)(?![A-Za-z])|~|\s+")
FONT = re.compile(
    r"\\(?P<name>(?:text|math)(?:rm|bf|it|sf|tt|normal|up)|text|mbox|hbox|boldsymbol|bm|operatorname\*?|emph|underline)"
    r"\s*(?=\{)"
)
SYNONYMS = (
    (re.compile(r"\\[dtc]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\(?:lbrace|left\\lbrace)(?![A-Za-z])"), r"\\{"),
    (re.compile(r"\\rbrace(?![A-Za-z])"), r"\\}"),
    (re.compile(r"\\[lr]vert(?![A-Za-z])|\\vert(?![A-Za-z])"), "|"),
    (re.compile(r"\\lang(?:le)?(?![A-Za-z])"), "("),
    (re.compile(r"\\rang(?:le)?(?![A-Za-z])"), ")"),
    (re.compile(r"\\(?:leq?slant|leqq|leq)(?![A-Za-z])|<=|=<"), r"\\le "),
    (re.compile(r"\\(?:geq?slant|geqq|geq)(?![A-Za-z])|>="), r"\\ge "),
    (re.compile(r"\\neq(?![A-Za-z])|!="), r"\\ne "),
    (re.compile(r"\\(?:varnothing|O)(?![A-Za-z])"), r"\\emptyset "),
    (re.compile(r"\\(?:dots|cdots|dotsc|dotsb)(?![A-Za-z])|\.\.\."), r"\\ldots "),
    (
        re.compile(r"\^\s*\{\s*(?:\\circ|\\degree|o)\s*\}|(?:\^\s*(?:\\circ|\\degree|o)|\\degree)(?![A-Za-z])"),
        r"^\\circ ",
    ),
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"\\div(?![A-Za-z])"), "/"),
    (re.compile(r"(?<=\d)\s*[x×]\s*(?=10\s*\^)"), r"\\times "),
)
NAMES = re.compile(
    r"(?<![\\A-Za-z])(?:(?P<infinity>inf(?:ini)?ty|inf)|"
    r"(?P<name>sqrt|sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|log|ln|pi|alpha|beta|gamma|theta|lambda|phi|omega))"
    r"(?![A-Za-z])"
)
WORDED = re.compile(r"[A-Za-z]{2}")
UNIT_LETTER = re.compile(r"[mgshlLNJWVKCFtA]")
NUMBER_ENDS = re.compile(r"[\d}]\s*$")
ARGUMENTS = re.compile(r"\\(?P<name>frac|binom|sqrt)(?![A-Za-z])|(?P<power>\^)\s*(?=\()")
BARE = re.compile(r"\\[A-Za-z]+|[^\s\\{}()]")


def latex(answer: str) -> str:
    r"""Return ``answer`` in one spelling: ASCII where LaTeX has a command, one name a command, braces around arguments.

    >>> [latex(answer) for answer in ("２√3", "x² + ½", r"\dfrac12", r"\left(\mathrm{e},\,4\right)", "sqrt(2)")]
    ['2\\sqrt{3}', 'x^{2} + \\frac{1}{2}', '\\frac{1}{2}', '(e, 4)', '\\sqrt{2}']
    """
    text = _ascii(answer)
    text = SPACES.sub(" ", CLOSER.sub("", SIZES.sub("", text)))
    for pattern, replacement in SYNONYMS:
        text = pattern.sub(replacement, text)
    text = NAMES.sub(lambda found: r"\infty " if found["infinity"] else rf"\{found['name']}", _without_fonts(text))
    return " ".join(_braced(text).split())


def _ascii(answer: str) -> str:
    """Return ``answer`` with Unicode's spellings of signs, digits, powers, fractions and roots in LaTeX."""
    if answer.isascii():
        return answer
    text = "".join(each for each in answer if unicodedata.category(each) != "Cf")  # without width, or of direction
    text = "".join(map(_unfolded, text.translate(SYMBOLS)))
    text = SHIFTED.sub(lambda found: f"{'^' if found['up'] else '_'}{{{found[0].translate(LEVEL)}}}", text)
    text = "".join(GREEK.get(each, each) for each in text.translate(SYMBOLS))
    return ROOT.sub(lambda found: ROOTS[found["sign"]] + (f"{{{found['plain']}}}" if found["plain"] else ""), text)


def _unfolded(character: str) -> str:
    """Return a fraction such as ½ as LaTeX, a letter or digit of another width as itself, and others as they are."""
    if character.isascii() or character in RAISED or character in LOWERED:
        return character
    plain = unicodedata.normalize("NFKC", character)
    over, bar, under = plain.partition("\u2044")
    return rf"\frac{{{over}}}{{{under}}}" if bar and under else plain


def closing(text: str, start: int) -> int:
    """Return the place after the bracket that closes the one at ``start``; -1 if none does."""
    depth, opens, closes = 0, text[start], {"{": "}", "(": ")", "[": "]"}[text[start]]
    place = start
    while place < len(text):
        if text[place] == "\\":
            place += 1  # an escaped brace is a character
        elif text[place] in (opens, closes):
            depth += 1 if text[place] == opens else -1
            if depth == 0:
                return place + 1
        place += 1
    return -1


def _without_fonts(text: str) -> str:
    r"""Return ``text`` with mathematics of any font as it is, "and" and "or" as commas, and words in ``\text{}``."""
    place = 0
    while found := FONT.search(text, place):
        end = closing(text, found.end())
        if end < 0:
            return text
        content = text[found.end() + 1 : end - 1].strip()
        if re.fullmatch(r",?\s*(?:and|or)", content):
            content = ","
        elif (WORDED.search(content) and "\\" not in content) or (
            UNIT_LETTER.fullmatch(content) and NUMBER_ENDS.search(text, 0, found.start())
        ):
            content = rf"\text{{{content}}}"
            place = found.start() + len(content)
        text = f"{text[: found.start()]}{content}{text[end:]}"
    return text


def _braced(text: str) -> str:
    r"""Return ``text`` with braces around the arguments of fractions, roots and powers."""
    place = 0
    while found := ARGUMENTS.search(text, place):
        place = end = found.end()
        if found["name"] == "sqrt" and text[end : end + 1] == "[":
            end = max(closing(text, end), end)
        for _ in range(1 if found["name"] in (None, "sqrt") else 2):
            end += len(text[end:]) - len(text[end:].lstrip())
            first, last = text[end : end + 1], -1
            if first in ("{", "(") and first:
                last = closing(text, end)
                if first == "(" and last > 0 and found["name"] in (None, "sqrt"):
                    text = f"{text[:end]}{{{text[end + 1 : last - 1]}}}{text[last:]}"
            elif bare := BARE.match(text, end):
                text = f"{text[:end]}{{{bare[0]}}}{text[bare.end() :]}"
                last = end + len(bare[0]) + 2
            if last < 0:
                return text
            end = last
    return text
