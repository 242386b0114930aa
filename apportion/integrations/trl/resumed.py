"""What makes a trainer of TRL's go on after a checkpoint as if it had not stopped: with the same plans and rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from apportion.integrations.fresh import FreshRows
from apportion.integrations.trl import state
from apportion.integrations.trl.ranks import Ranks
from apportion.integrations.trl.settings import Allocation
from apportion.records import truncate

TRLTrainer: Any = object  # either of TRL's trainers comes later in the order of methods


class Resumed(TRLTrainer):  # type: ignore[misc]
    """The methods of TRL by which checkpoints are written and read, and its sampler of prompts."""

    allocation: Allocation
    _fresh: FreshRows
    _batches: int = 0
    _sampler: Any = None

    @property
    def _ranks(self) -> Ranks:
        return Ranks(self.accelerator)

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        """TRL's sampler, kept: it draws one order an epoch, and begins with the first again in a resumed run."""
        self._sampler = super()._get_train_sampler(dataset)
        return self._sampler

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """TRL's checkpoint. What is beside it is written first: with TRL's own files a checkpoint counts as whole."""
        if not self.args.save_only_model:
            folder = Path(self._get_output_dir(trial=trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            self._save_allocation(folder)
        super()._save_checkpoint(model, trial)

    def _save_allocation(self, folder: Path) -> None:
        allocation, used = self.allocation, self._step % (self.args.steps_per_generation * self.num_iterations)
        state.save_batch(folder, self._ranks.rank, self._buffered_inputs if used else None)
        if self._ranks.decides:
            learnt = state.State(
                allocation.allocator.state_dict(),
                None if allocation.baseline is None else allocation.baseline.state_dict(),
                allocation.allocator.name,
                self._fresh.drawn,
                self._batches,
                self._step,
                (self._ranks.size, self.args.steps_per_generation) if used else None,
            )
            state.save(folder, learnt)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """TRL's optimiser, and all that was saved beside it; errors are the same in every process."""
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        allocation, ranks, folder = self.allocation, self._ranks, Path(checkpoint)
        learnt: state.State | None = None

        def common() -> state.State:
            nonlocal learnt
            learnt = state.load(folder, allocation.allocator.name, baseline=allocation.baseline is not None)
            return replace(learnt, allocator={}, baseline=None)

        said = ranks.agreed(common)
        sharing = (ranks.size, self.args.steps_per_generation)
        self._buffered_inputs = state.load_batch(folder, ranks.rank, sharing, self.accelerator.device, said)
        self._fresh.restore(said.drawn)
        self._batches = said.batches
        self._step = 0 if said.sharing is None else said.step  # between two batches TRL may count from 0
        for _ in range(int(self.state.epoch or 0) if self._sampler is not None else 0):
            next(iter(self._sampler), None)  # the order of an epoch that is over
        if learnt is not None:
            allocation.allocator.load_state_dict(learnt.allocator)
            if allocation.baseline is not None and learnt.baseline is not None:
                allocation.baseline.load_state_dict(learnt.baseline)
            if allocation.rollout_log is not None:
                truncate(allocation.rollout_log, self._batches - 1)
