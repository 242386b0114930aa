"""Completions, usage and errors of an endpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal


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
    """The error of a request that failed after its retries. Other requests may be answered.

    ``of_sample`` says that this very sample may be at fault, so that one with another seed may be answered.
    """

    of_sample = False


class Refusal(Failure):
    """The error of a request whose content the server refused: its n, its prompt or its settings."""


@dataclass(eq=False)
class Fault(Exception):
    """What a server did in place of a completion, in words that follow its name, such as "answered 500: no memory".

    Attributes:
        said: the words.
        kind: "absent" if there was no connection, "late" if the reply was not whole in time, "astray" if no API sent
            the answer, "long" if it was cut off; "failed" otherwise.
        again: whether the same request may be answered later.
        busy: whether the server is waited for.
        wait: the seconds that the server asks to wait for.
        status: the status of an answer with an error.
        sent: the error in that answer, as the server sent it.
    """

    said: str
    kind: Literal["absent", "late", "astray", "long", "failed"] = "failed"
    again: bool = True
    busy: bool = False
    wait: float | None = None
    status: int | None = None
    sent: Any = None

    def __str__(self) -> str:
        return self.said


class BadReply(Fault):
    """The fault of a reply without completions.

    ``what`` describes the reply. The same request may be answered later.
    """

    def __init__(self, what: str) -> None:
        super().__init__(f"sent {what}")
