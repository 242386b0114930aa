"""SPO's tracker as a belief, by which prompts are drawn; see ``apportion.baselines.SPO``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from apportion.baselines.spo import SPO
from apportion.predictors.base import Predictor
from apportion.predictors.saved import SavedValues
from apportion.types import Batch, Belief, Needs, Prompt


@dataclass
class Tracked(Predictor):
    """Beta(a, b) with the a and b of the baseline ``SPO``, whose arguments it has. It keeps its own copy of them.

    >>> Tracked(rates={"b": 0.75}).predict([Prompt("one"), Prompt("two", id="b")]).mean.round(3).tolist()
    [0.5, 0.722]
    """

    rho: float = 0.875
    rates: Mapping[str, float] | None = field(default=None, repr=False, compare=False)

    name: ClassVar[str] = "tracked"
    needs: ClassVar[Needs] = Needs()
    _tracker: SPO = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._tracker = SPO(self.rho, self.rates)

    @property
    def reads_rates(self) -> bool:
        return True

    def predict(self, prompts: Sequence[Prompt]) -> Belief:
        return Belief(*self._tracker.counts(prompts).T)

    def update(self, batch: Batch) -> None:
        self._tracker.update(batch)

    def _settings(self) -> dict[str, Any]:
        return {"rho": self.rho}

    def _memory(self) -> dict[str, Any]:
        return {"tracker": self._tracker.state_dict()}

    def _restore(self, saved: SavedValues) -> None:
        self._tracker.load_state_dict(saved.state("tracker"))
