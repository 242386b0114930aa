"""The main job: allocators against each other and their controls, over seeds, in parallel processes of one thread.

All of it lies under ``runs/NAME``: the resolved config, the environment, one folder a run with its metrics and
checkpoint, and the report. Running it again goes on where it stopped; finished runs are not repeated.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from apportion.lab import worker
from apportion.lab.base import base_policy, is_trained, task_of
from apportion.lab.design import Study, claim, read_study
from apportion.lab.display import Display
from apportion.lab.report import write_report
from apportion.lab.task import training_problems

CPU_SECONDS_PER_ROLLOUT = {"ledger": 1.0e-3, "forks": 2.5e-3}  # with 4 rollouts a prompt; the display soon knows better
CPU_SECONDS_PER_BASE = 150.0
SECONDS_TO_START = 40.0  # embeddings, processes, the measured variance
FAILED, INTERRUPTED = 1, 130


def run(
    config: Path | None,
    overrides: Sequence[str],
    *,
    name: str | None,
    resume: bool,
    dry_run: bool,
    allocators: Sequence[str] = (),
) -> int:
    """Plans, trains, reports; the exit code. Raises ConfigError before anything has been spent.

    Without ``config`` it is the default study; with ``resume``, the one that was started under ``runs/NAME``;
    ``allocators`` narrows it to these and its baseline.
    """
    study = read_study(config, overrides, name, resume, allocators)
    display = Display(study.training.rollouts)
    display.plan(_plan_lines(study))
    if dry_run:
        return 0
    claim(study)
    try:
        _prepare(study, display)
        _train(study, display)
    except KeyboardInterrupt:
        display.say(f"Stopped; every run is saved at its last step. {_how_to_resume(study)}")
        return INTERRUPTED
    except BrokenProcessPool:
        display.say(f"A run was killed from outside (out of memory?); its checkpoint is kept. {_how_to_resume(study)}")
        return FAILED
    except OSError as error:
        display.say(
            f"A file could not be written or read: {error}. Checkpoints are kept whole. {_how_to_resume(study)}"
        )
        return FAILED
    write_report(study.directory, list(study.allocators), list(study.seeds), study.baseline, display)
    return 0


def _prepare(study: Study, display: Display) -> None:
    """What all runs share: the base policy, and the embeddings of their prompts, which are then in the cache."""
    if not is_trained(study.training.base):
        with display.base_training() as progress:
            base_policy(study.training.base, progress)
    for seed in {seed for _, seed in _unfinished(study)}:
        problems = training_problems(study.training.problems, seed, task_of(study.training.base))
        prompts = [problem.prompt() for problem in problems]
        baselines = [study.training_of(arm).baseline for arm in study.allocators]
        for each in (*study.allocators.values(), *filter(None, baselines)):
            each.prepare(prompts)


def _train(study: Study, display: Display) -> None:
    """Every run that is not finished, side by side. Raises KeyboardInterrupt once all have saved a checkpoint."""
    runs = _unfinished(study)
    context = multiprocessing.get_context("spawn")
    told, stop = context.Queue(), context.Event()
    with (
        ProcessPoolExecutor(study.parallel, context, worker.begin, (told, stop)) as pool,
        display.training(told, [f"{arm}, seed {seed}" for arm, seed in runs]),
    ):
        jobs: list[Future[bool]] = []
        if study.variance_draws and not (study.directory / "variance.json").exists():
            jobs.append(pool.submit(worker.measure, study.directory))
        jobs += [pool.submit(worker.train, study.directory, arm, seed) for arm, seed in runs]
        try:
            for job in as_completed(jobs):
                job.result()
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                display.say("Stopping: each run ends its step and saves a checkpoint.")
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise


def _unfinished(study: Study) -> list[tuple[str, int]]:
    return [run for run in study.runs if not worker.is_finished(study.directory, *run, study.training_of(run[0]))]


def _plan_lines(study: Study) -> list[str]:
    rollouts = study.training.rollouts * len(study.runs)
    base = 0.0 if is_trained(study.training.base) else CPU_SECONDS_PER_BASE
    each = CPU_SECONDS_PER_ROLLOUT[task_of(study.training.base)]
    minutes = (SECONDS_TO_START + base + rollouts * each / study.parallel) / 60
    return [
        f"study       {study.name}, under {study.directory}",
        f"allocators  {', '.join(study.allocators)} (compared with {study.baseline}, pairwise by seed)",
        f"runs        {len(study.runs)}: {len(study.allocators)} allocators x {len(study.seeds)} seeds, "
        f"{study.parallel} at a time",
        f"prompts     {study.training.problems} for training, {study.training.prompts_per_step} a step; "
        f"{study.training.held_out} held out",
        f"rollouts    {study.training.rollouts:,} a run, {rollouts:,} in all",
        f"base        {study.training.base}, {'trained first, then cached' if base else 'cached'}",
        f"expected    about {minutes:.0f} min on an idle machine",
    ]


def _how_to_resume(study: Study) -> str:
    return f"To go on: apportion train --name {study.name} --resume"
