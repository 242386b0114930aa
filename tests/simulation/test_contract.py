"""The check of a user's own allocator: every registered rule passes, and each broken one is told what is wrong."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest

from apportion.allocators import Allocator, Size
from apportion.simulation import check_allocator
from apportion.types import Plan
from tests.rules import IN_TOKENS, MAKE, in_tokens


@pytest.mark.parametrize("name", sorted(MAKE))
def test_every_registered_rule_passes(name):
    check_allocator(MAKE[name])


@pytest.mark.parametrize("name", IN_TOKENS)
def test_token_budgets_pass(name):
    check_allocator(lambda: in_tokens(MAKE[name]()))


@dataclass(frozen=True)
class Four(Allocator):
    """Four rollouts for each prompt: the rule that the broken ones start from."""

    name: ClassVar[str] = "four"
    memory: dict[str, Any] = field(default_factory=dict, init=False)

    def plan(self, batch):
        return Plan(np.where(batch.asked == 0, 4, 0))


class Random(Four):
    def plan(self, batch):
        self.memory.setdefault("generator", np.random.default_rng(0))
        return Plan(np.where(batch.asked == 0, self.memory["generator"].integers(1, 5, len(batch.prompts)), 0))


class Refills(Four):
    def plan(self, batch):
        return Plan(np.maximum(4 - batch.trials, 0))


class Counts(Four):
    def plan(self, batch):
        self.memory["plans"] = self.memory.get("plans", 0) + 1
        return super().plan(batch)

    def state_dict(self):
        return dict(self.memory)

    def load_state_dict(self, state):
        self.memory.update(state)


class TooMany(Four):
    def size(self, prompts):
        return Size(3 * prompts, 3 * prompts)


class TooFew(Four):
    def size(self, prompts):
        return Size(5 * prompts, 5 * prompts, exact=True)


class Forgets(Four):
    def plan(self, batch):
        return Plan(np.where(batch.asked == 0, 2 + self.memory.get("batches", 0), 0))

    def observe(self, batch):
        self.memory["batches"] = self.memory.get("batches", 0) + 1


class FinalTooEarly(Four):
    def plan(self, batch):
        return Plan(np.where(batch.asked < 4, 2, 0))

    def final(self, batch, plan):
        return np.ones(len(batch.prompts), bool)


class Coupled(Four):
    separable: ClassVar[bool] = True

    def plan(self, batch):
        return Plan(np.where(batch.asked == 0, 1 + len(batch.prompts), 0))


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        (Random, "plan must be a pure function of the batch, got two plans; correct Random"),
        (Refills, "a batch must end, got 1000 rounds of four; count batch.asked"),
        (Counts, "only observe may learn, got another state_dict"),
        (TooMany, "asked must be at most 48 by size, got 64"),
        (TooFew, "asked must be 80 by size, got 64"),
        (Forgets, "an allocator must plan as before after load_state_dict"),
        (FinalTooEarly, "a final prompt must get nothing more"),
        (Coupled, "collect_async must get the batch of collect"),
    ],
)
def test_a_broken_rule_is_told_what_is_wrong(rule, problem):
    check_allocator(Four)
    with pytest.raises(ValueError, match=problem):
        check_allocator(rule)
