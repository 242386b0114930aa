"""Let every write of a run fail, as on a full or read-only disk, then run it again with room, and compare.

An audit hook raises the error when a file is opened for writing, renamed, cut, removed or made, and a limit on the size
of files lets a write itself fail. The commands run in forks of a process that has imported them; workers of a study are
forked, too, and not started anew.
"""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apportion.lab.command
import apportion.vote.estimate  # noqa: F401 - so that no case has to import it
from apportion.records import read_log
from benchmarks.common import RESULTS, write
from benchmarks.hostile_forks import run_forked
from benchmarks.hostile_targets import QUESTIONS, REPLY, VOTE, command_line, replies, usage_errors_as_exit, write_log
from benchmarks.small_study import base_folder, curves, study_text

COLUMNS = ("run", "fault", "tried", "survived")
ERRORS = {"no space left": errno.ENOSPC, "read-only": errno.EROFS}
CHANGES = {"os.rename", "os.truncate", "os.mkdir", "os.remove", "os.ftruncate"}
MOST_WRITES = 200


@dataclass
class Fault:
    """One failure: the ``run``, the ``kind`` of fault, the number of the write or the size, and what went wrong."""

    run: str
    kind: str
    at: int
    wrong: list[str] = field(default_factory=list)
    equal: bool = True


@dataclass(frozen=True)
class Run:
    """What is run: a command of which ``result`` is compared, and the sizes that a file may have."""

    name: str
    files: Mapping[str, bytes]
    act: Callable[[Path], object]
    result: Callable[[Path], Any]
    sizes: Sequence[int]


def study_full_disk(results=RESULTS, most=MOST_WRITES):
    """Let each of the first ``most`` writes of every run fail, and write the table ``full_disk``. Return the faults."""
    base = base_folder()
    found: list[Fault] = []
    with tempfile.TemporaryDirectory() as name, replies() as port:
        for run in make_runs(base, port):
            found += _try_all(run, Path(name).resolve(), most)
            print(run.name, len(found), [vars(fault) for fault in found if fault.wrong][:3], flush=True)
    write(
        "full_disk",
        "Runs on a full or read-only disk",
        COLUMNS,
        [["all", "all", len(found), sum(not fault.wrong for fault in found)]],
        [
            "The k-th change of a file, and every later one, fails with the error, for every k; or no file may become "
            "larger than a size. A fault is survived if the run ends with an exit code above 0, with at most one line "
            "on stderr, and if the next run, which has room, ends with what an unbroken run gives."
        ],
        seeds=[0],
        cells={"faults": [vars(fault) for fault in found]},
        results=results,
    )
    return found


def make_runs(base, port):
    """Yield a study, a vote and a rollout log."""

    def study(folder):
        before = multiprocessing.get_context
        multiprocessing.get_context = lambda method=None: before("fork")
        command_line(["lab", "study.toml"])

    def vote(folder):
        served = [each.replace("http://127.0.0.1:9/v1", f"http://127.0.0.1:{port}{folder}") for each in VOTE]
        command_line(["vote", *served, "--questions", "questions.jsonl", "--out", "answers.jsonl", "--json"])

    def log(folder):
        with usage_errors_as_exit(OSError, ValueError):
            write_log(folder / "log", 3)

    text = study_text(base, 64, checkpoint_every=1).encode()
    questions = "".join(f"{json.dumps(row)}\n" for row in QUESTIONS).encode()
    yield Run("lab", {"study.toml": text}, study, curves, (3000, 20_000, 500_000))
    yield Run(
        "vote",
        {"questions.jsonl": questions, "reply.json": json.dumps(REPLY).encode()},
        vote,
        _answers,
        range(300, 3200, 150),
    )
    yield Run("rollout log", {}, log, lambda folder: read_log(folder / "log").to_pylist(), range(100, 9000, 700))


def _try_all(run, folder, most):
    """Let every write of ``run`` fail. Return the faults."""
    whole = _laid_out(run, folder / run.name.replace(" ", "_") / "work")
    outcome = _forked(run, whole, None, 0)
    if outcome.code:
        raise RuntimeError(f"an unbroken run must end, got {outcome} of {run.name}; correct it")
    expected, found = run.result(whole), []
    shutil.rmtree(whole.parent)
    for kind, number in [*ERRORS.items(), ("files too large", 0)]:
        for at in range(1, most + 1) if number else run.sizes:
            work = _laid_out(run, folder / f"{run.name}{at}{number}".replace(" ", "_") / "work")
            outcome = _forked(run, work, number, at)
            if outcome.code == 0 and number:
                shutil.rmtree(work.parent)
                break  # the run has fewer writes
            fault = Fault(run.name, kind, at)
            if outcome.code != 0:
                found.append(_judged(fault, run, work, outcome, expected))
            shutil.rmtree(work.parent)
    return found


def _judged(fault, run, work, outcome, expected):
    """Say what was wrong with how the run ended, run it again with room, and compare."""
    lines = [line for line in outcome.err.splitlines() if not line.endswith("s left") and " of " not in line]
    if "Traceback (most recent call last)" in outcome.err + outcome.out:
        fault.wrong.append(f"traceback: {outcome.err.strip().splitlines()[-1][:200]}")
    elif outcome.code not in (1, 2) or len(lines) > 1:
        fault.wrong.append(f"exit code {outcome.code}, {outcome.err[-300:]!r}")
    again = _forked(run, work, None, 0)
    fault.equal = again.code == 0 and run.result(work) == expected
    if not fault.equal:
        fault.wrong.append(f"the next run: exit code {again.code}, {(again.err or 'another result')[-200:]!r}")
    return fault


def _forked(run, work, number, at):
    """Run in a fork: with room if ``number`` is None, with limited files if it is 0, else with the error ``number``."""

    def act():
        if number == 0:
            resource.setrlimit(resource.RLIMIT_FSIZE, (at, at))
        elif number is not None:
            _fail_from(at, number, work)
        run.act(work)

    return run_forked(act, work, {})


def _fail_from(at, number, folder):
    """Let the ``at``-th change of a file below ``folder`` in this process fail, and all later ones."""
    seen = 0

    def hook(event, arguments):
        nonlocal seen
        if event == "open":
            path, _, flags = arguments
            changes = isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        else:
            path, changes = (arguments or (None,))[0], event in CHANGES
        if changes and isinstance(path, (str, bytes, os.PathLike)):
            whole = os.path.abspath(os.fsdecode(path))
            if whole.startswith(f"{folder}/"):
                seen += 1
                if seen >= at:
                    raise OSError(number, os.strerror(number), whole)

    sys.addaudithook(hook)


def _laid_out(run, work):
    work.mkdir(parents=True)
    for name, content in run.files.items():
        (work / name).write_bytes(content)
    return work


def _answers(folder):
    """Return the finished questions, without how long each took and the checksum, which covers that, too."""
    lines = (folder / "answers.jsonl").read_text("utf-8").splitlines()
    return sorted(json.dumps({**json.loads(line), "seconds": 0, "checksum": ""}) for line in lines)
