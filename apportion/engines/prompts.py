"""Prompts from rows of a data set, with ids that are the same in every epoch and run, and texts of completions."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from apportion.allocators import Allocator
from apportion.baselines import Baseline
from apportion.selection import BeliefSelector, Selector
from apportion.types import Prompt
from apportion.untrusted import shown


def prompt_of(row: Mapping[str, Any], id_column: str | None = None, rate_column: str | None = None) -> Prompt:
    """Return the prompt of ``row``, whose ``prompt`` is a text or a list of messages.

    Its id is the value of ``id_column``, or else a hash of the text. If the prompt is empty, for example because an
    environment provides it, the id is a hash of the whole row. Its known success rate is the value of ``rate_column``,
    which may be empty. Raises ValueError for a rate outside [0, 1], and for an id that is None or NaN.

    >>> prompt_of({"prompt": [{"role": "user", "content": "6 x 7?"}], "answer": "42"}).text
    '6 x 7?'
    >>> prompt_of({"prompt": "6 x 7?", "number": 3}, id_column="number").id
    '3'
    >>> prompt_of({"prompt": "6 x 7?", "pass_rate": 0.75}, rate_column="pass_rate").rate
    0.75
    """
    text = text_of(row.get("prompt", "")) or json.dumps(dict(row), sort_keys=True, default=str)
    rate = None if rate_column is None else row[rate_column]
    id = "" if id_column is None else str(row[id_column])
    if id in ("None", "nan"):
        raise ValueError(
            f"the column of ids must have a value in every row, got {id} in {id_column!r} of {shown(text)}; rows "
            "without one would count as one prompt, so leave the column out to use hashes"
        )
    return Prompt(text, id=id, rate=rate)


def distinct_prompts(rows: Iterable[Any], columns: Callable[[Any], Mapping[str, Any]]) -> list[Prompt]:
    """Return a prompt for each of ``rows`` that differs from those before it. Its ``data`` is the row.

    ``columns`` returns what tells rows apart, ``prompt`` among it. Rows with equal prompts may be different questions,
    for example about different images. From the second on their ids are numbered.

    >>> rows = [{"prompt": "Which?", "image": 1}, {"prompt": "Which?", "image": 2}, {"prompt": "Which?", "image": 1}]
    >>> [(prompt.text, prompt.data["image"]) for prompt in distinct_prompts(rows, dict)]
    [('Which?', 1), ('Which?', 2)]
    """
    found, seen = dict[str, Prompt](), set[bytes]()
    for row in rows:
        own = columns(row)
        if (content := digest(own)) not in seen:
            seen.add(content)
            prompt = prompt_of(own)
            id = f"{prompt.id}:{len(seen)}" if prompt.id in found else prompt.id
            found[id] = replace(prompt, data=row, id=id)
    return list(found.values())


def digest(row: Mapping[str, Any]) -> bytes:
    """Return a digest of 16 bytes of ``row``. Arrays and tensors count by their values, other objects by their text."""
    return blake2b(json.dumps(dict(row), sort_keys=True, default=_plain).encode(), digest_size=16).digest()


def reads_rates(allocator: Allocator, baseline: Baseline | None, selection: Selector | None) -> bool:
    """Return whether the predictor or the baseline uses the known success rates of prompts.

    A selection without a predictor has the allocator's, or else one that takes them.
    """
    own = [getattr(part, "predictor", None) for part in (allocator, baseline, selection)]
    by_default = isinstance(selection, BeliefSelector) and own[0] is None and selection.predictor is None
    return by_default or any(reader is not None and reader.reads_rates for reader in (*own, baseline))


def text_of(content: Any) -> str:
    """Return the text of a prompt or completion: a text unchanged, messages as one paragraph each.

    >>> text_of([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "6 x 7?"}])
    'Be brief.\\n\\n6 x 7?'
    """
    if isinstance(content, str):
        return content
    return "\n\n".join(part for message in content if (part := _content_text(message.get("content"))))


def last_text(completion: Any) -> str:
    """Return the last text of a completion: a text unchanged, or the content of its last message.

    >>> last_text([{"role": "assistant", "content": "Let me see."}, {"role": "assistant", "content": "42"}])
    '42'
    """
    if isinstance(completion, str):
        return completion
    return _content_text(completion[-1].get("content")) if completion else ""


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _content_text(content: Any) -> str:
    """Return the text of a message's content, which may be a list of parts."""
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content)
    return content or ""
