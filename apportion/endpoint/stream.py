"""Put the chunks of a streamed reply together, as if it had come in one piece.

The client never asks for a stream, but some servers and gateways send nothing else. The body is read as server-sent
events (WHATWG HTML, section 9.2), whose data are chunks of chat or plain completions, and ``[DONE]`` at the end.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from apportion.endpoint.completion import BadReply

_EVENT = re.compile(rb"\s*(?:\xef\xbb\xbf)?(?:data|event|id|retry)?:")
_LINE_END = re.compile(r"\r\n|\r|\n")
FIELDS = ("content", "reasoning_content", "reasoning", "refusal")
"""The fields of a message that come in pieces."""


def is_stream(body: bytes) -> bool:
    """Return whether a body consists of events, whatever its declared type is. JSON never starts like an event.

    >>> is_stream(b"data: {}"), is_stream(b": a comment"), is_stream(b'{"data": 1}')
    (True, True, False)
    """
    return _EVENT.match(body) is not None


def join_stream(body: bytes) -> dict[str, Any]:
    """Return the reply that the chunks in ``body`` add up to, with choices in which a text is a list of its pieces.

    A reply with an ``error`` is returned if a chunk reports one. Raises BadReply for anything that is not chunks, and
    for a stream that ends without ``[DONE]`` before every choice has its finish reason.
    """
    choices: dict[int, dict[str, Any]] = {}
    usage, done = None, False
    for event, data in _events(body.decode("utf-8-sig", errors="replace")):
        if data.strip() == "[DONE]":
            done = True
            break
        chunk = _chunk(data)
        if chunk.get("error") or event == "error":
            return {"error": chunk.get("error") or chunk}
        usage = chunk.get("usage") or usage
        for choice in chunk.get("choices") or ():
            _add(choices, choice)
    if not done and not (choices and all(choice["finish_reason"] for choice in choices.values())):
        raise BadReply("a stream that was cut off before its end")
    return {"choices": list(choices.values()), "usage": usage}


def _events(text: str) -> Iterator[tuple[str, str]]:
    """Yield the type and the data of each event. One that the end of the body cuts off counts, as in most clients."""
    kind, data = "", list[str]()
    for line in [*_LINE_END.split(text), ""]:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            data.append(value)
        elif name == "event":
            kind = value
        elif not line:
            if data:
                yield kind, "\n".join(data)
            kind, data = "", []


def _chunk(data: str) -> dict[str, Any]:
    try:
        chunk = json.loads(data)
    except (ValueError, RecursionError):
        raise BadReply("a stream with an event that is not JSON") from None
    if not isinstance(chunk, dict) or not isinstance(chunk.get("choices"), list | None):
        raise BadReply("a stream with an event that is not a chunk")
    return chunk


def _add(choices: dict[int, dict[str, Any]], given: Any) -> None:
    """Add what one chunk says about a choice."""
    index = given.get("index", 0) if isinstance(given, dict) else None
    if not isinstance(index, int):
        raise BadReply("a stream with a choice that is not an object with an index")
    delta = given.get("delta", given.get("message"))
    choice = choices.setdefault(index, {"index": index, "finish_reason": None})
    choice["finish_reason"] = given.get("finish_reason") or choice["finish_reason"]
    if "text" in given:
        choice.setdefault("text", []).extend(_pieces(given["text"]))
    if isinstance(delta, dict):
        message = choice.setdefault("message", {name: [] for name in FIELDS})
        for name in FIELDS:
            message[name].extend(_pieces(delta.get(name)))


def _pieces(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]
