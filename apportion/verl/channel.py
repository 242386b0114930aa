"""Messages between the coordinator and the workers, over ZeroMQ as TransferQueue's are.

A Ray call costs its receiver about a millisecond, which bounds a coordinator to 1,000 results a second. A message here
costs a few microseconds. Ray still starts the workers, tells them the address and the keys, and reports their deaths.

Messages are encrypted and authenticated by CURVE, with keys made for the run. Only a process that Ray gave the keys can
connect, so what arrives is trusted as much as a Ray call. Every message has a number. After a gap the coordinator sends
its tasks again.

A thread of each worker sends beats on a connection of its own, also while the worker computes. So a worker without
beats is stopped, or its host or network is.
"""

import asyncio
import logging
import pickle
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import zmq
from zmq.auth.asyncio import AsyncioAuthenticator

logger = logging.getLogger(__name__)

BEAT_SECONDS = 2.0
"""Time between two beats of a worker, and between two messages of the coordinator to it that only have a number."""

MESSAGES_AT_ONCE = 500
"""Messages that are read before other work of the event loop has its turn."""

BEAT, VALUES = b"beat ", b"values "
"""What a connection of a worker carries. The rest of its identity is the worker's name."""


@dataclass(frozen=True)
class ChannelAddress:
    """Where the coordinator listens, and the keys of the run; ``secret`` is that of the workers."""

    endpoint: str
    server_key: bytes
    public: bytes
    secret: bytes


class CoordinatorChannel:
    """The coordinator's end. It must be made, used and closed in one event loop.

    Args:
        host: IP address of this node that the others reach.
        received: called with the name of a worker and the values that it sent.
        lost: called with the name of a worker if messages to it or from it were lost.

    Attributes:
        address: what workers need to connect.
        beats: when each worker was last heard of, by ``time.monotonic``.
    """

    def __init__(
        self,
        host: str,
        received: Callable[[str, Sequence[Any]], None],
        lost: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._received, self._lost = received, lost
        self._context = zmq.Context()
        server_key, server_secret = zmq.curve_keypair()
        public, secret = zmq.curve_keypair()
        self._authenticator = AsyncioAuthenticator(self._context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback("*", _OneKey(public))
        socket = _unbounded(self._context.socket(zmq.ROUTER), host)
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a connection that is made again replaces the old one
        socket.curve_server = True
        socket.curve_publickey, socket.curve_secretkey = server_key, server_secret
        endpoint = f"tcp://[{host}]" if ":" in host else f"tcp://{host}"
        self.address = ChannelAddress(f"{endpoint}:{socket.bind_to_random_port(endpoint)}", server_key, public, secret)
        self.beats: dict[str, float] = {}
        self._sent: dict[str, int] = {}
        self._seen: dict[str, int] = {}
        self._waiting: dict[str, list[Any]] = {}
        self._connected: dict[str, asyncio.Event] = {}
        self._link = _Link(socket, self._take)
        self._beating = asyncio.create_task(self._beat())

    async def add(self, name: str) -> None:
        """Wait until the worker ``name`` is connected. No name may be used twice."""
        self._sent[name] = self._seen[name] = 0
        self._connected[name] = asyncio.Event()
        self.beats[name] = time.monotonic()
        await self._connected[name].wait()

    def remove(self, name: str) -> None:
        """End with a worker. What it still sends is ignored."""
        for each in (self.beats, self._sent, self._seen, self._waiting, self._connected):
            each.pop(name, None)

    def put(self, name: str, value: Any) -> None:
        """Send ``value`` to a worker, with all others of this turn of the event loop."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        self._waiting.setdefault(name, []).append(value)

    def close(self) -> None:
        """Close the socket."""
        self._beating.cancel()
        self._link.close()
        self._authenticator.stop()
        self._context.destroy(linger=0)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for name, values in waiting.items():
            self._send(name, values)

    def _send(self, name: str, values: Sequence[Any]) -> None:
        if name in self._sent:
            self._sent[name] += bool(values)
            message = pickle.dumps((self._sent[name], values), pickle.HIGHEST_PROTOCOL)
            self._link.send([VALUES + name.encode(), message])

    async def _beat(self) -> None:
        """Tell the workers the number of the latest message, so that they notice if it was lost."""
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            for name in list(self._sent):
                self._send(name, ())

    def _take(self, messages: Sequence[Sequence[bytes]]) -> None:
        values: dict[str, list[Any]] = {}
        for identity, message in messages:
            beats = identity.startswith(BEAT)
            name = identity.removeprefix(BEAT if beats else VALUES).decode()
            if name not in self.beats:
                continue
            self.beats[name] = time.monotonic()
            if beats:
                continue
            self._connected[name].set()
            number, lost, found = pickle.loads(message)
            if lost or number > self._seen[name] + bool(found):
                logger.warning("Messages of worker %s were lost; its tasks are sent again", name)
                self._lost(name)
            self._seen[name] = max(number, self._seen[name])
            values.setdefault(name, []).extend(map(pickle.loads, found))
        for name, each in values.items():
            if each:
                self._received(name, each)


class WorkerChannel:
    """A worker's end, in its event loop, with a thread that sends beats.

    Args:
        address: the coordinator's.
        name: the worker's name, which no other worker has.
        received: called with the values that the coordinator sent.
    """

    def __init__(self, address: ChannelAddress, name: str, received: Callable[[Sequence[Any]], None]) -> None:
        self._address, self._name, self._received = address, name, received
        self._context = zmq.Context()
        self._link = _Link(_connected(self._context, address, VALUES + name.encode()), self._take)
        self._waiting: list[bytes] = []
        self._sent = self._seen = 0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="beats", daemon=True)
        self._thread.start()
        self._flush()

    def put(self, value: Any) -> None:
        """Send ``value``, with all others of this turn of the event loop. Raises what pickling it raises."""
        message = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        self._waiting.append(message)

    def close(self) -> None:
        """Close the connections. What was put before and not sent is lost."""
        self._closed.set()
        self._link.close()
        self._context.destroy(linger=0)

    def _flush(self, lost: bool = False) -> None:
        waiting, self._waiting = self._waiting, []
        if not self._closed.is_set():
            self._sent += bool(waiting)
            self._link.send([pickle.dumps((self._sent, lost, waiting), pickle.HIGHEST_PROTOCOL)])

    def _take(self, messages: Sequence[Sequence[bytes]]) -> None:
        for (message,) in messages:
            number, values = pickle.loads(message)
            lost = number > self._seen + bool(values)
            if lost:
                logger.warning("Messages of the coordinator were lost; it is asked to send its tasks again")
            if lost or not values:  # the answer has the number of the latest message, which shows if that was lost
                self._flush(lost)
            self._seen = max(number, self._seen)
            if values:
                self._received(values)

    def _beat(self) -> None:
        context = zmq.Context()
        socket = _connected(context, self._address, BEAT + self._name.encode())
        while not self._closed.wait(BEAT_SECONDS):
            with suppress(zmq.Again):  # without a connection there is no beat
                socket.send(b"", zmq.NOBLOCK)
        context.destroy(linger=0)


class _Link:
    """A socket in an event loop, whose messages are ``taken`` in groups.

    ZeroMQ's file descriptor only tells that something changed, and sending can use that up. So every send looks whether
    there is something to read.
    """

    def __init__(self, socket: Any, taken: Callable[[Sequence[Sequence[bytes]]], None]) -> None:
        self._socket, self._taken = socket, taken
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(socket.FD, self._read)
        self._scheduled = False
        self._schedule()

    def send(self, frames: Sequence[bytes]) -> None:
        """Send a message. Its queue has no bound, so this does not wait. Without a connection the message is lost."""
        with suppress(zmq.Again):
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        self._schedule()

    def close(self) -> None:
        """Close the socket."""
        self._loop.remove_reader(self._socket.FD)
        self._socket.close()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._read)

    def _read(self) -> None:
        self._scheduled = False
        if self._socket.closed:
            return
        messages: list[list[bytes]] = []
        try:
            while len(messages) < MESSAGES_AT_ONCE:
                messages.append(self._socket.recv_multipart(zmq.NOBLOCK))
            self._schedule()
        except zmq.Again:
            pass
        if messages:
            self._taken(messages)


class _OneKey:
    """Accepts the workers' key and no other."""

    def __init__(self, public: bytes) -> None:
        self._public = public

    def callback(self, domain: str, key: bytes) -> bool:
        return key == self._public


def _connected(context: Any, address: ChannelAddress, identity: bytes) -> Any:
    """Return a socket that is connected to the coordinator, and connects again whenever the network failed."""
    socket = _unbounded(context.socket(zmq.DEALER), address.endpoint.removeprefix("tcp:").rpartition(":")[0])
    socket.setsockopt(zmq.HEARTBEAT_IVL, int(1000 * BEAT_SECONDS))
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(5000 * BEAT_SECONDS))
    socket.setsockopt(zmq.IDENTITY, identity)
    socket.curve_serverkey = address.server_key
    socket.curve_publickey, socket.curve_secretkey = address.public, address.secret
    socket.connect(address.endpoint)
    return socket


def _unbounded(socket: Any, host: str) -> Any:
    """Return ``socket`` with queues without a bound, which drops what is unsent when it is closed."""
    for option in (zmq.SNDHWM, zmq.RCVHWM, zmq.LINGER):
        socket.setsockopt(option, 0)
    socket.setsockopt(zmq.IPV6, int(":" in host))
    return socket
