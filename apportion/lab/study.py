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
from apportion.lab.base import RECIPES, base_policy
from apportion.lab.design import Study, claim, read_study
from apportion.lab.display import Display
from apportion.lab.report import write_report
from apportion.lab.task import training_problems

CPU_SECONDS_PER_ROLLOUT = 6.5e-4  # seen with 8 rollouts a prompt; the live display soon knows better
CPU_SECONDS_PER_BASE = 100.0
FAILED, INTERRUPTED = 1, 130


def run(config: Path | None, overrides: Sequence[str], *, name: str | None, resume: bool, dry_run: bool) -> int:
    """Plans, trains, reports; the exit code. Raises ConfigError before anything has been spent.

    Without ``config`` it is the default study; with ``resume``, the one that was started under ``runs/NAME``.
    """
    study = read_study(config, overrides, name, resume)
    display = Display(study.training.rollouts * len(study.runs))
    display.plan(_plan_lines(study))
    if dry_run:
        return 0
    claim(study)
    if not RECIPES[study.training.difficulty].directory.exists():
        with display.base_training() as progress:
            base_policy(study.training.difficulty, progress)
    for seed in study.seeds:
        prompts = [problem.prompt() for problem in training_problems(study.training.problems, seed)]
        for allocator in study.allocators.values():
            allocator.prepare(prompts)  # fills the embedding cache once, before the processes would do it side by side
    try:
        finished = _train(study, display)
    except BrokenProcessPool:
        display.say(
            f"A run was killed from outside (out of memory?). Its last checkpoint is kept. {_how_to_resume(study)}"
        )
        return FAILED
    if not finished:
        display.say(f"Stopped; every run is saved at its last step. {_how_to_resume(study)}")
        return INTERRUPTED
    write_report(study.directory, list(study.allocators), list(study.seeds), study.baseline, display)
    return 0


def _train(study: Study, display: Display) -> bool:
    """Every run of the study, side by side; False where Ctrl-C ended it first."""
    context = multiprocessing.get_context("spawn")
    told, stop = context.Queue(), context.Event()
    jobs: dict[Future[object], str] = {}
    with (
        ProcessPoolExecutor(study.parallel, context, worker.begin, (told, stop)) as pool,
        display.training(told, [f"{arm}, seed {seed}" for arm, seed in study.runs]),
    ):
        try:
            if study.variance_draws:
                jobs[pool.submit(worker.measure, study.directory)] = "gradient variance"
            for arm, seed in study.runs:
                jobs[pool.submit(worker.train, study.directory, arm, seed)] = f"{arm}, seed {seed}"
            finished = [bool(job.result()) for job in as_completed(jobs)]
        except KeyboardInterrupt:
            display.say("Stopping: each run ends its step and saves a checkpoint.")
            stop.set()
            pool.shutdown(cancel_futures=True)
            return False
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return all(finished)


def _plan_lines(study: Study) -> list[str]:
    rollouts = study.training.rollouts * len(study.runs)
    base = 0.0 if RECIPES[study.training.difficulty].directory.exists() else CPU_SECONDS_PER_BASE
    minutes = (base + rollouts * CPU_SECONDS_PER_ROLLOUT / study.parallel) / 60
    return [
        f"study       {study.name}, under {study.directory}",
        f"allocators  {', '.join(study.allocators)} (compared with {study.baseline}, pairwise by seed)",
        f"runs        {len(study.runs)}: {len(study.allocators)} allocators x {len(study.seeds)} seeds, "
        f"{study.parallel} at a time",
        f"prompts     {study.training.problems} for training, {study.training.prompts_per_step} a step; "
        f"{study.training.held_out} held out",
        f"rollouts    {study.training.rollouts:,} a run, {rollouts:,} in all",
        f"base        {study.training.difficulty}, {'trained first, then cached' if base else 'cached'}",
        f"expected    about {max(1, round(minutes))} minutes",
    ]


def _how_to_resume(study: Study) -> str:
    return f"To go on: apportion train --name {study.name} --resume"
