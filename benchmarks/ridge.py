"""Ridge regression of success rates on prompt embeddings."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from apportion.predictors import Predictor, SentenceTransformerEmbedder
from apportion.predictors.embeddings import Embedder, embed
from apportion.predictors.saved import SavedValues
from apportion.predictors.statistics.per_prompt import observations
from apportion.types import Batch, Belief, Floats, Prompt


def fit_ridge(embeddings: Floats, rates: Floats, penalty: float) -> tuple[Floats, float]:
    """Return the w [d] and c that minimise ``sum (rates - embeddings @ w - c)^2 + penalty |w|^2``.

    ``embeddings`` is [n, d] and ``rates`` [n], n at least 1. The intercept c is not penalised. The dual problem is
    solved, in O(n^2 (n + d)) time and O(n (n + d)) memory.
    """
    centre, level = embeddings.mean(axis=0), float(rates.mean())
    x = embeddings - centre
    gram = x @ x.T
    gram.flat[:: len(gram) + 1] += penalty
    coefficients = x.T @ np.linalg.solve(gram, rates - level)
    return coefficients, level - float(centre @ coefficients)


@dataclass
class Ridge(Predictor):
    """Linear in the embedding, fitted to the ``window`` most recent observations, clipped to [clip, 1 - clip].

    An observation is the success rate of one prompt in one batch. Before the first observation every prompt gets 0.5.
    ``penalty`` multiplies the squared norm of the coefficients. Beliefs are worth ``strength`` rollouts of evidence.

    Reference: the Ridge Regression baseline of arXiv 2602.01601, "Success probability prediction quality", which uses
    the 1024 most recent samples.
    Note: the paper gives neither its penalty nor its clipping. Both are our choice.

    Args:
        embedder: gives the embedding of a prompt; by default MiniLM.
        window: number of the most recent observations that the line is fitted to.
        penalty: factor of the squared norm of the coefficients.
        clip: distance of predictions from 0 and from 1, at the least.
        strength: number of rollouts of evidence that a belief is worth.
    """

    embedder: Embedder = field(default_factory=SentenceTransformerEmbedder)
    window: int = 1024
    penalty: float = 1.0
    clip: float = 0.01
    strength: float = 2.0

    name: ClassVar[str] = "ridge"

    def __post_init__(self) -> None:
        self._embeddings: Floats | None = None
        self._rates = np.empty(0)
        self._line: tuple[Floats, float] | None = None

    def prepare(self, prompts: Sequence[Prompt]) -> None:
        """Embed all ``prompts`` once, to fill the embedder's cache."""
        embed(self.embedder, prompts)

    def predict(self, prompts: Sequence[Prompt]) -> Belief:
        if self._line is None or not prompts:
            return Belief.from_mean(np.full(len(prompts), 0.5), self.strength)
        coefficients, intercept = self._line
        mean = np.clip(embed(self.embedder, prompts) @ coefficients + intercept, self.clip, 1 - self.clip)
        return Belief.from_mean(mean, self.strength)

    def update(self, batch: Batch) -> None:
        seen = observations(batch)
        if not seen:
            return
        new = embed(self.embedder, [observation.prompt for observation in seen]).astype(np.float64)
        old = new[:0] if self._embeddings is None else self._embeddings
        self._embeddings = np.concatenate([old, new])[-self.window :]
        self._rates = np.append(self._rates, [observation.rate for observation in seen])[-self.window :]
        self._line = fit_ridge(self._embeddings, self._rates, self.penalty)

    def _memory(self) -> dict[str, Any]:
        return {"embeddings": self._embeddings, "rates": self._rates}

    def _restore(self, saved: SavedValues) -> None:
        x = None if saved.values["embeddings"] is None else saved.array("embeddings", (None, None))
        if x is not None and not (0 < len(x) <= self.window and x.size):
            raise saved.refusal("embeddings", f"an array of 1 to {self.window} rows")
        self._rates = saved.array("rates", (0 if x is None else len(x),), low=0, high=1)
        self._embeddings = x
        self._line = None if self._embeddings is None else fit_ridge(self._embeddings, self._rates, self.penalty)
