"""Budgets in rollouts and in tokens, and the base class of allocators with a budget."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from apportion import VIP, Plan, Rollout, collect
from apportion.allocators import SharedVotes
from apportion.allocators.spending.budget import BudgetedAllocator
from apportion.predictors import DiscountedCounts, MeanLengths, UniformPrior
from tests.builders import make_prompts


def in_tokens(tokens_per_prompt=1000, initial=100, rule=VIP, **settings):
    return rule(
        tokens_per_prompt=tokens_per_prompt,
        lengths=MeanLengths(initial=initial),
        predictor=settings.pop("predictor", UniformPrior()),
        **settings,
    )


def of_lengths(lengths, correct=True):
    """A sampler whose completions of prompt q are ``lengths[q]`` tokens long."""
    return lambda prompts, counts: [
        [Rollout(correct, tokens=lengths[int(prompt.text.split()[1])])] * int(n)
        for prompt, n in zip(prompts, counts, strict=True)
    ]


@dataclass(frozen=True, kw_only=True)
class Buyer(BudgetedAllocator):
    """An allocator with given gains."""

    gains: tuple[tuple[float, ...], ...] = ()
    name: ClassVar[str] = "buyer"

    def plan(self, batch):
        low = np.ones(len(batch.prompts), np.int64)
        return Plan(self._spend(batch, np.array(self.gains), low) - batch.asked)


def test_a_total_that_does_not_fit_a_batch_is_refused():
    rule = VIP(budget=30, high=8)
    assert rule.size(prompts=5).asked == 30
    for prompts in (3, 11):
        with pytest.raises(ValueError, match=f"for {prompts} prompts, got 30"):
            rule.size(prompts)


def test_an_average_is_spent_to_the_last_rollout():
    prompts = make_prompts(100)  # 4.35 * 100 is 434.99999999999994
    for rule in (VIP(rollouts_per_prompt=4.35), SharedVotes(samples_per_prompt=4.35, min_samples=2)):
        batch = collect(
            rule, prompts, lambda _, counts: [[Rollout(i % 2 == 0, answer=i) for i in range(n)] for n in counts]
        )
        assert batch.asked.sum() == 435


def test_rollouts_that_would_lose_are_not_bought_with_tokens():
    buyer = in_tokens(rule=Buyer, gains=((0.5, -0.1), (-0.2, -0.3)))
    assert buyer.plan(buyer.start(make_prompts(2))).counts.tolist() == [2, 1]
    spender = Buyer(budget=4, gains=((0.5, -0.1), (-0.2, -0.3)))
    assert spender.plan(spender.start(make_prompts(2))).counts.tolist() == [3, 1]


def test_a_budget_that_does_not_pay_for_the_least_is_refused_before_the_first_rollout():
    with pytest.raises(
        ValueError, match=r"tokens_per_prompt must be at least 300 to pay for the 6 rollouts .* got 250"
    ):
        in_tokens(tokens_per_prompt=250).start(make_prompts(2))
    assert in_tokens(tokens_per_prompt=300).start(make_prompts(2)).costs.tolist() == [100, 100]


def test_a_rollout_that_does_not_say_its_tokens_is_refused_after_the_first_round():
    silent = lambda prompts, counts: [[Rollout(True)] * int(n) for n in counts]  # noqa: E731
    with pytest.raises(ValueError, match=r"rollouts must say their tokens under the token budget of vip"):
        collect(in_tokens(), make_prompts(2), silent)


def test_a_checkpoint_is_refused_under_the_other_kind_of_budget():
    tokens = in_tokens(predictor=DiscountedCounts())
    rollouts = VIP(predictor=DiscountedCounts())
    with pytest.raises(ValueError, match=r"under a budget in tokens is needed, got counts, predictor, settings"):
        tokens.load_state_dict(rollouts.state_dict())
    with pytest.raises(ValueError, match=r"under a budget in rollouts is needed, got counts, lengths"):
        rollouts.load_state_dict(tokens.state_dict())
