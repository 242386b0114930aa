"""Checkpoints of a run with an allocator: what they hold beside TRL's files, and how a trainer resumes from them.

TRL drops a generation batch if a checkpoint falls in the middle of it: a resumed run samples it again and counts its
steps from 0. Here the unused micro-batches are saved, one file per rank. A resumed run trains on exactly these rows,
and no allocator learns from a batch twice.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint

from apportion.engines.saved_state import load_state, restoring, save_state
from apportion.records import resume_log, start_log
from apportion.trl.ranks import Ranks
from apportion.trl.rounds import Response
from apportion.trl.rows import to_device
from apportion.trl.settings import TRLAllocation

logger = logging.getLogger(__name__)

FILE = "apportion.pt"
LAST = "trainer_state.json"
"""The file that TRL writes last. A checkpoint is whole if it has this file."""
KIND, BATCH_KIND = "TRL run", "TRL generation batch"
REMEDY = "resume from another checkpoint, or start a new run from its weights with model="
TRLTrainer: Any = object  # one of TRL's trainers comes later in the method resolution order


@dataclass(frozen=True, kw_only=True)
class SavedState:
    """What a run has learned so far.

    ``allocator``, ``baseline`` and ``selection`` are state_dicts. ``drawn`` counts fresh rows, ``batches`` generation
    batches and ``step`` TRL's micro-batches. ``sharing`` is (ranks, steps_per_generation) if the checkpoint falls in
    the middle of a generation batch, and None between two batches. ``settings`` are those of the allocator, the
    baseline and the selection, ``iterations`` is TRL's num_iterations, ``log`` is the id of the run in its rollout log,
    and ``failures`` is the state of its count of completions without a reward. Version 0.3.0 wrote ``name`` and
    ``chosen``, which are not read any more.
    """

    allocator: dict[str, Any]
    baseline: dict[str, Any] | None
    drawn: int
    batches: int
    step: int
    sharing: tuple[int, int] | None = None
    selection: dict[str, Any] | None = None
    name: str = ""
    chosen: list[list[int]] = field(default_factory=list)
    settings: dict[str, Any]
    iterations: int
    log: str | None = None
    failures: dict[str, Any]


class WholeCheckpoints(TRLTrainer):  # type: ignore[misc]
    """Overrides TRL's methods so that our own files are written before TRL's last file."""

    _save_allocation: Callable[[Path], None]
    """Writes our own files of this rank into the folder of a checkpoint."""

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **settings: Any) -> Any:
        """Train as TRL does. ``resume_from_checkpoint=True`` is the last whole checkpoint in the output folder.

        TRL takes the last one, which a run that was killed while it wrote it has left without some of its files.
        """
        if resume_from_checkpoint is True and (whole := newest_checkpoint(Path(self.args.output_dir))) is not None:
            last = get_last_checkpoint(self.args.output_dir)
            if Path(last) != whole:
                logger.warning("%s was not written to its end; training goes on from %s", last, whole.name)
            resume_from_checkpoint = str(whole)
        return super().train(resume_from_checkpoint, *args, **settings)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Write TRL's checkpoint, after our own files."""
        if not self.args.save_only_model:
            folder = Path(self._get_output_dir(trial=trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            folder.mkdir(parents=True, exist_ok=True)
            if self.accelerator.is_main_process:
                (folder / LAST).unlink(missing_ok=True)  # of an earlier run, whose checkpoint is written again
            self._save_allocation(folder)
        super()._save_checkpoint(model, trial)


class CheckpointedTrainer(WholeCheckpoints):
    """Overrides the methods of TRL that write and read checkpoints and sample prompts."""

    allocation: TRLAllocation
    _batches: int = 0
    _step_begun: int = -1
    """Number of optimizer steps that were finished before the latest micro-batch."""
    _log: str | None = None
    _sampler: Any = None

    @property
    def _ranks(self) -> Ranks:
        return Ranks(self.accelerator)

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **settings: Any) -> Any:
        """Train as TRL does, on the present ``train_dataset``, which may have been replaced, as for a second stage.

        A new run begins its rollout log first, and is refused that of another run.
        """
        if self.train_dataset is not self._taken:
            self._take_dataset()
        if not resume_from_checkpoint:
            self._log = self._ranks.run_on_main(self._start_log)
        return super().train(resume_from_checkpoint, *args, **settings)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Write a checkpoint; one within an optimizer step is written at the end of that step.

        ``enable_jit_checkpoint`` of transformers asks for one there. The rows of the step are used up by then, but the
        weights are those before it.
        """
        if self._step_begun == self.state.global_step:
            self.control.should_save = True
        else:
            super()._save_checkpoint(model, trial)

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        """Return TRL's sampler, and keep it, because a resumed run restores its position."""
        self._sampler = super()._get_train_sampler(dataset)
        return self._sampler

    def _save_allocation(self, folder: Path) -> None:
        allocation, used = self.allocation, self._step % (self.args.steps_per_generation * self.num_iterations)
        save_batch(folder, self._ranks.rank, self._buffered_inputs if used else None)
        if self._ranks.is_main:
            state = SavedState(
                **allocation.state_dicts(),
                drawn=self._fresh.drawn,
                batches=self._batches,
                step=self._step,
                sharing=(self._ranks.size, self.args.steps_per_generation) if used else None,
                settings=allocation.settings,
                iterations=self.num_iterations,
                log=self._log,
                failures=self._rewards.state_dict(),
            )
            save_state(folder / FILE, KIND, state)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load TRL's optimizer and our own files. All ranks raise the same errors."""
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        ranks, folder = self._ranks, Path(checkpoint)
        saved = ranks.run_on_main(lambda: self._restored(folder))
        sharing = (ranks.size, self.args.steps_per_generation, self.num_iterations)
        self._buffered_inputs = load_batch(folder, ranks.rank, sharing, self.accelerator.device, saved)
        self._fresh.restore(saved.drawn)
        self._batches = saved.batches
        self._step = 0 if saved.sharing is None else saved.step  # between two batches TRL may count from 0
        with restoring(folder / FILE, REMEDY):
            self._rewards.load_state_dict(saved.failures)
        for _ in range(int(self.state.epoch or 0) if self._sampler is not None else 0):
            next(iter(self._sampler), None)  # skip the orders of finished epochs; transformers skips rows of this one
        if not hasattr(self.train_dataset, "__len__"):
            logger.warning(
                "a resumed run reads its stream of prompts from the beginning and skips what was read, at most to the "
                "end: if it had begun again, some prompts come twice; load the data as a Dataset"
            )
        self._log = ranks.run_on_main(lambda: self._resume_log(saved.log))

    def _restored(self, folder: Path) -> SavedState:
        """Restore the parts of the allocation on rank 0. Return the rest, which all ranks need."""
        saved, parts = load(folder), self.allocation.parts
        with restoring(folder / FILE, REMEDY):
            self.allocation.load_state_dicts({name: getattr(saved, name) for name in parts}, saved.settings)
        return replace(saved, allocator={}, baseline=None, selection=None)

    def _start_log(self) -> str | None:
        """Return the id of this run in its rollout log; None without a log. A trainer may train again."""
        folder = self.allocation.rollout_log
        return self._resume_log(self._log) if folder is None or self._log is not None else start_log(folder)

    def _resume_log(self, run: str | None) -> str | None:
        folder = self.allocation.rollout_log
        return None if folder is None else resume_log(folder, run, self._batches - 1)


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the last whole checkpoint in the output folder of a run; None if there is none."""
    prefix = f"{PREFIX_CHECKPOINT_DIR}-"
    steps = (path.parent.name.removeprefix(prefix) for path in folder.glob(f"{prefix}*/{LAST}"))
    newest = max((int(step) for step in steps if step.isdecimal()), default=None)
    return None if newest is None else folder / f"{prefix}{newest}"


def load(folder: Path) -> SavedState:
    """Load the state of a run from the checkpoint in ``folder``. Raises SavedStateError if there is none."""
    state: SavedState = load_state(folder / FILE, KIND, remedy=REMEDY, records=(SavedState, Response))
    return state


def save_batch(folder: Path, rank: int, chunks: list[dict[str, Any]] | None) -> None:
    """Write the micro-batches that a rank has not trained on yet. If ``chunks`` is None, remove their file."""
    if chunks is None:
        _batch_file(folder, rank).unlink(missing_ok=True)
    else:
        on_cpu = [to_device(chunk, "cpu") for chunk in chunks]
        save_state(_batch_file(folder, rank), BATCH_KIND, on_cpu)


def load_batch(
    folder: Path, rank: int, sharing: tuple[int, int, int], device: torch.device, state: SavedState
) -> list[dict[str, Any]] | None:
    """Load what ``save_batch`` wrote onto ``device``. None if the checkpoint with ``state`` lies between two batches.

    Raises ValueError if the batch was shared by other numbers of ranks, micro-batches and iterations than ``sharing``,
    or if the file is missing or damaged.
    """
    if state.sharing is None:
        return None
    begun = (*state.sharing, state.iterations)
    if begun != sharing:
        raise ValueError(
            "a checkpoint in the middle of a generation batch must be resumed with as many processes, "
            f"steps_per_generation and num_iterations, {begun}, got {sharing}; set them so, or resume a checkpoint "
            "between two batches"
        )
    chunks = load_state(_batch_file(folder, rank), BATCH_KIND, remedy=REMEDY)
    return [to_device(chunk, device) for chunk in chunks]


def _batch_file(folder: Path, rank: int) -> Path:
    return folder / f"apportion_batch_{rank}.pt"
