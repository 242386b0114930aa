"""Carry out a study: train every allocator with every seed in parallel processes of one thread, and report.

The folder ``runs/NAME`` holds the resolved config, the environment, a folder with metrics and checkpoint for each run,
and the report. The same command resumes a stopped study. Finished runs are not repeated.
"""

import copy
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from queue import SimpleQueue
from typing import Any

from apportion.allocators import Allocator
from apportion.baselines import Baseline
from apportion.lab.policy.base import base_policy
from apportion.lab.policy.recipes import is_trained
from apportion.lab.report import with_labels, without_labels
from apportion.lab.report.results import Run
from apportion.lab.study import worker
from apportion.lab.study.design import Study, claim
from apportion.lab.study.plan import plan_lines
from apportion.lab.training.pool import Pool
from apportion.predictors.embeddings.cache import EmbeddingCacheError
from apportion.runs.children import ChildTask, RunError, run_all
from apportion.runs.progress import Display
from apportion.runs.signals import code_of
from apportion.runs.whole_files import write_whole

FAILED = 1


def run_study(study: Study, pools: Mapping[int, Pool], dry_run: bool) -> int:
    """Plan, train on the problems of each seed, and report; return the exit code. Raises ConfigError."""
    display = Display(study.training.length, study.training.unit)
    display.plan(plan_lines(study, pools[study.seeds[0]]))
    if dry_run:
        return 0
    try:
        with claim(study):
            runs = study.open_runs()
            _prepare(study, {seed: pools[seed] for _, seed in runs}, display)
            _train(study, runs, pools, display)
            _write_report(study, pools[study.seeds[0]], display)
            return 0
    except KeyboardInterrupt as stop:
        code, why = code_of(stop), "Stopped; every run is saved at its last step."
    except (RunError, EmbeddingCacheError) as error:
        code, why = FAILED, f"{error}."
    except OSError as error:
        code, why = FAILED, f"A file could not be written or read: {error}. Checkpoints are kept whole."
    display.say(f"{why} To go on: apportion lab --name {shlex.quote(study.name)} --resume")
    return code


def _prepare(study: Study, pools: Mapping[int, Pool], display: Display) -> None:
    """Make what all runs share: the base policy, and the cached embeddings of the prompts of ``pools``."""
    if not is_trained(study.training.base):
        with display.base_training() as progress:
            base_policy(study.training.base, progress)
    baselines = [study.training_of(arm).baseline for arm in study.allocators]
    unprepared: list[Allocator | Baseline] = [*study.allocators.values(), *filter(None, baselines)]
    copies = copy.deepcopy(unprepared)  # workers get the unprepared ones
    for pool in pools.values():
        for each in copies:
            each.prepare(pool.prompts)


def _train(study: Study, runs: Sequence[tuple[str, int]], pools: Mapping[int, Pool], display: Display) -> None:
    """Train ``runs`` side by side. Raises the errors of ``run_all``."""
    tasks = []
    for arm, seed in runs:
        settings = (study.folder_of(arm, seed), study.training_of(arm), study.allocators[arm], seed, pools[seed])
        tasks.append(ChildTask(f"{arm}, seed {seed}", worker.train, settings))
    records: SimpleQueue[Any] = SimpleQueue()
    stopping = "Stopping: each run ends its step and saves a checkpoint."
    with display.training(records, [task.name for task in tasks]):
        run_all(tasks, study.parallel, lambda *record: records.put(record), lambda: display.say(stopping))


def _write_report(study: Study, pool: Pool, display: Display) -> None:
    """Write the report into the study's folder and show its text. The prompts and their gold are those of ``pool``."""
    folder, baseline = study.directory, study.baseline
    runs = {arm: [Run.read(study.folder_of(arm, seed)) for seed in study.seeds] for arm in study.allocators}
    if study.training.labels == "none":
        summary, lines = without_labels.report(runs, baseline, study.training.steps, pool)
    else:
        summary, lines = with_labels.report(runs, baseline)
    write_whole(folder / "report.md", "\n".join([f"# {folder.name}\n", *lines, ""]))
    write_whole(folder / "summary.json", json.dumps(list(map(vars, summary)), indent=2, default=asdict) + "\n")
    for line in ["", *lines, f"\nreport {folder / 'report.md'}; curves: apportion report {shlex.quote(str(folder))}"]:
        display.say(line)
