"""Completions, usage and errors, and the parser of a server's reply.

Chat and plain completions are read alike. A model's reasoning (``reasoning_content``) is not part of the text. A choice
without content, as after a content filter, is a completion with an empty text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from apportion.checks import encodable


@dataclass(frozen=True)
class Completion:
    """One sample: its ``text``, or ``error`` in one sentence if it failed after its retries.

    ``refused`` says that the server refused this prompt, so that no other sample of it can succeed. ``reasoning`` is
    what the model thought if the server sends that apart from the text.

    A server counts tokens once a reply. They are shared out, so that sums over completions are right: ``tokens`` in
    proportion to the length of the text, ``prompt_tokens`` to the first completion only. They are None if the server
    does not count.
    """

    text: str | None
    tokens: int | None
    prompt_tokens: int | None
    finish_reason: str | None
    error: str | None = None
    refused: bool = False
    reasoning: str | None = None

    @classmethod
    def failed(cls, error: str, refused: bool = False) -> Completion:
        """Return a sample that failed after its retries, or whose prompt was ``refused``."""
        return cls(None, None, None, None, error, refused)


@dataclass
class Usage:
    """Counts so far: HTTP requests, those of them that were retries or were cancelled, and tokens."""

    requests: int = 0
    retries: int = 0
    cancelled: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def add(self, completions: Sequence[Completion]) -> None:
        """Add the tokens of ``completions``."""
        self.prompt_tokens += sum(completion.prompt_tokens or 0 for completion in completions)
        self.completion_tokens += sum(completion.tokens or 0 for completion in completions)


class EndpointError(ValueError):
    """An error that no retry can fix, such as a wrong key, model or URL. It ends the run."""


class Failure(Exception):
    """The error of a request that failed after its retries. Other requests may be answered."""


class Refusal(Failure):
    """The error of a request whose content the server refused: its n, its prompt or its settings."""


class BadReply(Exception):
    """The error of a reply without completions. The same request may be answered if it is sent again."""


def read_reply(body: bytes) -> list[Completion]:
    """Return the completions in the body of a reply, at least one, in the order of their index. Raises BadReply.

    >>> half, = read_reply(b'{"choices": [{"text": "1/2"}], "usage": {"completion_tokens": 3}}')
    >>> half.text, half.tokens
    ('1/2', 3)
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
        raise BadReply("a reply whose choices are not objects")
    choices.sort(key=lambda choice: choice["index"] if isinstance(choice.get("index"), int) else 0)
    texts, lengths = zip(*map(_text, choices), strict=True)
    tokens, prompt = _share(_count(reply, "completion_tokens"), lengths), _count(reply, "prompt_tokens")
    prompts = [prompt, *[prompt if prompt is None else 0] * (len(choices) - 1)]
    reasons = [_string(choice.get("finish_reason")) for choice in choices]
    return [Completion(*fields) for fields in zip(texts, tokens, prompts, reasons, strict=True)]


def error_text(error: Any) -> str:
    """Return the message of an error, which may be a text or an object with a message or detail."""
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or error.get("error") or error
    text = error if isinstance(error, str) else json.dumps(error) if error else ""
    return " ".join(text.split())


def _text(choice: dict[str, Any]) -> tuple[str, int]:
    """Return the text of a choice, and the length by which tokens are shared out, which includes the reasoning."""
    message = choice.get("message")
    if not isinstance(message, dict) and "text" not in choice:
        raise BadReply("a choice without message or text")
    text = message.get("content") if isinstance(message, dict) else choice["text"]
    if not isinstance(text, str | None):
        raise BadReply("a choice whose content is not a text")
    reasoning = _string(message.get("reasoning_content")) if isinstance(message, dict) else None
    text = encodable(text or "")
    return text, len(text) + len(reasoning or "") + 1


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _count(reply: dict[str, Any], name: str) -> int | None:
    usage = reply.get("usage")
    count = usage.get(name) if isinstance(usage, dict) else None
    return count if isinstance(count, int) and count >= 0 else None


def _share(total: int | None, weights: Sequence[int]) -> Sequence[int | None]:
    """Divide ``total`` into integers in proportion to ``weights`` [n], with the same sum; None for each if unknown."""
    if total is None:
        return [None] * len(weights)
    ends = [total * until // sum(weights) for until in accumulate(weights)]
    return [end - start for start, end in pairwise([0, *ends])]
