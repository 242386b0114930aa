"""VIP with graded rewards: its Appendix E."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from benchmarks.evidence.cell import Cell
from benchmarks.evidence.claim import Claim, Finding, Values, Verdict, difference, interval, sign
from benchmarks.evidence.learning import SEEDS, Settings
from benchmarks.evidence.vip_graded_measured import VISITS, learning, variances

VIP = {"name": "vip", "estimator": "rloo", "rollouts_per_prompt": 8}
ARMS: Mapping[str, Settings] = {
    "uniform": {"name": "uniform", "rollouts_per_prompt": 8},
    "graded_gp": {**VIP, "predictor": "graded_gp"},
    "running": {**VIP, "predictor": "running_variance"},
    "shuffled": {**VIP, "predictor": {"name": "shuffled", "predictor": "running_variance"}},
}
CELLS: Mapping[str, Cell] = {
    **{f"vip_graded.variance_{base}": Cell(partial(variances, base), 1.0, SEEDS) for base in ("hard", "medium")},
    **{f"vip_graded.learn_{name}": Cell(partial(learning, rule), 1.0, SEEDS) for name, rule in ARMS.items()},
}
POLICIES = {f"{base} base": f"vip_graded.variance_{base}" for base in ("hard", "medium")}
PAPER = "graded gp as printed"
WITHIN = 1.5
"""A band fits the formula if its median is within this factor."""


def formula(values: Mapping[str, Values]) -> Finding:
    """Judge Proposition E.2 by the measured variance over it."""
    rows, fits = [], {}
    for policy, cell in POLICIES.items():
        for band, own in values[cell]["over formula"].items():
            medians = own["norm"][1], own["vector"][1]
            fits[policy, band] = all(1 / WITHIN <= median <= WITHIN for median in medians)
            rows.append([policy, band, own["prompts"], _quantiles(own["norm"]), _quantiles(own["vector"])])
    medians = [own["norm"][1] for cell in POLICIES.values() for own in values[cell]["over formula"].values()]
    wrong = [f"{policy}, mean reward {band}" for (policy, band), each in fits.items() if not each]
    return Finding(
        ours=f"median over prompts {min(medians):.2f} to {max(medians):.2f} times the formula, by mean reward; within "
        f"a factor of {WITHIN} in {sum(fits.values())} of {len(fits)} bands",
        verdict=Verdict.HOLDS if not wrong else Verdict.CONDITIONS if any(fits.values()) else Verdict.FAILS,
        why="The proof is the one for binary rewards, so the formula is right where the reward and the norm are "
        "independent, and off where they are not."
        + (f" Off by more than a factor of {WITHIN}: {'; '.join(wrong)}." if wrong else ""),
        columns=["policy", "mean reward", "prompts", "Z is the norm: median (10% to 90%)", "total variance: the same"],
        rows=rows,
    )


def variance(values: Mapping[str, Values]) -> Finding:
    """Judge that VIP with a graded Gaussian process has a lower gradient variance than uniform."""
    rows, below = [], {}
    for policy, cell in POLICIES.items():
        ratios = values[cell]["ratios"]
        for name, own in ratios.items():
            rows.append([policy, _rule(name), interval(own, ".2f")])
        for visits in VISITS:
            own = ratios[f"{PAPER} | {visits}"]
            below[policy, visits] = sign(difference(own, [1.0] * len(own)))
    exact, least = (
        ", ".join(interval(values[cell]["ratios"][rule], ".2f") for cell in POLICIES.values())
        for rule in ("exact", "least, known gradients")
    )
    printed = [interval(values[cell]["ratios"][f"{PAPER} | {VISITS[-1]}"], ".2f") for cell in POLICIES.values()]
    signs = set(below.values())
    verdict = (
        Verdict.HOLDS if signs == {-1} else Verdict.FAILS if -1 not in signs and 1 in signs
        else Verdict.CONDITIONS if -1 in signs else Verdict.OPEN
    )  # fmt: skip
    where = [f"{policy}, {visits} visits" for (policy, visits), each in below.items() if each < 0]
    return Finding(
        ours=f"gradient variance over uniform's with the GP as printed after {VISITS[-1]} visits: "
        f"{'; '.join(f'{policy} {each}' for policy, each in zip(POLICIES, printed, strict=True))}",
        verdict=verdict,
        why=f"With the exact reward variance the ratios are {exact}. The least possible ones are {least}. "
        + (
            f"The interval of the GP as printed is below 1 at: {'; '.join(where)}. "
            if where
            else "The interval of the GP as printed is nowhere below 1. "
        )
        + "The table has the controls: exact variances at random prompts, and the running variance at random prompts.",
        columns=["policy", "rule", "gradient variance over uniform's"],
        rows=rows,
    )


def learnt(values: Mapping[str, Values]) -> Finding:
    """Judge that VIP with graded rewards learns faster than uniform."""
    areas = {name: values[f"vip_graded.learn_{name}"]["area"] for name in ARMS}
    apart = {name: difference(areas[name], areas["uniform"]) for name in ARMS if name != "uniform"}
    found = sign(apart["graded_gp"]), sign(apart["running"])
    verdict = (
        Verdict.HOLDS if found == (1, 1) else Verdict.FAILS if -1 in found and 1 not in found
        else Verdict.CONDITIONS if 1 in found else Verdict.OPEN
    )  # fmt: skip
    return Finding(
        ours=f"area of the learning curve less uniform's: graded GP {apart['graded_gp'].signed}, running variance "
        f"{apart['running'].signed}, the same at random prompts {apart['shuffled'].signed}",
        verdict=verdict,
        why="The controls are uniform with as many rollouts, and variances that were dealt to random prompts. A "
        "difference below the half width of its interval cannot be "
        "seen with five seeds. One learning rate was used for all arms.",
        columns=["rule", "area", "success at the end", "area less uniform's"],
        rows=[
            [_arm(name), interval(areas[name]), interval(values[f"vip_graded.learn_{name}"]["end"]),
             "-" if name == "uniform" else apart[name].signed]
            for name in ARMS
        ],
    )  # fmt: skip


def _rule(name: str) -> str:
    names = {
        "exact": "VIP, exact reward variance",
        "exact, shuffled": "VIP, exact reward variance at random prompts (control)",
        "least, known gradients": "least possible, gradients known",
    }
    if name in names:
        return names[name]
    predictor, visits = name.split(" | ")
    return f"VIP, {predictor}, after {visits} visit{'s' if visits != '1' else ''}"


def _arm(name: str) -> str:
    return {
        "uniform": "uniform, 8 (control)",
        "graded_gp": "VIP, graded GP",
        "running": "VIP, running variance",
        "shuffled": "VIP, running variance at random prompts (control)",
    }[name]


def _quantiles(values: list[float]) -> str:
    low, middle, high = values
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


CLAIMS = (
    Claim(
        where="Appendix E.1, Propositions E.1 and E.2",
        claim="With graded rewards the variance of a prompt's projected gradient is sigma^2 Var(R) times (n - 1)/n^2 "
        "for Dr. GRPO and 1/(n - 1) for RLOO.",
        figure="an equation; the paper has no experiment with graded rewards",
        setting="Two bases of the lab with the share of leading digits that are right as reward, RLOO, n = 8, 64 "
        "prompts for each of five seeds. A prompt's 48 rollouts are taken as its whole distribution, so "
        "the variance is in closed form. Dr. GRPO's is the same times ((n - 1)/n)^2 on both sides.",
        cells=tuple(POLICIES.values()),
        judge=formula,
    ),
    Claim(
        where="Appendix E.2 and E.3",
        claim="VIP with a Gaussian process for the reward variance lowers the gradient variance of graded rewards.",
        figure="- (no experiment)",
        setting="The same prompts, 8 rollouts on average and 3 to 24 for each. Predictors have seen each prompt 1, 2 "
        "or 4 times with 8 rollouts under a fixed policy. As printed means the paper's link and almost no observation "
        "noise.",
        cells=tuple(POLICIES.values()),
        judge=variance,
    ),
    Claim(
        where="Appendix E",
        claim="VIP with graded rewards learns faster than uniform groups.",
        figure="- (no experiment)",
        setting="Hard base of the lab, share of leading digits as reward, 6,400 rollouts of RLOO, 16 prompts a step, "
        "learning rate 1e-3 for all. Success is the exact probability of a wholly right answer on held-out problems. "
        "The graded GP has our link and noise.",
        cells=tuple(f"vip_graded.learn_{name}" for name in ARMS),
        judge=learnt,
    ),
)
