"""TRL's GRPO and RLOO trainers with an allocator: one import and one argument more.

    from apportion import HORA
    from apportion.integrations.trl import AllocatedGRPOTrainer

    trainer = AllocatedGRPOTrainer(model, reward_funcs, args, train_dataset, allocator=HORA())

``_generate_and_score_completions`` is driven in rounds and ``_calculate_rewards`` tapped; no body of TRL is copied.
Under ``Uniform`` a run is that of TRL to the last bit.

References: TRL's users asked for this in its issues 3708, 3973 and 4764.
"""

from __future__ import annotations

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
from apportion.baselines import Baseline
from apportion.integrations.answers import Answers
from apportion.integrations.fresh import FreshRows
from apportion.integrations.prompts import prompt_of, text_of
from apportion.integrations.spending import PREFIX, allocation_metrics
from apportion.integrations.trl.director import Director, Loss, Trained
from apportion.integrations.trl.generation import SHARES, Generation, Round, Sampled, Update
from apportion.integrations.trl.metrics import close_table, open_table
from apportion.integrations.trl.ragged import Grouped, grpo, rloo, zero_deviation
from apportion.integrations.trl.ranks import Stopped
from apportion.integrations.trl.resumed import Resumed
from apportion.integrations.trl.rows import dealt
from apportion.integrations.trl.settings import Allocation
from apportion.integrations.trl.voting import Votes
from apportion.records import prepare, write_step
from apportion.types import Prompt
from apportion.verifiers import Equivalence


class _Allocated(Resumed):
    """What both trainers have in common: the methods of TRL that are driven and tapped."""

    def __init__(
        self,
        *args: Any,
        allocator: Allocator,
        weighting: Weighting = "rollout",
        estimator: str | None = None,
        baseline: Baseline | None = None,
        verdict: str | None = None,
        id_column: str | None = None,
        extract: str | Callable[[str], str | None] = "auto",
        equivalence: str | Equivalence = "exact",
        rollout_log: str | Path | None = None,
        **kwargs: Any,
    ) -> None:
        self.allocation = Allocation(
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
                    "an eval_dataset needs reward_funcs to judge with, got none; give them, they are never trained on, "
                    "or leave the eval_dataset out"
                )
            given["reward_funcs"] = [_placeholder(self.allocation.pseudo_name)]
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
        self._generation: Generation | None = None
        self._padded = False
        self._fresh = FreshRows(self.train_dataset, self.args.seed)
        self._answers = Answers(extract, equivalence)
        if self.allocation.rollout_log is not None:
            prepare(self.allocation.rollout_log)
        self.add_callback(_AtTheEnd(self._answers.close))
        self._ranks.agreed(self._prepare_prompts)

    def _check(self, args: Any, given: dict[str, Any]) -> None:
        """Raises ValueError for a configuration that cannot work."""
        columns = getattr(given.get("train_dataset"), "column_names", None) or []
        functions = given.get("reward_funcs")
        count = len(functions) if isinstance(functions, (list, tuple)) else 1
        unknown = given.get("environment_factory") is not None
        self.allocation.check(args, columns, None if unknown else count)

    def _prepare_prompts(self) -> None:
        """Tells the allocator of the data set, so that no step waits for embeddings; streams are not known yet."""
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
            evaluated: dict[str, Any] = super()._generate_and_score_completions(inputs)
            return evaluated
        started, ranks, allocator = time.perf_counter(), self._ranks, self.allocation.allocator
        tokenizer: Any = getattr(self.processing_class, "tokenizer", self.processing_class)
        generation = Generation(
            self,
            ranks,
            super()._generate_and_score_completions,
            tokenizer.pad_token_id,
            keep_rows=allocator.trains_on_reused,
            behaviour=allocator.needs_behaviour,
            norms=self.allocation.needs_score_norms,
        )
        self._generation = generation
        open_table(self._logs)
        try:
            generation.first_rows(inputs, self.num_generations)
            update = self._direct(generation) if ranks.decides else _followed(generation)
            output = generation.finish(update)
            self._padded = any(share.padding for share in update.shares)
        finally:
            self._generation = None
        self._log_batch(generation, update)
        outside = time.perf_counter() - started - generation.seconds_within
        self._metrics["train"][f"{PREFIX}seconds"].append(outside)
        return output

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """TRL's micro-batch, of a batch whose masked rows are spread over all of them."""
        inputs = super()._prepare_inputs(generation_batch)
        if self._padded:
            self._padded = False
            self._buffered_inputs = dealt(self._buffered_inputs or [])
            inputs = self._buffered_inputs[self._step % self.args.steps_per_generation]
        return inputs

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Tensor:
        scores: Tensor = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        if self._generation is not None:
            self._generation.tap(scores, completions, completion_ids_list)
        return scores

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        """TRL's loss, with the divergence from the reference and the entropy in full where there are masked rows."""
        rest = {key: value for key, value in inputs.items() if key not in SHARES}
        adapts = getattr(self, "use_adaptive_entropy", False)  # then the coefficient is TRL's to change
        batch_share = None if adapts else inputs.get("batch_share")
        with _raised(self, "beta", inputs.get("row_share")), _raised(self, "entropy_coef", batch_share):
            loss: Tensor = super().compute_loss(model, rest, return_outputs, num_items_in_batch)
            return loss

    def _direct(self, generation: Generation) -> Update:
        """The batch on the process that decides. What it raises between rounds ends the others too."""

        def orders(order: Round) -> list[Sampled]:
            self._ranks.told(order)
            return generation.carry_out(order)

        director = Director(
            self.allocation,
            self._loss(),
            orders,
            self._fresh,
            Votes(self._answers) if self.allocation.label_free else None,
        )
        try:
            trained = director.collect(list(generation.rows))
            update = self._logged(director, trained)
            self._learn(trained)
        except Exception as error:
            if not generation.running:
                self._ranks.told(f"{type(error).__name__}: {error}")
            raise
        return self._ranks.told(update)

    def _loss(self) -> Loss:
        return Loss(
            self._advantages,
            self.reward_func_names,
            self.reward_weights.cpu(),
            getattr(self, "loss_type", "rloo"),
            self._ranks.size,
            self.args.steps_per_generation,
        )

    def _logged(self, director: Director, trained: Trained) -> Update:
        """The shares of all processes, with what all of them log."""
        update = director.update(trained)
        metrics = {
            f"{PREFIX}{name}": value for name, value in allocation_metrics(trained.batch, trained.groups).items()
        }
        said = self.allocation.allocator.metrics(trained.batch)
        metrics |= {f"{PREFIX}{name}": value for name, value in said.items()}
        metrics[f"{PREFIX}spare"] = float(director.spare)
        metrics[f"{PREFIX}padding"] = float(sum(share.padding for share in update.shares))
        metrics[f"{PREFIX}rows"] = float(sum(len(share.advantages) for share in update.shares))
        metrics |= director.reward_metrics(trained)
        metrics["frac_reward_zero_std"] = zero_deviation(trained.grouped, *self._zero_deviation)
        return replace(update, metrics=metrics, columns=dict(director.columns(trained)))

    def _learn(self, trained: Trained) -> None:
        """Writes the rollout log, and has the allocator and the baseline learn from the batch."""
        allocation = self.allocation
        if allocation.rollout_log is not None:
            write_step(
                allocation.rollout_log,
                self._batches,
                trained.batch,
                trained.groups,
                trained.advantages,
                trained.weights,
                text=lambda response: text_of(response.content),
            )
        allocation.allocator.observe(trained.batch)
        if allocation.baseline is not None:
            allocation.baseline.update(trained.batch)

    def _log_batch(self, generation: Generation, update: Update) -> None:
        """Puts the metrics of the batch, and the columns of TRL's table of completions, where TRL has them."""
        logged = self._metrics["train"]
        for name, value in (generation.metrics.whole() | update.metrics).items():
            logged[name].append(value)
        logged["num_tokens"] = logged["num_tokens"][-1:]
        close_table(self._logs, len(update.columns["advantages"]), update.columns)
        self._batches += 1


class AllocatedGRPOTrainer(_Allocated, GRPOTrainer):  # type: ignore[misc]
    """``trl.GRPOTrainer`` whose rollouts an allocator spends; every argument of it, and those of ``Allocation``.

    ``GRPOConfig.num_generations`` is what a prompt gets on average: a generation batch has
    ``generation_batch_size / num_generations`` prompts. Raises ValueError at construction for what cannot work.
    """

    def _advantages(self, grouped: Grouped) -> Tensor:
        return grpo(grouped, self.scale_rewards, self.multi_objective_aggregation)

    @property
    def _zero_deviation(self) -> tuple[Any, ...]:
        return (self.scale_rewards,)


class AllocatedRLOOTrainer(_Allocated, RLOOTrainer):  # type: ignore[misc]
    """``trl.RLOOTrainer`` whose rollouts an allocator spends; as ``AllocatedGRPOTrainer``, with ``beta`` 0."""

    def _check(self, args: Any, given: dict[str, Any]) -> None:
        if args.beta != 0:
            raise ValueError(
                f"beta must be 0 for RLOO under an allocator, got {args.beta}: TRL takes it off the rewards inside "
                "the method that is driven; set beta=0.0, or use AllocatedGRPOTrainer, whose loss has the divergence"
            )
        super()._check(args, given)

    def _advantages(self, grouped: Grouped) -> Tensor:
        return rloo(grouped, self.reward_clip_range, self.normalize_advantages)

    @property
    def _zero_deviation(self) -> tuple[Any, ...]:
        return ("group", self.reward_clip_range)


def _followed(generation: Generation) -> Update:
    """The batch on a process that follows: it carries out orders until the update comes.

    Raises Stopped where the process that decides has raised.
    """
    while True:
        message: Any = generation.ranks.told()
        if isinstance(message, Round):
            generation.carry_out(message)
        elif isinstance(message, Update):
            return message
        else:
            raise Stopped(f"the first process ended the batch: {message}")


@contextmanager
def _raised(trainer: Any, coefficient: str, share: Tensor | None) -> Iterator[None]:
    """Has a ``coefficient`` of the loss raised by ``share`` for a while; None leaves it as it is."""
    if share is None or not hasattr(trainer, coefficient):
        yield
        return
    before = getattr(trainer, coefficient)
    setattr(trainer, coefficient, before * float(share))
    try:
        yield
    finally:
        setattr(trainer, coefficient, before)


def _placeholder(name: str) -> Callable[..., list[float]]:
    """The reward function of a run without any, for TRL wants one; what the votes say takes its place."""

    def votes_decide(completions: Sequence[Any], **columns: Any) -> list[float]:
        return [0.0] * len(completions)

    votes_decide.__name__ = name
    return votes_decide


class _AtTheEnd(TrainerCallback):
    """Calls ``close`` when training ends."""

    def __init__(self, close: Callable[[], None]) -> None:
        self.close = close

    def on_train_end(self, *args: Any, **settings: Any) -> None:
        self.close()
