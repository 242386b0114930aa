"""Recorded outcomes of a real GRPO run. See ``data/README.md`` for their origin."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from apportion import Prompt
from apportion.records import RunRecord
from apportion.types import Floats

DATA = Path(__file__).parent / "data"
MISSING = 255


@dataclass(frozen=True)
class Recorded:
    """Rewards of Q prompts at each of V visits.

    Args:
        rewards: [Q, V, G], 0 or 1, or graded within [0, 1].
        embeddings: [Q, d].
        rates: [Q], another model's success rate, nan where there is none.
    """

    rewards: Floats
    embeddings: Floats
    rates: Floats

    @property
    def prompts(self):
        """The prompts, whose texts are their numbers."""
        return [Prompt(str(q), id=str(q)) for q in range(len(self.rewards))]

    @property
    def shares(self):
        """Mean reward of each group, [Q, V]."""
        return self.rewards.mean(axis=2)

    def record(self, visits):
        """Return the first ``visits`` visits as a record, in their order and then in that of the prompts."""
        prompts, _, size = self.rewards.shape
        groups = visits * prompts
        return RunRecord(
            name="recorded",
            source="benchmark",
            ids=[str(q) for q in range(prompts)],
            texts=[None] * prompts,
            step=np.repeat(np.arange(visits), prompts),
            prompt=np.tile(np.arange(prompts), visits),
            first=size * np.arange(groups + 1),
            reward=self.rewards[:, :visits].swapaxes(0, 1).reshape(-1),
            ordered=False,
            visits=True,
        )


def grpo_run():
    """Return the first 44 visits of 1,209 problems in a GRPO run of Qwen2.5-Math-1.5B, groups of 8, MiniLM embeddings.

    The rates are those of Qwen2.5-Math-7B, of 128 samples, for 898 problems.
    """
    file = np.load(DATA / "grpo_run.npz")
    counts = file["correct_of_8"]
    counts = counts[:, : int((counts != MISSING).sum(axis=1).min())].astype(np.int64)
    rates = np.where(file["stronger_of_128"] == MISSING, np.nan, file["stronger_of_128"] / 128)
    return Recorded(verdicts(counts, 8), file["embeddings"].astype(np.float32), rates)


def verdicts(counts, group):
    """Return 0/1 rewards [Q, V, G] with these sums [Q, V], the right ones first."""
    return (np.arange(group) < counts[:, :, None]).astype(np.float64)
