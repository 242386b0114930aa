"""SPO's prompt weights: prompts are drawn with probabilities proportional to sqrt(v (1 - v)) + floor.

Reference: Z. Xu, Z. Ding, "Single-stream Policy Optimization", arXiv 2509.13232 (2025). v is the believed success
probability. The floor explores: no prompt's probability falls to 0.

Note: the paper does not print how a batch without repetition is drawn. Here it is systematic sampling in random order
(W. G. Madow, "On the Theory of Systematic Sampling, II", 1949), because each prompt is then in the batch with exactly
the probability min(1, c x weight), with c so that they sum to the size of the batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.random import Generator

from apportion.selection.base import BeliefSelector, Column
from apportion.types import Counts, Floats, Mask


def inclusion_probabilities(weights: Floats, count: int) -> Floats:
    """Return min(1, c x ``weights``), [Q], with c so that they sum to ``count``, at most Q. Weights are above 0.

    >>> inclusion_probabilities(np.array([1.0, 1.0, 6.0]), 2).tolist()
    [0.5, 0.5, 1.0]
    """
    certain = np.zeros(len(weights), bool)
    while True:
        share = (count - certain.sum()) * weights / max(float(weights[~certain].sum()), np.finfo(float).tiny)
        over = ~certain & (share >= 1)
        if not over.any():
            return np.where(certain, 1.0, share)
        certain |= over


def systematic_sample(probabilities: Floats, generator: Generator) -> Counts:
    """Return distinct indices, [count]. Index q is drawn with ``probabilities[q]``; these sum to a whole number."""
    order = generator.permutation(len(probabilities))
    edges = np.cumsum(probabilities[order])
    count = int(np.rint(edges[-1]))
    edges *= count / edges[-1]
    points = np.arange(count) + generator.random()
    return order[np.searchsorted(edges, np.minimum(points, edges[-1] * (1 - 1e-12)), side="right")]


@dataclass(kw_only=True)
class SPOWeights(BeliefSelector):
    """Draws prompts with probabilities proportional to sqrt(v (1 - v)) + ``floor``, without repetition in a batch.

    Args:
        floor: added to every weight, .05 in the paper. Above 0.
        importance_weights: whether each chosen prompt has the weight (count / Q) / probability in the loss. The
            expected gradient is then that of the mean over all prompts, as without selection.

    >>> from apportion.types import Prompt
    >>> selector = SPOWeights()
    >>> selector.prepare([Prompt("a"), Prompt("b")])
    >>> sorted(selector.choose(2))
    [0, 1]
    """

    floor: float = 0.05
    importance_weights: bool = False

    name: ClassVar[str] = "spo"
    columns: ClassVar[Mapping[str, Column]] = {"_probability": Column("probability", np.float64(1))}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.floor < float("inf"):
            raise ValueError(f"floor must be finite and above 0, got {self.floor}; 0.05 is the paper's")

    def _choose(self, allowed: Mask, count: int, generator: Generator) -> Counts:
        mean, places = self._predict().mean, np.flatnonzero(allowed)
        weights = np.sqrt(np.maximum(mean * (1 - mean), 0.0))[places] + self.floor
        probabilities = inclusion_probabilities(weights, count)
        drawn = systematic_sample(probabilities, generator)
        self._probability[places[drawn]] = probabilities[drawn] * len(places) / count
        return places[drawn]
