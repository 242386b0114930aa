"""Reads lists as GitHub does: what belongs to an item may be indented by the width of its mark.

Python-Markdown asks for four spaces. So lines under ``- `` and ``1. `` are indented further before it reads them.
"""

import re
from typing import Any

ITEM = re.compile(r"(?:[-*+]|\d+[.)]) +")
FENCE = re.compile(r"(`{3,}|~{3,})")
STEP = 4


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return the page with the lines under an item of a list indented by four spaces."""
    lines, width, fence = [], 0, ""
    for line in markdown.splitlines():
        item = None if fence else ITEM.match(line)
        if item:
            width = len(item[0])
        elif line.strip() and not line.startswith(" " * max(width, 1)):
            width = 0
        mark = FENCE.match(line.strip())
        if mark and (not fence or line.strip() == fence):
            fence = "" if fence else mark[0]
        inside = width and not item and line.strip()
        lines.append(" " * (STEP - width) + line if inside else line)
    return "\n".join(lines)
