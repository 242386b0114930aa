"""The cells and the words of the table ``gradient_quality``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.common import spread

MEASURES = ("cosine", "kept", "error", "bias", "variance", "scale")
RELATIVE, SHARES = ("kept", "error", "bias", "variance", "equal"), ("wrong",)
OPTPO = "OptPO, N = 32, 0.05"
VOTE_MEASURES = ("rollouts", "wrong", "cosine", "equal")
VOTE_COLUMNS = ["base", "rule", "rollouts", "wrong label", "cosine", "error at 64 rollouts"]
REUSE_MEASURES = ("cosine", "bias", "variance")
REUSE_COLUMNS = ["base", "groups", "reuse", *REUSE_MEASURES]

Values = dict[str, float]
Votes = dict[str, list[dict[str, Values]]]
Reused = dict[str, list[dict[tuple[str, str], Values]]]
"""A dictionary for each seed, by base."""


def pooled(runs: Sequence[Values], measure: str) -> list[float]:
    """Return the measure of each seed, whose mean is that of the table.

    Relative measures are ratios of sums over seeds, so that no seed with a small true gradient decides. Theirs are the
    jackknife's pseudo-values.
    """
    values = np.array([run[measure] for run in runs])
    if measure not in RELATIVE or len(runs) == 1:
        return values.tolist()
    scale = np.array([run["scale"] for run in runs])
    whole, left = values @ scale, scale.sum()
    without = (whole - values * scale) / (left - scale)
    return (len(runs) * whole / left - (len(runs) - 1) * without).tolist()


def cells(runs: Sequence[Values], measures: Sequence[str]) -> list[str]:
    return [spread(pooled(runs, measure), ".0%" if measure in SHARES else ".2f") for measure in measures]


def vote_rows(votes: Votes) -> list[list[str]]:
    return [
        [base, rule, *cells([run[rule] for run in runs], VOTE_MEASURES)]
        for base, runs in votes.items()
        for rule in runs[0]
    ]


def reuse_rows(reuse: Reused) -> list[list[str]]:
    return [
        [base, kind, rule, *cells([run[kind, rule] for run in runs], REUSE_MEASURES)]
        for base, runs in reuse.items()
        for kind, rule in runs[0]
    ]


def gap(runs: Sequence[dict[str, Values]], one: str, other: str, measure: str) -> str:
    """Return the mean difference of a measure between two rules, paired by seed."""
    return spread([run[one][measure] - run[other][measure] for run in runs], "+.2f").replace("± +", "± ")


def vote_notes(votes: Votes) -> str:
    """Return what the votes show, in words."""

    def gaps(other: str, **measures: str) -> str:
        found = [
            ", ".join(f"{name} {gap(runs, OPTPO, other, measure)}" for measure, name in measures.items()) + f" ({base})"
            for base, runs in votes.items()
        ]
        return "; ".join(found)

    both = {"rollouts": "rollouts", "cosine": "cosine"}
    return (
        "- A stopped vote has the gradient of the full one. OptPO with N = 32 less 64 votes: "
        f"{gaps('TTRL, 64 votes', **both)}.\n- Fewer votes do nearly as well. OptPO with N = 32 less 32 votes: "
        f"{gaps('TTRL, 32 votes', **both, equal='error at 64 rollouts')}."
    )
