"""Other stopping rules inside OptPO, and what is trained on when votes stop early: combinations of our own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from benchmarks.evidence.cell import Cell
from benchmarks.evidence.claim import Claim, Finding, Values, Verdict, difference, interval, sign
from benchmarks.evidence.optpo import COLUMNS, FOUR, MARGIN, comparable, row, saved
from benchmarks.evidence.optpo_combined_measured import bias
from benchmarks.evidence.optpo_learning_measured import trained

RETAINED = 8


def stopped_by(rule: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return OptPO with another stopping rule: the same M, N and update."""
    return {"name": "voting", "rule": rule, "min_samples": RETAINED, "max_samples": 64, "retain": "first"}


def ttrl(votes: int) -> Mapping[str, Any]:
    """Return TTRL with so many votes. It trains on as many rollouts as the others."""
    return {"name": "ttrl", "max_samples": votes, "min_samples": RETAINED}


OPTPO: Mapping[str, Any] = {"name": "optpo", "min_samples": RETAINED}
ARMS: Mapping[str, Mapping[str, Any]] = {
    "optpo": OPTPO,
    "calibrated_05": stopped_by({"name": "calibrated", "eps": 0.05}),
    "ttrl_64": ttrl(64),
    "ttrl_24": ttrl(24),
}
RETAINING: Mapping[str, partial[Any]] = {
    "all": partial(trained, {**OPTPO, "retain": "all"}, {"estimator": "rloo"}, seeds=FOUR),
    "sequential": partial(trained, {**OPTPO, "retain": "all"}, {"estimator": "sequential"}, seeds=FOUR),
    "first": partial(trained, OPTPO, {"estimator": "rloo"}, seeds=FOUR),
}
CELLS: Mapping[str, Cell] = {
    "optpo_combined.bias": Cell(bias, 1.0),
    **{
        f"optpo_combined.learn_{name}": Cell(partial(trained, rule, seeds=FOUR), 1.0, FOUR)
        for name, rule in ARMS.items()
    },
    **{f"optpo_combined.retain_{name}": Cell(measure, 1.0, FOUR) for name, measure in RETAINING.items()},
}
SETTING = (
    "Medium base of the lab, 128 prompts without answers, 16 a step, 24 steps of GRPO, M = 64, four paired seeds. "
    f"Every rule trains on the first {RETAINED} rollouts, so that updates cost the same."
)
NAMES = {
    "ttrl_64": "TTRL, 64 votes",
    "ttrl_24": "TTRL, 24 votes",
    "optpo": "OptPO, its own test",
    "calibrated_05": "OptPO, calibrated, eps .05",
}


def learnt(cells: Mapping[str, Values], name: str) -> Values:
    """Return the values of an arm."""
    return cells[f"optpo_combined.learn_{name}"]


def judge_calibrated(cells: Mapping[str, Values]) -> Finding:
    own, mine, full = (learnt(cells, name) for name in ("optpo", "calibrated_05", "ttrl_64"))
    rollouts, gained = saved(mine, own), difference(mine["mean_16"], own["mean_16"])
    return Finding(
        f"{rollouts.percent} fewer rollouts than OptPO with its own test, mean@16 {gained.signed}",
        comparable(gained) if sign(rollouts) > 0 else Verdict.FAILS,
        f"It holds if rollouts are saved and the interval excludes a loss of {MARGIN:g} of mean@16. The next claim has "
        "the control with fewer votes.",
        COLUMNS,
        [row(shown, learnt(cells, name), None if name == "ttrl_64" else full) for name, shown in NAMES.items()],
    )


def judge_matched(cells: Mapping[str, Values]) -> Finding:
    mine, few = (learnt(cells, name) for name in ("calibrated_05", "ttrl_24"))
    ahead, labels = (difference(mine[key], few[key]) for key in ("mean_16", "labels_right"))
    return Finding(
        f"mean@16 less TTRL with 24 votes {ahead.signed}, at {saved(few, mine).percent} fewer rollouts for TTRL",
        {1: Verdict.HOLDS, -1: Verdict.FAILS, 0: Verdict.OPEN}[sign(ahead)],
        f"Right labels less those of TTRL with 24 votes: {labels.signed}.",
    )


def judge_bias(cells: Mapping[str, Values]) -> Finding:
    found = cells["optpo_combined.bias"]

    def shown(values: list[float]) -> str:
        return f"{values[0]:+.3f} ± {values[1]:.3f}"

    beyond = [found[f"{rule}, all"]["reward_less_first"] for rule in ("optpo", "calibrated")]
    above = [each[0] - each[1] > 0 for each in beyond]
    return Finding(
        f"mean reward of all votes less that of the first 16: {shown(beyond[0])} (OptPO), "
        f"{shown(beyond[1])} (calibrated)",
        Verdict.HOLDS if all(above) else Verdict.CONDITIONS if any(above) else Verdict.OPEN,
        "The bias is against fresh rollouts with the same label. The first N are biased too, because they vote for "
        "their own label. `sequential` takes baselines of the waves so far and divides by the mean number of votes. "
        "`gradient` is the bias along the true gradient, over its length.",
        ("rule", "trained on", "votes", "mean reward", "less the first", "gradient", "less the first"),
        [
            [
                *name.split(", "),
                f"{each['samples'][0]:.1f}",
                *(shown(each[key]) for key in ("reward", "reward_less_first", "gradient", "gradient_less_first")),
            ]
            for name, each in found.items()
        ],
    )


def judge_retained(cells: Mapping[str, Values]) -> Finding:
    first, whole, sequential = (cells[f"optpo_combined.retain_{name}"] for name in ("first", "all", "sequential"))
    gains = {
        name: difference(each["mean_16"], first["mean_16"])
        for name, each in (("all, RLOO", whole), ("all, sequential", sequential))
    }
    signs = [sign(each) for each in gains.values()]
    verdict = Verdict.HOLDS if min(signs) > 0 else Verdict.FAILS if max(signs) < 0 else Verdict.OPEN
    verdict = Verdict.CONDITIONS if 1 in signs and verdict is Verdict.OPEN else verdict
    return Finding(
        f"mean@16 less that of the first {RETAINED}: "
        + ", ".join(f"{name} {each.signed}" for name, each in gains.items()),
        verdict,
        "The votes cost the same. Training on all of them makes updates longer: CPU seconds of a run are "
        + ", ".join(
            f"{interval(each['seconds'], '.0f')} ({name})"
            for name, each in ((f"first {RETAINED}", first), ("all", whole), ("sequential", sequential))
        )
        + ".",
        COLUMNS,
        [
            row(f"first {RETAINED}, RLOO", first),
            row("all, RLOO", whole, first),
            row("all, sequential", sequential, first),
        ],
    )


CLAIMS: tuple[Claim, ...] = (
    Claim(
        where="OptPO with the calibrated rule",
        claim="The calibrated stop inside OptPO saves rollouts over its own test, at equal accuracy.",
        figure="none",
        setting=SETTING,
        cells=tuple(f"optpo_combined.learn_{name}" for name in ARMS),
        judge=judge_calibrated,
    ),
    Claim(
        where="OptPO with the calibrated rule",
        claim="Votes that stop early learn more than a fixed number of votes at about the same cost.",
        figure="none",
        setting=SETTING,
        cells=tuple(f"optpo_combined.learn_{name}" for name in ("calibrated_05", "ttrl_24")),
        judge=judge_matched,
    ),
    Claim(
        where="OptPO and unbiased estimators",
        claim="Votes that stop early have a higher mean reward as a whole than their first N.",
        figure="none",
        setting="Simulated votes on 40 prompts with Dirichlet probabilities of 6 answers, 400 votes each, N = 16, "
        "M = 64, asked after every 4 votes.",
        cells=("optpo_combined.bias",),
        judge=judge_bias,
    ),
    Claim(
        where="OptPO and unbiased estimators",
        claim="Training on all votes, with RLOO or sequential RLOO, learns more than training on the first N.",
        figure="none",
        setting=SETTING.replace("GRPO", "RLOO"),
        cells=tuple(f"optpo_combined.{name}" for name in ("retain_first", "retain_all", "retain_sequential")),
        judge=judge_retained,
    ),
)
