"""Selection of prompts: only the candidates of a batch that are likeliest to give a mixed group get rollouts.

A group of n rollouts has a group-relative gradient only if it holds both rewards, 0 and 1. Under p ~ Beta(a, b)

    P(mixed) = 1 - E[p^n] - E[(1 - p)^n],   E[p^n] = prod over j < n of (a + j) / (a + b + j),

so that uncertain prompts rank above those known to be hopeless or solved, without a further bonus. DAPO (arXiv
2503.14476) skips hopeless and solved prompts after sampling; this rule does so before.

Note: choosing changes the objective. Hard and solved prompts lose their weight. The choice does not depend on the
batch's own outcomes, so that the gradient is unbiased for the chosen prompts, but not for the mean over all prompts.
Note: the gain depends on the predictor. In the lab, choosing by the true p saves a good part of the rollouts; choosing
by discounted counts, or by Thompson draws from them, has saved nothing. Hence any predictor can be set.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import numpy as np

from apportion.allocators.base import Allocator, Size, check_rewards
from apportion.allocators.uniform import Uniform
from apportion.checks import check_numbers
from apportion.predictors import DiscountedCounts, Predictor
from apportion.predictors.saved import SavedValues
from apportion.types import Batch, Belief, Counts, Floats, Group, Mask, Needs, Plan, Prompt, prompt_list
from apportion.untrusted import shown


def mixed_probability(belief: Belief, group_size: int) -> Floats:
    """Return the probability [P] that ``group_size`` rollouts hold a right and a wrong one, in closed form.

    >>> mixed_probability(Belief.uniform(1), 2).round(4).tolist()
    [0.3333]
    """
    a, b, j = belief.alpha[:, None], belief.beta[:, None], np.arange(group_size)
    right, wrong = np.prod((a + j) / (a + b + j), axis=1), np.prod((b + j) / (a + b + j), axis=1)
    return np.maximum(1 - right - wrong, 0.0)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Candidates(Batch):
    """A batch in which only the prompts in ``chosen`` [P] get rollouts; their allocator started ``inner``."""

    chosen: Mask = field(default_factory=lambda: np.zeros(0, bool))
    inner: Batch = field(default_factory=lambda: Batch.start([], Belief.uniform(0)))

    @property
    def selected(self) -> Batch:
        """The batch of the chosen prompts alone, with all their rollouts so far."""
        places = np.flatnonzero(self.chosen)
        rollouts = tuple(self.rollouts[q] for q in places)
        return replace(self.inner, rollouts=rollouts, asked=self.asked[places], round=self.round)

    def join(self, other: Batch) -> Candidates:
        """Return both batches as one. ``other`` must have candidates, too."""
        joined, other = Batch.join(self, other), candidates(other)
        parts = {name: getattr(joined, name) for name in ("prompts", "belief", "rollouts", "asked", "costs", "started")}
        chosen, inner = np.append(self.chosen, other.chosen), self.inner.join(other.inner)
        return Candidates(**parts, round=joined.round, chosen=chosen, inner=inner)


def candidates(batch: Batch) -> Candidates:
    """Return ``batch`` if ``Select.start`` made it. Raise ValueError otherwise."""
    if not isinstance(batch, Candidates):
        raise ValueError(
            f"the batch must know which prompts were chosen, got a {type(batch).__name__}; begin it with Select.start"
        )
    return batch


@dataclass(kw_only=True)
class Select(Allocator):
    """Chooses ``prompts`` of a batch's candidates. ``allocator`` plans for them; the others get no rollouts.

    The choice is made when the batch starts. Ties and exploration are decided by a number drawn for each prompt from
    (seed, batches observed, prompt id), never by position. It takes the rewards that its predictor and its allocator
    take, binary or graded.

    Args:
        allocator: plans for the chosen prompts, as if there were no others.
        prompts: the number that get rollouts; all prompts if the batch has no more.
        predictor: predicts the candidates and learns from the same batches; may be the allocator's own.
        group_size: n, the size of the group that should be mixed.
        exploration: share of the chosen prompts, rounded up, drawn at random from the candidates that rank lower, so
            that prompts believed hopeless are tried again. Discounted counts become uncertain only with new rollouts.
        seed: seeds the draws.

    >>> allocator = Select(allocator=Uniform(rollouts_per_prompt=4), prompts=2)
    >>> batch = allocator.start([Prompt("a"), Prompt("b"), Prompt("c")])
    >>> sorted(allocator.plan(batch).counts.tolist())
    [0, 4, 4]
    """

    allocator: Allocator = field(default_factory=Uniform)
    prompts: int = 32
    predictor: Predictor = field(default_factory=DiscountedCounts)
    group_size: int = 8
    exploration: float = 0.1
    seed: int = 0

    name: ClassVar[str] = "select"
    _observed: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_numbers(self)
        if self.prompts < 1:
            raise ValueError(f"prompts must be at least 1, got {self.prompts}; it is the number that get rollouts")
        if self.group_size < 2:
            raise ValueError(f"group_size must be at least 2, got {self.group_size}; a group of one is never mixed")
        if not 0 <= self.exploration <= 1:
            raise ValueError(f"exploration must be between 0 and 1, got {self.exploration}; it is a share")

    @property
    def needs(self) -> Needs:
        return self.predictor.needs | self.allocator.needs

    def size(self, prompts: int) -> Size:
        return self.allocator.size(min(prompts, self.prompts))

    def prepare(self, prompts: Sequence[Prompt]) -> None:
        self.allocator.prepare(prompts)
        self.predictor.prepare(prompts)

    def start(self, prompts: Sequence[Prompt]) -> Candidates:
        """Return an empty batch of candidates. Beliefs and costs of the chosen are the inner allocator's."""
        prompts = prompt_list(prompts)
        self.size(len(prompts))
        belief = self.predictor.predict(prompts)
        chosen = self._choose(prompts, belief)
        places = np.flatnonzero(chosen).tolist()
        inner = self.allocator.start([prompts[q] for q in places])
        begun = dict(zip(places, inner.rollouts, strict=True))
        shown = {each.name: getattr(belief, each.name).copy() for each in fields(belief)}
        for name, values in shown.items():
            values[chosen] = getattr(inner.belief, name)
        asked, costs = np.zeros(len(prompts), np.int64), np.ones(len(prompts))
        asked[chosen], costs[chosen] = inner.asked, inner.costs
        return Candidates(
            tuple(prompts),
            Belief(**shown),
            tuple(begun.get(q, ()) for q in range(len(prompts))),
            asked,
            costs,
            started=len(prompts),
            round=inner.round,
            chosen=chosen,
            inner=inner,
        )

    def plan(self, batch: Batch) -> Plan:
        batch = candidates(batch)
        plan = self.allocator.plan(batch.selected)
        counts = np.zeros(len(batch.prompts), np.int64)
        counts[batch.chosen] = plan.counts
        return Plan(counts, plan.fresh)

    def groups(self, batch: Batch) -> list[Group]:
        check_rewards(self, batch)
        return self.allocator.groups(candidates(batch).selected)

    def metrics(self, batch: Batch) -> dict[str, float]:
        return self.allocator.metrics(candidates(batch).selected)

    def observe(self, batch: Batch) -> None:
        self.allocator.observe(candidates(batch).selected)
        if getattr(self.allocator, "predictor", None) is not self.predictor:  # its own predictor has learnt by now
            self.predictor.update(batch)
        self._observed += 1

    def state_dict(self) -> dict[str, Any]:
        states = {"allocator": self.allocator.state_dict(), "predictor": self.predictor.state_dict()}
        return {"name": self.name, "observed": self._observed, **states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if not isinstance(state, Mapping) or state.get("name") != self.name:
            raise ValueError(
                f"the state must come from {self.name!r}, got {shown(state)}; is this another allocator's checkpoint?"
            )
        saved = SavedValues(state, self.name, ["name", "observed", "allocator", "predictor"])
        observed = saved.count("observed")
        self.allocator.load_state_dict(saved.state("allocator"))
        self.predictor.load_state_dict(saved.state("predictor"))
        self._observed = observed

    def _choose(self, prompts: Sequence[Prompt], belief: Belief) -> Mask:
        places = min(self.prompts, len(prompts))
        draws = np.array([self._draw(prompt) for prompt in prompts])
        ranking: Counts = np.lexsort((draws, -mixed_probability(belief, self.group_size)))
        explored = min(math.ceil(round(self.exploration * places, 9)), len(prompts) - places)
        best, rest = ranking[: places - explored], ranking[places - explored :]
        chosen = np.zeros(len(prompts), bool)
        chosen[best] = True
        chosen[rest[np.argsort(draws[rest], kind="stable")[:explored]]] = True
        return chosen

    def _draw(self, prompt: Prompt) -> float:
        digest = hashlib.blake2b(f"{self.seed}\0{self._observed}\0{prompt.id}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") / 2**64
