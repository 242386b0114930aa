"""Kill a lab study again and again at random moments, resume it to its end, and compare with a study left alone.

    python -m benchmarks.kills                  # 100 kills and a failure of every write: both tables
    python -m benchmarks.kills --parts kills --kills 14

The processes of a study are found by a mark in their environment.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from random import Random
from statistics import median
from uuid import uuid4

import psutil

from benchmarks.common import RESULTS, ROOT, options, write
from benchmarks.full_disk import study_full_disk
from benchmarks.small_study import NAME, base_folder, study_text
from tests.processes import MARK, marked, nothing_left

KILLS, SEED, ROLLOUTS, KILLS_A_STUDY = 100, 0, 8000, 10
GONE_SECONDS = 5.0
"""How long processes may live after a kill."""
LATEST_SECONDS, START_SECONDS, END_SECONDS = 2.5, 300.0, 60.0
COLUMNS = ("fault", "tried", "survived", "median s until no process was left", "most s")


@dataclass(frozen=True)
class Fault:
    """What is sent to the parent and to a worker, in order, and the exit codes that are documented for it."""

    name: str
    signals: tuple[tuple[str, signal.Signals], ...]
    codes: tuple[int, ...]


FAULTS = (
    Fault("SIGKILL to the parent", (("parent", signal.SIGKILL),), (-9,)),
    Fault("SIGTERM to the parent", (("parent", signal.SIGTERM),), (143,)),
    Fault("SIGINT to the parent", (("parent", signal.SIGINT),), (130,)),
    Fault("SIGKILL to a worker", (("worker", signal.SIGKILL),), (1,)),
    Fault(
        "SIGKILL to a worker, SIGTERM to the parent", (("worker", signal.SIGKILL), ("parent", signal.SIGTERM)), (1, 143)
    ),
    Fault(
        "SIGSTOP to a worker, SIGKILL to the parent", (("worker", signal.SIGSTOP), ("parent", signal.SIGKILL)), (-9,)
    ),
    Fault("SIGTERM to the parent, twice", (("parent", signal.SIGTERM), ("parent", signal.SIGTERM)), (143,)),
)


@dataclass
class Kill:
    """One kill: the exit code, the seconds until no process was left, and what went wrong."""

    fault: Fault
    code: int
    gone_seconds: float
    wrong: list[str] = field(default_factory=list)


def study_kills(results=RESULTS, kills=KILLS, rollouts=ROLLOUTS):
    """Kill studies ``kills`` times and write the table ``kills``. Return what was found."""
    base, rng = base_folder(), Random(SEED)
    faults, found, studies = cycle(FAULTS), [], 0
    with tempfile.TemporaryDirectory() as name:
        whole = Path(name) / "whole"
        unbroken = _run_to_end(_new_study(whole, base, rollouts))
        while len(found) < kills:
            studies += 1
            folder = _new_study(Path(name) / f"study{studies}", base, rollouts)
            own: list[Kill] = []
            for _ in range(min(KILLS_A_STUDY, kills - len(found))):
                kill = _kill(folder, next(faults), rng)
                if kill is None:
                    break
                own.append(kill)
                print(len(found) + len(own), kill, flush=True)
            ended = _run_to_end(folder)
            if ended != unbroken:
                for kill in own:
                    kill.wrong.append("the metrics differ from those of an unbroken study")
            print(f"study {studies}:", "equal" if ended == unbroken else "NOT EQUAL", flush=True)
            found += own
    write(
        "kills",
        "Studies that were killed and resumed",
        COLUMNS,
        rows(found),
        [
            f"{len(found)} kills of {studies} lab studies with two workers, each at a random moment and followed by "
            "`--resume`. The studies were then run to their ends. A kill is survived if all metrics are those of an "
            f"unbroken study, byte by byte except `cpu_seconds`, no process of the study lives {GONE_SECONDS:g} s "
            "after it, the exit code is the documented one, and no traceback was shown."
        ],
        seeds=[SEED],
        cells={"kills": [{**vars(kill), "fault": kill.fault.name} for kill in found]},
        results=results,
    )
    return found


def rows(found):
    """Return one row for each fault, and one for all."""
    lines = [_row(fault.name, [kill for kill in found if kill.fault is fault]) for fault in FAULTS]
    return [*[line for line in lines if line], _row("all", found)]


def _row(name, found):
    if not found:
        return []
    seconds = [kill.gone_seconds for kill in found]
    survived = sum(not kill.wrong for kill in found)
    return [name, str(len(found)), str(survived), f"{median(seconds):.1f}", f"{max(seconds):.1f}"]


def _kill(folder, fault, rng):
    """Continue the study, kill it in mid-run, and wait for its processes. Return None if it ended before."""
    before, mark = _lines(folder), uuid4().hex
    process = _start(folder, mark)
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and not _has_grown(before, _lines(folder)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no step of the study in {folder} within {START_SECONDS:g} s; see its file err")
        time.sleep(0.02)
    time.sleep(rng.uniform(0, LATEST_SECONDS))
    workers = [each for each in marked(mark) if each.pid != process.pid and _is_worker(each)]
    if process.poll() is not None or not workers:
        return None if _wait(process) == 0 else Kill(fault, process.returncode, 0.0, ["it ended before the kill"])
    struck = {"parent": psutil.Process(process.pid), "worker": rng.choice(workers)}
    for who, number in fault.signals:
        with suppress(psutil.NoSuchProcess):
            struck[who].send_signal(number)
        time.sleep(rng.uniform(0, 0.2) if len(fault.signals) > 1 else 0)
    began = time.monotonic()
    nothing_left(mark, END_SECONDS)
    gone = time.monotonic() - began
    for left in marked(mark):
        left.kill()
    code, err = _wait(process), (folder / "err").read_text("utf-8", "replace")
    if code == 0:
        return None
    kill = Kill(fault, code, gone)
    if code not in fault.codes:
        kill.wrong.append(f"exit code {code}")
    if gone > GONE_SECONDS:
        kill.wrong.append(f"a process lived {gone:.1f} s")
    if "Traceback (most recent call last)" in err:
        kill.wrong.append(f"traceback: {err.strip().splitlines()[-1][:200]}")
    return kill


def _new_study(folder, base, rollouts):
    folder.mkdir(parents=True)
    (folder / "study.toml").write_text(study_text(base, rollouts), encoding="utf-8")
    return folder


def _start(folder, mark):
    begun = (folder / "runs" / NAME / "config.toml").exists()
    arguments = ["--name", NAME, "--resume"] if begun else ["study.toml"]
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        return subprocess.Popen(
            [sys.executable, "-m", "apportion", "lab", *arguments],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(ROOT), MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )


def _run_to_end(folder):
    """Run the study to its end; return the metrics of each run without their seconds."""
    process = _start(folder, uuid4().hex)
    if process.wait() != 0:
        raise RuntimeError(
            f"the study in {folder} must end, got exit code {process.returncode}: {(folder / 'err').read_text('utf-8')}"
        )
    files = sorted((folder / "runs" / NAME).glob("*-seed*/metrics.jsonl"))
    return {path.parent.name: re.sub(rb', "cpu_seconds": [^,}]+', b"", path.read_bytes()) for path in files}


def _lines(folder):
    """Return the number of whole lines of each run's metrics."""
    files = (folder / "runs" / NAME).glob("*-seed*/metrics.jsonl")
    return {path.parent.name: path.read_bytes().count(b"\n") for path in files}


def _has_grown(before, now):
    """Return whether a run has a new training step; its first line is of step 0."""
    return any(lines > max(1, before.get(run, 0)) for run, lines in now.items())


def _is_worker(process):
    with suppress(psutil.NoSuchProcess):
        command = " ".join(process.cmdline())
        return "spawn_main" in command and "resource_tracker" not in command
    return False


def _wait(process):
    return process.wait(timeout=END_SECONDS)


if __name__ == "__main__":
    given = options(__doc__, parts=("disk", "kills"), kills=KILLS, rollouts=ROLLOUTS, results=RESULTS)
    if "disk" in given.parts:
        study_full_disk(given.results)
    if "kills" in given.parts:
        study_kills(given.results, given.kills, given.rollouts)
