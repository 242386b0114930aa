"""Ask the upstream server for one completion, as it is sent and not parsed into our own types.

What is sent again is said in ``endpoint.retries``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from apportion.endpoint.completion import BadReply, Fault
from apportion.endpoint.http import CONNECT_SECONDS, Http
from apportion.endpoint.reply import MOST_TOKENS, choice_text, whole_choices
from apportion.endpoint.retries import Patience, may_pass
from apportion.gateway.errors import INVALID, LIMIT, SERVER, UpstreamError
from apportion.gateway.settings import UpstreamSettings

KEYS = {"authorization", "api-key", "x-api-key"}
FORWARDED = (*sorted(KEYS), "openai-organization", "openai-project")
"""Headers of a request that go upstream, and those among them that hold a key. Values are never stored or logged."""

TOKENS = ("prompt_tokens", "completion_tokens", "total_tokens")


@dataclass
class Bill:
    """What one vote has cost: upstream requests, and the tokens of those whose usage is known."""

    requests: int = 0
    counted: int = 0
    usage: dict[str, Any] = field(default_factory=lambda: dict.fromkeys(TOKENS, 0))

    @property
    def uncounted(self) -> int:
        """Requests whose usage is unknown, because they were cancelled or failed or the server does not count."""
        return self.requests - self.counted

    def add(self, usage: Any) -> None:
        """Add the usage of one reply.

        Usage counts if it has prompt and completion tokens; a missing total is their sum.
        """
        if isinstance(usage, dict):
            *parts, total = (usage.get(name) if _is_count(usage.get(name)) else None for name in TOKENS)
            self.counted += None not in parts
            _add(self.usage, {**usage, "total_tokens": sum(each or 0 for each in parts) if total is None else total})


class Upstream:
    """The upstream server, with a bound on requests in flight that all votes share."""

    def __init__(self, settings: UpstreamSettings, key: str | None = None) -> None:
        self._settings = settings
        self._key = key
        self._slots = asyncio.Semaphore(settings.connections)
        self._counts_streams = True
        self._http = Http(
            settings.upstream,
            settings.connections,
            headers={"accept-encoding": "identity"},
            most_bytes=settings.max_reply_bytes,
            hidden={key: "[key]"} if key else {},
        )

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    def headers(self, given: Mapping[str, str]) -> dict[str, bytes]:
        """Return the headers for upstream of a request with the headers ``given``."""
        found = {
            name: value for name in FORWARDED if (value := given.get(name, "").strip()).lower() not in ("", "bearer")
        }
        if self._key and not found.keys() & KEYS:
            found["authorization"] = f"Bearer {self._key}"
        return {name: value.encode("latin-1") for name, value in found.items()}

    async def sample(self, body: Mapping[str, Any], headers: Mapping[str, bytes], bill: Bill) -> dict[str, Any]:
        """Return a reply with exactly one choice, which has a message. Raises UpstreamError."""
        patience = Patience(self._settings.max_retries)
        while True:
            try:
                return await self._attempt(body, headers, bill)
            except Fault as fault:
                if (pause := patience.pause(fault)) is None:
                    raise self._error(fault) from None
            await asyncio.sleep(pause)

    async def get(self, path: str, headers: Mapping[str, bytes]) -> Any:
        """Return the reply to a GET. Raises UpstreamError."""
        try:
            return await self._http.send(
                "GET", path, min(self._settings.request_seconds, CONNECT_SECONDS), headers=headers
            )
        except Fault as fault:
            raise self._error(fault) from None

    async def _attempt(
        self, body: Mapping[str, Any], headers: Mapping[str, bytes], bill: Bill, counts: bool = True
    ) -> dict[str, Any]:
        """Return the reply to one request, or to a second one if its ``stream_options`` are refused. Raises Fault."""
        counts = counts and self._settings.upstream_stream and self._counts_streams
        sent = {**body} | ({"stream": True} if self._settings.upstream_stream else {})
        sent |= {"stream_options": {"include_usage": True}} if counts else {}
        try:
            async with self._slots:
                bill.requests += 1
                seconds = self._settings.request_seconds
                reply = await self._http.send("POST", "chat/completions", seconds, sent, headers)
        except Fault as fault:
            if not (counts and fault.status in (400, 422) and "stream_options" in str(fault)):
                raise
            found = await self._attempt(body, headers, bill, counts=False)
            self._counts_streams = False  # not if the second is refused too, because an error may quote the prompt
            return found
        choice = whole_choices(reply)[0]
        if not isinstance(choice.get("message"), dict):
            raise BadReply("a choice without a message")
        calls = choice["message"].get("tool_calls") or []
        if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
            raise BadReply("a choice whose tool calls are not objects")
        choice_text(choice)
        bill.add(reply.get("usage"))
        return {**reply, "choices": [choice]}

    def _error(self, fault: Fault) -> UpstreamError:
        """Return the error that a client gets for a fault of the upstream server."""
        said = f"the upstream server {self._http.shown(fault)}"
        if fault.kind in ("absent", "astray"):
            said += "; check --upstream"
        given: dict[str, Any] = {"again": fault.again or may_pass(fault.status or 0), "retry_after": fault.wait}
        if fault.status is not None and 400 <= fault.status < 500:
            kind = LIMIT if fault.status == 429 else INVALID
            return UpstreamError(fault.status, said, sent=fault.sent, kind=kind, **given)
        if fault.kind == "late":
            return UpstreamError(504, said, kind=SERVER, code="upstream_timeout", **given)
        status = 503 if fault.status == 503 else 502
        return UpstreamError(status, said, kind=SERVER, code="upstream_failed", **given)


def _add(total: dict[str, Any], usage: Mapping[str, Any]) -> None:
    """Add the integers of ``usage`` to ``total``, also those of the objects within it. Impossible ones are left out."""
    for name, value in usage.items():
        if isinstance(value, dict):
            within = total.setdefault(name, {})
            if isinstance(within, dict):
                _add(within, value)
        elif _is_count(value) and isinstance(total.get(name, 0), int):
            total[name] = total.get(name, 0) + value


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MOST_TOKENS
