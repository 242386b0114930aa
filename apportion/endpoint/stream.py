"""Read the body of a reply as it arrives: JSON, or the chunks of a stream, which are put together as they come.

A stream is known by its first bytes, whatever its declared type is, because some servers and gateways send nothing
else. It is read as server-sent events (WHATWG HTML, section 9.2), whose data are chunks of chat or plain completions,
and ``[DONE]`` at the end.

Texts of chunks are joined. Tool calls are joined by their id or index: only their arguments come in pieces. Other lists
are joined, and of other values the last one that is not null stays.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from apportion.endpoint.completion import BadReply
from apportion.endpoint.reply import error_text
from apportion.untrusted import check_depth

WHOLE = ("role", "type", "id", "name")
"""Fields whose text comes in one piece, even if a server repeats it in each chunk."""

_BOM = b"\xef\xbb\xbf"
_EVENT = re.compile(rb"(?:\xef\xbb\xbf)?(?:data|event|id|retry)?:")
_LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")


class Body:
    """The body of a reply so far; bytes alone unless ``streams``. What is neither JSON nor a stream raises BadReply.

    >>> body = Body()
    >>> body.add(b'data: {"choices": [{"text": "1"}]}\\n\\nda'), body.add(b"ta: [DONE]\\n")
    (False, True)
    >>> body.reply()["choices"]
    [{'index': 0, 'text': '1'}]
    """

    def __init__(self, streams: bool = True) -> None:
        self.raw = bytearray()
        self._streams = streams
        self._stream: Assembly | None = None

    def add(self, piece: bytes) -> bool:
        """Add the next bytes. Return whether a stream has said that nothing else comes."""
        if self._stream is None:
            self.raw += piece if self.raw else piece.lstrip()
            if not (self._streams and _EVENT.match(self.raw)):  # JSON never starts like an event
                return False
            self._stream, piece = Assembly(), bytes(self.raw.removeprefix(_BOM))
            self.raw.clear()
        return self._stream.feed(piece)

    @property
    def complete(self) -> bool:
        """Whether a stream has ended every choice that it began. Its usage and other choices may still come."""
        return self._stream is not None and self._stream.complete

    def reply(self) -> Any:
        """Return what a whole body says."""
        return _parsed(self.raw, "a reply") if self._stream is None else self._stream.reply()


class Assembly:
    """The reply that the chunks so far make: its choices, its usage, and its other fields.

    >>> made = Assembly()
    >>> for delta in ({"role": "assistant", "content": ""}, {"content": "It is "}, {"content": "4."}):
    ...     made.add({"id": "a", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    >>> made.add({"id": "a", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    >>> made.reply()["choices"]
    [{'index': 0, 'message': {'role': 'assistant', 'content': 'It is 4.'}, 'finish_reason': 'stop'}]
    """

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._rest = bytearray()
        self._kind = b""
        self._data: list[bytes] = []
        self._done = False

    def feed(self, piece: bytes) -> bool:
        """Add the events in the next bytes. Return whether the last event has come. Raises BadReply."""
        if self._rest.endswith(b"\r"):  # it and the next byte may be one end of a line
            piece = bytes([self._rest.pop()]) + piece
        first, *lines = _LINE_END.split(piece)
        self._rest += first
        for line in lines:
            self._add_line(bytes(self._rest))
            self._rest = bytearray(line)
        return self._done

    def add(self, chunk: Mapping[str, Any]) -> None:
        """Add a chunk. Raises BadReply for one whose choices are not objects with a delta."""
        for name, value in chunk.items():
            if name != "choices" and (value is not None or name not in self._fields):
                self._fields[name] = value
        choices = chunk.get("choices") or []
        if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
            raise BadReply("a chunk whose choices are not objects")
        for choice in choices:
            self._add_choice(choice)

    @property
    def complete(self) -> bool:
        """Whether there are choices, and each has its finish reason."""
        return bool(self._choices) and all(each.get("finish_reason") for each in self._choices.values())

    def reply(self) -> dict[str, Any]:
        """Return the whole reply, as the server would have sent it without a stream.

        Raises BadReply for a stream that ended without ``[DONE]`` before every choice has its finish reason.
        """
        self._add_line(bytes(self._rest).removesuffix(b"\r"))
        self._add_line(b"")  # an event that the end cuts off counts, as in most clients
        if not (self._done or self.complete):
            raise BadReply("a stream that was cut off before its end")
        choices = [_whole(self._choices[index]) for index in sorted(self._choices)]
        return {**self._fields, "object": "chat.completion", "choices": choices}

    def _add_line(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        ends = name == b"data" and value.strip() == b"[DONE]"
        if self._done:
            return
        if ends or not line:
            self._add_event(b"\n".join(self._data).decode(errors="replace"))
            self._done, self._kind = ends, b""
            self._data.clear()
        elif name == b"data":
            self._data.append(value.removeprefix(b" "))
        elif name == b"event":
            self._kind = value.strip()

    def _add_event(self, data: str) -> None:
        if not data:
            return
        chunk = _parsed(data, "a stream with an event")
        if not isinstance(chunk, dict):
            raise BadReply("a stream with an event that is not a chunk")
        if chunk.get("error") or self._kind == b"error":
            raise BadReply(f"an error in a stream: {error_text(chunk.get('error') or chunk) or 'no reason given'}")
        self.add(chunk)

    def _add_choice(self, given: Mapping[str, Any]) -> None:
        index, delta = given.get("index") or 0, given.get("delta", given.get("message"))
        if not isinstance(index, int) or not isinstance(delta, dict | None):
            raise BadReply("a chunk whose choices are not objects with an index and a delta")
        choice = self._choices.setdefault(index, {"index": index})
        if delta is not None:
            _join(choice.setdefault("message", {"role": "assistant", "content": None}), delta)
        for name, value in given.items():
            if name in ("logprobs", "text"):
                _join(choice, {name: value})
            elif name not in ("delta", "message", "index") and (value not in (None, "") or name not in choice):
                choice[name] = value


class _Text(list[str]):
    """A text in the pieces in which it came, because to join it with each chunk takes quadratic time."""


def _parsed(text: str | bytes | bytearray, what: str) -> Any:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise BadReply(f"{what} that is not JSON") from None
    try:
        check_depth(found)
    except ValueError as error:
        raise BadReply(f"{what} with {error}") from None
    return found


def _whole(choice: dict[str, Any]) -> Any:
    """Return a choice with whole texts, and with its tool calls in the order of their index, which they lose."""
    whole = _plain(choice)
    message = whole.get("message", {})
    if isinstance(calls := message.get("tool_calls"), list):
        ordered = sorted(calls, key=lambda call: call.get("index") or 0)
        message["tool_calls"] = [{name: call[name] for name in call if name != "index"} for call in ordered]
    return whole


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
        if name == "tool_calls" and value is not None:
            whole[name] = _join_calls(before or [], value)
        elif before is None or (name in WHOLE and value):
            whole[name] = value
        elif isinstance(before, str | list) and isinstance(value, str | list):
            whole[name] = _longer(before, value)
        elif isinstance(before, dict) and isinstance(value, dict):
            _join(before, value)
        elif value is not None:
            whole[name] = value


def _longer(before: str | list[Any], value: str | list[Any]) -> list[Any]:
    """Return two texts as one, or a list with the entries of both; a text beside a list is one of its entries."""
    made = _Text([before]) if isinstance(before, str) else before
    if isinstance(made, _Text) and isinstance(value, list):
        made = ["".join(made)]
    made += [value] if isinstance(value, str) else value
    return made


def _join_calls(calls: list[dict[str, Any]], pieces: Any) -> list[dict[str, Any]]:
    """Add pieces of tool calls to ``calls``, which keep their index until all are there.

    Servers count from 1 or from -1, or give all calls the index 0. So an id, or else a name, that is new begins a call.
    """
    for piece in pieces if isinstance(pieces, list) else [pieces]:
        if not isinstance(piece, dict) or not isinstance(piece.get("function") or {}, dict):
            raise BadReply("a chunk whose tool call is not an object")
        index = piece.get("index", len(calls) if piece.get("id") else None)
        if not (index is None or type(index) is int):
            raise BadReply("a chunk whose tool call has no valid index")
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
