"""Messages leave in order, together where they had to wait, and never in silence."""

import asyncio

from apportion.integrations.verl.outbox import Outbox


async def settled():
    for _ in range(10):
        await asyncio.sleep(0)


class Line:
    """A line that carries one list at a time, until it is told to let it through, and breaks where it is told to."""

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


def test_a_message_alone_leaves_at_once():
    async def scenario():
        line = Line()
        line.free.set()
        outbox = Outbox(line.send, line.failed)
        for number in (1, 2):
            outbox.put(number)
            await settled()
        return line.carried

    assert asyncio.run(scenario()) == [[1], [2]]


def test_messages_that_come_up_meanwhile_leave_together_and_in_order():
    async def scenario():
        line = Line()
        outbox = Outbox(line.send, line.failed)
        outbox.put(0)
        await settled()
        for number in range(1, 1001):
            outbox.put(number)
        await settled()
        line.free.set()
        await settled()
        return line.carried

    assert asyncio.run(scenario()) == [[0], list(range(1, 1001))]


def test_messages_that_are_put_together_leave_together():
    async def scenario():
        line = Line()
        line.free.set()
        outbox = Outbox(line.send, line.failed)
        for number in range(5):
            outbox.put(number)
        await settled()
        return line.carried

    assert asyncio.run(scenario()) == [[0, 1, 2, 3, 4]]


def test_what_could_not_be_sent_is_handed_back_with_all_that_waits_and_later_ones_leave():
    async def scenario():
        line = Line()
        outbox = Outbox(line.send, line.failed)
        outbox.put(0)
        await settled()
        outbox.put(1)
        outbox.put(2)
        line.broken = True
        line.free.set()
        await settled()
        line.broken = False
        outbox.put(3)
        await settled()
        return line.lost, line.carried

    assert asyncio.run(scenario()) == ([[0, 1, 2]], [[3]])


def test_what_is_put_in_answer_to_a_failure_leaves():
    async def scenario():
        line = Line()
        line.broken = True
        line.free.set()

        def failed(messages, error):
            line.broken = False
            outbox.put("again")

        outbox = Outbox(line.send, failed)
        outbox.put("first")
        await settled()
        return line.carried

    assert asyncio.run(scenario()) == [["again"]]
