"""Carry out a study: train every allocator with every seed in parallel processes of one thread, and report.

The folder ``runs/NAME`` holds the resolved config, the environment, a folder with metrics and checkpoint for each run,
and the report. The same command resumes a stopped study. Finished runs are not repeated.
"""

import copy
import json
import multiprocessing
import shlex
import signal
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from pathlib import Path

from apportion.engines.saved_state import SavedStateError
from apportion.lab.policy.base import base_policy
from apportion.lab.policy.recipes import is_trained
from apportion.lab.report import with_labels, without_labels
from apportion.lab.report.measures import arm_table, summarise
from apportion.lab.report.picture import draw
from apportion.lab.report.results import Run
from apportion.lab.study import worker
from apportion.lab.study.design import Study, claim, read_pools, read_study
from apportion.lab.study.plan import plan_lines
from apportion.lab.study.worker import is_finished, run_directory
from apportion.lab.training.pool import Pool
from apportion.predictors.embeddings.cache import EmbeddingCacheError
from apportion.runs.progress import Display
from apportion.runs.whole_files import write_whole

FAILED, INTERRUPTED = 1, 130


def run(
    config: Path | None,
    overrides: Sequence[str],
    *,
    name: str | None,
    resume: bool,
    dry_run: bool,
    allocators: Sequence[str] = (),
    labels: str | None = None,
    prompts: Path | None = None,
) -> int:
    """Plan, train and report; return the exit code. Raises ConfigError before anything has been spent.

    Without ``config`` it is the default study. With ``resume`` it is the one that was started under ``runs/NAME``.
    ``allocators`` narrows it to these and its baseline. ``labels`` and ``prompts`` override those of the training.
    """
    study = read_study(config, overrides, name, resume, allocators, labels, prompts)
    return run_study(study, read_pools(study), dry_run)


def run_study(study: Study, pools: Mapping[int, Pool], dry_run: bool) -> int:
    """Plan, train on the problems of each seed, and report; return the exit code. Raises ConfigError."""
    display = Display(study.training.length, study.training.unit)
    display.plan(plan_lines(study, pools[study.seeds[0]]))
    if dry_run:
        return 0
    with claim(study):
        try:
            runs = [
                (arm, seed)
                for arm, seed in study.runs
                if not is_finished(run_directory(study.directory, arm, seed), study.training_of(arm))
            ]
            _prepare(study, {seed: pools[seed] for _, seed in runs}, display)
            _train(study, runs, pools, display)
        except KeyboardInterrupt:
            code, why = INTERRUPTED, "Stopped; every run is saved at its last step."
        except BrokenProcessPool:
            code, why = FAILED, "A run was killed from outside (out of memory?); its checkpoint is kept."
        except (SavedStateError, EmbeddingCacheError) as error:
            code, why = FAILED, f"{error}."
        except OSError as error:
            code, why = FAILED, f"A file could not be written or read: {error}. Checkpoints are kept whole."
        else:
            _write_report(study, pools[study.seeds[0]], display)
            return 0
        display.say(f"{why} To go on: apportion lab --name {shlex.quote(study.name)} --resume")
        return code


def _prepare(study: Study, pools: Mapping[int, Pool], display: Display) -> None:
    """Make what all runs share: the base policy, and the cached embeddings of the prompts of ``pools``."""
    if not is_trained(study.training.base):
        with display.base_training() as progress:
            base_policy(study.training.base, progress)
    baselines = [study.training_of(arm).baseline for arm in study.allocators]
    copies = copy.deepcopy([*study.allocators.values(), *filter(None, baselines)])  # workers get the unprepared ones
    for pool in pools.values():
        for each in copies:
            each.prepare(pool.prompts)


def _train(study: Study, runs: Sequence[tuple[str, int]], pools: Mapping[int, Pool], display: Display) -> None:
    """Train ``runs`` side by side. Raises KeyboardInterrupt once all have saved a checkpoint."""
    context = multiprocessing.get_context("spawn")
    records, stop = context.Queue(), context.Event()
    names = [f"{arm}, seed {seed}" for arm, seed in runs]
    with (
        ProcessPoolExecutor(study.parallel, context, worker.begin, (records, stop)) as processes,
        display.training(records, names),
    ):
        jobs: list[Future[bool]] = []
        # New processes inherit this: Ctrl-C must not strike one that still imports.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            variance = study.directory / "variance.json"
            if study.variance_draws and not variance.exists():
                jobs.append(processes.submit(worker.measure, variance, study.training, study.variance_draws))
            for (arm, seed), name in zip(runs, names, strict=True):
                settings = (study.training_of(arm), study.allocators[arm], seed, pools[seed])
                directory = run_directory(study.directory, arm, seed)
                jobs.append(processes.submit(worker.train, directory, *settings, name))
        finally:
            signal.signal(signal.SIGINT, before)
        try:
            for job in as_completed(jobs):
                job.result()
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                display.say("Stopping: each run ends its step and saves a checkpoint.")
            stop.set()
            processes.shutdown(cancel_futures=True)
            raise


def _write_report(study: Study, pool: Pool, display: Display) -> None:
    """Write the report into the study's folder and show its text. The prompts and their gold are those of ``pool``."""
    folder, baseline = study.directory, study.baseline
    runs = {arm: [Run.read(run_directory(folder, arm, seed)) for seed in study.seeds] for arm in study.allocators}
    if study.training.labels == "none":
        summary = summarise(without_labels.MEASURES, runs, baseline)
        title, panels = without_labels.verdict(summary, baseline), without_labels.panels(runs)
        lines = [
            *(without_labels.accuracy_table(summary, baseline) if pool.gold else []),
            *without_labels.vote_table(summary),
            "",
        ]
        sizes = (len(study.seeds), study.training.steps, len(pool.gold), len(pool.problems))
        lines += without_labels.findings(summary, baseline, *sizes)
    else:
        variance = folder / "variance.json"
        measured = json.loads(variance.read_text(encoding="utf-8")) if variance.exists() else []
        summary = summarise(with_labels.MEASURES, runs, baseline)
        title, panels = with_labels.verdict(summary, baseline), with_labels.panels(runs, summary, measured)
        lines = [*arm_table(with_labels.MEASURES, summary), ""]
        lines += with_labels.findings(summary, baseline, len(study.seeds), measured)
    write_whole(folder / "report.md", "\n".join([f"# {folder.name}\n", *lines, ""]))
    write_whole(folder / "summary.json", json.dumps(list(map(vars, summary)), indent=2, default=asdict) + "\n")
    pictures = [folder / "curves.png", folder / "curves.svg"]
    draw(panels, title, pictures)
    for line in ["", *lines, f"\nreport {folder / 'report.md'}, picture {pictures[0]}"]:
        display.say(line)
