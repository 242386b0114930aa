r"""One spelling for answers that differ only as text, before mathematics is asked whether they mean the same.

It decides most pairs at no cost, and mends what math-verify would misread: it takes "1 1/2" for 1, 3·4 for 3, and every
word for a product of letters, so that "listen" would be "silent".
"""

from __future__ import annotations

import re
from functools import lru_cache

LONGEST = 1000
"""Answers with more characters are compared as text."""
REMEMBERED = 2**16
"""Normal forms that are kept."""

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
INTEGER = re.compile(r"-?\d+")


@lru_cache(REMEMBERED)
def normal_form(answer: str) -> str:
    r"""The answer in one spelling of white space, dollars, fractions, fonts and numbers, and words in one case.

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
    text = TEXT.fullmatch(form)
    form = text[1].strip() if text else form
    if WORDS.fullmatch(form):
        return form.rstrip(".!?").casefold()
    if THOUSANDS.fullmatch(form):
        form = re.sub(r"[^\d.+-]", "", form)
    if NUMBER.fullmatch(form):
        return _plain(form)
    mixed = MIXED_NUMBER.fullmatch(form)
    return rf"{mixed['whole']}\frac{{{mixed['over']}}}{{{mixed['under']}}}" if mixed else form


def settled(first: str, second: str) -> bool | None:
    """Whether two normal forms mean the same, where text alone can tell; None where it takes mathematics.

    >>> settled("18", "18"), settled("18", "19"), settled("listen", "silent"), settled("1/2", "0.5")
    (True, False, False, None)
    """
    if first == second:
        return bool(first)
    integers = INTEGER.fullmatch(first) and INTEGER.fullmatch(second)
    return False if integers or is_text(first) or is_text(second) else None


def is_text(form: str) -> bool:
    """Whether nothing but equal text is equal: words, what is too long or empty, and signs beyond ASCII."""
    return not form or len(form) > LONGEST or not form.isascii() or WORDS.fullmatch(form) is not None


def _plain(number: str) -> str:
    whole, _, decimals = number.lstrip("+-").partition(".")
    digits = f"{whole.lstrip('0') or '0'}.{decimals.rstrip('0')}".rstrip(".")
    return f"-{digits}" if number[0] == "-" and digits != "0" else digits
