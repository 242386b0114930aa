"""Kill a vote again and again at random moments and go on, and count what the server answered against what is kept.

    python -m benchmarks.vote_kills [--kills 100]

A scripted server on loopback answers each request after 50 to 250 ms. Its answers depend on the question and the seed
only, so that the votes of all runs together must be those of one run that nobody killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from random import Random

from apportion.stopping import USUAL_RULE, decide
from apportion.vote import read_recorded
from apportion.vote.journal import samples_path
from benchmarks.common import ROOT, options, write
from tests.endpoint.fault_server import FaultServer, cut_before
from tests.vote.builders import answering, make_questions, stream_of

KILLS, SEED, QUESTIONS, MAX_SAMPLES, CONCURRENCY = 100, 0, 500, 32, 16
LATEST_SECONDS, START_SECONDS, END_SECONDS = 1.5, 60.0, 10.0
COLUMNS = ("fault", "tried", "survived")


@dataclass
class Scene:
    """The run that is to be killed, its answers, and whether the server cuts connections."""

    process: Process
    out: Path
    rng: Random
    cutting: bool = False


async def tear(scene):
    """Cut the end of the last line of the samples of a run that was killed, as a loss of power may."""
    await scene.process.wait()
    path = samples_path(scene.out)
    if path.exists() and path.stat().st_size > 40:
        os.truncate(path, path.stat().st_size - scene.rng.randint(1, 40))


async def cut(scene):
    """Cut all connections from now on."""
    scene.cutting = True


Act = signal.Signals | float | Callable[[Scene], Awaitable[None]]
FAULTS: dict[str, tuple[Act, ...]] = {
    "SIGKILL": (signal.SIGKILL,),
    "SIGTERM": (signal.SIGTERM,),
    "SIGINT": (signal.SIGINT,),
    "SIGTERM, SIGKILL 20 ms later": (signal.SIGTERM, 0.02, signal.SIGKILL),
    "SIGKILL, and a torn last line": (signal.SIGKILL, tear),
    "connections cut, SIGKILL 100 ms later": (cut, 0.1, signal.SIGKILL),
}
"""What is done to the run, in order: a signal, seconds to wait, or an act."""


async def strike(scene, kind):
    """Apply a fault."""
    for act in FAULTS[kind]:
        if isinstance(act, signal.Signals):
            with suppress(ProcessLookupError):
                scene.process.send_signal(act)
        elif isinstance(act, float):
            await asyncio.sleep(act)
        else:
            await act(scene)


@dataclass
class Tried:
    """What happened at the kills of one kind."""

    kills: int = 0
    answered: int = 0
    kept: int = 0
    problems: list[str] = field(default_factory=list)


async def start(server, folder):
    """Start the vote, or go on with it."""
    command = f"vote --base-url {server.url} --model tiny --questions questions.jsonl --out answers.jsonl --json"
    more = f"--max-samples {MAX_SAMPLES} --concurrency {CONCURRENCY} --equivalence exact"
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "apportion", *command.split(), *more.split()),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=DEVNULL,
        stderr=PIPE,
    )


async def kill_once(server, folder, rng, kind, tried, scenes):
    """Run until a random moment and apply the fault. Return whether the run had ended by itself."""
    before, first = _kept(folder), len(server.requests)
    scene = Scene(await start(server, folder), folder / "answers.jsonl", rng)
    scenes[:] = [scene]
    async with asyncio.timeout(START_SECONDS):
        while not any(request.answered for request in server.requests[first:]) and scene.process.returncode is None:
            await asyncio.sleep(0.005)
    await asyncio.sleep(rng.uniform(0, LATEST_SECONDS))
    if scene.process.returncode is not None:
        return True
    tried.kills += 1
    await strike(scene, kind)
    try:
        async with asyncio.timeout(END_SECONDS):
            said = (await scene.process.communicate())[1].decode()
    except TimeoutError:
        scene.process.kill()
        tried.problems.append("it did not end")
        return False
    await asyncio.sleep(0.02)  # the server notices closed connections
    answered, kept = sum(request.answered for request in server.requests[first:]), _kept(folder) - before
    tried.answered += answered
    tried.kept += kept
    if "Traceback" in said or answered - kept > CONCURRENCY + 1:
        tried.problems.append(f"{answered - kept} samples lost; {(said.splitlines() or ['nothing said'])[-1]}")
    return False


def _kept(folder):
    """Return how many whole samples are kept."""
    return sum(map(len, read_recorded(folder / "answers.jsonl").samples.values()))


async def measure(kills):
    """Kill, finish, compare, and write the table ``vote_kills``."""
    rng, questions = Random(SEED), make_questions(QUESTIONS)
    tried, scenes = {name: Tried() for name in FAULTS}, list[Scene]()

    def script(request):
        return cut_before() if scenes and scenes[0].cutting else answering(delay=0.25)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = [{"id": question.id, "prompt": question.prompt, "answer": question.gold} for question in questions]
        (folder / "questions.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        async with FaultServer(script) as server:
            for done, kind in enumerate(islice(cycle(FAULTS), kills)):
                if await kill_once(server, folder, rng, kind, tried[kind], scenes):
                    raise RuntimeError(f"the vote ended after {done} kills; give it more questions")
            scenes.clear()
            last = await start(server, folder)
            said = (await asyncio.wait_for(last.communicate(), 600))[1].decode()
            if last.returncode:
                raise RuntimeError(f"the last run must finish, got {said}")
            asked = Counter((request.prompt, request.seed) for request in server.requests if request.answered)
        record = read_recorded(folder / "answers.jsonl")
        replayed = decide([stream_of(q) for q in questions], USUAL_RULE, MAX_SAMPLES, curtail=True)
        same = sum(
            (record.ballots[q.id].samples, record.ballots[q.id].answer) == (decision.samples, decision.answer)
            for q, decision in zip(questions, replayed, strict=True)
        )
    table = [[name, each.kills, each.kills - len(each.problems)] for name, each in tried.items()]
    problems = [f"{name}: {problem}" for name, each in tried.items() for problem in each.problems]
    answered, kept = (sum(getattr(each, what) for each in tried.values()) for what in ("answered", "kept"))
    notes = [
        f"A vote on {QUESTIONS} questions with {CONCURRENCY} requests in flight was killed {kills} times, each time "
        f"within {LATEST_SECONDS:g} s of its first answer, and then finished. Until the last kill the server had "
        f"answered {answered:,} requests, and {kept:,} samples were kept. Lost are samples whose answer was on its way "
        f"when the run died: at most {CONCURRENCY} may be in flight. {sum(count > 1 for count in asked.values()):,} "
        f"samples were answered more than once, because the first answer was lost.",
        f"In the end {same} of {QUESTIONS} questions have the answer and the number of samples of a vote that nobody "
        "killed.",
        *(problems or ["Nothing else went wrong: no traceback, and no run that did not end."]),
    ]
    write("vote_kills", "Samples kept by a vote that is killed", COLUMNS, table, notes, seeds=[SEED])


if __name__ == "__main__":
    asyncio.run(measure(options(__doc__, kills=KILLS).kills))
