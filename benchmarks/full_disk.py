"""Let every write of a run fail, as on a full or read-only disk, then run it again with room, and compare.

An audit hook raises the error when a file is opened for writing, renamed, cut, removed or made, and a limit on the size
of files lets a write itself fail. The commands run in forks of a process that has imported them; workers of a study are
forked, too, and not started anew.

    python -m benchmarks.full_disk
"""

import errno
import multiprocessing
import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import apportion.lab.command  # noqa: F401 - so that no case has to import it
from apportion.__main__ import main
from apportion.records import read_log
from benchmarks.common import RESULTS, options, write
from benchmarks.hostile_input import run_forked, write_log
from benchmarks.kills import a_vote, served
from benchmarks.small_study import base_folder, curves, study_text
from tests.vote.builders import answering

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


@dataclass(frozen=True)
class Run:
    """What is run in the folder of its files: ``result`` is compared, and ``sizes`` are those that a file may have."""

    name: str
    files: Mapping[str, bytes]
    act: Callable[[], object]
    result: Callable[[Path], Any]
    sizes: Sequence[int]


def study_full_disk(results=RESULTS, most=MOST_WRITES):
    """Let each of the first ``most`` writes of every run fail, and write the table ``full_disk``. Return the faults."""
    found = []
    with tempfile.TemporaryDirectory() as name, served(lambda request: answering()) as server:
        for run in make_runs(server):
            found += tried(run, Path(name).resolve(), most)
            print(run.name, len(found), [vars(fault) for fault in found if fault.wrong][:3], flush=True)
    write(
        "full_disk",
        "Runs on a full or read-only disk",
        ("run", "fault", "tried", "survived"),
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


def make_runs(server):
    """Yield a study, a vote and a rollout log."""
    vote = a_vote(server, questions=6, most=4)

    def command(*words):
        before = multiprocessing.get_context
        multiprocessing.get_context = lambda method=None: before("fork")
        sys.argv = ["apportion", *words]
        main()

    def log():
        try:
            write_log(Path("log"), 3)
        except (OSError, ValueError) as error:
            print(error, file=sys.stderr)
            sys.exit(1)

    study = {"study.toml": study_text(base_folder(), 64, checkpoint_every=1).encode()}
    yield Run("lab", study, partial(command, "lab", "study.toml"), curves, (3000, 20_000, 500_000))
    files = {name: text.encode() for name, text in vote.files.items()}
    yield Run("vote", files, partial(command, *vote.command(None)), vote.result, range(300, 3200, 150))
    yield Run("rollout log", {}, log, _logged, range(100, 9000, 700))


def _logged(folder):
    """Return the rows of the log without the time at which they were written."""
    return read_log(folder / "log").drop_columns(["written"]).to_pylist()


def tried(run, folder, most):
    """Let every write of ``run`` fail. Return the faults."""
    outcome, found = run_forked(run.act, run.files, folder / "whole"), []
    if outcome.code:
        raise RuntimeError(f"an unbroken run must end, got {outcome} of {run.name}; correct it")
    expected = run.result(folder / "whole" / "work")
    for kind, number in [*ERRORS.items(), ("files too large", 0)]:
        for at in range(1, most + 1) if number else run.sizes:
            outcome = run_forked(partial(_fail, run, number, at), run.files, folder / "case")
            if outcome.code:
                found.append(_judged(Fault(run.name, kind, at), run, folder / "case", outcome, expected))
            shutil.rmtree(folder / "case")
            if number and not outcome.code:
                break  # the run has fewer writes
    shutil.rmtree(folder / "whole")
    return found


def _judged(fault, run, folder, outcome, expected):
    """Say what was wrong with how the run ended, run it again with room, and compare."""
    lines = [line for line in outcome.err.splitlines() if not line.endswith("s left") and " of " not in line]
    if outcome.code not in (1, 2) or len(lines) > 1 or "Traceback" in outcome.err + outcome.out:
        fault.wrong.append(f"exit code {outcome.code}, {outcome.err[-300:]!r}")
    again = run_forked(run.act, {}, folder)
    if again.code or run.result(folder / "work") != expected:
        fault.wrong.append(f"the next run: exit code {again.code}, {again.err[-200:] or 'another result'!r}")
    return fault


def _fail(run, number, at):
    """Run with files of at most ``at`` bytes if ``number`` is 0, else with this error at the ``at``-th change."""
    if number:
        fail_from(at, number, Path.cwd())
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (at, at))
    run.act()


def fail_from(at, number, folder):
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


if __name__ == "__main__":
    study_full_disk(options(__doc__, results=RESULTS).results)
