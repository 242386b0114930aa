"""Helpers that sample from a scripted server, in an event loop that must be left clean."""

import asyncio
import gc

import pytest

from apportion.endpoint import Endpoint, seed_of
from tests.endpoint.fault_server import FaultServer


def run(scenario, seconds=20.0):
    """Return the result of ``scenario``, which must end in time and leave no task and no unseen error behind."""
    reports = []

    async def checked():
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


def endpoint(server, **settings):
    """Return the settings of ``server``, without a key."""
    pytest.importorskip("openai")
    return Endpoint(server.url, "tiny", **{"timeout_seconds": 5.0, "api_key_env": "NO_SUCH_KEY", **settings})


def sample(script=(), count=1, start=0, key="q", **settings):
    """Return all samples of one prompt, from a server with this script, and the server and client."""

    async def scenario():
        async with FaultServer(script) as server, endpoint(server, **settings).connect() as client:
            return await take(client, "2 + 2 =", count, start, key), server, client

    return run(scenario())


def asked(script=(), **settings):
    """Run an asynchronous test with a server that has this script and a client that has these settings."""

    def decorate(test):
        async def scenario():
            async with FaultServer(script) as server, endpoint(server, **settings).connect() as client:
                await test(server, client)

        return lambda: run(scenario())

    return decorate


async def take(client, prompt, count, start=0, key="q"):
    """Return all samples of one prompt."""
    return [completion async for completion in client.sample(prompt, count, start, key)]


async def until(holds):
    """Wait until ``holds()``."""
    async with asyncio.timeout(5):
        while not holds():
            await asyncio.sleep(0.005)


def texts(found):
    """Return the texts of completions."""
    return [completion.text for completion in found]


def single_texts(numbers, key="q"):
    """Return the texts of samples that were requested one by one."""
    return [f"{seed_of(0, key, number)}.0" for number in numbers]
