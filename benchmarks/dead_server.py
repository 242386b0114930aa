"""Measure how soon a vote ends on a server that is dead, misdirected or half broken, and what it has asked until then.

Each fault is served on loopback, to eight questions with the default settings of a vote. It holds for all requests, for
all after the first hundred, or for one question of eight.

    python -m benchmarks.dead_server
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from apportion.endpoint import EndpointError
from apportion.vote import Question, vote_async
from benchmarks.common import spread, write
from tests.endpoint.fault_server import (
    Behaviour,
    FaultServer,
    Request,
    cut_before,
    drip,
    endless,
    html_page,
    ok,
    redirected,
    refused,
    silent,
)

REPEATS = 3
QUESTIONS = 8
GOOD = 100
"""Requests that are answered before a fault begins in the middle of a run."""

LIMIT_SECONDS = 300.0
Script = Callable[[Request], Behaviour]
COLUMNS = ("fault", "requests with it", "ends after s", "requests", "end")


def answer(request):
    """Return the reply of a working server, after a tenth of a second: one of 32 answers, so that votes go on."""
    return ok(lambda request, place: f"\\boxed{{{((request.seed or 0) + place) % 32}}}", most=1, delay=0.1)


def always(fault):
    """Return a server with ``fault`` from the start."""
    return lambda _: fault()


def later(fault):
    """Return a server that works for a while."""
    return lambda request: fault() if request.number >= GOOD else answer(request)


def for_one(fault):
    """Return a server with ``fault`` for one question, the first."""
    return lambda request: fault() if "Question 0?" in request.prompt else answer(request)


def broken():
    """A server error without Retry-After."""
    return refused(500, "the engine has crashed")


def mixed(request):
    """A server error for every other request, and one byte a second for the rest."""
    return broken() if request.number % 2 else drip(1.0)


CASES: tuple[tuple[str, str, Script, dict[str, Any]], ...] = (
    ("500", "all", always(broken), {}),
    ("connections closed", "all", always(cut_before), {}),
    ("a login page", "all", always(html_page), {}),
    ("redirects in a circle", "all", always(redirected), {}),
    ("400", "all", always(lambda: refused(400)), {}),
    ("a body without end, 4 at once", "all", always(endless), {"concurrency": 4}),
    ("500 and one byte a second, timeout 3 s", "all", mixed, {"timeout_seconds": 3.0}),
    ("500", "after 100", later(broken), {}),
    ("connections closed", "after 100", later(cut_before), {}),
    ("silence, timeout 5 s", "after 100", later(silent), {"timeout_seconds": 5.0}),
    ("400", "after 100", later(lambda: refused(400)), {}),
    ("500", "one question", for_one(broken), {}),
    ("400", "one question", for_one(lambda: refused(400)), {}),
)


async def run(script, settings):
    """Return the seconds until a vote ended, its requests, and how it ended."""
    questions = [Question(f"q{number}", f"Question {number}?") for number in range(QUESTIONS)]
    with TemporaryDirectory() as folder:
        async with FaultServer(script) as server:
            out, started = Path(folder) / "answers.jsonl", time.monotonic()
            given = {"base_url": server.url, "model": "tiny", "equivalence": "exact", "api_key_env": "NO_KEY"}
            try:
                async with asyncio.timeout(LIMIT_SECONDS):
                    report = await vote_async(questions, out=out, **given, **settings)
                end = f"{len(report.ballots)} of {QUESTIONS} questions have a ballot"
            except EndpointError:
                end = "error"
            except TimeoutError:
                end = "not within the limit"
            return time.monotonic() - started, len(server.requests), end


def row(fault, requests, script, settings):
    """Return the row of one fault."""
    found = [asyncio.run(run(script, settings)) for _ in range(REPEATS)]
    seconds, asked, ends = zip(*found, strict=True)
    print(fault, requests, found, flush=True)
    return [fault, requests, spread(seconds, ".1f"), spread(asked, ".0f"), " / ".join(dict.fromkeys(ends))]


def main():
    """Run all cases and write the table."""
    notes = [
        f"Eight questions, max_samples 64, concurrency 32, five retries; mean of {REPEATS} runs and 95% interval. Each "
        "ends with an `EndpointError`, unless one question alone has the fault. A server that has answered may come "
        "back, so a fault after 100 good requests ends the run later."
    ]
    title = "How soon a vote ends on a dead or misdirected server"
    write("dead_server", title, COLUMNS, [row(*case) for case in CASES], notes, seeds=[0])


if __name__ == "__main__":
    main()
