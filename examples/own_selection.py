"""A selection rule of your own: prompts whose believed success is near a target; its check and its measure."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from apportion import Prompt
from apportion.records import record_of_visits
from apportion.replay import replay
from apportion.selection import SELECTORS, RankingSelector, Selector


@dataclass(kw_only=True)
class NearTarget(RankingSelector):
    """Chooses prompts whose believed success is near ``target``."""

    target: float = 0.5

    name: ClassVar[str] = "near_target"

    def _scores(self, generator):
        return -np.abs(self._predict().mean - self.target)


SELECTORS[NearTarget.name] = NearTarget  # only for use by name

# Check: a restored rule chooses as the saved one.
prompts = [Prompt(f"{q} + {q} =") for q in range(40)]
saved, restored = NearTarget(), NearTarget()
saved.prepare(prompts), restored.prepare(prompts)
saved.choose(8)
restored.load_state_dict(saved.state_dict())
assert isinstance(saved, Selector) and saved.choose(8) == restored.choose(8)

# Is it any good? 60 prompts, of which a third is hopeless and a third is solved; 12 visits in groups of 8.
rng = np.random.default_rng(0)
right = np.repeat([0.0, 0.5, 1.0], 20)
record = record_of_visits(rng.binomial(8, right[:, None], (60, 12)).tolist(), 8, [f"q{q}" for q in range(60)])
found = {each.name: each for each in replay(record, {"near_target": NearTarget()}, batch=12).selectors}
print(found["near_target"].above_shuffled)
assert found["near_target"].above_shuffled.low > 0.2  # many more mixed groups than in shuffled epochs
