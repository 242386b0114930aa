"""Errors in the form that OpenAI's clients expect, with the status of the reply."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

INVALID, LIMIT, SERVER = "invalid_request_error", "rate_limit_error", "server_error"


class GatewayError(Exception):
    """An error that a client gets as ``status`` and ``{"error": {"message", "type", "param", "code"}}``.

    ``last`` closes the connection, because the rest of the request is not read.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = INVALID,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
        last: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param
        self.code = code
        self.retry_after = retry_after
        self.last = last

    def body(self) -> dict[str, Any]:
        """Return the JSON object of the reply."""
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        """Return the headers of the reply, with Retry-After if it is known when to come back."""
        headers = {} if self.retry_after is None else {"retry-after": f"{self.retry_after:g}"}
        return headers | ({"connection": "close"} if self.last else {})


class UpstreamError(GatewayError):
    """An upstream request without a completion. ``again`` says whether the same request may be answered later.

    ``refused`` says that another sample of the request may be answered. ``sent`` is the upstream server's own error
    object, which the client gets unchanged; None if it sent none.
    """

    def __init__(self, status: int, message: str, *, again: bool, sent: Any = None, **fields: Any) -> None:
        super().__init__(status, message, **fields)
        self.again = again
        self.refused = status in (400, 413, 422)
        self.sent = sent

    def body(self) -> dict[str, Any]:
        """Return the upstream server's error if it sent an object, else ours."""
        if isinstance(self.sent, Mapping):
            return {"error": dict(self.sent)}
        return super().body()
