"""The overrides of TRL's methods that all trainers with an allocator share.

They call TRL's ``_generate_and_score_completions`` once per round and record the scores in ``_calculate_rewards``. No
code of TRL is copied.
"""

import inspect
import math
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from functools import partial
from typing import Any

from torch import Tensor
from transformers import Trainer, TrainerCallback

from apportion.answers.reader import AnswerReader
from apportion.engines.fresh_rows import FreshRows
from apportion.engines.prompts import text_of
from apportion.records import prepare_log
from apportion.scheduler.decisions import bill
from apportion.trl.advantages import without_failures
from apportion.trl.bases import check_trainer
from apportion.trl.checkpoints import CheckpointedTrainer
from apportion.trl.no_signal import NoSignal
from apportion.trl.planner import generation_batch
from apportion.trl.replaced import replaced
from apportion.trl.rewards import RewardVerdicts, zeros
from apportion.trl.rows import split_micro_batch, spread_masked_rows
from apportion.trl.settings import LOSSES, TRLAllocation, check_verdict
from apportion.trl.shares import SCALES


class AllocatedTrainer(CheckpointedTrainer):
    """The overrides of TRL's methods that all trainers with an allocator share; see ``allocated``."""

    _config: type[Any]
    _stock: type[Any]
    """TRL's classes of the settings and of the trainer."""
    _own_loss: str | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        check_trainer(type(self))
        own = [each.name for each in fields(TRLAllocation) if each.name in kwargs]
        self.allocation = TRLAllocation(**{name: kwargs.pop(name) for name in own})
        given = self._by_name(args, kwargs)
        if self.allocation.label_free and not given.get("reward_funcs"):
            if given.get("eval_dataset") is not None:
                raise ValueError(
                    "an eval_dataset needs reward_funcs, got none; give some, which are never trained on, or leave the "
                    "eval_dataset out"
                )
            given["reward_funcs"] = [_placeholder(self.allocation.vote_reward_name)]
        if given.get("args") is not None:
            self._check(given["args"], given)
        super().__init__(**given)
        if given.get("args") is None:
            self._check(self.args, given)
        self.num_generations = self.allocation.generations(self.args)
        check_verdict(self.allocation.verdict, self.reward_func_names)
        given_rewards = self.allocation, self.reward_func_names, self.reward_weights.cpu(), self._components
        self._rewards, self._of_evaluation = RewardVerdicts(*given_rewards), RewardVerdicts(*given_rewards)
        self._no_signal = NoSignal(self.allocation.extractor_name)
        self._part: dict[str, Any] | None = None
        self._padded = False
        self._answers = AnswerReader(self.allocation.extract, self.allocation.equivalence)
        if self.allocation.rollout_log is not None:
            prepare_log(self.allocation.rollout_log)
        line = bill(self.allocation.allocator, self.allocation.prompts(self.args), self.args.generation_batch_size)
        self.add_callback(BillLine(line, self._answers.close))
        self._take_dataset()

    def _by_name(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments by name. Those without one are TRL's own, in its order."""
        signature = inspect.signature(self._stock.__init__)
        known = {name: value for name, value in kwargs.items() if name in signature.parameters}
        given = signature.bind_partial(self, *args, **known).arguments
        return {name: value for name, value in given.items() if name != "self"} | kwargs

    @property
    def _loss(self) -> str:
        """The loss type, a key of ``LOSSES``."""
        return self._own_loss or str(getattr(self, "loss_type", "rloo"))

    def _check(self, args: Any, given: dict[str, Any]) -> None:
        """Set the allocator's budget from ``args`` if it has none. Raise ValueError for settings that cannot work."""
        if not isinstance(args, self._config):
            raise ValueError(
                f"args must be a trl.{self._config.__name__} for {type(self).__name__}, got a {type(args).__name__}, "
                f"which lacks its settings; make a {self._config.__name__}"
            )
        self.allocation = self.allocation.checked(args, given, self._own_loss)

    def _set_signature_columns_if_needed(self) -> None:
        """Keep the columns of ids and rates under ``remove_unused_columns``, too."""
        super()._set_signature_columns_if_needed()
        own = (self.allocation.id_column, self.allocation.rate_column)
        self._signature_columns += [each for each in own if each is not None and each not in self._signature_columns]

    def _take_dataset(self) -> None:
        """Give all rules the prompts of ``train_dataset``, unless it is a stream of them."""
        self._set_signature_columns_if_needed()
        dataset = self._taken = self.train_dataset
        if self.args.remove_unused_columns and (columns := getattr(dataset, "column_names", None)):
            dataset = dataset.select_columns([name for name in columns if name in self._signature_columns])
        self._fresh = FreshRows(dataset, self.args.seed if self.args.shuffle_dataset else None)
        if hasattr(self.train_dataset, "__len__"):
            self._ranks.run_on_main(lambda: self.allocation.prepare_run(self.train_dataset, self.args))

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)
        methods = super()._generate_and_score_completions, super()._calculate_rewards
        output, self._padded = generation_batch(self, inputs, *methods)
        self._batches += 1
        return output

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """Return TRL's micro-batch, after spreading the masked rows of a new batch over all micro-batches."""
        if self._part is not None:
            return self._part
        inputs = super()._prepare_inputs(generation_batch)
        if self._padded:
            self._padded = False
            self._buffered_inputs = spread_masked_rows(self._buffered_inputs or [])
            inputs = self._buffered_inputs[self._step % self.args.steps_per_generation]
        return inputs

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Train on the next micro-batch, in parts if it has more rows than ``per_device_train_batch_size``.

        The gradient is that of the whole micro-batch, but TRL takes ``top_entropy_quantile`` within each part. Only the
        last part is a step to TRL.
        """
        started, gradients = time.perf_counter(), self.accelerator.gradient_state
        loss: Tensor | float = 0.0  # a tensor would have to be on the device of the model
        self._step_begun = self.state.global_step
        model.train()
        if callable(train := getattr(self.optimizer, "train", None)):
            train()
        parts = split_micro_batch(
            self._prepare_inputs(inputs), self.args.per_device_train_batch_size, LOSSES[self._loss][1]
        )
        synchronizes = gradients.sync_gradients
        try:
            for self._part in parts[:-1]:
                gradients._set_sync_gradients(False)
                loss = loss + Trainer.training_step(self, model, inputs, num_items_in_batch)
            gradients._set_sync_gradients(synchronizes)
            self._part = parts[-1]
            self._current_train_step_time += time.perf_counter() - started
            return loss + super().training_step(model, inputs, num_items_in_batch)
        finally:
            self._part = None
            gradients._set_sync_gradients(synchronizes)

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Tensor:
        """Return the scores of an evaluation, and count its completions without a reward, on all ranks.

        A round of training has its own method in this place. Raises RewardsFailedError.
        """
        rewards, columns = self._of_evaluation, (inputs, prompts, completions, completion_ids_list)
        scores = rewards.score(self, super()._calculate_rewards, columns, range(len(rewards.names)))
        failed = rewards.failed(scores, self._ranks.all_gather(list(map(text_of, prompts))))
        self._metrics["eval"]["allocation/failed"].append(float(sum(failed)))
        return without_failures(scores)

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        """Return TRL's loss, with coefficients scaled so that masked rows do not weaken the KL and entropy terms."""
        if self.model.training and not self._batches:
            raise ValueError(
                f"rows must come from {type(self).__name__}._generate_and_score_completions, got some that were made "
                "elsewhere, so no allocator decided their number; train without an allocator"
            )
        rest = {key: value for key, value in inputs.items() if key not in SCALES}
        adaptive = getattr(self, "use_adaptive_entropy", False)  # then TRL itself changes the coefficient
        entropy_scales = [] if adaptive else [inputs.get("batch_scale"), inputs.get("entropy_share")]
        with self._scaled("beta", inputs.get("row_scale")), self._scaled("entropy_coef", *entropy_scales):
            loss: Tensor = super().compute_loss(model, rest, return_outputs, num_items_in_batch)
        return loss * inputs["loss_share"] if "loss_share" in inputs else loss

    def _scaled(self, coefficient: str, *scales: Tensor | None) -> AbstractContextManager[None]:
        """Multiply some coefficients of the loss by ``scales`` within a block.

        Coefficients that it lacks are skipped.
        """
        factor = math.prod(float(scale) for scale in scales if scale is not None)
        if factor == 1.0 or not hasattr(self, coefficient):
            return nullcontext()
        return replaced(self, **{coefficient: getattr(self, coefficient) * factor})


def _placeholder(name: str) -> Any:
    """Return a reward function for label-free training, because TRL needs one. Rewards from votes replace it."""
    placeholder: Any = partial(zeros)
    placeholder.__name__ = name
    return placeholder


class BillLine(TrainerCallback):
    """Writes the cost of a batch to stderr before the first one is sampled, and calls ``close`` when training ends."""

    def __init__(self, line: str, close: Callable[[], None] = lambda: None) -> None:
        self.line, self.close = line, close

    def on_train_begin(self, args: Any, state: Any, *rest: Any, **settings: Any) -> None:
        if state.is_world_process_zero:
            sys.stderr.write(f"{self.line}\n")

    def on_train_end(self, *args: Any, **settings: Any) -> None:
        self.close()
