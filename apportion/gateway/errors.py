"""Errors in the form that OpenAI's clients expect, with the status of the reply."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

INVALID, LIMIT, SERVER = "invalid_request_error", "rate_limit_error", "server_error"

LONGEST_WAIT = 86400
"""Most seconds in Retry-After, which takes whole numbers only: upstream may ask for infinity."""


@dataclass(eq=False, repr=False)
class GatewayError(Exception):
    """An error that a client gets as ``status`` and ``{"error": {"message", "type", "param", "code"}}``.

    ``last`` closes the connection, because the rest of the request is not read.
    """

    status: int
    message: str
    kind: str = INVALID
    param: str | None = None
    code: str | None = None
    retry_after: float | None = None
    last: bool = False

    def __str__(self) -> str:
        return self.message

    def body(self) -> dict[str, Any]:
        """Return the JSON object of the reply."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        """Return the headers of the reply, with Retry-After if it is known when to come back."""
        headers = (
            {} if self.retry_after is None else {"retry-after": str(math.ceil(min(self.retry_after, LONGEST_WAIT)))}
        )
        return headers | ({"connection": "close"} if self.last else {})


@dataclass(eq=False, repr=False)
class UpstreamError(GatewayError):
    """An upstream request that gave no completion. ``again`` says whether the same request may succeed later.

    ``sent`` is the upstream server's own error, which the client gets unchanged if it is an object.
    """

    again: bool = True
    sent: Any = None

    @property
    def of_request(self) -> bool:
        """Whether the request itself is at fault, so that its other samples would fail, too."""
        return not self.again and self.status not in (400, 413, 422)

    def body(self) -> dict[str, Any]:
        return {"error": dict(self.sent)} if isinstance(self.sent, Mapping) else super().body()
