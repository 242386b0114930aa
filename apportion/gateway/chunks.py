"""A choice from the chunks of a stream, and the chunks of a stream from a choice.

Texts of chunks are joined. Tool calls are joined by their id or index: only their arguments come in pieces. Other lists
are joined, and of other values the last one that is not null stays.
"""

from __future__ import annotations

import json
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
        self._choice: dict[str, Any] = {"index": 0, "message": {"role": "assistant", "content": None}}

    @property
    def choice(self) -> dict[str, Any]:
        """The choice so far, with its tool calls in the order of their index, which they lose."""
        whole = _plain(self._choice)
        message = whole["message"]
        if isinstance(calls := message.get("tool_calls"), list):
            ordered = sorted(calls, key=lambda call: call.get("index") or 0)
            message["tool_calls"] = [{name: call[name] for name in call if name != "index"} for call in ordered]
        return {**whole, "message": message}

    @property
    def finished(self) -> bool:
        """Whether a chunk held the reason why the choice ended."""
        return self._choice.get("finish_reason") is not None

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
        _join(self._choice["message"], delta)
        for name, value in choice.items():
            if name == "logprobs":
                _join(self._choice, {name: value})
            elif name not in ("delta", "index") and (value is not None or name not in self._choice):
                self._choice[name] = value


class _Text(list[str]):
    """A text in the pieces in which it came, because to join it with each chunk takes quadratic time."""


def _plain(value: Any) -> Any:
    """Return ``value`` with whole texts."""
    if isinstance(value, _Text):
        return "".join(value)
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _join(whole: dict[str, Any], piece: Mapping[str, Any]) -> None:
    """Add the fields of ``piece`` to ``whole``."""
    for name, value in piece.items():
        before = whole.get(name)
        if name == "tool_calls" and isinstance(value, list):
            whole[name] = _join_calls(before or [], value)
        elif before is None or (name in WHOLE and value):
            whole[name] = value
        elif isinstance(before, (str, _Text)) and isinstance(value, str):
            whole[name] = before if isinstance(before, _Text) else _Text([before])
            whole[name].append(value)
        elif isinstance(before, list) and isinstance(value, list):
            before.extend(value)
        elif isinstance(before, dict) and isinstance(value, dict):
            _join(before, value)
        elif value is not None:
            whole[name] = value


def _join_calls(calls: list[dict[str, Any]], pieces: list[Any]) -> list[dict[str, Any]]:
    """Add pieces of tool calls to ``calls``, which keep their index until all are there.

    Servers count from 1 or from -1, or give all calls the index 0. So an id, or else a name, that is new begins a call.
    """
    for piece in pieces:
        if not isinstance(piece, dict) or not isinstance(piece.get("function") or {}, dict):
            raise ValueError("a chunk whose tool call is not an object")
        index = piece.get("index", len(calls) if piece.get("id") else None)
        if not (index is None or type(index) is int):
            raise ValueError("a chunk whose tool call has no valid index")
        same = [call for call in calls if index is None or call.get("index") == index]
        if not same or _begins(piece, same[-1]):
            calls.append({"index": index})
            same = calls
        _join(same[-1], {name: value for name, value in piece.items() if name != "index"})
    return calls


def _begins(piece: Mapping[str, Any], call: Mapping[str, Any]) -> bool:
    """Return whether ``piece`` begins another call than ``call``, which has the same index."""
    if piece.get("id") and call.get("id"):
        return bool(piece["id"] != call["id"])
    new, old = piece.get("function") or {}, call.get("function") or {}
    if not new.get("name") or not old.get("name"):
        return False
    return bool(new["name"] != old["name"]) or (_is_whole(old.get("arguments")) and bool(new.get("arguments")))


def _is_whole(arguments: Any) -> bool:
    try:
        return isinstance(json.loads(_plain(arguments)), dict)
    except (TypeError, ValueError, RecursionError):
        return False


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
