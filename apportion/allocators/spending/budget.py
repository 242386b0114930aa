"""The base class of allocators that spend a budget of a batch, in rollouts or in tokens."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np

from apportion.allocators.base import Allocator, Size
from apportion.allocators.spending.knapsack import spend_costs
from apportion.allocators.spending.solver import check_high, check_table, spend
from apportion.checks import total_of
from apportion.predictors import MeanLengths, Predictor, UniformPrior
from apportion.predictors.saved import undone_if_refused
from apportion.types import Batch, Belief, Counts, Floats, Mask, Needs, Plan, Prompt, prompt_list
from apportion.untrusted import shown


@dataclass(frozen=True, kw_only=True)
class BudgetedAllocator(Allocator):
    """An allocator whose batches have a budget, of rollouts or of tokens. It learns only through its predictors.

    A budget of rollouts is spent to the last. One of tokens is never exceeded, and what remains is too small for
    another useful rollout. It is charged by lengths that are predicted before the first rollout: ``start`` puts them
    into ``Batch.costs``, where they stay after some completions are known, so that plans do not depend on lengths of
    their own batch. The tokens really used are in ``metrics``. A prompt gets between ``least`` and ``high`` rollouts.

    Args:
        rollouts_per_prompt: budget per prompt, on average. If no budget is given it is the number of the engine that
            trains, and without an engine the class's own default.
        budget: or the budget of a batch in total.
        tokens_per_prompt: or a budget in tokens of completions per prompt, on average. The number of rollouts then
            differs from batch to batch; rollouts must say their ``tokens``.
        lengths: predicts the lengths; needed with ``tokens_per_prompt``, and only then.
        high: the most rollouts of one prompt.
        predictor: gives the belief before the first rollout.
    """

    rollouts_per_prompt: float | None = None
    budget: int | None = None
    tokens_per_prompt: float | None = None
    lengths: MeanLengths | None = None
    high: int = 64
    predictor: Predictor = field(default_factory=UniformPrior)

    usual_rollouts: ClassVar[float] = 8.0
    """Rollouts per prompt if neither a budget is given nor an engine says one."""

    priced: ClassVar[bool] = False
    """Whether ``gains`` says what a rollout is worth whatever the other prompts are, so that a price can decide."""

    def __post_init__(self) -> None:
        super().__post_init__()
        average, total, tokens = self.rollouts_per_prompt, self.budget, self.tokens_per_prompt
        if sum(each is not None for each in (average, total, tokens)) > 1:
            raise ValueError(
                f"give one of rollouts_per_prompt, budget and tokens_per_prompt, got {average}, {total} and {tokens}; "
                "leave the others out"
            )
        if (tokens is None) != (self.lengths is None):
            raise ValueError(
                f"tokens_per_prompt and lengths go together, got {tokens} and {self.lengths}; "
                "give lengths=MeanLengths(initial=...), the tokens expected of a completion, or leave both out"
            )
        check_high(self.least, self.high)
        if total is not None and total < 0:
            raise ValueError(f"budget must be at least 0, got {total}; it counts the rollouts of a whole batch")
        if tokens is not None and not max(1, self.least) <= tokens < math.inf:
            raise ValueError(
                f"tokens_per_prompt must be finite and pay for {self.least} rollouts of a token or more, got {tokens}; "
                "it counts tokens of completions, on average over a batch"
            )
        if average is not None:  # without a budget an engine may say one that fits, or the first batch is refused
            self._check_average(average)

    @property
    def least(self) -> int:
        """The fewest rollouts of a prompt: the setting ``low`` of rules that have one."""
        return int(getattr(self, "low", 1))

    @property
    def needs(self) -> Needs:
        return self.predictor.needs | Needs(tokens=self.lengths is not None)

    def with_budget(self, rollouts_per_prompt: int) -> Self:
        otherwise = (self.budget, self.tokens_per_prompt) != (None, None)
        return self if otherwise else super().with_budget(rollouts_per_prompt)

    def gains(self, belief: Belief, successes: Counts, trials: Counts, width: int) -> Floats:
        """Return the gain of each of ``width`` rollouts after the first ``least``, [P, width]; it never increases.

        ``belief`` [P] is that before the first rollout. ``successes`` and ``trials`` [P] are those of the first
        ``least`` rollouts; a rule of one round ignores them. Only rules that are ``priced`` have such gains.
        """
        raise ValueError(
            f"a rule must say what a rollout is worth for one prompt alone, got {self.name}; plan it in batches"
        )

    def plan(self, batch: Batch) -> Plan:
        """Return one round that gives the rollouts to the largest ``gains``, for rules that plan all at once."""
        low = np.full(len(batch.prompts), self.least)
        gains = self.gains(batch.belief, batch.asked, batch.asked, self._width(batch, low))
        return Plan(np.maximum(self._spend(batch, gains, low) - batch.asked, 0))

    def size(self, prompts: int) -> Size:
        in_tokens = self.tokens_per_prompt is not None
        most = self.high * prompts if in_tokens else self._total(prompts)
        rounds = 1 if self.one_round else None
        return Size(most, most, exact=not in_tokens, least=self.least * prompts, rounds=rounds)

    def prepare(self, prompts: Sequence[Prompt]) -> None:
        self.predictor.prepare(prompts)

    def start(self, prompts: Sequence[Prompt]) -> Batch:
        """Return an empty batch with predicted costs. Raise ValueError if a token budget does not pay for ``least``."""
        prompts = prompt_list(prompts)
        self.size(len(prompts))
        belief = self.predictor.predict(prompts)
        batch = Batch.start(prompts, belief, None if self.lengths is None else self.lengths.predict(prompts))
        self._width(batch, np.full(len(prompts), self.least))
        return batch

    def final(self, batch: Batch, plan: Plan) -> Mask:
        """Return all prompts if the rule plans at once.

        Otherwise those for which the rest of the budget buys no rollout.
        """
        if self.one_round:
            return np.ones(len(batch.prompts), bool)
        counts = batch.asked + plan.counts
        left = self._total(len(batch.prompts)) - float(batch.costs @ counts)
        return (counts >= self.high) | (batch.costs > left)

    def metrics(self, batch: Batch) -> dict[str, float]:
        """Return, under a token budget, ``tokens_planned`` by the predicted lengths and ``tokens_used`` in fact."""
        if self.lengths is None:
            return {}
        used = sum(r.tokens or 0 for rollouts in batch.rollouts for r in rollouts if r.step is None)
        return {"tokens_planned": float(batch.costs @ batch.asked), "tokens_used": float(used)}

    def observe(self, batch: Batch) -> None:
        self.predictor.update(batch)
        if self.lengths is not None:
            self.lengths.update(batch)

    def state_dict(self) -> dict[str, Any]:
        """Return the predictor's state and, under a token budget, that of ``lengths``."""
        learnt = {} if self.lengths is None else {"lengths": self.lengths.state_dict()}
        return self.predictor.state_dict() | learnt

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if not isinstance(state, Mapping) or ("lengths" in state) != (self.lengths is not None):
            budget = "rollouts" if self.lengths is None else "tokens"
            got = ", ".join(sorted(map(str, state))) if isinstance(state, Mapping) else shown(state)
            raise ValueError(
                f"a checkpoint under a budget in {budget} is needed, got {got or 'nothing'}; "
                "set the budget of the run that wrote it, or start from an empty state"
            )
        with undone_if_refused(self.predictor):
            self.predictor.load_state_dict({key: value for key, value in state.items() if key != "lengths"})
            if self.lengths is not None:
                self.lengths.load_state_dict(state["lengths"])

    def _check_average(self, average: float) -> None:
        if not self.least <= average <= self.high:
            raise ValueError(
                f"rollouts_per_prompt must be between {self.least} and {self.high}, got {average}; "
                "change it or the bounds"
            )

    def _total(self, prompts: int) -> int:
        """Return the rollouts or tokens for a batch of ``prompts``. Raise ValueError for rollouts beyond the bounds."""
        if self.tokens_per_prompt is not None:
            return total_of(self.tokens_per_prompt, prompts)
        average = self.usual_rollouts if self.rollouts_per_prompt is None else self.rollouts_per_prompt
        if self.budget is None:
            self._check_average(average)
        total = total_of(average, prompts) if self.budget is None else self.budget
        least, most = prompts * self.least, prompts * self.high
        if not least <= total <= most:
            raise ValueError(
                f"budget must be between {least} and {most} for {prompts} prompts, got {total}; "
                "change the budget or the bounds"
            )
        return total

    def _width(self, batch: Batch, low: Counts) -> int:
        """Return the most rollouts beyond its ``low`` [P] that one prompt could get. Raise ValueError for too many.

        So it does if a budget of tokens does not pay for ``low``.
        """
        left = self._total(len(batch.prompts)) - float(batch.costs @ low)
        if left < 0 and self.tokens_per_prompt is not None:
            raise ValueError(
                f"tokens_per_prompt must be at least {math.ceil(float(batch.costs @ low) / len(low))} to pay for the "
                f"{low.sum()} rollouts granted to these {len(low)} prompts at their predicted lengths, "
                f"got {self.tokens_per_prompt}; raise it, or lower what every prompt gets first"
            )
        affordable = int(left // batch.costs.min(initial=math.inf))
        width = max(0, min(self.high - int(low.min(initial=self.high)), affordable))
        check_table(len(low), width)
        return width

    def _spend(self, batch: Batch, gains: Floats, low: Counts) -> Counts:
        """Return counts [P], at least ``low`` [P], that spend the batch's budget on the largest gains.

        Under a token budget gains are compared per token, and rollouts of negative gain are not bought.
        """
        total = self._total(len(batch.prompts))
        if self.tokens_per_prompt is None:
            return spend(gains, total, low)
        return spend_costs(gains, total, low, batch.costs).counts
