"""``apportion train --engine trl``: a training job from its file to the trained model, all of it under runs/NAME.

There lie the job as it was resolved (``job.toml``), TRL's checkpoints (``checkpoints``), the rollout log (``rollouts``)
and at the end the model (``model``).
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

from apportion.data import Verifier
from apportion.integrations.prompts import last_text
from apportion.integrations.trl.jobs.folder import MODEL, begin_again, claim, newest_checkpoint
from apportion.integrations.trl.jobs.job import Job, read_job
from apportion.integrations.trl.jobs.plan import plan_lines
from apportion.integrations.trl.jobs.prepared import Prepared, prepare
from apportion.integrations.trl.trainer import AllocatedGRPOTrainer, AllocatedRLOOTrainer
from apportion.lab.base import is_trained
from apportion.lab.design import keep_others_out
from apportion.lab.display import Display
from apportion.lab.export import policy_folder

INTERRUPTED = 130
TRAINERS = {"grpo": AllocatedGRPOTrainer, "rloo": AllocatedRLOOTrainer}


def run(config: Path | None, overrides: Sequence[str], *, name: str | None, resume: bool, dry_run: bool) -> int:
    """Plans and trains; the exit code. Raises ConfigError before a weight is loaded.

    Of several processes the first one alone says and writes anything.
    """
    job, settings = read_job(config, overrides, name, resume)
    with job.judge or nullcontext():
        prepared = prepare(job)
        display = Display(prepared.optimizer_steps, "step")
        if prepared.first:
            display.plan(plan_lines(prepared))
        if dry_run:
            return 0
        with ExitStack() as held:
            if prepared.first:
                claim(prepared, settings, resume)
                keep_others_out(job.directory, "job", held)
            return _train(prepared, display, resume)


def reward_of(verifier: Verifier) -> Callable[..., list[float | None]]:
    """The verifier as a reward function of TRL's, by its name: verdicts on completions, from the column ``gold``.

    >>> from apportion.data import Exact
    >>> reward = reward_of(Exact())
    >>> reward.__name__, reward(completions=["The answer is 4.", "The answer is 5."], gold=["4", "4"])
    ('exact', [1.0, 0.0])
    """

    def reward(completions: Sequence[Any], gold: Sequence[str | None], **columns: Any) -> list[float | None]:
        return [verifier.verdict(last_text(each), answer) for each, answer in zip(completions, gold, strict=True)]

    reward.__name__ = verifier.name
    return reward


def make_trainer(prepared: Prepared, model: str) -> AllocatedGRPOTrainer | AllocatedRLOOTrainer:
    """The trainer of the job, with the weights that ``model``, an id or a folder, has."""
    job = prepared.job
    tools: dict[str, Any] = {"tools": job.functions} if job.tools else {}
    return TRAINERS[job.algorithm](
        model=model,
        reward_funcs=None if job.judge is None else [reward_of(job.judge)],
        args=prepared.arguments,
        train_dataset=prepared.training_rows(),
        eval_dataset=prepared.evaluation_rows(),
        processing_class=prepared.tokenizer,
        peft_config=prepared.lora,
        **tools,
        **vars(job.allocation),
    )


def _train(prepared: Prepared, display: Display, resume: bool) -> int:
    job = prepared.job
    folder, checkpoint = job.directory, newest_checkpoint(job.directory) if resume else None
    say = display.say if prepared.first else _quietly
    if resume and (folder / MODEL).exists():
        say(f"Finished already; the model is in {folder / MODEL}.")
        return 0
    if checkpoint is not None:
        say(f"Going on from {checkpoint}.")
    elif prepared.first:
        begin_again(folder)
    trainer = make_trainer(prepared, _weights(job, display if prepared.first else None))
    try:
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    except KeyboardInterrupt:
        say(f"Stopped in step {trainer.state.global_step + 1}. {_how_to_resume(job)}")
        return INTERRUPTED
    _save(trainer, folder)
    say(f"Finished. The model is in {folder / MODEL}, the rollouts are in {folder / 'rollouts'}.")
    return 0


def _weights(job: Job, display: Display | None) -> str:
    """Where the weights are; a base of the lab is trained first where it is not cached."""
    if job.base is None:
        return job.model
    if display is None or is_trained(job.base):
        return str(policy_folder(job.base))
    with display.base_training() as progress:
        return str(policy_folder(job.base, progress))


def _save(trainer: Any, folder: Path) -> None:
    """Writes the model at once or not at all, for its folder says that the run has finished."""
    unfinished = folder / f"{MODEL}.unfinished"
    trainer.save_model(str(unfinished))
    if trainer.is_world_process_zero():
        unfinished.rename(folder / MODEL)


def _how_to_resume(job: Job) -> str:
    checkpoint = newest_checkpoint(job.directory)
    where = "the beginning" if checkpoint is None else f"step {checkpoint.name.rpartition('-')[2]}"
    command = f"apportion train --engine trl --name {shlex.quote(job.name)} --resume"
    return f"A resume goes on from {where}: {command}"


def _quietly(line: str) -> None:
    """Says nothing, for another process does."""
