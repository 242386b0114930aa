"""How long completions will be: what a rollout of each prompt costs where budgets count tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from apportion.predictors.base import check_discount
from apportion.types import Batch, Counts, Prompt

Sums = tuple[float, float]


@dataclass
class MeanLengths:
    """Mean length of a prompt's completions, in tokens, by prompt id; older batches count less.

    Each update of a prompt first multiplies its sum and its number of completions by ``discount``: 1 keeps everything,
    0 only the last batch. A prompt never seen gets the mean over all prompts seen, discounted a batch at a time, in
    which a prompt counts once a batch however many rollouts it had: an allocator's favourites are not what a new prompt
    is like. Before the first batch everything is ``initial``.

    Args:
        initial: tokens expected of a completion before any was seen; no more than the sampler's limit.
        discount: what an older batch still counts.

    >>> from apportion.types import Belief, Plan, Rollout
    >>> lengths, prompts = MeanLengths(initial=500), [Prompt("a"), Prompt("b"), Prompt("new")]
    >>> batch = Batch.start(prompts, Belief.uniform(3), lengths.predict(prompts))
    >>> rollouts = [[Rollout(tokens=99), Rollout(tokens=100)], [Rollout(tokens=40)], []]
    >>> lengths.update(batch.add(Plan([2, 1, 0]), rollouts))
    >>> batch.costs.tolist(), lengths.predict(prompts).tolist()
    ([500.0, 500.0, 500.0], [100, 40, 70])
    """

    initial: float
    discount: float = 0.9

    _seen: dict[str, Sums] = field(default_factory=dict, init=False, repr=False, compare=False)
    _overall: Sums = field(default=(0.0, 0.0), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 1 <= self.initial < math.inf:
            raise ValueError(f"initial must be at least 1 token, got {self.initial}; give the length that you expect")
        check_discount(self.discount)

    def predict(self, prompts: Sequence[Prompt]) -> Counts:
        """Expected tokens of one completion, [P], rounded up and at least 1. Asking never changes a later answer."""
        total, number = self._overall
        unseen = (total, number) if number else (self.initial, 1.0)
        sums = np.array([self._seen.get(prompt.id, unseen) for prompt in prompts]).reshape(-1, 2)
        mean = np.round(sums[:, 0] / sums[:, 1], 6)  # so that rounding errors of the discount add no token
        tokens: Counts = np.maximum(np.ceil(mean), 1).astype(np.int64)
        return tokens

    def update(self, batch: Batch) -> None:
        """Learns from the completions that a batch drew; those reused from an earlier step have been learnt before."""
        drawn: dict[str, list[int]] = {}
        for prompt, rollouts in zip(batch.prompts, batch.rollouts, strict=True):
            if found := [r.tokens for r in rollouts if r.tokens is not None and r.step is None]:
                drawn.setdefault(prompt.id, []).extend(found)
        for id, tokens in drawn.items():
            self._seen[id] = self._later(self._seen.get(id, (0.0, 0.0)), sum(tokens), len(tokens))
        if drawn:
            means = [sum(tokens) / len(tokens) for tokens in drawn.values()]
            self._overall = self._later(self._overall, sum(means), len(means))

    def state_dict(self) -> dict[str, Any]:
        """All that was learnt, as plain Python values; a copy."""
        return {"settings": self._settings(), "seen": dict(self._seen), "overall": self._overall}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what ``state_dict`` gave; copies. Raises ValueError for a state under other settings."""
        if state.get("settings") != self._settings():
            raise ValueError(
                f"the state of the lengths must come from {self._settings()}, got {state.get('settings')}; "
                "use the saved settings, or start from an empty state"
            )
        self._seen = {id: (float(total), float(number)) for id, (total, number) in state["seen"].items()}
        self._overall = (float(state["overall"][0]), float(state["overall"][1]))

    def _settings(self) -> dict[str, float]:
        return {"initial": self.initial, "discount": self.discount}

    def _later(self, sums: Sums, total: float, number: int) -> Sums:
        return self.discount * sums[0] + total, self.discount * sums[1] + number
