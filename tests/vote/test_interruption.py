"""The command in a process of its own is killed or interrupted, and run again."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("typer")

from apportion.vote import read_recorded
from tests.builders import write_jsonl
from tests.endpoint.fault_server import FaultServer
from tests.processes import default_signals
from tests.soak import case
from tests.vote.builders import answering, expect_replay, make_questions

ROOT = Path(__file__).parents[2]
QUESTIONS = make_questions(24)

pytestmark = pytest.mark.slow


async def start(server, folder):
    """Start ``apportion vote`` on ``QUESTIONS``, with four requests at a time."""
    rows = [{"id": question.id, "prompt": question.prompt, "answer": question.gold} for question in QUESTIONS]
    write_jsonl(folder / "questions.jsonl", rows)
    command = f"vote --base-url {server.url} --model tiny --questions questions.jsonl --out answers.jsonl --json"
    more = "--max-samples 16 --concurrency 4 --equivalence exact"
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "apportion", *command.split(), *more.split()),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=default_signals,
        stdout=PIPE,
        stderr=PIPE,
    )


async def until_finished(folder, count, process):
    while len(finished(folder)) < count:
        assert process.returncode is None, await process.communicate()
        await asyncio.sleep(0.005)


def finished(folder):
    """Return the whole lines of the answers."""
    path = folder / "answers.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def asked(server):
    """Return the number of requests for each question."""
    return Counter(f"q{request.prompt.split()[1]}" for request in server.requests)


def expect_one_run(folder):
    """Check that the answers are those of a run that was never interrupted."""
    expect_replay(read_recorded(folder / "answers.jsonl").ballots.values(), QUESTIONS, most=16)


def run_twice(folder, end):
    """End a run by a signal after five questions, finish it by another; return what was on disk in between."""

    async def inner():
        async with FaultServer(answering(delay=0.05)) as server, asyncio.timeout(120):
            first = await start(server, folder)
            await until_finished(folder, 5, first)
            first.send_signal(end)
            said = (await first.communicate())[1].decode()
            between = finished(folder)
            server.requests.clear()
            second = await start(server, folder)
            summary, errors = await second.communicate()
            assert second.returncode == 0, errors.decode()
            return first, said, asked(server), between, summary.decode()

    return asyncio.run(inner())


def test_a_killed_run_can_be_continued(tmp_path):
    first, _, requests, between, summary = run_twice(tmp_path, signal.SIGKILL)
    assert first.returncode == -signal.SIGKILL and 5 <= len(between) < len(QUESTIONS)
    lines = finished(tmp_path)
    assert lines[: len(between)] == between and not {line["id"] for line in between} & requests.keys()
    expect_one_run(tmp_path)
    totals = json.loads(summary)
    assert totals["finished"] == totals["questions"] == len(QUESTIONS)
    assert totals["samples"] == sum(line["samples"] for line in lines)
    assert totals["accuracy"]["mean"] == sum(line["correct"] for line in lines) / len(QUESTIONS)


@pytest.mark.parametrize(
    "number", [case(each, suite=each == signal.SIGINT) for each in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)]
)
def test_an_interrupted_run_reports_its_progress_and_can_be_continued(tmp_path, number):
    first, said, requests, between, _ = run_twice(tmp_path, number)
    assert first.returncode == 128 + number
    assert said == f"{len(between)} of {len(QUESTIONS)} finished; run the same command again to continue\n"
    assert not {line["id"] for line in between} & requests.keys()
    expect_one_run(tmp_path)
