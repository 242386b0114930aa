"""HORA's Hidden-dual: a frozen logistic probe, and an online one for what it leaves."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from apportion.predictors.hidden_online import HiddenOnline
from apportion.predictors.hidden_static import HiddenStatic
from apportion.predictors.saved import SavedValues
from apportion.predictors.statistics.logistic_probe import ProbeData
from apportion.types import Floats


@dataclass
class HiddenDual(HiddenOnline):
    """Two logistic probes whose log-odds are added: one frozen as in ``HiddenStatic``, one online on top of it.

    The weight decay of the online probe pulls predictions back to the frozen one, and not to 1/2. The settings of
    ``HiddenOnline`` are those of the online probe.

    Reference: T. Wang, D. Ding, E. Dobriban, S. Li, Y. Sun, "Where to Spend Rollouts", arXiv 2605.07114, Figures 6, 10.
    Note: our copy of the paper has the name Hidden-dual, and not its definition. The sum is our reading of it.
    Note: one batch moves the log-odds of the online probe by at most 5.1 times ``rate`` times d + 1, as in
    ``HiddenOnline``. A batch also moves the other probe until this one is frozen.

    Args:
        embedder: gives the hidden state or the embedding of a prompt; by default MiniLM.
        clip: distance of predictions from 0 and from 1, at the least.
        strength: number of rollouts of evidence that a belief is worth.
        cycles: number of the latest batches that are replayed.
        steps: steps of Adam after each batch.
        rate: learning rate of Adam.
        weight_decay: factor of the online coefficients in the gradient.
        discount: weight of a rollout for each batch since.
        first: number of observations after which the other probe is frozen, if no rates are known.

    >>> from apportion.predictors import PrecomputedEmbeddings
    >>> from apportion.types import Prompt
    >>> prompts = [Prompt("easy", rate=1.0), Prompt("hard", rate=0.0)]
    >>> predictor = HiddenDual(PrecomputedEmbeddings.from_array(prompts, [[1.0], [-1.0]]))
    >>> predictor.prepare(prompts)
    >>> predictor.predict(prompts).mean.round(2).tolist()
    [0.84, 0.16]
    """

    first: int = 1024

    name: ClassVar[str] = "hidden_dual"
    _static: HiddenStatic = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._static = HiddenStatic(self.embedder, first=self.first)

    def _line(self) -> Floats | None:
        frozen = self._static._line()
        return frozen if frozen is None or self._weights is None else frozen + self._weights

    def _pretrain(self, outcomes: ProbeData) -> None:
        self._static._pretrain(outcomes)

    def _learn(self, outcomes: ProbeData) -> None:
        self._static._learn(outcomes)
        self._step(outcomes, self._static._line())

    def _memory(self) -> dict[str, Any]:
        return {"static": self._static.state_dict(), **super()._memory()}

    def _restore(self, saved: SavedValues) -> None:
        static = HiddenStatic(self.embedder, first=self.first)
        static.load_state_dict(saved.state("static"))
        super()._restore(saved)
        self._static = static
