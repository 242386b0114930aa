"""Completions, and how a server's reply, a body of JSON, becomes them.

Chat and plain completions are read alike. What a reasoning model thought (``reasoning_content``) is no part of the
text. A choice without content, as after a content filter, is a completion with an empty text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any


@dataclass(frozen=True)
class Completion:
    """One sample: its ``text``, or, where it failed for good, ``error`` in one sentence and no text.

    A server counts tokens once a reply. Here each completion has its share, so that sums over completions are right:
    ``tokens`` in proportion to the length, ``prompt_tokens`` all with the first completion and 0 with the others. None
    where the server does not count.
    """

    text: str | None
    tokens: int | None
    prompt_tokens: int | None
    finish_reason: str | None
    error: str | None = None

    @classmethod
    def failed(cls, error: str) -> Completion:
        """A sample that failed for good."""
        return cls(None, None, None, None, error)


@dataclass
class Usage:
    """What has been spent so far: HTTP requests, how many of these were retries, how many were cancelled; tokens."""

    requests: int = 0
    retries: int = 0
    cancelled: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def add(self, completions: Sequence[Completion]) -> None:
        """Counts the tokens of ``completions``."""
        self.prompt_tokens += sum(completion.prompt_tokens or 0 for completion in completions)
        self.completion_tokens += sum(completion.tokens or 0 for completion in completions)


class EndpointError(ValueError):
    """What no retry mends, such as a wrong key, model or URL: what, and what to do, in one line. It ends the run."""


class Failure(Exception):
    """A request that failed for good, in one sentence; another may be answered."""


class Refusal(Failure):
    """A request that was refused for what it holds: for its n, its prompt or its settings."""


class BadReply(Exception):
    """A reply that holds no completions; the same request may be answered when it is sent again."""


def read_reply(body: bytes) -> list[Completion]:
    """The completions in the body of a reply, in the order of their index; at least one. Raises BadReply.

    >>> read_reply(b'{"choices": [{"text": "1/2", "finish_reason": "stop"}], "usage": {"completion_tokens": 3}}')
    [Completion(text='1/2', tokens=3, prompt_tokens=None, finish_reason='stop', error=None)]
    """
    try:
        reply = json.loads(body)
    except (ValueError, RecursionError):
        raise BadReply("a reply that is not JSON") from None
    choices = reply.get("choices") if isinstance(reply, dict) else None
    if not isinstance(choices, list) or not choices:
        said = error_text(reply.get("error")) if isinstance(reply, dict) else ""
        raise BadReply("a reply without choices" + (f": {said}" if said else ""))
    if not all(isinstance(choice, dict) for choice in choices):
        raise BadReply("a reply whose choices are no objects")
    choices.sort(key=lambda choice: choice["index"] if isinstance(choice.get("index"), int) else 0)
    texts = [_text(choice) for choice in choices]
    lengths = [len(text) + len(_reasoning(choice)) + 1 for text, choice in zip(texts, choices, strict=True)]
    tokens = _shared(_count(reply, "completion_tokens"), lengths)
    prompt = _count(reply, "prompt_tokens")
    prompts = [prompt, *[prompt if prompt is None else 0] * (len(choices) - 1)]
    reasons = [_string(choice.get("finish_reason")) for choice in choices]
    return [Completion(*fields) for fields in zip(texts, tokens, prompts, reasons, strict=True)]


def error_text(error: Any) -> str:
    """What an error says, of the several forms in use: text, or an object with its message or detail."""
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or error.get("error") or error
    text = error if isinstance(error, str) else json.dumps(error) if error else ""
    return " ".join(text.split())


def encodable(text: str) -> str:
    """``text`` with "?" for halves of surrogate pairs, which JSON can carry and no file or request can."""
    return text.encode(errors="replace").decode()


def _text(choice: dict[str, Any]) -> str:
    message = choice.get("message")
    if not isinstance(message, dict) and "text" not in choice:
        raise BadReply("a choice without message or text")
    text = message.get("content") if isinstance(message, dict) else choice["text"]
    if not isinstance(text, str | None):
        raise BadReply("a choice whose content is no text")
    return encodable(text or "")


def _reasoning(choice: dict[str, Any]) -> str:
    message = choice.get("message")
    return (_string(message.get("reasoning_content")) or "") if isinstance(message, dict) else ""


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _count(reply: dict[str, Any], name: str) -> int | None:
    usage = reply.get("usage")
    count = usage.get(name) if isinstance(usage, dict) else None
    return count if isinstance(count, int) and count >= 0 else None


def _shared(total: int | None, weights: Sequence[int]) -> Sequence[int | None]:
    """``total`` in whole shares as ``weights`` [n]; they add up to it."""
    if total is None:
        return [None] * len(weights)
    ends = [total * until // sum(weights) for until in accumulate(weights)]
    return [end - start for start, end in pairwise([0, *ends])]
