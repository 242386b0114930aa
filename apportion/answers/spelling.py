r"""One LaTeX spelling for the ways in which people, models and keyboards write the same formula.

Nothing is dropped here but what carries no meaning: fonts, sizes of brackets, white space, characters without width.
Whatever this file does not know stays, so that the grammar of math-verify refuses it.
"""

import re
import unicodedata

SIGNS = r"""
- −‐‑‒–—―﹣－
\cdot ·∙⋅•・
. 。．
, 、，；
/ ⁄∕÷
' ’‘
" “”
| ‖
\times ×
\pm ±
\mp ∓
\le ≤⩽
\ge ≥⩾
\ne ≠
\approx ≈
\cup ∪
\cap ∩
\in ∈
\notin ∉
\setminus ∖
\emptyset ∅
\infty ∞
^\circ °
\mathbb{R} ℝ
\mathbb{Z} ℤ
\mathbb{N} ℕ
\mathbb{Q} ℚ
\mathbb{C} ℂ
\wedge ∧
\vee ∨
\to →
\Delta ∆
\triangle △
\angle ∠
\langle ⟨
\rangle ⟩
\equiv ≡
\ldots …⋯
"""
"""In each line a spelling in ASCII, and the characters that are written so. A space ends a command of letters."""
SYMBOLS = str.maketrans(
    {
        character: f"{spelling} " if spelling[-1].isalpha() else spelling
        for spelling, characters in map(str.split, SIGNS.split("\n")[1:-1])
        for character in characters
    }
)
GREEK = {
    chr(code): rf"\{unicodedata.name(chr(code)).rpartition(' ')[2].lower().replace('lamda', 'lambda')} "
    for code in range(0x3B1, 0x3CA)
    if code != 0x3C2
}
RAISED, LOWERED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱ", "₀₁₂₃₄₅₆₇₈₉₊₋ₙ"
LEVEL = str.maketrans(RAISED + LOWERED, "0123456789+-=()ni0123456789+-n")
SHIFTED = re.compile(f"(?P<up>[{RAISED}]+)|(?P<down>[{LOWERED}]+)")
ROOT = re.compile(r"(?P<sign>[√∛∜])\s*(?:(?P<plain>\d+(?:\.\d+)?|[A-Za-z](?![A-Za-z]))|(?=[({\\]))")
ROOTS = {"√": r"\sqrt", "∛": r"\sqrt[3]", "∜": r"\sqrt[4]"}

SIZES = re.compile(
    r"\\m?(?:left|right|middle|[bB]igg?[lrm]?)(?![A-Za-z])\.?"
    r"|\\(?:displaystyle|textstyle|scriptstyle|limits|nolimits|rm|bf|it|sf|tt)(?![A-Za-z])"
)
CLOSER = re.compile(r"(?<!\\)\\!\s*")
SPACES = re.compile(
    r"(?<!\\)\\[,;:> ]|\\(?:q?quad|hspace\{[^{}]*\}|thinspace|enspace|hfill)(?![A-Za-z])|(?<=[\w}).,$%])~|\s+"
)
FONT = re.compile(
    r"\\(?P<name>(?:text|math)(?:rm|bf|it|sf|tt|normal|up|cal)|text|ce|mbox|hbox|boxed|fbox|boldsymbol|bm|operatorname\*?|emph|underline)"
    r"\s*(?=\{)"
)
COMMANDS = r"""
\\[dtc]frac(?![A-Za-z])                                   \\frac
\\(?:lbrace|left\\lbrace)(?![A-Za-z])                     \\{
\\rbrace(?![A-Za-z])                                      \\}
\\[lr]vert(?![A-Za-z])|\\vert(?![A-Za-z])                 |
\\lang(?:le)?(?![A-Za-z])                                 (
\\rang(?:le)?(?![A-Za-z])                                 )
\\(?:leq?slant|leqq|leq)(?![A-Za-z])|<=|=<                \\le
\\(?:geq?slant|geqq|geq)(?![A-Za-z])|>=                   \\ge
\\neq(?![A-Za-z])|!=                                      \\ne
\\(?:varnothing|O)(?![A-Za-z])                            \\emptyset
\\(?:dots|cdots|dotsc|dotsb)(?![A-Za-z])|\.\.\.           \\ldots
\^\s*\{\s*(?:\\circ|\\degree|o)\s*\}|(?:\^\s*(?:\\circ|\\degree|o)|\\degree)(?![A-Za-z]) ^\\circ
\*\*                                                      ^
(?<=\\log)\s*_\s*(?P<base>\d)                              _{\g<base>}
[\[(]\s*\\begin\{array\}\s*\{[lcr\s]*\}                  \\begin{pmatrix}
\\end\{array\}\s*[\])]                                   \\end{pmatrix}
\\div(?![A-Za-z])                                         /
\\land(?![A-Za-z])                                        \\wedge
\\lor(?![A-Za-z])                                         \\vee
\\lnot(?![A-Za-z])                                        \\neg
(?<=\d)\s*(?:\\Omega|Ω)(?![A-Za-z(])                       \\text{ohm}
^(?i:negative|minus)\s+(?=[\d.$\\])                       -
^(?:\\text\{)?(?i:all\sreal\snumbers|all\sreals|(?:the\sset\sof\s)?real\snumbers)\}?\.?$ \\mathbb{R}
(?<=\d)\s*[x×]\s*(?=10\s*\^)                              \\times
"""
"""In each line a pattern, and what is written in its place. A space ends a command, apart from \\frac."""
SYNONYMS = [
    (re.compile(pattern), f"{written} " if written[-1].isalpha() and written != r"\\frac" else written)
    for pattern, written in map(str.split, COMMANDS.split("\n")[1:-1])
]
NAMES = re.compile(
    r"(?<![\\A-Za-z])(?:(?P<infinity>inf(?:ini)?ty|inf)|"
    r"(?P<name>sqrt|sin|cos|tan|cot|sec(?!(?:\^\{?-?\d\}?)?\.?$)|csc|arcsin|arccos|arctan|log|ln|exp|pi|alpha|beta|gamma|theta|lambda|phi|omega))"
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
    # characters without width, and marks of direction
    text = "".join(each for each in answer if unicodedata.category(each) != "Cf")
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
        if joined := re.fullmatch(r",?\s*(and|or)", content):
            content = f" {joined[1]} "
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
