"""The cells and the words of the table ``gradient_quality``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.common import spread

MEASURES = ("cosine", "kept", "error", "bias", "variance", "scale")
RELATIVE, SHARES = ("kept", "error", "bias", "variance", "equal"), ("wrong", "none", "outside", "clipped")
NAMES = {"equal": "error at 64 rollouts"}
VOTE_COLUMNS = ["base", "rule", "rollouts", "wrong label", "no label", "cosine", "cosine, GRPO", "kept", "error"]
VOTE_COLUMNS += ["bias", "variance", "error at 64 rollouts"]
REUSE_COLUMNS = ["base", "groups", "reuse", *MEASURES[:-1]]
FACT_COLUMNS = ["base", "prompts", "mean success", "median ratio", "ratio outside .5 to 2", "tokens above 1.2"]

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
    measures = ["rollouts", "wrong", "none", "cosine", "grpo", "kept", "error", "bias", "variance", "equal"]
    return [
        [base, rule, *cells([run[rule] for run in runs], measures)] for base, runs in votes.items() for rule in runs[0]
    ]


def reuse_rows(reuse: Reused) -> list[list[str]]:
    return [
        [base, kind, rule, *cells([run[kind, rule] for run in runs], MEASURES[:-1])]
        for base, runs in reuse.items()
        for kind, rule in runs[0]
        if kind != "facts"
    ]


def fact_rows(reuse: Reused) -> list[list[str]]:
    measures = ["prompts", "success", "ratio", "outside", "clipped"]
    return [[base, *cells([run["facts", "stored"] for run in runs], measures)] for base, runs in reuse.items()]


def gap(runs: Sequence[dict[str, Values]], one: str, other: str, measure: str) -> str:
    """Return the mean difference of a measure between two rules, paired by seed."""
    return spread([run[one][measure] - run[other][measure] for run in runs], "+.2f").replace("± +", "± ")


def vote_notes(votes: Votes) -> str:
    """Return what the votes show, in words."""

    def gaps(one: str, other: str, measures: Sequence[str] = ("rollouts", "cosine")) -> str:
        named = {measure: NAMES.get(measure, measure) for measure in measures}
        found = [
            ", ".join(f"{name} {gap(runs, one, other, measure)}" for measure, name in named.items()) + f" ({base})"
            for base, runs in votes.items()
        ]
        return "; ".join(found)

    def values(rule: str, measure: str) -> str:
        found = [f"{cells([run[rule] for run in runs], [measure])[0]} ({base})" for base, runs in votes.items()]
        return ", ".join(found)

    optpo, half, full, few = "OptPO, N = 32, 0.05", "TTRL, 32 votes", "TTRL, 64 votes", "OptPO, N = 16, 0.05"
    eight, labels, more = "TTRL, 8 votes", "true labels, 8", ("rollouts", "cosine", "equal")
    notes = [
        f"A stopped vote has the gradient of the full one. OptPO with N = 32 less 64 votes: {gaps(optpo, full)}.",
        f"Fewer votes do nearly as well. OptPO with N = 32 less 32 votes: {gaps(optpo, half, more)}.",
        "N = 16 does not beat 32 plain votes. It trains on half as many rollouts, and its votes take no fewer. OptPO "
        f"with N = 16 less 32 votes: {gaps(few, half, more)}.",
        f"More votes do not lower the bias. With 64 votes it is {values(full, 'bias')}, and with 8 votes "
        f"{values(eight, 'bias')}. Wrong labels are {values(full, 'wrong')} with 64 votes, and "
        f"{values(eight, 'wrong')} with 8. Votes that were tied get a label later, which is often wrong. Votes beyond "
        "those that are trained on lower the variance. OptPO with N = 16 less 16 votes: "
        f"{gaps(few, 'TTRL, 16 votes', ('rollouts', 'variance'))}.",
        "Labels are worth more than votes at equal rollouts. The cosine of 8 rollouts with true labels is "
        f"{values(labels, 'cosine')}, and that of OptPO with N = 32 {values(optpo, 'cosine')}. Their errors at 64 "
        f"rollouts are {values(labels, 'equal')} and {values(optpo, 'equal')}.",
        f"alpha = beta = 0.03 less 0.05 at N = 16: {gaps('OptPO, N = 16, 0.03', few)}. The calibrated rule less "
        f"OptPO's at N = 16: {gaps('calibrated, N = 16', few)}. Neither buys a better gradient.",
    ]
    return "\n".join(f"- {note}" for note in notes)


def reuse_notes(reuse: Reused) -> str:
    """Return what the options show, in words."""
    dead, two, one, replay = "without a right one", "Option II", "Option I", "direct replay"

    def values(kind: str, option: str, measure: str) -> str:
        found = [f"{cells([run[kind, option] for run in runs], [measure])[0]} ({base})" for base, runs in reuse.items()]
        return ", ".join(found)

    def ratios(kind: str, option: str, other: str) -> str:
        found = [
            spread([run[kind, option]["variance"] / run[kind, other]["variance"] for run in runs], ".2f") + f" ({base})"
            for base, runs in reuse.items()
        ]
        return ", ".join(found)

    notes = [
        f"In a group without a right response Option I points best. Its cosine is {values(dead, one, 'cosine')}. "
        f"Option II has {values(dead, two, 'cosine')}, and direct replay {values(dead, replay, 'cosine')}.",
        "Option II has the right mean direction and is short: its mean is 1 / (7 (1 - p)) of the prompt's true "
        f"gradient. It keeps {values(dead, two, 'kept')}. Option I keeps {values(dead, one, 'kept')}, because the "
        "reused response has an eighth of the group's weight whatever p is. Direct replay clips its likelier tokens.",
        f"The variance of Option I over that of Option II is {ratios(dead, one, two)}, and direct replay's "
        f"{ratios(dead, replay, two)}. If a problem has one right response, as on hard and medium, it is 49/64 by the "
        "weights alone: the wrong rollouts share the group's weight with one more. On forks the choice of the stored "
        "response adds variance.",
        f"Over all groups of these prompts the variance over that without reuse is {ratios('all', two, 'no reuse')} "
        f"with Option II, {ratios('all', one, 'no reuse')} with Option I, and {ratios('all', replay, 'no reuse')} with "
        f"direct replay. The bias is {values('all', 'no reuse', 'bias')} without reuse, {values('all', two, 'bias')} "
        f"with Option II, {values('all', one, 'bias')} with Option I and {values('all', replay, 'bias')} with direct "
        "replay.",
        "Stages raise the variance more than any option. Without reuse it is "
        f"{ratios('all', 'no reuse', 'uniform 8, no stages')} times that of uniform groups of 8, because a prompt that "
        "leaves after 4 rollouts gives its right one twice the weight. The cosine is "
        f"{values('all', 'no reuse', 'cosine')} against {values('all', 'uniform 8, no stages', 'cosine')}, with fewer "
        "rollouts.",
        "Under GRPO a group of 8 with one right response has advantages that are 2.83 times as large. So in groups "
        "without a right one the cosines are the same, and all options are 2.83 times as long.",
    ]
    return "\n".join(f"- {note}" for note in notes)
