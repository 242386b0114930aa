"""The folder of a rollout log: its step files and the id of its run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from apportion.records.rollout_log import RecordError, schema
from apportion.runs.whole_files import write_whole

RUN = "run.txt"
"""The file with the id of the run."""

LONGEST_ID = 100

_NAME = re.compile(r"step-(\d{6,18})\.parquet|steps-(\d{6,18})-(\d{6,18})\.parquet")


class LogFile(NamedTuple):
    """A file of a log, with its first and last step."""

    first: int
    last: int
    path: Path


def prepare_log(folder: str | Path) -> None:
    """Make the folder of a log before anything is sampled. Raise RecordError if a log cannot be written there."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecordError(
            f"a rollout log needs a folder, got {folder} ({error.strerror or error}); change the path"
        ) from error
    schema()


def check_new_folder(folder: str | Path) -> None:
    """Raise RecordError unless ``folder`` can be a new rollout log: it is empty or missing, and no file by its name."""
    folder = Path(folder)
    if folder.suffix:
        raise RecordError(
            f"a rollout log is a folder, got {folder} with the ending of a file; leave out {folder.suffix}"
        )
    if folder.exists() and not folder.is_dir():
        raise RecordError(f"a rollout log is a folder, got the file {folder}; choose another name")
    if folder.is_dir() and any(folder.iterdir()):
        raise RecordError(f"a rollout log needs an empty folder, got {folder} with files; choose another name")


def start_log(folder: str | Path) -> str:
    """Begin the log of a new run in ``folder``, and return an id of the run, which ``resume_log`` takes.

    Raises RecordError if a log cannot be written there, or if the folder has the steps of a run.
    """
    prepare_log(folder)
    if files := files_of(folder):
        raise RecordError(
            f"a new run needs a rollout log without steps, got {folder} with {_count(files)} of another run; choose "
            "another folder, remove that one, or resume the run that wrote it from a checkpoint"
        )
    return _write_run(folder, uuid4().hex)


def resume_log(folder: str | Path, run: str | None, step: int) -> str:
    """Continue the log of ``run`` after ``step``, whose later steps are removed. Return the id of the run.

    ``run`` is None if the run began without a log. Raises RecordError if the folder has the steps of another run.
    """
    prepare_log(folder)
    files, written = files_of(folder), read_run(folder)
    if files and (run is None or written != run):
        raise RecordError(
            f"a resumed run needs its own rollout log, got {folder} with {_count(files)} steps of another run; give it "
            "the folder that it began with, or a new one"
        )
    remove_steps_after(folder, step)
    return _write_run(folder, run or uuid4().hex)


def remove_steps_after(folder: str | Path, step: int) -> None:
    """Remove the steps after ``step``, before a run resumes from the checkpoint of that step.

    Raises RecordError if a file has steps before it and after it, because a run must write its file before a
    checkpoint.
    """
    later = [file for file in files_of(folder) if file.last > step]
    if later and later[0].first <= step:
        raise RecordError(
            f"a resumed run must go on after the last step of a file, got step {step} in {later[0].path}; resume from "
            "a checkpoint of another step, or remove the file"
        )
    for file in reversed(later):  # the last file goes first, so that a kill leaves no gap
        file.path.unlink()


def path_of(folder: str | Path, first: int, last: int) -> Path:
    """Return the file of the steps from ``first`` to ``last``. Raise ValueError for a negative one."""
    if first < 0:
        raise ValueError(f"a step must be at least 0, got {first}; count from 0 or 1")
    return Path(folder, f"step-{first:06d}.parquet" if first == last else f"steps-{first:06d}-{last:06d}.parquet")


def files_of(folder: str | Path) -> list[LogFile]:
    """Return the files of a log in order; none if there is no folder. Raise RecordError if two have the same step."""
    folder = Path(folder)
    if not folder.is_dir():
        return []
    named = ((_NAME.fullmatch(path.name), path) for path in folder.iterdir())
    found = sorted(
        LogFile(int(match[1] or match[2]), int(match[1] or match[3]), path) for match, path in named if match
    )
    for file, following in pairwise(found):
        if following.first <= file.last:
            raise RecordError(f"{following.path} must have later steps than {file.path}; remove one of them")
    return found


def read_run(folder: str | Path) -> str | None:
    """Return the id of the run that the log is of; None if it has none."""
    path = Path(folder, RUN)
    if not path.is_file():
        return None
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(LONGEST_ID).strip()


def _count(files: Sequence[LogFile]) -> int:
    return sum(file.last - file.first + 1 for file in files)


def _write_run(folder: str | Path, run: str) -> str:
    write_whole(Path(folder, RUN), f"{run}\n")
    return run
