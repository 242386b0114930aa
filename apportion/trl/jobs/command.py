"""``apportion trl``: a training job from its file to the trained model.

Everything is under runs/NAME: the job with all its settings (``job.toml``), TRL's checkpoints (``checkpoints``), the
rollout log (``rollouts``) and at the end the model (``model``).
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from apportion.engines.prompts import last_text
from apportion.engines.saved_state import SavedStateError
from apportion.runs.progress import Display
from apportion.runs.signals import code_of
from apportion.trl.checkpoints import newest_checkpoint
from apportion.trl.failures import RewardsFailedError
from apportion.trl.jobs.evaluated import EvaluatedGRPOTrainer, EvaluatedRLOOTrainer, EvaluatedTrainer
from apportion.trl.jobs.folder import MODEL, claim, remove_results
from apportion.trl.jobs.job import CHECKPOINTS, Job
from apportion.trl.jobs.plan import plan_lines
from apportion.trl.jobs.prepared import Prepared, prepare
from apportion.verifiers import Verifier

FAILED = 1
SHOWN = 300
"""Maximum number of characters of an error of TRL or transformers in ours."""
TRAINERS: dict[str, type[EvaluatedTrainer]] = {"grpo": EvaluatedGRPOTrainer, "rloo": EvaluatedRLOOTrainer}


def run_job(job: Job, settings: Mapping[str, Any], resume: bool, dry_run: bool) -> int:
    """Print the plan, then train; return the exit code. ``settings`` are those of the job, as tables.

    Of several processes only the first prints and writes. Raises ConfigError before weights are loaded.
    """
    with job.judge or nullcontext():
        prepared = prepare(job)
        display = Display(prepared.optimizer_steps, "step")
        if prepared.is_main_process:
            display.plan(plan_lines(prepared))
        if dry_run:
            return 0
        with claim(prepared, settings, resume) if prepared.is_main_process else nullcontext():
            return _train(prepared, display, resume)


def reward_of(verifier: Verifier) -> Callable[..., list[float | None]]:
    """Return a reward function for TRL: the verdicts of ``verifier`` on completions, given the column ``gold``.

    Of several right answers, a list, the best verdict counts.

    >>> from apportion.verifiers import Exact
    >>> reward = reward_of(Exact())
    >>> reward.__name__, reward(completions=["The answer is 4.", "The answer is 5."], gold=["4", "4"])
    ('exact', [1.0, 0.0])
    """

    def reward(completions: Sequence[Any], gold: Sequence[Any], **columns: Any) -> list[float | None]:
        golds = [each if isinstance(each, list) else [each] for each in gold]
        return [verifier.best_verdict(last_text(each), own) for each, own in zip(completions, golds, strict=True)]

    reward.__name__ = verifier.name
    return reward


def make_trainer(prepared: Prepared, model: str) -> EvaluatedTrainer:
    """Return the trainer of the job, with the weights of ``model``, an id or a folder."""
    job = prepared.job
    tools: dict[str, Any] = {"tools": job.tool_functions} if job.tools else {}
    trainer = TRAINERS[job.algorithm](
        model=model,
        reward_funcs=None if job.judge is None else [reward_of(job.judge)],
        args=prepared.arguments,
        train_dataset=prepared.training_rows(),
        eval_dataset=prepared.evaluation_rows(),
        processing_class=prepared.tokenizer,
        peft_config=prepared.lora,
        **tools,
        **vars(prepared.allocation),
    )
    trainer.judge = job.judge
    return trainer


def _train(prepared: Prepared, display: Display, resume: bool) -> int:
    job, main, lab_model = prepared.job, prepared.is_main_process, prepared.lab_model
    folder = job.directory
    checkpoint = newest_checkpoint(folder / CHECKPOINTS) if resume else None
    say = display.say if main else lambda line: None  # another process prints
    if resume and (folder / MODEL).exists():
        say(f"Finished already; the model is in {folder / MODEL}.")
        return 0
    if checkpoint is not None:
        say(f"Continuing from {checkpoint}.")
    elif main:
        remove_results(folder)
    weights = job.model if lab_model is None else str(lab_model.folder(display if main else None))
    trainer, begun = make_trainer(prepared, weights), _Begun()
    trainer.add_callback(begun)
    to_continue = f"apportion trl --name {shlex.quote(job.name)} --resume"
    try:
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        _save_model(trainer, folder)
    except (SavedStateError, RewardsFailedError) as error:
        say(f"{error}. To continue: {to_continue}")
        return FAILED
    except KeyboardInterrupt as stop:
        last = newest_checkpoint(folder / CHECKPOINTS)
        where = "the beginning" if last is None else f"step {last.name.rpartition('-')[2]}"
        say(f"Stopped in step {trainer.state.global_step + 1}. To continue from {where}: {to_continue}")
        return code_of(stop)
    except Exception as error:
        reason = " ".join(str(error).split())[:SHOWN] or type(error).__name__
        if checkpoint is not None and not begun.is_true:  # TRL's files raise errors of many kinds if they are damaged
            say(f"{checkpoint} cannot be loaded ({reason}). Delete it to continue from the one before: {to_continue}")
        elif isinstance(error, OSError):
            say(f"A file could not be written or read: {reason}. To continue from the last checkpoint: {to_continue}")
        else:
            raise
        return FAILED
    say(f"Finished. The model is in {folder / MODEL}, the rollouts are in {folder / 'rollouts'}.")
    return 0


class _Begun(TrainerCallback):
    """Knows whether a step has begun, so that a checkpoint was loaded."""

    def __init__(self) -> None:
        self.is_true = False

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Remember it."""
        self.is_true = True


def _save_model(trainer: EvaluatedTrainer, folder: Path) -> None:
    unfinished = folder / f"{MODEL}.unfinished"
    trainer.save_model(str(unfinished))
    if trainer.is_world_process_zero():
        unfinished.rename(folder / MODEL)  # in one step, because this folder says that the run has finished
