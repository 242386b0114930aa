"""Messages between the coordinator and workers: order, keys, lost messages, and beats of workers that are busy."""

import asyncio
import os
import signal
import subprocess
import sys
import time

import pytest

from apportion.verl import channel
from apportion.verl.channel import ChannelAddress, CoordinatorChannel, WorkerChannel

SECONDS = 20.0


async def until(true):
    """Wait until ``true`` returns something true, for at most ``SECONDS``."""
    async with asyncio.timeout(SECONDS):
        while not (found := true()):
            await asyncio.sleep(0.01)
    return found


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(channel, "BEAT_SECONDS", 0.1)


class Ends:
    """A coordinator's end and those of workers ``names``, with what each has received."""

    def __init__(self, *names):
        self.names, self.received, self.lost, self.tasks = names, [], [], {name: [] for name in names}

    async def __aenter__(self):
        self.coordinator = CoordinatorChannel(
            "127.0.0.1", lambda name, values: self.received.extend((name, each) for each in values), self.lost.append
        )
        adding = [asyncio.create_task(self.coordinator.add(name)) for name in self.names]
        await asyncio.sleep(0)
        self.workers = {
            name: WorkerChannel(self.coordinator.address, name, self.tasks[name].extend) for name in self.names
        }
        await asyncio.wait_for(asyncio.gather(*adding), SECONDS)
        return self

    async def __aexit__(self, *error):
        for worker in self.workers.values():
            worker.close()
        self.coordinator.close()


def test_every_value_arrives_once_and_in_order():
    async def scenario():
        async with Ends("a", "b") as ends:
            for i in range(3000):
                ends.workers["ab"[i % 2]].put(i)
                ends.coordinator.put("a", -i)
                if i % 7 == 0:
                    await asyncio.sleep(0)
            await until(lambda: len(ends.received) == 3000 and len(ends.tasks["a"]) == 3000)
            assert [i for name, i in ends.received if name == "a"] == list(range(0, 3000, 2))
            assert [i for name, i in ends.received if name == "b"] == list(range(1, 3000, 2))
            assert ends.tasks == {"a": [-i for i in range(3000)], "b": []}
            await asyncio.sleep(0.5)  # beats and numbers go on, and nothing counts as lost
            assert not ends.lost and len(ends.received) == 3000

    asyncio.run(scenario())


def test_a_stranger_without_the_keys_is_not_heard():
    async def scenario():
        async with Ends("a") as ends:
            own = ends.coordinator.address
            adding = asyncio.create_task(ends.coordinator.add("stranger"))
            await asyncio.sleep(0)
            false = channel.zmq.curve_keypair()
            for address in (
                ChannelAddress(own.endpoint, own.server_key, *false),
                ChannelAddress(own.endpoint, channel.zmq.curve_keypair()[0], own.public, own.secret),
            ):
                stranger = WorkerChannel(address, "stranger", print)
                stranger.put("open the door")
                await asyncio.sleep(0.5)
                stranger.close()
            assert not adding.done() and not ends.received
            adding.cancel()
            ends.workers["a"].put("still here")
            await until(lambda: ends.received == [("a", "still here")])

    asyncio.run(scenario())


def test_a_name_that_was_removed_is_ignored():
    async def scenario():
        async with Ends("a", "b") as ends:
            ends.coordinator.remove("a")
            ends.workers["a"].put("too late")
            ends.workers["b"].put("in time")
            ends.coordinator.put("a", "nobody")
            await until(lambda: ends.received)
            await asyncio.sleep(0.3)
            assert ends.received == [("b", "in time")] and not ends.tasks["a"]

    asyncio.run(scenario())


@pytest.mark.parametrize("side", ["worker", "coordinator"])
def test_lost_messages_are_noticed(side):
    """Also if the lost message was the last one, because the next number shows it."""

    async def scenario():
        async with Ends("a") as ends:
            link = (ends.workers["a"] if side == "worker" else ends.coordinator)._link
            send, link.send = link.send, lambda frames: None
            (ends.workers["a"].put if side == "worker" else lambda value: ends.coordinator.put("a", value))("lost")
            await asyncio.sleep(0.05)
            link.send = send
            await until(lambda: ends.lost == ["a"])
            await asyncio.sleep(0.5)
            assert ends.lost == ["a"]  # once

    asyncio.run(scenario())


def test_a_connection_that_breaks_is_made_again():
    """The network between the two ends fails for a while; a program between them plays the network."""

    async def scenario():
        async with Ends() as ends:
            port = int(ends.coordinator.address.endpoint.rpartition(":")[2])
            links = []

            async def carry(reader, writer):
                there = await asyncio.open_connection("127.0.0.1", port)
                links.extend([writer, there[1]])

                async def copy(source, sink):
                    while data := await source.read(65536):
                        sink.write(data)

                await asyncio.gather(copy(reader, there[1]), copy(there[0], writer), return_exceptions=True)

            network = await asyncio.start_server(carry, "127.0.0.1", 0)
            there = network.sockets[0].getsockname()[1]
            own = ends.coordinator.address
            through = ChannelAddress(f"tcp://127.0.0.1:{there}", own.server_key, own.public, own.secret)
            adding = asyncio.create_task(ends.coordinator.add("a"))
            await asyncio.sleep(0)
            worker = WorkerChannel(through, "a", ends.tasks.setdefault("a", []).extend)
            await asyncio.wait_for(adding, SECONDS)
            worker.put(1)
            await until(lambda: ends.received == [("a", 1)])
            for link in links:
                link.transport.abort()
            worker.put(2)
            await until(lambda: len(links) > 4)
            worker.put(3)
            ends.coordinator.put("a", "task")
            await until(lambda: ("a", 3) in ends.received)
            # what was in the broken connection is gone or has come; if it is gone, somebody has noticed
            await until(lambda: ("a", 2) in ends.received or ends.lost)
            await until(lambda: ends.tasks["a"] == ["task"] or ends.lost)
            worker.close()
            network.close()
            for link in links:
                link.transport.abort()
            await asyncio.sleep(0.1)

    asyncio.run(scenario())


BUSY = """
import asyncio, sys, time
from apportion.verl.channel import ChannelAddress, WorkerChannel

async def main():
    endpoint, *keys = sys.argv[1:]
    worker = WorkerChannel(ChannelAddress(endpoint, *(key.encode() for key in keys)), "busy", print)
    await asyncio.sleep(0.2)
    end = time.monotonic() + 60
    while time.monotonic() < end:  # the event loop does not run any more
        sum(range(1000))

asyncio.run(main())
"""


def test_a_worker_that_computes_has_beats_and_one_that_is_stopped_has_none():
    async def scenario():
        async with Ends() as ends:
            address = ends.coordinator.address
            adding = asyncio.create_task(ends.coordinator.add("busy"))
            keys = [key.decode() for key in (address.server_key, address.public, address.secret)]
            process = subprocess.Popen([sys.executable, "-c", BUSY, address.endpoint, *keys], cwd=os.getcwd())
            try:
                await asyncio.wait_for(adding, 60)
                await asyncio.sleep(1)
                await until(lambda: time.monotonic() - ends.coordinator.beats["busy"] < 3 * 2.0)
                process.send_signal(signal.SIGSTOP)
                await asyncio.sleep(1)  # for what was sent before
                last = ends.coordinator.beats["busy"]
                await asyncio.sleep(4.5)
                assert ends.coordinator.beats["busy"] == last
                process.send_signal(signal.SIGCONT)
                await until(lambda: ends.coordinator.beats["busy"] > last)
            finally:
                process.kill()
                process.wait()

    asyncio.run(scenario())


def test_what_cannot_be_sent_raises_where_it_is_put():
    async def scenario():
        async with Ends("a") as ends:
            with pytest.raises((AttributeError, TypeError, channel.pickle.PicklingError)):
                ends.workers["a"].put(lambda: None)
            ends.workers["a"].put("fine")
            await until(lambda: ends.received == [("a", "fine")])

    asyncio.run(scenario())
