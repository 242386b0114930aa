"""Makes Markdown of docstrings: examples become code blocks, and shapes such as ``[P][k]`` stay text."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^( *)>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)
DIRECTIVE = re.compile(r" *# doctest: .*")
SHAPES = re.compile(r"(?<=\])\[(?=\w)")


class DocstringMarkdown(griffe.Extension):
    """Rewrites each docstring when griffe has read its object."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of ``obj``."""
        if obj.docstring:
            obj.docstring.value = to_markdown(obj.docstring.value)


def to_markdown(text: str) -> str:
    """Return the docstring ``text`` as Markdown, without directives to doctest.

    An example is a run of lines from ``>>>`` to an empty line. Examples that only an empty line parts share a block.
    """
    parts, end = [], 0
    for example in EXAMPLE.finditer(text):
        indent = example[1]
        parts.append(SHAPES.sub(r"\\[", text[end : example.start()]))
        parts.append(f"{indent}```pycon\n{DIRECTIVE.sub('', example[0])}\n{indent}```")
        end = example.end()
    fenced = "".join([*parts, SHAPES.sub(r"\\[", text[end:])])
    return re.sub(r"^ *```\n\n *```pycon\n", "\n", fenced, flags=re.MULTILINE)
