"""The papers' claims on a real language model, SmolLM2-135M-Instruct, which trains on sums in TRL.

Rates were swept on a seed of their own, for groups and for single rollouts. ``RATE`` is what they chose, and a test
fails if the sweep chooses another. Runs are kept one by one: a study that was stopped goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from apportion.lab.report.results import SeedInterval
from benchmarks.evidence.cell import Cell
from benchmarks.evidence.claim import Claim, Finding, Values, Verdict, difference, interval, sign
from benchmarks.evidence.language_model_measured import RULES, run
from benchmarks.evidence.language_model_norms import after, before

SEEDS = tuple(range(5))
RATES, TUNING_SEED = (3e-6, 6e-6, 1e-5, 3e-5), 100
TUNED = {"uniform_8": ("uniform_8", "uniform_4", "vip_8", "mixed_8"), "optimal": ("optimal", "spo", "zero")}
"""Which rules take the rate that was best for a rule: groups and single rollouts have gradients of unlike noise."""
RATE = {"uniform_8": 6e-6, "optimal": 1e-5}
NAME, BEFORE, AFTER = "language_model", "language_model.norms_before", "language_model.norms_after"
CONTROL = "uniform_8"


def name_of(rule: str, rate: float, seed: int) -> str:
    """Return the name of a run's cell."""
    return f"{NAME}.{rule}-{rate:g}-{seed}"


def runs(*rules: str) -> dict[str, Cell]:
    """Return the cells of some rules' runs, one for each seed. The control's runs have predictors in their shadow."""
    rates = {rule: RATE[leader] for leader, followers in TUNED.items() for rule in followers}
    return {
        name_of(rule, rates[rule], seed): Cell(
            partial(run, rule, rates[rule], seed, shadow=rule == CONTROL), minutes=3.5, seeds=(seed,)
        )
        for seed in SEEDS
        for rule in rules
    }


SWEEP = {
    name_of(rule, rate, TUNING_SEED): Cell(partial(run, rule, rate, TUNING_SEED), minutes=3.0, seeds=(TUNING_SEED,))
    for rule in TUNED
    for rate in RATES
}
CELLS: Mapping[str, Cell] = {
    BEFORE: Cell(before, minutes=0.5, seeds=(0,)),
    AFTER: Cell(after, minutes=6.0, seeds=(TUNING_SEED,)),
    **SWEEP,
    **runs(*RULES),
}


def area(values: Values) -> float:
    """Return the mean held-out success over a run's evaluations after the start."""
    return float(np.mean(values["success"][1:]))


def at_seconds(values: Values, seconds: float) -> float:
    """Return the held-out success of a run after so many processor seconds, on the line between evaluations.

    >>> at_seconds({"cpu_seconds": [0, 10, 20], "success": [0.2, 0.4, 0.6]}, 15)
    0.5
    """
    return float(np.interp(seconds, values["cpu_seconds"], values["success"]))


def runs_of(measured: Mapping[str, Values], rule: str) -> list[Values]:
    """Return a rule's runs, one for each seed."""
    return [measured[name] for name in runs(rule)]


def swept(measured: Mapping[str, Values], leader: str) -> dict[float, float]:
    """Return the area of the sweep's run for each rate."""
    return {rate: area(measured[name_of(leader, rate, TUNING_SEED)]) for rate in RATES}


def learning(measured: Mapping[str, Values], rule: str, controls: Sequence[str]) -> Finding:
    """Judge whether a rule learns faster than its controls: by the area under its curve, paired by seed.

    It holds if the interval lies above 0 against every control, and does not hold if it lies below 0 against one.
    """
    mine, rows, gains = runs_of(measured, rule), [], []
    rows.append(_row(rule, mine, None, None))
    for control in controls:
        theirs = runs_of(measured, control)
        gain = difference([area(each) for each in mine], [area(each) for each in theirs])
        shortest = min(each["cpu_seconds"][-1] for each in (*mine, *theirs))
        at_time = difference(
            [at_seconds(each, shortest) for each in mine], [at_seconds(each, shortest) for each in theirs]
        )
        gains.append(gain)
        rows.append(_row(control, theirs, gain, at_time))
    signs = [sign(gain) for gain in gains]
    verdict = Verdict.HOLDS if min(signs) > 0 else Verdict.FAILS if min(signs) < 0 else Verdict.OPEN
    if verdict is Verdict.OPEN and max(signs) > 0:
        verdict = Verdict.CONDITIONS
    better = [control for control, each in zip(controls, signs, strict=True) if each > 0]
    told = f" It is better than {' and '.join(better)} only." if verdict is Verdict.CONDITIONS else ""
    ours = ", ".join(f"{gain.signed} over {control}" for gain, control in zip(gains, controls, strict=True))
    why = (
        f"The area is the mean held-out success over the evaluations, and the verdict follows from it. "
        f"{_power(gains)}{told} Equal seconds are processor seconds, up to the end of the shortest run. "
        "The reward is that of the last quarter of the training rollouts. If it is far above held-out success, the few "
        f"training sums are memorised. {_chosen(measured)}"
    )
    columns = [
        "rule",
        "area",
        "success at the end",
        "CPU s",
        "reward at the end",
        "area gained",
        "gained at equal seconds",
    ]
    return Finding(f"area {ours}", verdict, why, columns, rows)


def _power(gains: Sequence[SeedInterval]) -> str:
    """Return what difference could be seen."""
    widths = [gain.half_width for gain in gains if gain.half_width is not None]
    if not widths:
        return "There is one seed so far, so there is no interval and no verdict."
    shown = " and ".join(f"{width:.3f}" for width in widths)
    return f"With {len(SEEDS)} seeds the half width is {shown}, so a smaller difference cannot be seen."


def _chosen(measured: Mapping[str, Values]) -> str:
    """Return which rates were swept, and what they gave."""
    told = []
    for leader in TUNED:
        areas = ", ".join(f"{value:.3f} at {rate:g}" for rate, value in swept(measured, leader).items())
        told.append(f"{leader} has an area of {areas}")
    return f"The rates were swept on one other seed: {'; '.join(told)}."


def _row(rule: str, runs: Sequence[Values], gain: SeedInterval | None, at_time: SeedInterval | None) -> list[str]:
    return [
        rule,
        interval([area(each) for each in runs]),
        interval([each["success"][-1] for each in runs]),
        interval([each["cpu_seconds"][-1] for each in runs], ".0f"),
        interval([each["reward"][-1] for each in runs], ".2f"),
        "-" if gain is None else gain.signed,
        "-" if at_time is None else at_time.signed,
    ]


def prediction(measured: Mapping[str, Values]) -> Finding:
    """Judge whether the paper's Gaussian process has a smaller error than moving average and ridge regression."""
    found = [each["predictors"] for each in runs_of(measured, CONTROL)]

    def errors(name: str, kind: str) -> list[float]:
        return [each[name][kind] for each in found]

    mine = "GP as printed"
    gains = [difference(errors(mine, "exact"), errors(other, "exact")) for other in ("moving average", "ridge")]
    signs = [sign(gain) for gain in gains]
    verdict = Verdict.HOLDS if max(signs) < 0 else Verdict.FAILS if max(signs) > 0 else Verdict.OPEN
    if verdict is Verdict.OPEN and min(signs) < 0:
        verdict = Verdict.CONDITIONS
    rows = [[name, *(interval(errors(name, kind)) for kind in ("exact", "observed", "again"))] for name in found[0]]
    why = (
        f"The difference to moving average is {gains[0].signed} and to ridge regression {gains[1].signed}, against "
        f"the exact success probability at sampling. {_power(gains)} The paper compares with observed "
        "rates, which adds sampling noise to every error. A run has 80 groups of 64 sums, so a quarter of the sums are "
        "visited twice. The paper has two epochs."
    )
    columns = ["predictor", "error, exact", "error, observed", "error, exact, seen before"]
    return Finding(
        f"MAE {interval(errors(mine, 'exact'))}, moving average {interval(errors('moving average', 'exact'))}, "
        f"ridge {interval(errors('ridge', 'exact'))}",
        verdict, why, columns, rows,
    )  # fmt: skip


def checkpoints(measured: Mapping[str, Values]) -> dict[str, Any]:
    """Return what the norms say, by task and checkpoint."""
    trained = measured[AFTER]
    found = {f"{task}, before": each for task, each in measured[BEFORE].items()}
    return found | {f"{task}, trained": each for task, each in trained.items() if isinstance(each, Mapping)}


def tested(measured: Mapping[str, Values], tests: tuple[str, str], effect: str) -> Finding:
    """Judge an assumption by the paper's two tests: it holds if none rejects at .05, fails if both do everywhere."""
    rows, rejected, spared = [], [], []
    for place, each in checkpoints(measured).items():
        for kind, found in each["tests"].items():
            values = [found[test] for test in tests]
            if None in values:
                continue
            if kind == "mean over tokens":
                rejected += [value < 0.05 for value in values]
                if max(values) >= 0.05:
                    spared.append(f"{place} ({found['groups']} mixed prompts)")
            rows.append([place, kind, found["groups"], *map(_p_value, values), _shown(found[effect])])
    verdict = Verdict.FAILS if all(rejected) else Verdict.CONDITIONS if any(rejected) else Verdict.HOLDS
    own = [row for row in rows if row[1] == "mean over tokens"]
    ours = "; ".join(f"{row[0]}: {row[3]} and {row[4]}" for row in own)
    why = (
        f"{sum(rejected)} of {len(rejected)} tests reject at .05 for the norm of the mean over tokens, which is the "
        "paper's. Prompts are fewer than the paper's 600, so the tests have less power here and reject less easily."
        f"{_parts(measured) if effect == 'correlation' else ''}"
        + (f" Not both reject for {', '.join(spared)}." if spared else "")
    )
    shown = {"correlation": "mean correlation (95% over prompts)", "spread_ratio": "spread of the norm, 90% / 10%"}
    columns = ["task, policy", "norm of the", "mixed prompts", *(f"p, {test}" for test in tests), shown[effect]]
    return Finding(ours, verdict, why, columns, rows)


def _parts(measured: Mapping[str, Values]) -> str:
    """Return what the correlations say without the tests' normal norms, from intervals over prompts."""
    found = [each["tests"]["mean over tokens"] for each in checkpoints(measured).values()]
    told = []
    for name, part in (("fail", "correlation_below_half"), ("succeed", "correlation_above_half")):
        known = [each[part] for each in found if each[part]]
        below, above = sum(high < 0 for _, _, high in known), sum(low > 0 for _, low, _ in known)
        told.append(
            f"below 0 in {below} and above 0 in {above} of {len(known)} settings for prompts that mostly {name}"
        )
    return (
        " The tests take norms as normal, but short completions repeat, so p-values are too small. Intervals of the "
        f"mean correlation over prompts do not need that: they lie {' and '.join(told)}."
    )


def _p_value(value: float) -> str:
    return "< 1e-15" if value < 1e-15 else f"{value:.2g}"


def outcomes(measured: Mapping[str, Values]) -> Finding:
    """Judge whether right and wrong rollouts have equal norms: they differ if the intervals of both are apart."""
    rows, apart = [], []
    for place, each in checkpoints(measured).items():
        differ = []
        for part in each["by_success"]:
            cells = [part[kind][side] for kind in ("parameters", "logits", "squared") for side in ("right", "wrong")]
            if cells[0] and cells[1]:
                differ.append(cells[0][2] < cells[1][1] or cells[1][2] < cells[0][1])
            shown = [*(_large(cell) for cell in cells[:2]), *map(_shown, cells[2:])]
            rows.append([f"{place}, p from {part['low']:g} to {part['high']:g}", part["prompts"], *shown])
        apart.append(any(differ))
    verdict = Verdict.FAILS if all(apart) else Verdict.CONDITIONS if any(apart) else Verdict.HOLDS
    why = (
        "Mean squared norms with 95% over prompts. Norms differ in a setting if the intervals of right and wrong "
        "rollouts are apart at some success rate. The sum of (1 - pi)^2 over a rollout's tokens needs only the "
        "log-probabilities that engines return."
    )
    kinds = ("squared norm", "logits", "(1 - pi)^2")
    columns = [
        "task, policy, success",
        "prompts",
        *(f"{kind}, {side}" for kind in kinds for side in ("right", "wrong")),
    ]
    return Finding(f"they differ in {sum(apart)} of {len(apart)} settings", verdict, why, columns, rows)


def _large(value: list[float] | None) -> str:
    return "-" if value is None else f"{value[0]:,.0f} ({value[1]:,.0f} to {value[2]:,.0f})"


def formula(measured: Mapping[str, Values]) -> Finding:
    """Judge Proposition 4.3: it holds where 1 lies in the interval of the ratio for all prompts and both halves."""
    rows, agrees, own = [], [], []
    for place, each in checkpoints(measured).items():
        for kind, found in each["variance"].items():
            parts = [found[part] for part in ("all", "below half", "above half", "apart")]
            if kind == "mean over tokens":
                own.append(parts)
                agrees.append(all(each is None or each[1] <= 1 <= each[2] for each in parts[:3]))
            rows.append([place, kind, *map(_shown, parts)])
    verdict = Verdict.HOLDS if all(agrees) else Verdict.CONDITIONS if any(agrees) else Verdict.FAILS
    why = (
        f"The formula agrees in {sum(agrees)} of {len(agrees)} settings. A ratio above 1 means that the variance is "
        f"larger than the formula says: {_sides(own, 1)} for prompts that mostly fail, {_sides(own, 2)} for prompts "
        "that mostly succeed. The last column is the control: rewards and norms drawn apart, where the formula must "
        "give 1."
    )
    columns = ["task, policy", "norm of the", "ratio, all prompts", "p < 1/2", "p > 1/2", "drawn apart"]
    ours = "; ".join(f"{row[0]}: {row[2]}" for row in rows if row[1] == "mean over tokens")
    return Finding(ours, verdict, why, columns, rows)


def _sides(parts: Sequence[Sequence[list[float] | None]], place: int) -> str:
    """Return in how many settings the interval at ``place`` lies above 1 and below it."""
    known = [found for each in parts if (found := each[place])]
    above, below = sum(low > 1 for _, low, _ in known), sum(high < 1 for _, _, high in known)
    return f"above 1 in {above} and below 1 in {below} settings"


def allocated(measured: Mapping[str, Values]) -> Finding:
    """Judge VIP's allocation: it holds if it lowers the variance, and more than its shuffled counts, everywhere."""
    rows, helps = [], []
    for place, each in checkpoints(measured).items():
        found = each["allocation"]
        helps.append(found["VIP"][2] < 1 and found["VIP"][2] < found["VIP, shuffled"][0])
        rows.append([place, *(_shown(found[rule]) for rule in found)])
    verdict = Verdict.HOLDS if all(helps) else Verdict.CONDITIONS if any(helps) else Verdict.FAILS
    why = (
        f"VIP with its default belief lowers the variance beyond noise in {sum(helps)} of {len(helps)} settings. "
        "Counts follow from 8 completions of each prompt and are judged on 8 others; medians with 5% to 95% "
        "of 200 splits. Neyman measures the moments that VIP takes as equal. The best counts "
        "know the half that judges them."
    )
    columns = ["task, policy", *next(iter(checkpoints(measured).values()))["allocation"]]
    ours = "; ".join(f"{row[0]}: x{row[1]}" for row in rows)
    return Finding(ours, verdict, why, columns, rows)


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return f"{value[0]:.2f} ({value[1]:.2f} to {value[2]:.2f})"
    return f"{value:.1f}"


NORMS_HERE = (
    "SmolLM2-135M-Instruct, gradients in all parameters, 40 prompts a task (20 after training) with 16 "
    "completions of a few tokens. The policy is the one before training, or after 320 rollouts on sums. The paper has "
    "Qwen2.5-Math-1.5B with 600 questions and long completions."
)
RUNS_HERE = (
    "SmolLM2-135M-Instruct on three-shot sums up to 30 + 30, 64 training prompts, 80 held-out ones with their exact "
    "success probability, 640 rollouts in updates of 32. The learning rate was swept on another seed, for groups and "
    "for single rollouts. The paper trains models of 1.5B to 7B on DAPO-MATH-17k."
)
CLAIMS: tuple[Claim, ...] = (
    Claim(
        where="VIP, Assumption 4.1 (ii), Tables 5 and 6",
        claim="A rollout's reward and the norm of its gradient are uncorrelated.",
        figure="Fisher p .73, .11, .22 and Edgington p .79, .40, .21 at three checkpoints, none below .05",
        setting=NORMS_HERE,
        cells=(BEFORE, AFTER),
        judge=partial(tested, tests=("fisher", "edgington"), effect="correlation"),
    ),
    Claim(
        where="VIP, Assumption 4.1 (ii), by outcome",
        claim="Right and wrong rollouts have gradients of equal norm, whatever the success rate.",
        figure="no figure: it follows from the assumption",
        setting=NORMS_HERE,
        cells=(BEFORE, AFTER),
        judge=outcomes,
    ),
    Claim(
        where="VIP, Appendix B.3 and B.4, Tables 7 and 8",
        claim="The variance of the gradient norm is equal for all prompts.",
        figure="Levene p .27, .48, .38 and O'Brien p .30, .26, .24 at three checkpoints, none below .05",
        setting=NORMS_HERE,
        cells=(BEFORE, AFTER),
        judge=partial(tested, tests=("levene", "obrien"), effect="spread_ratio"),
    ),
    Claim(
        where="VIP, Propositions 4.2 and 4.3",
        claim="The variance of a prompt's projected gradient is 4 sigma^2 p (1 - p) / (n - 1) with RLOO.",
        figure="a ratio of 1 (proved under Assumption 4.1)",
        setting=NORMS_HERE + " The ratio is the variance of groups of 8 over the formula with each prompt's own sigma.",
        cells=(BEFORE, AFTER),
        judge=formula,
    ),
    Claim(
        where="VIP, Section 5.2",
        claim="Rollouts split by predicted p (1 - p) lower the gradient variance of a batch.",
        figure="no figure: the paper minimises its formula and measures no variance",
        setting=NORMS_HERE + " The variance is that of the whole gradient, over that of 8 rollouts for every prompt.",
        cells=(BEFORE, AFTER),
        judge=allocated,
    ),
    Claim(
        where="VIP, Section 6, Table 1",
        claim="VIP learns faster than uniform groups at equal rollouts.",
        figure="Mean@32 on AIME24 from 3.43 to 9.68, RLOO, Qwen2.5-Math-1.5B, budget 8 Q",
        setting=RUNS_HERE
        + " VIP has its default belief, 4 prompts an update and 8 rollouts a prompt. 64 of its 80 groups are "
        "a prompt's first, before which that belief knows nothing of the prompt.",
        cells=(*SWEEP, *runs("vip_8", CONTROL)),
        judge=partial(learning, rule="vip_8", controls=(CONTROL,)),
    ),
    Claim(
        where="VIP, Section 6, Figure 3",
        claim="The Gaussian process predicts success with a smaller error than moving average and ridge regression.",
        figure="lower at every shown step (a picture without numbers)",
        setting="The predictors watch the uniform runs on SmolLM2 with 8 rollouts a prompt. " + RUNS_HERE,
        cells=(*SWEEP, *runs(CONTROL)),
        judge=prediction,
    ),
    Claim(
        where="Ours, `Optimal`",
        claim="One rollout a prompt against the optimal baseline learns faster than groups of 8 at equal rollouts.",
        figure="no paper; docs/results.md has the baselines on this model before training",
        setting=RUNS_HERE,
        cells=(*SWEEP, *runs("optimal", CONTROL)),
        judge=partial(learning, rule="optimal", controls=(CONTROL,)),
    ),
    Claim(
        where="Ours, `Optimal`",
        claim="One rollout a prompt against the optimal baseline learns faster than groups of 4 at equal rollouts.",
        figure="no paper",
        setting=RUNS_HERE,
        cells=(*SWEEP, *runs("optimal", "uniform_4")),
        judge=partial(learning, rule="optimal", controls=("uniform_4",)),
    ),
    Claim(
        where="Ours, the control of `Optimal`",
        claim="The optimal baseline learns faster than no baseline, both with one rollout a prompt.",
        figure="no paper",
        setting=RUNS_HERE,
        cells=(*SWEEP, *runs("optimal", "zero")),
        judge=partial(learning, rule="optimal", controls=("zero",)),
    ),
    Claim(
        where="Ours, `Mixed`",
        claim="Choosing prompts whose groups are likely to be mixed learns faster than choosing at random.",
        figure="no paper",
        setting=RUNS_HERE,
        cells=(*SWEEP, *runs("mixed_8", CONTROL)),
        judge=partial(learning, rule="mixed_8", controls=(CONTROL,)),
    ),
    Claim(
        where="SPO (arXiv 2509.13232)",
        claim="SPO learns faster than groups of 8.",
        figure="maj@32 3.4 points above GRPO with 8 rollouts a prompt, Qwen3-8B",
        setting=RUNS_HERE,
        cells=(*SWEEP, *runs("spo", CONTROL)),
        judge=partial(learning, rule="spo", controls=(CONTROL,)),
    ),
)
