"""VIP's tool-augmented study (Section 6, Table 2), through TRL's loop of tool calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.evidence.cell import Cell
from benchmarks.evidence.claim import Claim, Finding, Values, Verdict, difference, interval, sign
from benchmarks.evidence.vip_tools_measured import MEASURES, RULES, SEEDS, SWEEP_SEED, study

ESTIMATORS = {"dr_grpo": "Dr. GRPO", "rloo": "RLOO"}
NAMES = {
    "uniform": "uniform",
    "vip": "VIP, default belief",
    "vip_gp": "VIP, GP",
    "vip_shuffled": "VIP, shuffled belief",
}
"""The rules as the table names them."""

CELLS: Mapping[str, Cell] = {
    f"vip_tools.{estimator}": Cell(partial(study, estimator), 5.0, (*SEEDS, SWEEP_SEED)) for estimator in ESTIMATORS
}


def gains(values: Values, rule: str, measure: str) -> list[float]:
    """Return what ``rule`` has more than uniform after training on held-out questions, a value for each seed."""
    pairs = zip(values[rule]["after"][measure], values["uniform"]["after"][measure], strict=True)
    return [mine - control for mine, control in pairs]


def signs(values: Values, rule: str, measure: str) -> int:
    """Return the sign of the gain, 0 if its interval contains 0."""
    return sign(difference(values[rule]["after"][measure], values["uniform"]["after"][measure]))


def verdict_of(found: Sequence[int]) -> Verdict:
    """Return the verdict on several signs: all must be 1 to hold, and without any 1 one of -1 contradicts."""
    if all(each == 1 for each in found):
        return Verdict.HOLDS
    if 1 in found:
        return Verdict.CONDITIONS
    return Verdict.FAILS if -1 in found else Verdict.OPEN


def answers(estimator: str) -> Any:
    """Return the judge of exact match under ``estimator``: VIP with its default belief and with the GP."""

    def judge(measured: Mapping[str, Values]) -> Finding:
        values = measured[f"vip_tools.{estimator}"]
        verdict = verdict_of([signs(values, rule, "em") for rule in ("vip", "vip_gp")])
        start, uniform = (interval(values["uniform"][when]["em"]) for when in ("before", "after"))
        ours = (
            f"EM {start} before; uniform {uniform} after; VIP {interval(gains(values, 'vip', 'em'), '+.3f')} over it, "
            f"with the GP {interval(gains(values, 'vip_gp', 'em'), '+.3f')}"
        )
        why = (
            f"With shuffled beliefs VIP has {interval(gains(values, 'vip_shuffled', 'em'), '+.3f')} over uniform. "
            f"The half width after ± is the smallest gain that {len(SEEDS)} paired seeds can show. "
            f"In two epochs a prompt is met twice, so VIP has little to go by: its largest group has "
            f"{interval(values['vip']['most'], '.1f')} rollouts, the GP's {interval(values['vip_gp']['most'], '.1f')}. "
            f"The learning rate is {values['rate']:g}, the better of two for uniform."
        )
        return Finding(ours, verdict, why, *_table(values))

    return judge


def together(measured: Mapping[str, Values]) -> Finding:
    """Judge whether VIP raises exact match and precision at 5 together, under each estimator and belief."""
    pairs = {
        (estimator, rule): [signs(measured[f"vip_tools.{estimator}"], rule, name) for name in MEASURES]
        for estimator in ESTIMATORS
        for rule in ("vip", "vip_gp")
    }
    both = [min(found) if min(found) == max(found) else 0 for found in pairs.values()]
    against = any(-1 in found for found in pairs.values()) and 1 not in both
    verdict = Verdict.FAILS if against else verdict_of(both)
    ours = "; ".join(
        f"{ESTIMATORS[estimator]}, {NAMES[rule]}: "
        + ", ".join(
            f"{name} {interval(gains(measured[f'vip_tools.{estimator}'], rule, name), '+.3f')}" for name in MEASURES
        )
        for estimator, rule in pairs
    )
    values = [measured[f"vip_tools.{estimator}"]["uniform"] for estimator in ESTIMATORS]
    rise = ", ".join(
        f"{name} from {interval([each for own in values for each in own['before'][name]])} to "
        f"{interval([each for own in values for each in own['after'][name]])}"
        for name in MEASURES
    )
    why = f"Training itself raises all three together, with uniform rollouts too: {rise}."
    return Finding(ours, verdict, why)


def _table(values: Values) -> tuple[list[str], list[list[str]]]:
    columns = ["rule", "EM", "F1", "precision@5", "most rollouts of a prompt"]
    rows = [["before training", *(interval(values["uniform"]["before"][name]) for name in MEASURES), "-"]]
    for rule in RULES:
        own = values[rule]
        after = [interval(own["after"][name]) for name in MEASURES]
        rows.append([NAMES[rule], *after, interval(own["most"], ".1f")])
    return columns, rows


SETTING = (
    "A Qwen2 of 93,000 parameters searches 360 short passages by BM25 and answers questions of two hops, in TRL's own "
    "loop of tool calls. It trains for two epochs on 96 questions with 8 rollouts a prompt, and 96 other questions are "
    "answered four times each. The paper trains Qwen2.5-3B-Instruct on 19,938 prompts of MuSiQue."
)

CLAIMS: tuple[Claim, ...] = (
    Claim(
        where="Table 2, Dr. GRPO",
        claim="VIP answers more questions exactly than uniform rollouts do, with a search tool and Dr. GRPO.",
        figure="EM 20 to 23.2 on Bamboogle, 6 to 10.5 on MuSiQue",
        setting=SETTING,
        cells=["vip_tools.dr_grpo"],
        judge=answers("dr_grpo"),
    ),
    Claim(
        where="Table 2, RLOO",
        claim="VIP answers more questions exactly than uniform rollouts do, with a search tool and RLOO.",
        figure="EM 10.4 to 17.6 on Bamboogle, 8.5 to 11 on MuSiQue",
        setting=f"{SETTING} TRL's RLOO trainer has no tools, so its GRPO trainer takes the advantages of RLOO.",
        cells=["vip_tools.rloo"],
        judge=answers("rloo"),
    ),
    Claim(
        where="Section 6, Table 2",
        claim="VIP raises the quality of retrieval together with exact match.",
        figure="on Bamboogle F1@5 +0.051 and Precision@5 +0.060 with Dr. GRPO; F1@5 0.190 to 0.264 and Precision@5 "
        "0.225 to 0.294 with RLOO",
        setting=f"{SETTING} Precision is that of the five passages of each search.",
        cells=[f"vip_tools.{estimator}" for estimator in ESTIMATORS],
        judge=together,
    ),
)
