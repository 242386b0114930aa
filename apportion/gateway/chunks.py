"""A choice from the chunks of a stream, and the chunks of a stream from a choice.

Texts of chunks are joined. Tool calls are joined by their index: only their arguments come in pieces. Other lists are
joined, and of other values the last one that is not null stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

PIECE = 4096
"""Most characters of a text in one chunk, because some clients refuse long lines."""

WHOLE = ("role", "type", "id", "name")
"""Fields whose text comes in one piece, even if a server repeats it in each chunk."""


class Assembly:
    """The reply that the chunks so far make: its first choice, its usage, and its other fields.

    >>> made = Assembly()
    >>> for delta in ({"role": "assistant", "content": ""}, {"content": "It is "}, {"content": "4."}):
    ...     made.add({"id": "a", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    >>> made.add({"id": "a", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    >>> made.choice
    {'index': 0, 'message': {'role': 'assistant', 'content': 'It is 4.'}, 'finish_reason': 'stop'}
    """

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self.choice: dict[str, Any] = {"index": 0, "message": {"role": "assistant", "content": None}}

    @property
    def finished(self) -> bool:
        """Whether a chunk held the reason why the choice ended."""
        return self.choice.get("finish_reason") is not None

    def add(self, chunk: Mapping[str, Any]) -> None:
        """Add a chunk. Raise ValueError for one whose choices are not objects with a delta."""
        for name, value in chunk.items():
            if name != "choices" and (value is not None or name not in self.fields):
                self.fields[name] = value
        choices = chunk.get("choices") or []
        if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
            raise ValueError("a chunk whose choices are not objects")
        for choice in choices:
            if choice.get("index") in (0, None):
                self._add_choice(choice)

    def reply(self) -> dict[str, Any]:
        """Return the whole reply, as the server would have sent it without a stream."""
        return {**self.fields, "object": "chat.completion", "choices": [self.choice]}

    def _add_choice(self, choice: Mapping[str, Any]) -> None:
        delta = choice.get("delta") or {}
        if not isinstance(delta, dict):
            raise ValueError("a chunk whose delta is not an object")
        _join(self.choice["message"], delta)
        for name, value in choice.items():
            if name == "logprobs":
                _join(self.choice, {name: value})
            elif name not in ("delta", "index") and (value is not None or name not in self.choice):
                self.choice[name] = value


def _join(whole: dict[str, Any], piece: Mapping[str, Any]) -> None:
    """Add the fields of ``piece`` to ``whole``."""
    for name, value in piece.items():
        before = whole.get(name)
        if name == "tool_calls" and isinstance(value, list):
            whole[name] = _join_calls(before or [], value)
        elif before is None or (name in WHOLE and value):
            whole[name] = value
        elif isinstance(before, str) and isinstance(value, str):
            whole[name] = before + value
        elif isinstance(before, list) and isinstance(value, list):
            before.extend(value)
        elif isinstance(before, dict) and isinstance(value, dict):
            _join(before, value)
        elif value is not None:
            whole[name] = value


def _join_calls(calls: list[dict[str, Any]], pieces: list[Any]) -> list[dict[str, Any]]:
    """Add pieces of tool calls to ``calls``, each to the one with its index."""
    for piece in pieces:
        if not isinstance(piece, dict):
            raise ValueError("a chunk whose tool call is not an object")
        place = piece.get("index", len(calls))
        if type(place) is not int or not 0 <= place <= len(calls):
            raise ValueError("a chunk whose tool call has no valid index")
        if place == len(calls):
            calls.append({})
        _join(calls[place], {name: value for name, value in piece.items() if name != "index"})
    return calls


def chunks_of(choice: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the choices of the chunks that make ``choice``: its role, its message in pieces, and why it ended.

    >>> for chunk in chunks_of({"index": 0, "message": {"role": "assistant", "content": "4"}, "finish_reason": "stop"}):
    ...     print(chunk["delta"], chunk["finish_reason"])
    {'role': 'assistant', 'content': ''} None
    {'content': '4'} None
    {} stop
    """
    message, index = choice["message"], choice["index"]
    rest = {name: value for name, value in choice.items() if name not in ("message", "index", "finish_reason")}

    def chunk(delta: dict[str, Any], **fields: Any) -> dict[str, Any]:
        return {"index": index, "delta": delta, "finish_reason": None, **fields}

    yield chunk({"role": message.get("role", "assistant"), "content": "" if message.get("content") else None})
    for name, value in message.items():
        if name == "role" or value is None:
            continue
        if name == "tool_calls":
            value = [{"index": place, **call} for place, call in enumerate(value)]
        pieces = _pieces(value) if isinstance(value, str) else [value]
        yield from (chunk({name: piece}) for piece in pieces)
    yield chunk({}, **rest) | {"finish_reason": choice.get("finish_reason")}


def _pieces(text: str) -> Iterator[str]:
    return (text[start : start + PIECE] for start in range(0, len(text), PIECE))
