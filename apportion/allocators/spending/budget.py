"""Budgets of a batch, in rollouts or in tokens, and the base class of allocators that spend one."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np

from apportion.allocators.base import Allocator, Size
from apportion.allocators.spending.knapsack import spend_costs
from apportion.allocators.spending.solver import check_high, check_table, most_extra, spend
from apportion.checks import check_numbers
from apportion.predictors import MeanLengths, Predictor, UniformPrior
from apportion.types import Batch, Belief, Counts, Floats, Mask, Needs, Plan, Prompt, prompt_list
from apportion.untrusted import shown


@dataclass(frozen=True)
class Budget:
    """Rollouts of a batch: ``rollouts_per_prompt`` on average, or ``total`` for a batch of any size. All are spent.

    Each prompt gets between ``low`` and ``high`` of them.

    >>> Budget(low=3, high=24, rollouts_per_prompt=8).of(prompts=10)
    80
    """

    low: int
    high: int
    rollouts_per_prompt: float | None = None
    total: int | None = None

    def __post_init__(self) -> None:
        check_numbers(self)
        check_high(self.low, self.high)
        if (self.rollouts_per_prompt is None) == (self.total is None):
            raise ValueError(
                f"give either rollouts_per_prompt or budget, got {self.rollouts_per_prompt} and {self.total}; "
                "budget counts a whole batch"
            )
        if self.total is not None and self.total < 0:
            raise ValueError(f"budget must be at least 0, got {self.total}; it counts the rollouts of a whole batch")
        if self.rollouts_per_prompt is not None and not self.low <= self.rollouts_per_prompt <= self.high:
            raise ValueError(
                f"rollouts_per_prompt must be between {self.low} and {self.high}, got {self.rollouts_per_prompt}; "
                "change it or the bounds"
            )

    def of(self, prompts: int) -> int:
        """Return the rollouts for a batch of ``prompts``. Raise ValueError if they do not fit the bounds."""
        total = int(self.rollouts_per_prompt * prompts) if self.total is None else self.total  # type: ignore[operator]
        if not prompts * self.low <= total <= prompts * self.high:
            raise ValueError(
                f"budget must be between {prompts * self.low} and {prompts * self.high} for {prompts} prompts, "
                f"got {total}; change the budget or the bounds"
            )
        return total

    def most(self, prompts: int) -> int:
        """Return the most rollouts that ``prompts`` can get: the whole budget."""
        return self.of(prompts)

    def width(self, batch: Batch, low: Counts) -> int:
        """Return the most rollouts beyond its ``low`` [P] that one prompt could get. Raise ValueError for too many."""
        width = most_extra(low, self.high, self.of(len(batch.prompts)))
        check_table(len(low), width)
        return width

    def spend(self, batch: Batch, gains: Floats, low: Counts) -> Counts:
        """Return counts [P], at least ``low`` [P], of the largest total gain."""
        return spend(gains, self.of(len(batch.prompts)), low)


@dataclass(frozen=True)
class TokenBudget:
    """Tokens of a batch: ``tokens_per_prompt`` on average, charged by the lengths predicted before its first rollout.

    ``Batch.costs`` holds these lengths. The budget is never exceeded; what remains is too small for another useful
    rollout. Each prompt gets between ``low`` and ``high`` rollouts.

    >>> TokenBudget(low=3, high=24, tokens_per_prompt=8_000).of(prompts=10)
    80000
    """

    low: int
    high: int
    tokens_per_prompt: float

    def __post_init__(self) -> None:
        check_numbers(self)
        check_high(self.low, self.high)
        if not max(1, self.low) <= self.tokens_per_prompt < math.inf:
            raise ValueError(
                f"tokens_per_prompt must be finite and pay for {self.low} rollouts of a token or more, "
                f"got {self.tokens_per_prompt}; it counts tokens of completions, on average over a batch"
            )

    def of(self, prompts: int) -> int:
        """Return the tokens for a batch of ``prompts``."""
        return int(self.tokens_per_prompt * prompts)

    def most(self, prompts: int) -> int:
        """Return the most rollouts that ``prompts`` can get, however short their completions."""
        return self.high * prompts

    def width(self, batch: Batch, low: Counts) -> int:
        """Return the most rollouts beyond its ``low`` [P] that one prompt could get. Raise ValueError for too many."""
        left = self._left(batch, low)
        width = max(0, min(self.high - int(low.min(initial=self.high)), int(left // batch.costs.min(initial=math.inf))))
        check_table(len(low), width)
        return width

    def spend(self, batch: Batch, gains: Floats, low: Counts) -> Counts:
        """Return counts [P], at least ``low`` [P], of the largest total gain."""
        self._left(batch, low)
        return spend_costs(gains, self.of(len(batch.prompts)), low, batch.costs).counts

    def _left(self, batch: Batch, low: Counts) -> float:
        total, granted = self.of(len(batch.prompts)), float(batch.costs @ low)
        if granted > total:
            raise ValueError(
                f"tokens_per_prompt must be at least {math.ceil(granted / len(batch.prompts))} to pay for the "
                f"{low.sum()} rollouts granted to these {len(batch.prompts)} prompts at their predicted lengths, "
                f"got {self.tokens_per_prompt}; raise it, or lower what every prompt gets first"
            )
        return total - granted


@dataclass(frozen=True, kw_only=True)
class BudgetedAllocator(Allocator):
    """An allocator whose batches have a budget, of rollouts or of tokens. It learns only through its predictors.

    Under a token budget ``start`` puts the predicted length of each prompt's completions into ``Batch.costs``. These
    costs hold for the whole batch, even after some of its completions are known, so that plans do not depend on lengths
    of their own batch. The tokens really used are in ``metrics``.

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
        check_numbers(self)
        if self.tokens_per_prompt is not None and (self.rollouts_per_prompt, self.budget) != (None, None):
            raise ValueError(
                f"give one of rollouts_per_prompt, budget and tokens_per_prompt, got {self.rollouts_per_prompt}, "
                f"{self.budget} and {self.tokens_per_prompt}; leave the others out"
            )
        if (self.tokens_per_prompt is None) != (self.lengths is None):
            raise ValueError(
                f"tokens_per_prompt and lengths go together, got {self.tokens_per_prompt} and {self.lengths}; "
                "give lengths=MeanLengths(initial=...), the tokens expected of a completion, or leave both out"
            )
        check_high(self.least, self.high)
        if self._is_budgeted:  # else an engine may say a budget that fits the bounds, or the first batch is refused
            self._budget  # noqa: B018 - raises now if the bounds do not fit

    @property
    def least(self) -> int:
        """The fewest rollouts of a prompt."""
        return 1

    @property
    def needs(self) -> Needs:
        return self.predictor.needs | Needs(tokens=self.lengths is not None)

    @property
    def _is_budgeted(self) -> bool:
        return (self.rollouts_per_prompt, self.budget, self.tokens_per_prompt) != (None, None, None)

    @property
    def _budget(self) -> Budget | TokenBudget:
        if self.tokens_per_prompt is not None:
            return TokenBudget(self.least, self.high, self.tokens_per_prompt)
        average = self.rollouts_per_prompt if self._is_budgeted else self.usual_rollouts
        return Budget(self.least, self.high, average, self.budget)

    def with_budget(self, rollouts_per_prompt: int) -> Self:
        return self if self._is_budgeted else self._copied(rollouts_per_prompt=rollouts_per_prompt)

    def gains(self, belief: Belief, successes: Counts, trials: Counts, width: int) -> Floats:
        """Return the gain of each of ``width`` rollouts after the first ``least``, [P, width]; it never increases.

        ``belief`` [P] is that before the first rollout. ``successes`` and ``trials`` [P] are those of the first
        ``least`` rollouts; a rule of one round ignores them. Only rules that are ``priced`` have such gains.
        """
        raise ValueError(
            f"a rule must say what a rollout is worth for one prompt alone, got {self.name}; plan it in batches"
        )

    def size(self, prompts: int) -> Size:
        most = self._budget.most(prompts)
        rounds = 1 if self.one_round else None
        return Size(most, most, exact=self.tokens_per_prompt is None, least=self.least * prompts, rounds=rounds)

    def prepare(self, prompts: Sequence[Prompt]) -> None:
        self.predictor.prepare(prompts)

    def start(self, prompts: Sequence[Prompt]) -> Batch:
        """Return an empty batch with predicted costs. Raise ValueError if a token budget does not pay for ``least``."""
        prompts = prompt_list(prompts)
        self.size(len(prompts))
        belief = self.predictor.predict(prompts)
        batch = Batch.start(prompts, belief, None if self.lengths is None else self.lengths.predict(prompts))
        self._budget.width(batch, np.full(len(prompts), self.least))
        return batch

    def final(self, batch: Batch, plan: Plan) -> Mask:
        """Return all prompts if all is planned at once, else those for which the rest of the budget buys nothing."""
        if self.one_round:
            return np.ones(len(batch.prompts), bool)
        counts = batch.asked + plan.counts
        left = self._budget.of(len(batch.prompts)) - float(batch.costs @ counts)
        return (counts >= self.high) | (batch.costs > left)

    def metrics(self, batch: Batch) -> dict[str, float]:
        """Return, under a token budget, ``tokens_planned`` by the predicted lengths and ``tokens_used`` in fact."""
        if self.lengths is None:
            return {}
        drawn = [r for rollouts in batch.rollouts for r in rollouts if r.step is None]
        used = sum(r.tokens for r in drawn if r.tokens is not None)
        planned = float(batch.costs @ batch.asked)
        return {"tokens_planned": planned, "tokens_used": float(used)}

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
                "budget as the run that wrote it did, or start from an empty state"
            )
        self.predictor.load_state_dict({key: value for key, value in state.items() if key != "lengths"})
        if self.lengths is not None:
            self.lengths.load_state_dict(state["lengths"])

    def _spend(self, batch: Batch, gains: Floats, low: Counts) -> Counts:
        """Return counts [P], at least ``low`` [P], that spend the batch's budget on the largest gains.

        Under a token budget gains are compared per token, and rollouts of negative gain are not bought.
        """
        return self._budget.spend(batch, gains, low)
