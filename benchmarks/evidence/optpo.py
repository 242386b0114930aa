"""The claims of the paper on OptPO: what early stopping of votes saves, and what it does to accuracy."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from benchmarks.evidence.cell import Cell
from benchmarks.evidence.claim import Claim
from benchmarks.evidence.learning import SEEDS
from benchmarks.evidence.optpo_learning_measured import TiesKept, trained

PAPER: Mapping[str, Any] = {"temperature": 0.6}
"""The paper's sampling, with ``TOP_P``."""
TOP_P = 0.95


def ttrl(votes: int, retained: int = 32) -> Mapping[str, Any]:
    """Return TTRL with so many votes, of which it trains on the first ``retained``, or on all if they are fewer."""
    return {"name": "ttrl", "max_samples": votes, "min_samples": min(votes, retained)}


def optpo(retained: int = 32, **settings: Any) -> Mapping[str, Any]:
    """Return OptPO with N = ``retained`` and M = 64."""
    return {"name": "optpo", "min_samples": retained, **settings}


ARMS: Mapping[str, partial[Any]] = {
    **{f"ttrl_{votes}": partial(trained, ttrl(votes)) for votes in (64, 32, 16, 8, 4)},
    "optpo": partial(trained, optpo()),
    "optpo_ties": partial(trained, TiesKept),
    **{
        f"{name}_cold": partial(trained, rule, PAPER, TOP_P)
        for name, rule in {"ttrl_64": ttrl(64), "ttrl_32": ttrl(32), "optpo": optpo()}.items()
    },
}
CELLS: Mapping[str, Cell] = {
    **{f"optpo.learn_{name}": Cell(measure, 1.5, SEEDS) for name, measure in ARMS.items()},
}
CLAIMS: tuple[Claim, ...] = ()
