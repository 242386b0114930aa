"""What a row of the data set asks, as a ``Prompt``: its text, and an id that is the same in every epoch and run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from apportion.types import Prompt


def prompt_of(row: Mapping[str, Any], id_column: str | None = None) -> Prompt:
    """The prompt of ``row``, whose ``prompt`` is a text or a list of messages.

    Its id is that of ``id_column``, or a hash of the text. A row whose prompt is empty, as where an environment asks,
    is told from others by all that it holds.

    >>> prompt_of({"prompt": [{"role": "user", "content": "6 x 7?"}], "answer": "42"}).text
    '6 x 7?'
    >>> prompt_of({"prompt": "6 x 7?", "number": 3}, id_column="number").id
    '3'
    """
    text = text_of(row.get("prompt", "")) or json.dumps(dict(row), sort_keys=True, default=str)
    return Prompt(text, id="" if id_column is None else str(row[id_column]))


def text_of(content: Any) -> str:
    """What a prompt or completion says: a text as it is, of messages the contents, one paragraph each.

    >>> text_of([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "6 x 7?"}])
    'Be brief.\\n\\n6 x 7?'
    """
    if isinstance(content, str):
        return content
    return "\n\n".join(part for message in content if (part := _said(message.get("content"))))


def last_text(completion: Any) -> str:
    """What a completion says at its end: a text as it is, of messages the last one, tools' replies before it left out.

    >>> last_text([{"role": "assistant", "content": "Let me see."}, {"role": "assistant", "content": "42"}])
    '42'
    """
    if isinstance(completion, str):
        return completion
    return _said(completion[-1].get("content")) if completion else ""


def _said(content: Any) -> str:
    """The text of a message's content, which may be in parts."""
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content)
    return content or ""
