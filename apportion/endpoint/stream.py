"""Read the body of a reply: JSON, or a stream of chunks, which are put together.

A stream is known by its first bytes, whatever its declared type is, because some servers and gateways send nothing
else. It is read as server-sent events (WHATWG HTML, section 9.2), whose data are chunks of chat or plain completions,
and ``[DONE]`` at the end.

Texts of chunks are joined. Tool calls are joined by their id or index: only their arguments come in pieces. Other lists
are joined, and of other values the last one that is not null stays.

A line that is no field of an event, such as ``error: {...}``, breaks a stream whose choices have not ended before it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import chain, groupby
from typing import Any

from apportion.endpoint.completion import BadReply, Fault
from apportion.endpoint.reply import fault_of
from apportion.untrusted import check_depth

WHOLE = ("role", "type", "id", "name")
"""Fields whose text comes in one piece, even if a server repeats it in each chunk."""

TAIL = 4096
"""How many bytes at the end of a stream hold the finish reason of its last choice, if only the usage follows."""

FIELDS = ("", "data", "event", "id", "retry")
"""Names of the fields of a server-sent event. A comment has an empty name."""

_EVENT = re.compile(rb"\s*+(?:\xef\xbb\xbf)?(?:data|event|id|retry|error)?:")  # JSON never starts like an event
_LINE_END = re.compile(r"\r\n|\n|\r")
_REASON = re.compile(rb'"finish_reason"\s*:\s*"[^"]')


def read_body(raw: bytes | bytearray) -> Any:
    """Return what a whole body says. A stream gives what the server would have sent without one. Raises Fault.

    >>> read_body(b'data: {"choices": [{"text": "1"}]}\\n\\ndata: [DONE]\\n')["choices"]
    [{'index': 0, 'text': '1'}]
    """
    if not _EVENT.match(raw):
        return _parsed(raw, "a reply")
    reply, whole = _read_stream(raw)
    if not whole:
        raise BadReply("a stream that was cut off before its end")
    return reply


def has_ended(raw: bytes | bytearray) -> bool:
    """Return whether ``raw`` is a stream that has ended all of its choices. Its usage may still come."""
    tail = raw[-TAIL:]
    if not ((b"[DONE]" in tail or _REASON.search(tail)) and _EVENT.match(raw)):
        return False
    try:
        return _read_stream(raw)[1]
    except Fault:
        return False  # the last event is not whole


def join_chunks(chunks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the reply that ``chunks`` add up to. Raises BadReply for one whose choices are not objects with a delta.

    >>> deltas = {"role": "assistant", "content": ""}, {"content": "It is "}, {"content": "4."}
    >>> join_chunks([{"id": "a", "choices": [{"index": 0, "delta": delta}]} for delta in deltas])["choices"]
    [{'index': 0, 'message': {'role': 'assistant', 'content': 'It is 4.'}}]
    """
    fields: dict[str, Any] = {}
    pieces: dict[int, list[Mapping[str, Any]]] = {}
    for chunk in chunks:
        fields |= {name: value for name, value in chunk.items() if value is not None or name not in fields}
        choices = chunk.get("choices") or []
        if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
            raise BadReply("a chunk whose choices are not objects")
        for choice in choices:
            index, delta = choice.get("index") or 0, choice.get("delta", choice.get("message"))
            if not isinstance(index, int) or not isinstance(delta, dict | None):
                raise BadReply("a chunk whose choices are not objects with an index and a delta")
            pieces.setdefault(index, []).append(choice)
    joined = [_join_choice(index, pieces[index]) for index in sorted(pieces)]
    return {**fields, "object": "chat.completion", "choices": joined}


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


def _read_stream(raw: bytes | bytearray) -> tuple[dict[str, Any], bool]:
    """Return the reply so far, and whether it is whole: after ``[DONE]``, or if each choice has its finish reason."""
    chunks: list[Mapping[str, Any]] = []
    kind, data, done, stray = "", list[str](), False, ""
    # many servers leave out the last empty line
    for line in [*_LINE_END.split(raw.decode("utf-8-sig", errors="replace")), ""]:
        name, _, value = line.partition(":")
        done = name == "data" and value.strip() == "[DONE]"
        if done or not line:
            if text := "\n".join(data):
                chunks.append(_chunk(text, kind))
            kind, data = "", []
        elif name == "data":
            data.append(value.removeprefix(" "))
        elif name == "event":
            kind = value.strip()
        elif name not in FIELDS:
            stray = stray or line
        if done:
            break
    reply = join_chunks(chunks)
    choices = reply["choices"]
    ended = bool(choices and all(each.get("finish_reason") for each in choices))
    if stray and not ended:
        raise fault_of("an error in a stream", _stray_error(stray))
    return reply, done or ended


def _stray_error(line: str) -> Any:
    """Return the error in a stray line of a stream: its JSON object, or else its text."""
    try:
        found = _parsed(line[line.index("{") :], "a line")
    except (ValueError, BadReply):
        return line
    return found.get("error") or found


def _chunk(text: str, kind: str) -> Mapping[str, Any]:
    chunk = _parsed(text, "a stream with an event")
    if not isinstance(chunk, dict):
        raise BadReply("a stream with an event that is not a chunk")
    if chunk.get("error") or kind == "error" or ("choices" not in chunk and chunk.keys() & {"message", "detail"}):
        raise fault_of("an error in a stream", chunk.get("error") or chunk)
    return chunk


def _join_choice(index: int, pieces: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {"index": index}
    deltas = [delta for piece in pieces if (delta := piece.get("delta", piece.get("message"))) is not None]
    if deltas:
        made["message"] = {"role": "assistant", "content": None} | _join(deltas)
    for name in dict.fromkeys(chain.from_iterable(pieces)):
        values = [piece[name] for piece in pieces if name in piece]
        if name in ("logprobs", "text"):
            made[name] = _join_values(name, values)
        elif name not in ("delta", "message", "index"):
            made[name] = next((value for value in reversed(values) if value not in (None, "")), values[0])
    return made


def _join(pieces: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one object with the fields of all ``pieces``."""
    names = dict.fromkeys(chain.from_iterable(pieces))
    return {name: _join_values(name, [piece[name] for piece in pieces if name in piece]) for name in names}


def _join_values(name: str, given: Sequence[Any]) -> Any:
    """Return the pieces of one field joined into one value. A text beside lists becomes an entry of the list."""
    values = [value for value in given if value is not None]
    if name == "tool_calls" and values:
        return _join_calls(values)
    if all(isinstance(value, dict) for value in values):
        return _join(values) if values else None
    if name in WHOLE or not all(isinstance(value, str | list) for value in values):
        return next((value for value in reversed(values) if value), values[-1])
    grouped = [(kind, list(group)) for kind, group in groupby(values, type)]
    made = [["".join(group)] if kind is str else chain.from_iterable(group) for kind, group in grouped]
    entries = list(chain.from_iterable(made))
    return entries if any(kind is list for kind, _ in grouped) else entries[0]


def _join_calls(values: Sequence[Any]) -> list[dict[str, Any]]:
    """Return tool calls in the order of their index, which they lose.

    Servers count from 1 or from -1, or give all calls the index 0. So an id, or else a name, that is new begins a call.
    """
    calls: list[tuple[int | None, list[Mapping[str, Any]]]] = []
    for piece in chain.from_iterable(value if isinstance(value, list) else [value] for value in values):
        if not isinstance(piece, dict) or not isinstance(piece.get("function") or {}, dict):
            raise BadReply("a chunk whose tool call is not an object")
        index = piece.get("index", len(calls) if piece.get("id") else None)
        if not (index is None or type(index) is int):
            raise BadReply("a chunk whose tool call has no valid index")
        same = [call for call in calls if index is None or call[0] == index]
        if not same or _begins(piece, same[-1][1]):
            same = [(index, [])]
            calls += same
        same[-1][1].append(piece)
    ordered = sorted(calls, key=lambda call: call[0] or 0)
    return [{name: value for name, value in _join(call).items() if name != "index"} for _, call in ordered]


def _begins(piece: Mapping[str, Any], call: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether ``piece`` begins a new tool call, though its index is that of ``call``."""
    if piece.get("id") and (id := _latest(call, "id")):
        return bool(piece["id"] != id)
    new, old = piece.get("function") or {}, [each.get("function") or {} for each in call if each.get("function")]
    if not new.get("name") or not (name := _latest(old, "name")):
        return False
    return bool(new["name"] != name) or (bool(new.get("arguments")) and _is_whole(_join(old).get("arguments")))


def _latest(pieces: Sequence[Mapping[str, Any]], name: str) -> Any:
    return next((piece[name] for piece in reversed(pieces) if piece.get(name)), None)


def _is_whole(arguments: Any) -> bool:
    try:
        return isinstance(json.loads(arguments), dict)
    except (TypeError, ValueError, RecursionError):
        return False
