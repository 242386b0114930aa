"""TRL's GRPO and RLOO trainers with an allocator: they take one more argument.

    from apportion import HORA
    from apportion.trl import AllocatedGRPOTrainer

    trainer = AllocatedGRPOTrainer(model, reward_funcs, args, train_dataset, allocator=HORA())

The trainers call TRL's ``_generate_and_score_completions`` once per round and record the scores in
``_calculate_rewards``. No code of TRL is copied. Under ``Uniform`` a run equals that of TRL to the last bit.

TRL's users asked for this in its issues 3708, 3973 and 4764.
"""

import inspect
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import TrainerCallback
from trl import GRPOTrainer, RLOOTrainer

from apportion.advantages import Weighting
from apportion.allocators import Allocator
from apportion.answers import Equivalence
from apportion.answers.reader import AnswerReader
from apportion.baselines import Baseline
from apportion.engines.fresh_rows import FreshRows
from apportion.engines.metrics import PREFIX, allocation_metrics
from apportion.engines.prompts import prompt_of, text_of
from apportion.records import prepare_log, write_step
from apportion.trl.advantages import Grouped, grpo, rloo, zero_deviation
from apportion.trl.checkpoints import CheckpointedTrainer
from apportion.trl.generation import SCALES, GenerationBatch, RoundRequest, Sampled, TrainingBatch
from apportion.trl.metrics import close_table, open_table
from apportion.trl.planner import BatchPlanner, FinishedBatch, LossSettings
from apportion.trl.ranks import MainRankError
from apportion.trl.rows import spread_masked_rows
from apportion.trl.settings import TRLAllocation
from apportion.trl.votes import Votes
from apportion.types import Prompt


class _AllocatedTrainer(CheckpointedTrainer):
    """The overrides of TRL's methods that both trainers share."""

    def __init__(
        self,
        *args: Any,
        allocator: Allocator,
        weighting: Weighting | None = None,
        estimator: str | None = None,
        baseline: Baseline | None = None,
        verdict: str | None = None,
        id_column: str | None = None,
        extract: str | Callable[[str], str | None] = "auto",
        equivalence: str | Equivalence = "exact",
        rollout_log: str | Path | None = None,
        **kwargs: Any,
    ) -> None:
        self.allocation = TRLAllocation(
            allocator=allocator,
            weighting=weighting,
            estimator=estimator,
            baseline=baseline,
            verdict=verdict,
            id_column=id_column,
            extract=extract,
            equivalence=equivalence,
            rollout_log=None if rollout_log is None else Path(rollout_log),
        )
        given = dict(inspect.signature(super().__init__).bind_partial(*args, **kwargs).arguments)
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
        if verdict is not None and verdict not in self.reward_func_names:
            raise ValueError(
                f"verdict must be one of the reward functions, {', '.join(self.reward_func_names)}, got {verdict!r}; "
                "check the spelling"
            )
        self._generation: GenerationBatch | None = None
        self._padded = False
        self._fresh = FreshRows(self.train_dataset, self.args.seed)
        self._answers = AnswerReader(extract, equivalence)
        if self.allocation.rollout_log is not None:
            prepare_log(self.allocation.rollout_log)
        self.add_callback(_OnTrainEnd(self._answers.close))
        self._ranks.run_on_main(self._prepare_prompts)

    def _check(self, args: Any, given: dict[str, Any]) -> None:
        """Raise ValueError for a configuration that cannot work."""
        columns = getattr(given.get("train_dataset"), "column_names", None) or []
        functions = given.get("reward_funcs")
        count = len(functions) if isinstance(functions, (list, tuple)) else 1
        unknown = given.get("environment_factory") is not None
        self.allocation.check(args, columns, None if unknown else count)

    def _prepare_prompts(self) -> None:
        """Give the allocator all prompts, so that no step waits for embeddings. Streams of prompts are skipped."""
        if not hasattr(self.train_dataset, "__len__"):
            return
        first: dict[str, tuple[Prompt, dict[str, Any]]] = {}
        differing = 0
        for row in self.train_dataset:
            prompt = prompt_of(row, self.allocation.id_column)
            differing += first.setdefault(prompt.id, (prompt, row))[1] != row
        self.allocation.check_repeated(differing, len(first))
        prompts = [prompt for prompt, _ in first.values()]
        self.allocation.allocator.prepare(prompts)
        if self.allocation.baseline is not None:
            self.allocation.baseline.prepare(prompts)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)
        started, ranks, allocator = time.perf_counter(), self._ranks, self.allocation.allocator
        tokenizer: Any = getattr(self.processing_class, "tokenizer", self.processing_class)
        generation = GenerationBatch(
            self,
            ranks,
            super()._generate_and_score_completions,
            tokenizer.pad_token_id,
            keep_rows=allocator.needs.reused_rollouts,
            behaviour=allocator.needs.behaviour_logprobs,
            norms=self.allocation.needs.score_norms,
        )
        self._generation = generation
        open_table(self._logs)
        try:
            generation.add_prompts(inputs, self.num_generations)
            batch = self._plan_batch(generation) if ranks.is_main else _follow(generation)
            output = generation.training_rows(batch)
            self._padded = any(share.padding for share in batch.shares)
        finally:
            self._generation = None
        self._log_batch(generation, batch)
        outside = time.perf_counter() - started - generation.seconds_within
        self._metrics["train"][f"{PREFIX}seconds"].append(outside)
        return output

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """Return TRL's micro-batch, after spreading the masked rows of a new batch over all micro-batches."""
        inputs = super()._prepare_inputs(generation_batch)
        if self._padded:
            self._padded = False
            self._buffered_inputs = spread_masked_rows(self._buffered_inputs or [])
            inputs = self._buffered_inputs[self._step % self.args.steps_per_generation]
        return inputs

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Tensor:
        scores: Tensor = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        if self._generation is not None:
            self._generation.record_scores(scores, completions, completion_ids_list)
        return scores

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        """Return TRL's loss, with coefficients scaled so that masked rows do not weaken the KL and entropy terms."""
        rest = {key: value for key, value in inputs.items() if key not in SCALES}
        adaptive = getattr(self, "use_adaptive_entropy", False)  # then TRL itself changes the coefficient
        batch_scale = None if adaptive else inputs.get("batch_scale")
        with (
            scaled_coefficient(self, "beta", inputs.get("row_scale")),
            scaled_coefficient(self, "entropy_coef", batch_scale),
        ):
            return super().compute_loss(model, rest, return_outputs, num_items_in_batch)

    def _plan_batch(self, generation: GenerationBatch) -> TrainingBatch:
        """Run the batch on rank 0. An error between rounds is sent to the other ranks."""

        def run_round(request: RoundRequest) -> list[Sampled]:
            self._ranks.broadcast(request)
            return generation.run_round(request)

        votes = Votes(self._answers) if self.allocation.label_free else None
        loss = LossSettings(
            self._advantages,
            self.reward_func_names,
            self.reward_weights.cpu(),
            getattr(self, "loss_type", "rloo"),
            self._ranks.size,
            self.args.steps_per_generation,
        )
        planner = BatchPlanner(self.allocation, loss, run_round, self._fresh, votes)
        try:
            finished = planner.collect(list(generation.rows))
            batch = self._with_metrics(planner, finished)
            self._learn(finished)
        except Exception as error:
            if not generation.running:
                self._ranks.broadcast(f"{type(error).__name__}: {error}")
            raise
        return self._ranks.broadcast(batch)

    def _with_metrics(self, planner: BatchPlanner, finished: FinishedBatch) -> TrainingBatch:
        """Return the shares of all ranks, with the metrics that all of them log."""
        batch = planner.training_batch(finished)
        metrics = allocation_metrics(finished.batch, finished.groups)
        metrics |= self.allocation.allocator.metrics(finished.batch)
        metrics["surplus"] = float(planner.surplus)
        metrics["padding"] = float(sum(share.padding for share in batch.shares))
        metrics["rows"] = float(sum(len(share.advantages) for share in batch.shares))
        metrics = {f"{PREFIX}{name}": value for name, value in metrics.items()}
        metrics |= planner.reward_metrics(finished)
        metrics["frac_reward_zero_std"] = zero_deviation(finished.grouped, *self._zero_deviation)
        return replace(batch, metrics=metrics, columns=dict(planner.columns(finished)))

    def _learn(self, finished: FinishedBatch) -> None:
        """Write the rollout log, and let the allocator and the baseline learn from the batch."""
        allocation = self.allocation
        if allocation.rollout_log is not None:
            write_step(
                allocation.rollout_log,
                self._batches,
                finished.batch,
                finished.groups,
                finished.advantages,
                finished.weights,
                text=lambda response: text_of(response.content),
            )
        allocation.allocator.observe(finished.batch)
        if allocation.baseline is not None:
            allocation.baseline.update(finished.batch)

    def _log_batch(self, generation: GenerationBatch, batch: TrainingBatch) -> None:
        """Add the batch to TRL's metrics and its table of completions."""
        logged = self._metrics["train"]
        for name, value in (generation.metrics.combine() | batch.metrics).items():
            logged[name].append(value)
        logged["num_tokens"] = logged["num_tokens"][-1:]
        close_table(self._logs, len(batch.columns["advantages"]), batch.columns)
        self._batches += 1


class AllocatedGRPOTrainer(_AllocatedTrainer, GRPOTrainer):  # type: ignore[misc]
    """``trl.GRPOTrainer`` with an allocator. It takes all arguments of it, and those of ``TRLAllocation``.

    ``GRPOConfig.num_generations`` is the average number of completions per prompt: a generation batch has
    ``generation_batch_size / num_generations`` prompts. Raises ValueError at construction if settings cannot work.
    """

    def _advantages(self, grouped: Grouped) -> Tensor:
        return grpo(grouped, self.scale_rewards, self.multi_objective_aggregation)

    @property
    def _zero_deviation(self) -> tuple[Any, ...]:
        return (self.scale_rewards,)


class AllocatedRLOOTrainer(_AllocatedTrainer, RLOOTrainer):  # type: ignore[misc]
    """``trl.RLOOTrainer`` with an allocator, as ``AllocatedGRPOTrainer``. ``beta`` must be 0."""

    def _check(self, args: Any, given: dict[str, Any]) -> None:
        if args.beta != 0:
            raise ValueError(
                f"beta must be 0 for RLOO under an allocator, got {args.beta}: TRL subtracts the KL penalty from the "
                "rewards of each round; set beta=0.0, or use AllocatedGRPOTrainer, which has the penalty in its loss"
            )
        super()._check(args, given)

    def _advantages(self, grouped: Grouped) -> Tensor:
        return rloo(grouped, self.reward_clip_range, self.normalize_advantages)

    @property
    def _zero_deviation(self) -> tuple[Any, ...]:
        return ("group", self.reward_clip_range)


def _follow(generation: GenerationBatch) -> TrainingBatch:
    """Run the rounds that rank 0 requests, and return its training batch. Raises MainRankError if rank 0 failed."""
    while True:
        message: Any = generation.ranks.broadcast()
        if isinstance(message, RoundRequest):
            generation.run_round(message)
        elif isinstance(message, TrainingBatch):
            return message
        else:
            raise MainRankError(f"rank 0 failed in this batch: {message}")


@contextmanager
def scaled_coefficient(trainer: Any, coefficient: str, scale: Tensor | None) -> Iterator[None]:
    """Temporarily multiply a loss coefficient by ``scale``; None leaves it unchanged."""
    if scale is None or not hasattr(trainer, coefficient):
        yield
        return
    before = getattr(trainer, coefficient)
    setattr(trainer, coefficient, before * float(scale))
    try:
        yield
    finally:
        setattr(trainer, coefficient, before)


def _placeholder(name: str) -> Callable[..., list[float]]:
    """Return a reward function for label-free training, because TRL needs one. Rewards from votes replace it."""

    def zeros(completions: Sequence[Any], **columns: Any) -> list[float]:
        return [0.0] * len(completions)

    zeros.__name__ = name
    return zeros


class _OnTrainEnd(TrainerCallback):
    """Call ``close`` when training ends."""

    def __init__(self, close: Callable[[], None]) -> None:
        self.close = close

    def on_train_end(self, *args: Any, **settings: Any) -> None:
        self.close()
