"""Measure the gateway: its overhead, its load, and what a server computes after its streams are closed.

The gateway runs as ``apportion serve`` in a process of its own. For overhead and load the upstream server is
scripted. For what is left over it is ``transformers serve`` with the tiny policy of ``benchmarks.served_model``.

    python -m benchmarks.gateway
"""

from __future__ import annotations

import os

os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}

import asyncio
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import openai

from benchmarks.common import RESULTS, ROOT, spread, table, write
from benchmarks.served_model import ServedModel, problems, serving, train_model
from benchmarks.serving_left import Left, aftermath, of_length, settled
from tests.endpoint.fault_server import FaultServer
from tests.gateway.builders import MESSAGES, ballot, either

SAMPLES = 8
WORDS = 60
STREAMED, PLAIN = "streamed", "plain"
WAYS = {STREAMED: "--upstream-stream", PLAIN: "--no-upstream-stream"}


@dataclass(frozen=True)
class Served:
    """A running ``apportion serve``: its address and its process id."""

    url: str
    process: int

    @property
    def cpu_seconds(self) -> float:
        """The processor time of all threads so far, on Linux only."""
        fields = Path(f"/proc/{self.process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def peak_mib(self) -> float:
        """The most memory that the process has held."""
        status = Path(f"/proc/{self.process}/status").read_text(encoding="utf-8")
        return int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) / 1024


@contextmanager
def gateway(upstream: str, *options: str) -> Iterator[Served]:
    """Run ``apportion serve`` before ``upstream``."""
    command = [
        sys.executable,
        "-m",
        "apportion",
        "serve",
        "--upstream",
        upstream,
        "--port",
        "0",
        "--equivalence",
        "exact",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryFile("w+", encoding="utf-8") as log:
        process = subprocess.Popen([*command, *options], stderr=log, env=environment)
        try:
            yield Served(_address(process, log), process.pid)
        finally:
            process.terminate()
            process.wait(20)


def _address(process: subprocess.Popen[bytes], log: IO[str]) -> str:
    """Wait until the gateway listens, and return its address."""
    for _ in range(600):
        log.seek(0)
        text = log.read()
        if found := re.search(r"served on (http://\S+),", text):
            return found[1]
        if process.poll() is not None:
            break
        time.sleep(0.05)
    raise RuntimeError(f"the gateway must start, but said {text}")


@dataclass(frozen=True)
class Price:
    """Milliseconds of one vote: until the answer, and of the processor by this process and by the gateway's."""

    wall: float
    client: float
    gateway: float


async def priced(votes: int, vote: Callable[[], Any], served: Served | None) -> Price:
    """Return the mean price of ``votes`` votes, one after the other."""
    wall, own, other = time.perf_counter(), time.process_time(), served.cpu_seconds if served else 0.0
    for _ in range(votes):
        await vote()
    after = served.cpu_seconds if served else 0.0
    each = 1000 / votes
    return Price((time.perf_counter() - wall) * each, (time.process_time() - own) * each, (after - other) * each)


async def overhead(votes: int, delay: float) -> dict[str, Price]:
    """Return the price of a vote by the gateway and by the openai client itself, on one scripted server."""
    text = f"{'word ' * WORDS}Answer: 42"
    found: dict[str, Price] = {}
    fixed = ("--rule", "fixed", "--max-samples", str(SAMPLES), "--no-curtail")
    async with FaultServer(lambda _: either(text, delay=delay)) as upstream:
        for name, option in WAYS.items():
            with gateway(upstream.url, *fixed, option) as served:
                async with _client(served.url) as voted, _client(upstream.url) as direct:

                    async def by_gateway(client: openai.AsyncOpenAI = voted) -> None:
                        assert ballot(await _ask(client))["votes"] == {"42": SAMPLES}

                    async def by_client(client: openai.AsyncOpenAI = direct, stream: bool = name == STREAMED) -> None:
                        await asyncio.gather(*(_whole(client, stream) for _ in range(SAMPLES)))

                    await by_gateway()
                    await by_client()
                    found[f"gateway, {name}"] = await priced(votes, by_gateway, served)
                    found[f"openai client, {name}"] = await priced(votes, by_client, None)
    return found


@dataclass(frozen=True)
class Load:
    """What many votes at once cost: errors, seconds, the most upstream requests in flight, and the gateway's memory."""

    votes: int
    errors: int
    seconds: float
    in_flight: int
    peak_mib: float


async def loaded(at_once: int, connections: int) -> Load:
    """Send ``at_once`` requests at the same time, each of which takes eight samples."""
    text = f"{'word ' * WORDS}Answer: 42"
    fixed = ("--rule", "fixed", "--max-samples", str(SAMPLES), "--no-curtail", "--connections", str(connections))
    async with FaultServer(lambda _: either(text, delay=0.02)) as upstream:
        with gateway(upstream.url, *fixed) as served:
            async with _client(served.url) as client:
                await _ask(client)
                started = time.perf_counter()
                found = await asyncio.gather(*(_ask(client) for _ in range(at_once)), return_exceptions=True)
                seconds = time.perf_counter() - started
            right = sum(not isinstance(each, BaseException) and ballot(each)["answer"] == "42" for each in found)
            return Load(at_once, at_once - right, seconds, upstream.most_in_flight, served.peak_mib)


async def left_over(served: ServedModel, way: str, tokens: int) -> Left:
    """Return what the server computes after the gateway has closed what a wave of eight no longer needs."""
    options = ("--extract", "last_number", "--max-samples", str(SAMPLES), "--wave", str(SAMPLES), WAYS[way])
    with gateway(served.base_url, *options) as voted:
        async with _client(voted.url) as client:
            before = settled(served)
            completion: Any = await client.chat.completions.create(
                model=served.model,
                messages=[{"role": "user", "content": problems(1)[0].text}],
                temperature=1e-6,  # all the same text, so that the rule stops early; requests at 0 are not voted on
                **of_length(tokens),
            )
            found = ballot(completion)
            return await asyncio.to_thread(aftermath, served, before, found["samples"], found["cancelled"])


def _client(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0)


async def _ask(client: openai.AsyncOpenAI) -> Any:
    messages: Any = MESSAGES
    return await client.chat.completions.create(model="tiny", messages=messages)


async def _whole(client: openai.AsyncOpenAI, stream: bool) -> None:
    messages: Any = MESSAGES
    if not stream:
        await client.chat.completions.create(model="tiny", messages=messages)
        return
    async for _ in await client.chat.completions.create(model="tiny", messages=messages, stream=True):
        pass


def overhead_rows(found: Sequence[Mapping[str, Price]]) -> list[list[str]]:
    """Return one row for each way to vote, its means over seeds."""
    columns = ("wall", "client", "gateway")
    return [
        [name, *(spread([getattr(one[name], each) for one in found], ".1f") for each in columns)] for name in found[0]
    ]


def left_rows(found: Sequence[Mapping[str, Left]]) -> list[list[str]]:
    """Return one row for each way to ask upstream."""
    return [
        [
            name,
            spread([one[name].needed for one in found], ".0f"),
            spread([one[name].in_flight for one in found], ".0f"),
            spread([one[name].until_seconds for one in found], ".2f"),
            spread([one[name].after_seconds for one in found], ".2f"),
            spread([one[name].computed for one in found], ".0%"),
        ]
        for name in found[0]
    ]


def main(
    results: Path = RESULTS,
    votes: int = 40,
    at_once: Sequence[int] = (64, 256),
    seeds: Sequence[int] = (0, 1, 2),
    tokens: int = 400,
) -> None:
    """Measure everything and write the table ``gateway`` into ``results``."""
    load = os.getloadavg()[0]
    prices = [asyncio.run(overhead(votes, delay=0.05)) for _ in seeds]
    loads = [asyncio.run(loaded(each, connections=32)) for each in at_once]
    left: list[dict[str, Left]] = []
    with tempfile.TemporaryDirectory() as folder:
        train_model(Path(folder) / "model")
        with serving(Path(folder) / "model") as served:
            asyncio.run(left_over(served, STREAMED, 16))  # the first requests are slow
            left += [{way: asyncio.run(left_over(served, way, tokens)) for way in WAYS} for _ in seeds]
    dearer = spread([one[STREAMED].each_seconds / one[PLAIN].each_seconds for one in left], ".2f")
    write(
        "gateway",
        "A gateway that votes",
        ["vote", "wall ms", "client CPU ms", "gateway CPU ms"],
        overhead_rows(prices),
        [
            f"A vote of {SAMPLES} samples at once on a scripted server, each a reply of {WORDS} words after 50 ms: one "
            f"request to `apportion serve`, or {SAMPLES} requests of the `openai` client without a vote. Means of "
            f"{votes} votes and 95% intervals over seeds. The client's process also runs the scripted server.",
            "## What is computed after a stream is closed",
            f"`transformers serve`, a wave of {SAMPLES} completions of {tokens} tokens, and a rule that stops within "
            "it. `computed` is the share of the cancelled requests that the server computed all the same. A streamed "
            f"completion costs {dearer} times the processor time of a plain one.",
            table(
                ["upstream", "needed", "cancelled", "server CPU s until the answer", "after", "computed"],
                left_rows(left),
            ),
        ],
        more=[
            f"Requests sent at the same time, {SAMPLES} samples each, with 64 votes and 32 upstream requests at once.",
            table(
                ["requests", "errors", "s", "most upstream in flight", "peak MiB"],
                [[one.votes, one.errors, f"{one.seconds:.1f}", one.in_flight, f"{one.peak_mib:.0f}"] for one in loads],
            ),
            f"1-minute load of the machine when it began: {load:.1f}.",
        ],
        seeds=seeds,
        cells={"left": [{name: vars(one) for name, one in each.items()} for each in left]},
        results=results,
    )


if __name__ == "__main__":
    main()
