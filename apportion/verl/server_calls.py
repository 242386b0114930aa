"""The generate calls that a worker's sessions have at inference servers, and their abort once they are given up.

If an ``asyncio`` task that awaits a Ray call is cancelled, Ray lets the call run on. The server then generates for
nobody, and verl waits for it before it puts it to sleep. ``ServerCalls`` notes each call with its server and stops it:

1. It calls the server's ``abort_request`` with the id of the request. In verl only vLLM's server has this method. To
   SGLang's server it sends the HTTP request ``/abort_request`` of SGLang itself.
2. It cancels the Ray call if the server does not report that it aborted the request. verl's ``abort_request`` does not
   find requests that vLLM has renamed, which vLLM does by default since 0.16. It does not find those that the server
   holds back while weights are updated either. A cancelled call has vLLM abort its request in both cases.

TensorRT-LLM's server has no abort by id. Its call is cancelled, but the engine generates to the end of the response.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Generator, Mapping
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from typing import Any

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
    """The asyncio task of a session, its calls that have not ended, and the tasks that stop calls.

    A session that has ``ended`` or was cancelled makes no more calls.
    """

    task: "asyncio.Task[Any] | None"
    calls: "set[ServerCall]" = field(default_factory=set)
    stopping: "set[asyncio.Task[None]]" = field(default_factory=set)
    ended: bool = False

    @property
    def given_up(self) -> bool:
        return self.ended or (self.task is not None and self.task.cancelling() > 0)


_SESSION: ContextVar[CallingSession | None] = ContextVar("session", default=None)
"""The session of the running task. Tasks that a session starts inherit it."""


@dataclass(eq=False)
class ServerCall:
    """A generate call, to be awaited as its ``reference``. If its awaiting task is cancelled, the call is stopped.

    ``address`` is the server's name at the load balancer: the address of its HTTP server. ``request`` is the id by
    which the server knows the request, or None if other requests may have the same one.
    """

    owner: "ServerCalls"
    server: Any
    address: str
    request: str | None
    reference: Any
    session: CallingSession

    def __post_init__(self) -> None:
        self.session.calls.add(self)

    def __await__(self) -> Generator[Any, None, Any]:
        try:
            output = yield from self.reference.__await__()
        except asyncio.CancelledError:
            self.owner.stop(self)
            raise
        finally:
            self.session.calls.discard(self)
        return output


@dataclass(frozen=True)
class NotingServer:
    """A server's handle whose ``generate.remote`` notes the call. Everything else is the handle's own.

    ``loop_id`` is the id that the agent loop gave to the request. verl replaces it by a new one for each call.
    """

    owner: "ServerCalls"
    server: Any
    address: str
    loop_id: str

    @property
    def generate(self) -> "NotingServer":
        return self

    def remote(self, *args: Any, **kwargs: Any) -> ServerCall:
        """Call the server's ``generate``.

        Raises:
            RuntimeError: The session was given up, so that an agent loop which ignores its cancellation ends too.
        """
        session = _SESSION.get() or CallingSession(None)
        if session.given_up:
            raise RuntimeError("a session that was given up must not generate; end the agent loop when it is cancelled")
        request = kwargs.get("request_id")
        if request == self.loop_id:  # verl's full_determinism, where sessions may share an id
            request = None
        reference = self.server.generate.remote(*args, **kwargs)
        return ServerCall(self.owner, self.server, self.address, request, reference, session)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.server, name)


class ServerCalls:
    """Notes all generate calls of ``client``, and stops those that are given up.

    It replaces the client's method by which each call gets its server. So it works for every class of clients. Outside
    of sessions, as in validation, a call is stopped if the task that awaits it is cancelled.
    """

    def __init__(self, client: LLMServerClient) -> None:
        self._acquire: Any = client._acquire_server
        self._sglang = client.config.actor_rollout_ref.rollout.name == SGLANG
        self._stopping: set[asyncio.Task[None]] = set()
        self._warned = False
        client._acquire_server = self._acquire_server

    async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, NotingServer]:
        address, server = await self._acquire(request_id, **extra)
        return address, NotingServer(self, server, address, request_id)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[None]:
        """Stop all calls that the session in this context leaves behind, and wait for that.

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
                self.stop(call)
            if session.stopping:
                await asyncio.wait(session.stopping)

    def stop(self, call: ServerCall) -> None:
        """Begin to stop ``call``, whose output nobody reads any more."""
        task = asyncio.create_task(self._stop(call))
        for tasks in (self._stopping, call.session.stopping):
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def _stop(self, call: ServerCall) -> None:
        """Have the server stop ``call``. A failure is logged once, because it may be that of every call."""
        try:
            async with asyncio.timeout(ABORT_SECONDS):
                stopped = await self._abort(call)
        except (RayError, TypeError, OSError, HTTPException) as error:  # a TimeoutError is an OSError
            self._warn("A server did not abort a request that was given up; its call is cancelled", error)
            stopped = False
        if not stopped:
            ray.cancel(call.reference)
        try:
            async with asyncio.timeout(ABORT_SECONDS):
                with suppress(RayError):  # that it was cancelled, or failed before; its outcome is for nobody
                    await call.reference
        except TimeoutError as error:
            ray.cancel(call.reference)
            self._warn("A server still serves a request that was given up; it may generate to its end", error)

    async def _abort(self, call: ServerCall) -> bool:
        """Have the server abort the request by its id. Return whether it did."""
        if call.request is None:
            return False
        abort = getattr(call.server, "abort_request", None)
        if abort is not None:
            # other requests share the prefix cache with the aborted one
            answer = await abort.remote(call.request, reset_prefix_cache=False)
            return isinstance(answer, Mapping) and bool(answer.get("aborted"))
        if self._sglang:
            await asyncio.to_thread(_abort_in_sglang, call.address, call.request)
        return self._sglang

    def _warn(self, message: str, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("%s (logged once in each worker)", message, exc_info=error)


def _abort_in_sglang(address: str, request: str) -> None:
    """Send SGLang's HTTP request ``/abort_request``.

    Raises:
        HTTPException: The server answers with an error.
        OSError: The server cannot be reached, or does not answer in time.
    """
    connection = HTTPConnection(address, timeout=ABORT_SECONDS)
    try:
        connection.request("POST", "/abort_request", json.dumps({"rid": request}), {"Content-Type": "application/json"})
        status = connection.getresponse().status
    finally:
        connection.close()
    if status != 200:
        raise HTTPException(f"/abort_request must be answered with 200, got {status}; see the log of SGLang's server")
