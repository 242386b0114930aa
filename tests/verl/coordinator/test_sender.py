"""Messages are sent in order, in batches if they have to wait, and none is lost silently."""

import asyncio

from apportion.verl.coordinator.sender import BatchedSender


async def settled():
    for _ in range(10):
        await asyncio.sleep(0)


class Connection:
    """A connection that holds a list back until it is ``free``, and raises if it is ``broken``."""

    def __init__(self):
        self.carried, self.lost, self.broken = [], [], False
        self.free = asyncio.Event()

    async def send(self, messages):
        await self.free.wait()
        if self.broken:
            raise ConnectionError("broken")
        self.carried.append(messages)

    def failed(self, messages, error):
        assert str(error) == "broken"
        self.lost.append(messages)


def test_a_single_message_is_sent_at_once():
    async def scenario():
        connection = Connection()
        connection.free.set()
        sender = BatchedSender(connection.send, connection.failed)
        for number in (1, 2):
            sender.put(number)
            await settled()
        return connection.carried

    assert asyncio.run(scenario()) == [[1], [2]]


def test_messages_put_during_a_call_are_sent_together_in_order():
    async def scenario():
        connection = Connection()
        sender = BatchedSender(connection.send, connection.failed)
        sender.put(0)
        await settled()
        for number in range(1, 1001):
            sender.put(number)
        await settled()
        connection.free.set()
        await settled()
        return connection.carried

    assert asyncio.run(scenario()) == [[0], list(range(1, 1001))]


def test_messages_put_together_are_sent_together():
    async def scenario():
        connection = Connection()
        connection.free.set()
        sender = BatchedSender(connection.send, connection.failed)
        for number in range(5):
            sender.put(number)
        await settled()
        return connection.carried

    assert asyncio.run(scenario()) == [[0, 1, 2, 3, 4]]


def test_unsent_and_waiting_messages_are_returned_and_later_ones_are_sent():
    async def scenario():
        connection = Connection()
        sender = BatchedSender(connection.send, connection.failed)
        sender.put(0)
        await settled()
        sender.put(1)
        sender.put(2)
        connection.broken = True
        connection.free.set()
        await settled()
        connection.broken = False
        sender.put(3)
        await settled()
        return connection.lost, connection.carried

    assert asyncio.run(scenario()) == ([[0, 1, 2]], [[3]])


def test_a_message_put_after_a_failure_is_sent():
    async def scenario():
        connection = Connection()
        connection.broken = True
        connection.free.set()

        def failed(messages, error):
            connection.broken = False
            sender.put("again")

        sender = BatchedSender(connection.send, failed)
        sender.put("first")
        await settled()
        return connection.carried

    assert asyncio.run(scenario()) == [["again"]]
