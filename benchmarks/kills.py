"""Kill lab studies and votes at random moments, go on, and compare their ends with those that nobody killed.

    python -m benchmarks.kills                  # 100 kills of each: the tables kills and vote_kills
    python -m benchmarks.kills --parts votes --kills 14

The processes of a run are found by a mark in their environment. A scripted server on loopback answers each request of a
vote after up to 250 ms, by the question and the seed only.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from random import Random
from statistics import median
from threading import Thread
from typing import Any
from uuid import uuid4

import psutil

from benchmarks.common import RESULTS, ROOT, options, write
from benchmarks.small_study import NAME, base_folder, curves, study_text
from tests.endpoint.fault_server import FaultServer
from tests.processes import MARK, default_signals, marked, nothing_left
from tests.vote.builders import answering, make_questions

KILLS, SEED, KILLS_A_RUN, ROLLOUTS, QUESTIONS, CONCURRENCY = 100, 0, 10, 8000, 200, 16
GONE_SECONDS = 5.0
"""How long processes may live after a kill."""
LATEST_SECONDS, START_SECONDS, END_SECONDS = 2.5, 300.0, 60.0
COLUMNS = ("fault", "tried", "survived", "median s until no process was left", "most s")
KILL, TERM, INT, STOP = signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSTOP


@dataclass(frozen=True)
class Fault:
    """What is sent to the parent and to a worker, in order, and the exit codes that are documented for it."""

    name: str
    signals: tuple[tuple[str, signal.Signals], ...]
    codes: tuple[int, ...]


FAULTS = (
    Fault("SIGKILL to the parent", (("parent", KILL),), (-9,)),
    Fault("SIGTERM to the parent", (("parent", TERM),), (143,)),
    Fault("SIGINT to the parent", (("parent", INT),), (130,)),
    Fault("SIGKILL to a worker", (("worker", KILL),), (1,)),
    Fault("SIGKILL to a worker, SIGTERM to the parent", (("worker", KILL), ("parent", TERM)), (1, 143)),
    Fault("SIGSTOP to a worker, SIGKILL to the parent", (("worker", STOP), ("parent", KILL)), (-9,)),
    Fault("SIGTERM to the parent, twice", (("parent", TERM), ("parent", TERM)), (143,)),
)
VOTE_FAULTS = (*FAULTS[:3], Fault("SIGTERM, then SIGKILL", (("parent", TERM), ("parent", KILL)), (-9, 143)))


@dataclass(frozen=True)
class Run:
    """What is killed: its ``files``, its command, how far it is, what it ends with, and what it has lost so far.

    ``done`` counts what a folder holds, so that a kill comes in mid-run. ``lost`` may grow by ``CONCURRENCY`` + 1 a
    kill.
    """

    files: dict[str, str]
    command: Callable[[Path], Sequence[str]]
    done: Callable[[Path], int]
    result: Callable[[Path], Any]
    lost: Callable[[Path], int] = lambda folder: 0


@dataclass
class Kill:
    """One kill: the exit code, the seconds until no process was left, and what went wrong."""

    fault: Fault
    code: int
    gone_seconds: float
    wrong: list[str] = field(default_factory=list)


def a_study(rollouts=ROLLOUTS):
    """Return a lab study with two workers."""

    def command(folder):
        begun = (folder / "runs" / NAME / "config.toml").exists()
        return ("lab", "--name", NAME, "--resume") if begun else ("lab", "study.toml")

    def done(folder):
        """The lines of metrics without the first, which is of step 0."""
        files = [path.read_bytes() for path in (folder / "runs" / NAME).glob("*-seed*/metrics.jsonl")]
        return sum(max(0, content.count(b"\n") - 1) for content in files)

    return Run({"study.toml": study_text(base_folder(), rollouts)}, command, done, curves)


def a_vote(server, questions=QUESTIONS, most=32):
    """Return a vote on ``server``, which loses the samples that it paid for and that were not kept."""
    rows = [{"id": each.id, "prompt": each.prompt, "answer": each.gold} for each in make_questions(questions)]
    words = f"vote --base-url {server.url} --model tiny --questions questions.jsonl --out answers.jsonl --json"
    words += f" --max-samples {most} --concurrency {CONCURRENCY} --equivalence exact"

    def kept(folder):
        path = folder / "answers.samples.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def answers(folder):
        """The finished questions, without how long each took and the checksum, which covers that, too."""
        lines = map(json.loads, (folder / "answers.jsonl").read_text("utf-8").splitlines())
        return sorted(json.dumps(line | {"seconds": 0, "checksum": ""}) for line in lines)

    def lost(folder):
        return sum(request.answered for request in server.requests) - kept(folder)

    files = {"questions.jsonl": "".join(f"{json.dumps(row)}\n" for row in rows)}
    return Run(files, lambda folder: words.split(), kept, answers, lost)


@contextmanager
def served(script):
    """Run a scripted server in a thread, and yield it."""
    loop, server = asyncio.new_event_loop(), FaultServer(script)
    thread = Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result()
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.__aexit__(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def tried(run, faults, kills):
    """Kill runs ``kills`` times, and return the kills and the number of runs. Each run is killed ten times at most."""
    rng, order, found, runs = Random(SEED), cycle(faults), [], 0
    with tempfile.TemporaryDirectory() as name:
        unbroken = _end_of(run, _new(run, Path(name) / "whole"))
        while len(found) < kills:
            runs += 1
            folder, own = _new(run, Path(name) / f"run{runs}"), []
            while len(own) < min(KILLS_A_RUN, kills - len(found)) and (kill := _kill(run, folder, next(order), rng)):
                own.append(kill)
                print(len(found) + len(own), kill, flush=True)
            if _end_of(run, folder) != unbroken:
                for kill in own:
                    kill.wrong.append("the end differs from that of an unbroken run")
            found += own
    return found, runs


def rows(found):
    """Return one row for each fault, and one for all."""
    names = dict.fromkeys(kill.fault.name for kill in found)
    kinds = {name: [kill for kill in found if kill.fault.name == name] for name in names} | {"all": found}
    return [_row(name, own) for name, own in kinds.items()]


def _row(name, found):
    seconds = [kill.gone_seconds for kill in found]
    survived = sum(not kill.wrong for kill in found)
    return [name, str(len(found)), str(survived), f"{median(seconds):.1f}", f"{max(seconds):.1f}"]


def _kill(run, folder, fault, rng):
    """Continue the run, kill it in mid-run, and wait for its processes. Return None if it ended before."""
    before, lost, mark = run.done(folder), run.lost(folder), uuid4().hex
    process, deadline = _start(run, folder, mark), time.monotonic() + START_SECONDS
    while process.poll() is None and run.done(folder) == before:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the run in {folder} must go on within {START_SECONDS:g} s; see its file err")
        time.sleep(0.02)
    time.sleep(rng.uniform(0, LATEST_SECONDS))
    struck = {"worker": [each for each in marked(mark) if _is_worker(each)]}
    struck["parent"] = [each for each in marked(mark) if each.pid == process.pid]
    if not all(struck[who] for who, _ in fault.signals):
        return None if process.wait(END_SECONDS) == 0 else Kill(fault, process.returncode, 0.0, ["it ended before"])
    for who, number in fault.signals:
        with suppress(psutil.NoSuchProcess):
            struck[who][0].send_signal(number)
        time.sleep(rng.uniform(0, 0.2) if len(fault.signals) > 1 else 0)
    began = time.monotonic()
    nothing_left(mark, END_SECONDS)
    gone = time.monotonic() - began
    for left in marked(mark):
        left.kill()
    code, err = process.wait(END_SECONDS), (folder / "err").read_text("utf-8", "replace")
    if code == 0:
        return None
    time.sleep(0.1)  # the server notices closed connections
    problems = {
        f"exit code {code}": code not in fault.codes,
        f"a process lived {gone:.1f} s": gone > GONE_SECONDS,
        f"traceback: {err[-200:]}": "Traceback (most recent call last)" in err,
        f"lost {run.lost(folder) - lost} samples": run.lost(folder) - lost > CONCURRENCY + 1,
    }
    return Kill(fault, code, gone, [problem for problem, there in problems.items() if there])


def _new(run, folder):
    folder.mkdir(parents=True)
    for name, text in run.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def _start(run, folder, mark):
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        return subprocess.Popen(
            [sys.executable, "-m", "apportion", *run.command(folder)],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(ROOT), MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
            preexec_fn=default_signals,
        )


def _end_of(run, folder):
    """Run to the end; return what it ends with."""
    code = _start(run, folder, uuid4().hex).wait()
    if code:
        raise RuntimeError(f"the run must end, got exit code {code}: {(folder / 'err').read_text('utf-8')}")
    return run.result(folder)


def _is_worker(process):
    with suppress(psutil.NoSuchProcess):
        command = " ".join(process.cmdline())
        return "spawn_main" in command and "resource_tracker" not in command
    return False


def study(results=RESULTS, parts=("studies", "votes"), kills=KILLS, rollouts=ROLLOUTS):
    """Kill ``kills`` times, and write a table for each of ``parts``."""
    studies = (
        "kills", "Studies that were killed and resumed", "lab studies with two workers",
        "`--resume`. The studies were then run to their ends", "all metrics but `cpu_seconds`",
    )  # fmt: skip
    votes = (
        "vote_kills", "Votes that were killed and continued",
        f"votes on {QUESTIONS} questions with {CONCURRENCY} requests in flight", "the same command",
        "the votes of every question, and if the kill lost no more samples than were on their way",
    )  # fmt: skip
    with served(lambda request: answering(delay=0.25)) as server:
        for part, make, faults, (name, title, what, then, equal) in (
            ("studies", lambda: a_study(rollouts), FAULTS, studies),
            ("votes", lambda: a_vote(server), VOTE_FAULTS, votes),
        ):
            if part not in parts:
                continue
            found, runs = tried(make(), faults, kills)
            note = (
                f"{len(found)} kills of {runs} {what}, each at a random moment and followed by {then}. A kill is "
                f"survived if no process lives {GONE_SECONDS:g} s after it, the exit code is the documented one, no "
                f"traceback was shown, and the run ends with what an unbroken one ends with: {equal}."
            )
            cells = {"kills": [{**vars(kill), "fault": kill.fault.name} for kill in found]}
            write(name, title, COLUMNS, rows(found), [note], seeds=[SEED], cells=cells, results=results)


if __name__ == "__main__":
    given = options(__doc__, parts=("studies", "votes"), kills=KILLS, rollouts=ROLLOUTS, results=RESULTS)
    study(given.results, given.parts, given.kills, given.rollouts)
