"""The folder of a job: a resumed job must be the one that was started, and goes on from its last checkpoint."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from apportion.config import ConfigError
from apportion.records import remove_steps_after
from apportion.runs.folder import (
    ENVIRONMENT,
    LOCK,
    check_settings,
    environment_with,
    hold_folder,
    read_settings,
    write_run,
)
from apportion.runs.whole_files import is_file
from apportion.trl.jobs.job import CHECKPOINTS, FILE
from apportion.trl.jobs.prepared import Prepared

MODEL = "model"
MAY_CHANGE = frozenset(
    f"training.{setting}"
    for setting in (
        "disable_tqdm",
        "log_completions",
        "log_level",
        "logging_first_step",
        "logging_steps",
        "logging_strategy",
        "num_completions_to_print",
        "project",
        "report_to",
        "run_name",
        "save_steps",
        "save_strategy",
        "save_total_limit",
    )
)
"""Settings that a resume may change, because no rollout and no update depends on them."""


@contextmanager
def claim(prepared: Prepared, settings: Mapping[str, Any], resume: bool) -> Iterator[None]:
    """Make the job's folder with its ``settings``, or check that it holds this very job, and keep other processes out.

    Raises ConfigError.
    """
    folder, path = prepared.job.directory, prepared.job.directory / FILE
    if resume and not os.path.lexists(path):
        raise ConfigError(f"there is nothing to resume: {path} does not exist; start the job without --resume")
    with hold_folder(folder, "job"):
        if resume:
            _check_same_job(path, settings, prepared)
        elif any(entry.name != LOCK for entry in folder.iterdir()):
            raise ConfigError(
                f"{folder} must not exist, got the folder of a run; continue with --resume, choose another --name, or "
                "delete it"
            )
        write_run(path, settings, environment_with(("numpy", "torch", "transformers", "trl")) | _facts(prepared))
        yield


def remove_results(folder: Path) -> None:
    """Remove the checkpoints and rollouts of a run that wrote no whole checkpoint."""
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    remove_steps_after(folder / "rollouts", -1)


def _check_same_job(path: Path, settings: Mapping[str, Any], prepared: Prepared) -> None:
    folder, environment = path.parent, path.with_name(ENVIRONMENT)
    check_settings(folder, read_settings(path), settings, "change it back, or choose another --name", MAY_CHANGE)
    started, now = _read_environment(environment), _facts(prepared)
    for key, remedy in (("questions", "restore the data"), ("processes", "start as many")):
        before = {key: started.get(key, now[key])}
        check_settings(folder, before, {key: now[key]}, f"{remedy}, or choose another --name")


def _read_environment(path: Path) -> dict[str, Any]:
    """Return what is known of the environment of a run, nothing if there is no file. Raises ConfigError."""
    try:
        found = json.loads(path.read_bytes()) if is_file(path) else {}
        if not isinstance(found, dict):
            raise ValueError(f"{path} must be a JSON object, got {type(found).__name__}")
    except ValueError as error:
        raise ConfigError(f"{path} must say where the run was started, got {error}; delete it to go on") from error
    return found


def _facts(prepared: Prepared) -> dict[str, Any]:
    """Return what a resume must find again and the job's file does not say."""
    rows = [[q.id, q.prompt, q.golds if len(q.golds) > 1 else q.gold] for q in prepared.training.questions]
    content = json.dumps(rows)
    digest = hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
    return {"processes": int(prepared.arguments.world_size), "questions": digest}
