"""Reads lists as GitHub does: what belongs to an item may be indented by the width of its mark.

Python-Markdown asks for four spaces, and for an empty line before an item that follows a paragraph of the item before.
So lines under ``- `` and ``1. `` are indented further, and such an empty line is added, before it reads them.
"""

import re
from typing import Any

ITEM = re.compile(r"(?:[-*+]|\d+[.)]) +")
FENCE = re.compile(r"(`{3,}|~{3,})")
STEP = 4


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return the page with its lists as Python-Markdown reads them."""
    lines: list[str] = []
    width, fence, paragraphs = 0, "", False
    for line in markdown.splitlines():
        item = None if fence else ITEM.match(line)
        before = lines[-1].strip() if lines else ""
        if item:
            lines += [""] if width and paragraphs and before else []
            paragraphs = paragraphs and bool(width)
            width = len(item[0])
        elif line.strip() and not line.startswith(" " * max(width, 1)):
            width = 0
        elif line.strip() and width and not before:
            paragraphs = True
        mark = FENCE.match(line.strip())
        if mark and (not fence or line.strip() == fence):
            fence = "" if fence else mark[0]
        inside = width and not item and line.strip()
        lines.append(" " * (STEP - width) + line if inside else line)
    return "\n".join(lines)
