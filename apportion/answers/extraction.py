r"""Extractors: read the answer that a completion states, or None if it states none.

"auto" takes a box or an answer line and never guesses. A guess, such as the last number, would count truncated
derivations as votes for an intermediate result, often the same one in many samples. ``last_number`` must be asked for.

Only the text after the last ``</think>`` counts. If the last ``<think>`` was not closed, there is no answer. A box that
was not closed holds none either.

Answers come without surrounding white space, ``$``, ``\( \)``, emphasis or final full stop. More than 2,000 characters
are not an answer. Time is linear in the length of the text.
"""

import re
from collections.abc import Callable

Extractor = Callable[[str], str | None]

LONGEST = 2000
"""Maximum number of characters of an answer."""

BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s?")
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped brace belongs to the answer
STATEMENT = re.compile(
    r"\banswers?\b[*_]{0,3}\s?(?:is\b|are\b|[:=])"
    r"|^[#*_>\ ]{0,8}(?:the\ )?(?:final\ )?answer[*_\ ]{0,4}$"
    r"|^\#{4}\ ?(?P<number>[-+$]?\d[\d.,/]*%?)\s?$",  # GSM8K's form; other lines with #### are headings
    re.IGNORECASE | re.MULTILINE | re.VERBOSE,
)
SENTENCE_END = re.compile(r"(?<!\bSt)(?<!\bDr)(?<!\bMr)(?<!\bMrs)\.(?=[\s*]|$)")
BOLD = re.compile(r"(?<![\w*])\*\*([^*]+)\*\*(?![\w*])")
DELIMITERS = re.compile(r"\\\$|\$|(?<!\\)\\[()\[\]]")

CHOICE_STATEMENT = re.compile(r"\b(?:answer|option|choice)\b[*_]{0,3}\s?(?:is\b|[:=])", re.IGNORECASE)
FONT = re.compile(r"\\(?:text|math|boldsymbol|bf|rm)[a-z]*|[{}*]")
LETTER = re.compile(
    r"(?:option |choice )?"
    r"(?:[(\[]?(?P<alone>[A-J])[)\]]?[.:]?|\(?(?P<labelled>[A-J])(?:[)\].:](?:[\s\\].*)?|,? (?:because|since)\s.*))",
    re.IGNORECASE | re.DOTALL,
)
BOLD_LETTER_AT_END = re.compile(r"(?:.*\s)?\*\*\(?(?P<letter>[A-J])\)?\.?\*\*\.?", re.IGNORECASE)

NUMBER = re.compile(
    r"(?<![A-Za-z_\d.])(?:(?<![)\]}])(?P<sign>[-+−]))?"  # after a bracket the sign is an operator
    r"(?:\\[dt]?frac\{(?P<over>\d+)\}\{(?P<under>\d+)\}"
    r"|(?P<number>(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+|/\d+)?))"
)


def _after_thinking(extractor: Extractor) -> Extractor:
    """Restrict ``extractor`` to the text after the reasoning."""

    def extract_after_thinking(text: str) -> str | None:
        said = text.rpartition("</think>")[2].rstrip()
        return None if "<think>" in said else extractor(said)

    return extract_after_thinking


def boxed(text: str) -> str | None:
    r"""Return the content of the last ``\boxed{...}`` or ``\fbox{...}``; None if its braces do not close.

    >>> boxed(r"First \boxed{7}, or rather \boxed{\frac{1}{2}}.")
    '\\frac{1}{2}'
    """
    box = _last(BOX, text)
    if box is None:
        return None
    rest = text[box.end() : box.end() + LONGEST]
    if not rest.startswith("{"):
        word = re.split(r"[\s$]", rest, maxsplit=1)[0]
        return _tidy(word) if len(word) < LONGEST else None
    depth = 0
    for brace in BRACE.finditer(rest):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return _tidy(rest[1 : brace.start()])
    return None


def answer_line(text: str) -> str | None:
    r"""Return X of the last "Answer: X", "The answer is X", "Final answer: X" or "#### X".

    X ends with its sentence or line. It may stand on the line below if nothing follows it.

    >>> answer_line("**Answer:** $42$."), answer_line("So the answer is 3.5 km. I hope it is correct.")
    ('42', '3.5 km')
    >>> answer_line("She has 9 + 9 eggs left.\n#### 18")
    '18'
    """
    stated = _last(STATEMENT, text)
    if stated is None:
        return None
    return _tidy(stated["number"]) if stated["number"] else _stated(text, stated.end())


def choice(text: str) -> str | None:
    r"""Return the chosen letter, A to J in upper case: boxed, stated, or alone or last in bold on the last line.

    A word is not a letter: "A dog" and "I think so" choose none, "A. dog" and "(c)" do.

    >>> choice(r"\boxed{\text{B}}"), choice("The answer is (c) Paris."), choice("The answer is A dog.")
    ('B', 'C', None)
    """
    stated = _last(CHOICE_STATEMENT, text)
    statements = boxed(text), _stated(text, stated.end()) if stated else None
    last_line = text.rpartition("\n")[2].strip()
    letters = [*(_letter(statement, "labelled") for statement in statements if statement), _letter(last_line)]
    letter = next(filter(None, letters), None)
    if letter is None and last_line.endswith(("**", "**.")):
        bold = BOLD_LETTER_AT_END.fullmatch(last_line)
        letter = bold and bold["letter"]
    return letter.upper() if letter else None


def last_number(text: str) -> str | None:
    r"""Return the last number with its sign, decimals and "/", without thousands separators; ``\frac{a}{b}`` is a/b.

    >>> last_number("12 - 5 = 7, so she pays $1,250.50."), last_number("x = -3/4")
    ('1250.50', '-3/4')
    """
    end = max(text.rfind(digit) for digit in "0123456789") + 2  # a fraction ends in a brace after its last digit
    found = _last(NUMBER, text[max(0, end - LONGEST) : end])
    if found is None:
        return None
    digits = found["number"].replace(",", "") if found["number"] else f"{found['over']}/{found['under']}"
    return digits if found["sign"] in (None, "+") else f"-{digits}"


def auto(text: str) -> str | None:
    """Return the answer of ``boxed``, else of ``answer_line``, else None.

    >>> auto("Then 6 x 7 = 42") is None
    True
    """
    return boxed(text) or answer_line(text)


EXTRACTORS: dict[str, Extractor] = {
    extractor.__name__: _after_thinking(extractor) for extractor in (auto, boxed, answer_line, choice, last_number)
}
"""Every extractor by name."""


def extract(text: str, how: str = "auto") -> str | None:
    r"""Return the answer that ``text`` states, read by the extractor ``how``; None if it states none.

    Raises ValueError for an unknown extractor.

    >>> extract("<think>Is it \\boxed{3}?</think>It is \\boxed{4}."), extract("<think>Is it \\boxed{3}?")
    ('4', None)
    >>> extract("4", how="vote")
    Traceback (most recent call last):
    ValueError: how must be one of auto, boxed, answer_line, choice, last_number, got 'vote'
    """
    if how not in EXTRACTORS:
        raise ValueError(f"how must be one of {', '.join(EXTRACTORS)}, got {how!r}")
    return EXTRACTORS[how](text)


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """Return the last match."""
    last = None
    for last in pattern.finditer(text):  # noqa: B007 - only the last match is wanted
        pass
    return last


def _stated(text: str, start: int) -> str | None:
    """Return the statement from ``start`` to the end of its sentence or line, or the last line below a heading."""
    rest, goes_on = text[start : start + LONGEST], len(text) > start + LONGEST
    line, newline, below = rest.lstrip(":=*_").partition("\n")
    if not line.strip():
        line = below.strip()
        display = (line[:2], line[-2:]) in (("$$", "$$"), ("\\[", "\\]"))
        if goes_on or ("\n" in line and not display):
            return None
    box, end = BOX.search(line), SENTENCE_END.search(line)
    if box and (end is None or box.start() < end.start()):
        return boxed(line)
    if end is None and goes_on and not newline:
        return None
    return _tidy(BOLD.sub(r"\1", line[: end.start()] if end else line))


def _tidy(answer: str) -> str | None:
    """Return ``answer`` without ``$`` and without surrounding space, emphasis and punctuation; None if it is empty."""
    return " ".join(DELIMITERS.sub("", answer).split()).lstrip(":;*` ").rstrip(".,:;*`\\ ") or None


def _letter(statement: str, *also: str) -> str | None:
    """Return the letter that is the whole statement; with "labelled", also one before a text, as in "(C) Paris"."""
    found = LETTER.fullmatch(FONT.sub("", statement).strip())
    return next((found[group] for group in ("alone", *also) if found[group]), None) if found else None
