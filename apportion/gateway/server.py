"""Run the application under uvicorn until a signal comes."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from apportion.gateway.app import LOOPBACK, make_app
from apportion.gateway.settings import GatewaySettings
from apportion.runs.signals import on_stop

SPARE_CONNECTIONS = 64
"""Connections in addition to those of votes and of the queue, for health checks and for replies with status 429."""

HEAD_SECONDS = 30.0
"""Longest time in which the head of a request must arrive."""

UNREAD_SECONDS = 120.0
"""Longest time in which a client may leave a reply, or a part of a stream, unread."""


class Connection(H11Protocol):
    """A connection that ends if the head of a request is late, or if the client does not read the reply.

    uvicorn waits for both without end, and such connections would fill the server.
    """

    _closing: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # so that writing is paused while anything waits for the client
        self._set_deadline()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(UNREAD_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        assert self._unread is not None
        self._unread.cancel()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for timer in (self._closing, self._unread):
            if timer is not None:
                timer.cancel()

    def _set_deadline(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            if self._closing is not None:
                self._closing.cancel()
            self._closing = None
        elif self._closing is None:
            self._closing = self.loop.call_later(HEAD_SECONDS, self.transport.close)


class GatewayServer(uvicorn.Server):
    """A server that leaves signals to the caller, who calls ``stop``."""

    def __init__(self, settings: GatewaySettings, host: str = "127.0.0.1") -> None:
        limits, local = settings.limits, is_loopback(host)
        self.app = make_app(settings, LOOPBACK if local else None)
        super().__init__(
            uvicorn.Config(
                self.app,
                http=Connection,
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=limits.max_votes + limits.max_queue + SPARE_CONNECTIONS,
                timeout_graceful_shutdown=max(1, round(limits.shutdown_seconds)),
            )
        )

    def stop(self) -> None:
        """Refuse new requests, and end when the votes in progress have ended or their time is up."""
        self.app.state.gateway.queue.close()
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach ``host``.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on ``host`` and ``port``; 0 is any free port. Raise ValueError if there is none."""
    sock = None
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # With its protocol named, because asyncio sets TCP_NODELAY on no other; replies would be late by 40 ms.
        sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(512)
    except (OSError, OverflowError) as error:
        if sock is not None:
            sock.close()
        raise ValueError(f"{host}:{port} cannot be listened on ({error}); choose another --host or --port") from error
    return sock


async def serve(settings: GatewaySettings, sock: socket.socket, host: str, ready: Callable[[], None]) -> None:
    """Serve on ``sock`` until a signal comes, and call ``ready`` before. Votes in progress may end."""
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    server = GatewayServer(settings, host)
    with on_stop(server.stop):
        ready()
        await server.serve(sockets=[sock])
    if not server.started:
        raise ValueError("the gateway must start, but did not; see the log above")
