"""Marks the cells of tables, so that a long text gets a wide column and a number stays on one line.

A table that is then wider than the screen scrolls inside its own frame.
"""

import html
import re
from typing import Any

CELL = re.compile(r"<(?P<kind>t[dh])(?P<rest>[^>]*)>(?P<content>.*?)</(?P=kind)>", re.DOTALL)
NUMBER = re.compile(r"[-+±<>≤≥~x%×.,\d\s()\[\]−–]*(?: to [-+.,\d\s()\[\]%]+)?")
LONG, LONGEST = 60, 160
"""Characters from which on a cell is long, and very long."""


def on_page_content(content: str, **_: Any) -> str:
    """Return the page with its cells marked."""
    return CELL.sub(marked, content)


def marked(cell: re.Match[str]) -> str:
    """Return a cell with its mark."""
    text = html.unescape(re.sub(r"<[^>]*>", "", cell["content"])).strip()
    mark = "longest" if len(text) > LONGEST else "long" if len(text) > LONG else ""
    if text and not mark and NUMBER.fullmatch(text):
        mark = "number"
    if not mark or "class=" in cell["rest"]:
        return cell[0]
    return f'<{cell["kind"]} class="{mark}"{cell["rest"]}>{cell["content"]}</{cell["kind"]}>'
