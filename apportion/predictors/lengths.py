"""Predicted completion lengths: the cost of a rollout if the budget counts tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from apportion.checks import check_least, check_numbers
from apportion.predictors.saved import SavedValues
from apportion.predictors.statistics.per_prompt import by_prompt
from apportion.predictors.statistics.pooled import DiscountedSums
from apportion.types import Batch, Counts, Prompt

MOST_TOKENS = 2.0**62
"""Largest total of tokens of a prompt in a saved state, so that its mean fits in 64 bits."""


@dataclass
class MeanLengths:
    """Discounted mean length of each prompt's completions, in tokens, by prompt id.

    Each update of a prompt first multiplies its sum and its number of completions by ``discount``: 1 keeps all batches,
    0 only the latest. A prompt never seen gets a discounted mean over all prompts seen. In that mean a prompt counts
    once per batch, because an allocator's choice of prompts would otherwise bias it. Before the first batch every
    prompt gets ``initial``.

    Args:
        initial: expected tokens of a completion before any was seen; at most the sampler's limit.
        discount: weight of the earlier batches at each update.

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

    def __post_init__(self) -> None:
        check_numbers(self)
        check_least(self, "give the length in tokens that you expect", initial=1)
        self._seen, self._overall = DiscountedSums(2, self.discount), np.zeros(2)

    def predict(self, prompts: Sequence[Prompt]) -> Counts:
        """Return the expected tokens of one completion, [P], rounded up and at least 1. The predictor is unchanged."""
        sums = self._seen.of(prompt.id for prompt in prompts)
        sums[sums[:, 1] == 0] = self._overall if self._overall[1] else (self.initial, 1.0)
        mean = np.round(sums[:, 0] / sums[:, 1], 6)  # so that floating-point errors add no token
        return np.maximum(np.ceil(mean), 1).astype(np.int64)

    def update(self, batch: Batch) -> None:
        """Learn from the completions sampled in a batch. Those reused from an earlier step are skipped."""
        drawn = by_prompt(batch, lambda rollout: rollout.tokens if rollout.step is None else None)
        if drawn:
            self._seen.add({id: (sum(tokens), len(tokens)) for id, (_, tokens) in drawn.items()})
            means = [sum(tokens) / len(tokens) for _, tokens in drawn.values()]
            self._overall = self.discount * self._overall + [sum(means), len(means)]

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the settings and of all that was learned, as plain Python values."""
        return {
            "settings": asdict(self),
            "seen": dict(self._seen.by_id),
            "overall": self._overall.tolist(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a copy of what ``state_dict`` returned. Raise ValueError for a state under other settings."""
        saved = SavedValues(state, "lengths", ["settings", "seen", "overall"])
        if saved.state("settings") != asdict(self):
            raise ValueError(
                f"the state of the lengths must come from {asdict(self)}, got {state['settings']}; "
                "use the saved settings, or start from an empty state"
            )
        overall = np.array(saved.row("overall", (0, 0), MOST_TOKENS))
        self._seen.restore(saved, "seen", (0, 1), MOST_TOKENS)
        self._overall = overall
