"""A predictor's expected reward as the baseline."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from apportion.baselines.base import Baseline
from apportion.predictors import EmpiricalBayes, Predictor
from apportion.predictors.saved import SavedValues
from apportion.types import Batch, Floats, Needs, Prompt


@dataclass
class Predicted(Baseline):
    """b = p, the expected reward that ``predictor`` predicts.

    ``update`` trains the predictor, so do not share it with an allocator. By default it learns from each prompt's own
    rewards and those of all, binary or graded.

    Args:
        predictor: predicts the expected reward of each prompt.

    >>> Predicted().predict([Prompt("never seen")]).tolist()
    [0.5]
    """

    predictor: Predictor = field(default_factory=EmpiricalBayes)

    name: ClassVar[str] = "predicted"

    @property
    def needs(self) -> Needs:
        return self.predictor.needs

    def prepare(self, prompts: Sequence[Prompt]) -> None:
        self.predictor.prepare(prompts)

    def predict(self, prompts: Sequence[Prompt]) -> Floats:
        return self.predictor.expected_rewards(prompts)

    def update(self, batch: Batch) -> None:
        self.predictor.update(batch)

    def _memory(self) -> dict[str, Any]:
        return {"predictor": self.predictor.state_dict()}

    def _restore(self, saved: SavedValues) -> None:
        self.predictor.load_state_dict(saved.state("predictor"))
