"""The coordinator's thread: results and errors come back, and no call waits without a bound."""

import asyncio
import logging
import threading
import time

import pytest

from apportion.verl import loop_thread
from apportion.verl.loop_thread import LoopThread


@pytest.fixture
def failures():
    return []


@pytest.fixture
def thread(failures):
    return LoopThread(failures.append)


def test_results_and_errors_come_back(thread):
    async def name():
        return threading.current_thread().name

    async def refused():
        raise ValueError("a refusal")

    async def late():
        raise TimeoutError("its own")

    assert thread.call(name(), "say its name", 10) == "coordinator"
    with pytest.raises(ValueError, match="a refusal"):
        thread.call(refused(), "refuse", 10)
    with pytest.raises(TimeoutError, match="its own"):
        thread.call(late(), "be late", 10)


def test_a_call_has_a_bound_and_says_what_it_waits_for(thread, monkeypatch, caplog):
    monkeypatch.setattr(loop_thread, "REPORT_SECONDS", 0.1)
    began = time.monotonic()
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(RuntimeError, match=r"the coordinator must plan within 0\.5 s.*, got"),
    ):
        thread.call(asyncio.sleep(60), "plan", 0.5)
    assert 0.5 <= time.monotonic() - began < 5
    assert caplog.text.count("for the coordinator to plan") >= 2


def test_an_error_that_nobody_awaits_is_reported(thread, failures, caplog):
    async def schedule():
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)

    thread.call(schedule(), "fail", 10)
    end = time.monotonic() + 10
    while not failures and time.monotonic() < end:
        time.sleep(0.01)
    assert isinstance(failures[0], ZeroDivisionError) and "The coordinator failed" in caplog.text
