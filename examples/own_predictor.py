"""A predictor of your own: the latest group of each prompt alone; its measure beside counts, and its check."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from apportion import VIP
from apportion.predictors import PREDICTORS, DiscountedCounts, Predictor
from apportion.records import record_of_visits
from apportion.replay import batches_of
from apportion.replay.foresight import foresee
from apportion.types import Belief


@dataclass
class LatestGroup(Predictor):
    """Beta(1 + right, 1 + wrong) of the latest group of each prompt alone."""

    name: ClassVar[str] = "latest_group"
    _latest: dict = field(default_factory=dict, init=False, repr=False, compare=False)

    def predict(self, prompts):
        counts = np.array([self._latest.get(prompt.id, (0, 0)) for prompt in prompts], float).reshape(-1, 2)
        return Belief(1 + counts[:, 0], 1 + counts[:, 1])

    def update(self, batch):
        for prompt, right, all in zip(batch.prompts, batch.successes.tolist(), batch.trials.tolist(), strict=True):
            if all:
                self._latest[prompt.id] = (right, all - right)

    def _memory(self):
        return {"latest": self._latest}

    def _restore(self, saved):
        self._latest = {id: tuple(pair) for id, pair in saved.by_prompt("latest", low=(0, 0)).items()}


PREDICTORS[LatestGroup.name] = LatestGroup  # only for use by name

# Is it any good? Its squared error on groups that it has not seen yet, beside that of counts over all groups.
rng = np.random.default_rng(0)
right = rng.beta(0.5, 0.5, 200)
record = record_of_visits(rng.binomial(8, right[:, None], (200, 6)).tolist(), 8, [f"q{q}" for q in range(200)])
batches = batches_of(record, size=64)
errors = {}
for each in (LatestGroup(), DiscountedCounts()):
    errors[each.name] = np.mean((foresee(each, record, batches).mean - record.shares) ** 2)
print(errors)
assert errors["counts"] < errors["latest_group"] < np.mean((0.5 - record.shares) ** 2)

# Check: a restored predictor believes the same, and an allocator takes it.
rule = VIP(rollouts_per_prompt=8, predictor=LatestGroup())
foresee(rule.predictor, record, batches)
other = LatestGroup()
other.load_state_dict(rule.predictor.state_dict())
assert other.predict(record.prompts).alpha.tolist() == rule.start(record.prompts).belief.alpha.tolist()
assert len(LatestGroup().predict([])) == 0
