"""Lines of at most 80 columns, which every command prints alike."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from apportion.diagnosis.code_change import CodeChange

WIDTH = 80
MARK = re.compile(r" *(?:(?:[?-]|[0-9]+\.) +)?")
"""How an item of a list begins."""


def doubt_lines(doubts: Sequence[str], most: int | None = None, flag: str = "--full") -> list[str]:
    """Return a line or two for each doubt, after a question mark; ``most`` in all, and the ``flag`` that shows more."""
    lines: list[str] = []
    for place, doubt in enumerate(doubts):
        own = wrapped(f"? {doubt}")
        if most is not None and len(lines) + len(own) > most:
            return [*lines, f"? {len(doubts) - place} more: {flag}"]
        lines += own
    return lines


def code_lines(change: CodeChange) -> list[str]:
    """Return a change as code for TRL and for verl."""
    begin, *more = [*change.imports, *wrapped(change.trainer, "    ", WIDTH - 8)]
    *begun, last = wrapped(f"  verl: {change.command}", " " * 8, WIDTH - 2)
    python = [f"  TRL:  {begin}", *(f"        {line}" for line in more)]
    return [*python, *(f"{line} \\" for line in begun), last, *wrapped(change.note, " " * 8)]


def wrapped(text: str, indent: str = "", width: int = WIDTH) -> list[str]:
    """Return ``text`` in lines; further ones at ``indent``, or below the first word of an item of a list.

    Words are not broken, because people copy flags and paths.
    """
    hanging = indent or " " * len(MARK.match(text)[0])  # type: ignore[index]
    return textwrap.wrap(text, width, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False)
