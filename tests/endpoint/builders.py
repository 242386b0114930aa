"""Helpers that sample from a scripted server, in an event loop that must be left clean."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from apportion.endpoint import Client, Completion, Endpoint, Messages, seed_of
from tests.endpoint.fault_server import FaultServer, Script

T = TypeVar("T")


def run(scenario: Coroutine[Any, Any, T], seconds: float = 20.0) -> T:
    """Return the result of ``scenario``, which must end in time and leave no task and no unseen error behind."""
    reports: list[dict[str, Any]] = []

    async def checked() -> T:
        asyncio.get_running_loop().set_exception_handler(lambda _, report: reports.append(report))
        async with asyncio.timeout(seconds):
            result = await scenario
        assert asyncio.all_tasks() == {asyncio.current_task()}
        gc.collect()
        return result

    gc.freeze()  # older objects need not be searched, and stay so: conftest's own would be undone for all later tests
    result = asyncio.run(checked())
    gc.collect()
    assert not reports
    return result


def endpoint(server: FaultServer, **settings: Any) -> Endpoint:
    """Return the settings of ``server``, without a key."""
    pytest.importorskip("openai")
    return Endpoint(server.url, "tiny", **{"timeout_seconds": 5.0, "api_key_env": "NO_SUCH_KEY", **settings})


def sample(
    script: Script = (), count: int = 1, start: int = 0, key: str = "q", **settings: Any
) -> tuple[list[Completion], FaultServer, Client]:
    """Return all samples of one prompt, from a server with this script, and the server and client."""

    async def scenario() -> tuple[list[Completion], FaultServer, Client]:
        async with FaultServer(script) as server, endpoint(server, **settings).connect() as client:
            return await take(client, "2 + 2 =", count, start, key), server, client

    return run(scenario())


async def take(client: Client, prompt: str | Messages, count: int, start: int = 0, key: str = "q") -> list[Completion]:
    """Return all samples of one prompt."""
    return [completion async for completion in client.sample(prompt, count, start, key)]


async def until(holds: Callable[[], bool]) -> None:
    """Wait until ``holds()``."""
    async with asyncio.timeout(5):
        while not holds():
            await asyncio.sleep(0.005)


def texts(found: list[Completion]) -> list[str | None]:
    """Return the texts of completions."""
    return [completion.text for completion in found]


def single_texts(numbers: range, key: str = "q") -> list[str]:
    """Return the texts of samples that were requested one by one."""
    return [f"{seed_of(0, key, number)}.0" for number in numbers]
