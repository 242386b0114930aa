"""The generate calls of a worker's sessions at inference servers, and how abandoned calls are ended.

If an ``asyncio`` task that awaits a Ray call is cancelled, Ray lets the call run on. The server then generates for
nobody, and verl waits for it before it puts it to sleep. So ``ServerCalls`` cancels the Ray call. vLLM then aborts the
request. SGLang does not, so its server first gets the HTTP request ``/abort_request`` of SGLang itself. TensorRT-LLM
generates to the end of the response.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import aiohttp
import ray
from ray.exceptions import RayError
from verl.workers.rollout.llm_server import LLMServerClient

logger = logging.getLogger(__name__)

ABORT_SECONDS = 3.0
"""How long a server may take to abort a request, and then how long the cancelled call may take to end."""

SGLANG = "sglang"
"""The name of SGLang in ``actor_rollout_ref.rollout.name``."""


@dataclass(eq=False)
class CallingSession:
    """The asyncio task of a session, and its calls that have not ended.

    A session that has ``ended`` or was cancelled makes no more calls.
    """

    task: asyncio.Task[Any] | None
    calls: set[asyncio.Task[Any]] = field(default_factory=set)
    ended: bool = False

    @property
    def given_up(self) -> bool:
        return self.ended or (self.task is not None and self.task.cancelling() > 0)


_SESSION: ContextVar[CallingSession | None] = ContextVar("session", default=None)
"""The session of the running task. Tasks that a session starts inherit it."""


class ServerCalls:
    """Tracks all generate calls of ``client``, and stops the abandoned ones.

    It replaces the client's method by which each call gets its server. So it works for every class of clients. Outside
    of sessions, as in validation, a call is stopped if the task that awaits it is cancelled.
    """

    def __init__(self, client: LLMServerClient) -> None:
        self._acquire: Any = client._acquire_server
        self._sglang = client.config.actor_rollout_ref.rollout.name == SGLANG
        self._warned = False
        client._acquire_server = self._acquire_server

    async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, SimpleNamespace]:
        """Return the server's address, and instead of its handle a wrapper that tracks its calls."""
        address, server = await self._acquire(request_id, **extra)
        generate = SimpleNamespace(remote=partial(self._call, server, address, request_id))
        return address, SimpleNamespace(generate=generate)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[None]:
        """Stop all calls that the session in this context leaves behind, and wait until they have ended.

        The wait is at most twice ``ABORT_SECONDS``.
        """
        session = CallingSession(asyncio.current_task())
        token = _SESSION.set(session)
        try:
            yield
        finally:
            _SESSION.reset(token)
            session.ended = True
            for call in session.calls:
                if not call.cancelling():
                    call.cancel()
            if session.calls:
                await asyncio.wait(session.calls)

    def _call(self, server: Any, address: str, loop_id: str, *args: Any, **kwargs: Any) -> asyncio.Task[Any]:
        """Call ``generate`` of ``server``. The call is stopped if what it returns is cancelled.

        ``loop_id`` is the id that the agent loop gave to the request. verl replaces it by a new one for each call, but
        not with full_determinism, where sessions may share an id.

        Raises:
            RuntimeError: The session was given up, so that an agent loop which ignores its cancellation ends too.
        """
        session = _SESSION.get() or CallingSession(None)
        if session.given_up:
            raise RuntimeError("a session that was given up must not generate; end the agent loop when it is cancelled")
        reference = server.generate.remote(*args, **kwargs)
        request = kwargs.get("request_id")
        own = None if request == loop_id else request
        call = asyncio.create_task(self._output(reference, address, own))
        session.calls.add(call)
        call.add_done_callback(session.calls.discard)
        return call

    async def _output(self, reference: Any, address: str, request: str | None) -> Any:
        try:
            return await reference
        except asyncio.CancelledError:
            await self._stop(reference, address, request)
            raise

    async def _stop(self, reference: Any, address: str, request: str | None) -> None:
        """Have the server stop a call. Only the first failure is logged, because every call may fail alike."""
        try:
            if self._sglang and request is not None:
                async with asyncio.timeout(ABORT_SECONDS), aiohttp.ClientSession(raise_for_status=True) as http:
                    await http.post(f"http://{address}/abort_request", json={"rid": request})
        except (TimeoutError, aiohttp.ClientError) as error:
            self._warn("A server did not abort a request that was given up; its call is cancelled", error)
        finally:
            ray.cancel(reference)
        try:
            async with asyncio.timeout(ABORT_SECONDS):
                with suppress(RayError):  # that it was cancelled, or failed before; its outcome is for nobody
                    await reference
        except TimeoutError as error:
            self._warn("A server still serves a request that was given up; it may generate to its end", error)

    def _warn(self, message: str, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("%s (logged once in each worker)", message, exc_info=error)
