"""What a policy learns under VIP: section 6 of arXiv 2602.01601 with Tables 1 and 3, and Appendix F."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from benchmarks.evidence.cell import Cell
from benchmarks.evidence.claim import Claim, Finding, Values, Verdict, difference, sign
from benchmarks.evidence.learning import SEEDS
from benchmarks.evidence.vip_learning_measured import SWEEP_SEED, arm, sweep

RATE = 1e-3
"""The best of three for the Gaussian process (benchmarks/results/methods.md) and for uniform in every setting."""
FIRST = (8, "rloo")
OTHERS = ((8, "dr_grpo"), (16, "rloo"), (16, "dr_grpo"))
SETTINGS = (FIRST, *OTHERS)
NAMES = {"rloo": "RLOO", "dr_grpo": "Dr. GRPO"}
AT_8_RLOO = ("belief", "exact", "shuffled", "ridge", "inverse_accuracy", "inverse_variance")
CELLS: Mapping[str, Cell] = {
    f"vip_learning.{rule}_{n}_{e}": Cell(partial(arm, rule, n, e, RATE), 1.3, SEEDS)
    for rule, n, e in (*(("gp", *setting) for setting in SETTINGS), *((rule, 8, "rloo") for rule in AT_8_RLOO))
} | {"vip_learning.rates": Cell(partial(sweep, "gp", OTHERS), 2.2, (SWEEP_SEED,))}
METRICS = {"pass_32": "Pass@32", "mean": "Mean@32", "maj_32": "Maj@32"}
ARMS = {
    "uniform": "uniform",
    "gp": "VIP, Gaussian process",
    "belief": "VIP, empirical Bayes",
    "exact": "VIP, exact p",
    "shuffled": "VIP, exact p shuffled",
    "ridge": "VIP, ridge",
    "inverse_accuracy": "Gaussian process, inverse accuracy",
    "inverse_variance": "Gaussian process, inverse variance",
}
READING = (
    "In the table, uniform has its figures in percent, others their difference to it in points. 'Variance' is what "
    "Proposition 4.2 or 4.3 gives their counts at the exact p, over that of equal counts. 'Correlation' is that of "
    "predicted and exact p over all steps; both rise during a run, so even shuffled p has one."
)
HERE = (
    "The lab's policy learns from its hard base in 100 steps of 128 rollouts, 16 prompts with 8 each or 8 prompts with "
    "16 each. Pass@32 and Mean@32 are exact on 500 held-out problems, Maj@32 is sampled on 200. There are 5 paired "
    "seeds. The rate is .001, the best of three for uniform in each setting and, under RLOO with 8, for the Gaussian "
    "process (benchmarks/results/methods.md)."
)
ABLATION = (
    "As for Table 1, with RLOO and 8 rollouts a prompt. All arms have the same bounds (3 to 24), budget, prompts and "
    "learning rate. The paper does not print epsilon, bounds or how it solves for the heuristics; ours are the "
    "package's InverseAccuracy and InverseVariance: epsilon .05, and the integers nearest to the shares."
)


def _of(measured: Mapping[str, Values], rule: str, n: int = 8, estimator: str = "rloo") -> Values:
    """Return the values of an arm. Uniform is the control that other modules share."""
    if rule != "uniform":
        return measured[f"vip_learning.{rule}_{n}_{estimator}"]
    control = measured[f"controls.uniform_{n}_{estimator}"]
    passed = {key: [run[k] for run in control["pass_at"]] for key, k in (("mean", "1"), ("pass_32", "32"))}
    return {**control, **passed}


def _points(mine: Values, control: Values, metric: str) -> str:
    """Return the difference in a metric in percentage points: "+0.3 ± 1.1"."""
    return _in_points(difference(mine[metric], control[metric]))


def _in_points(found) -> str:
    return f"{100 * found.mean:+.1f} ± {100 * found.half_width:.1f}"


def _signs(pairs: Sequence[tuple[Values, Values]], metrics: Sequence[str]) -> list[int]:
    return [sign(difference(mine[metric], control[metric])) for mine, control in pairs for metric in metrics]


def _better_everywhere(signs: Sequence[int]) -> Verdict:
    """Return the verdict on "better in each of these": an interval below 0 contradicts it, one that holds 0 is open."""
    if all(each > 0 for each in signs):
        return Verdict.HOLDS
    if any(each > 0 for each in signs):
        return Verdict.CONDITIONS
    return Verdict.FAILS if any(each < 0 for each in signs) else Verdict.OPEN


def _counted(signs: Sequence[int]) -> str:
    """Return how many intervals lie above 0, around it and below."""
    return (
        f"{signs.count(1)} of {len(signs)} intervals lie above 0, {signs.count(0)} hold 0, {signs.count(-1)} below it"
    )


def _against_uniform(measured: Mapping[str, Values], settings: Sequence[tuple[int, str]]) -> Finding:
    """Judge the metrics of Table 1 in some of its settings. The arms of the first setting have controls beside them."""
    pairs = {each: (_of(measured, "gp", *each), _of(measured, "uniform", *each)) for each in settings}
    signs = _signs(list(pairs.values()), list(METRICS))
    found = [difference(mine[metric], control[metric]) for mine, control in pairs.values() for metric in METRICS]
    names = [f"{name} with {n} under {NAMES[e]}" for n, e in settings for name in METRICS.values()]
    told = "".join(
        f"The interval lies {where} 0 for {' and '.join(which)}. "
        for where, side in (("above", 1), ("below", -1))
        if (which := [name for name, each in zip(names, signs, strict=True) if each == side])
    )
    widest = 100 * max(each.half_width or 0.0 for each in found)
    most = 100 * max(each.mean + (each.half_width or 0.0) for each in found)
    points = "; ".join(
        f"{n}, {NAMES[e]}: " + ", ".join(f"{name} {_points(*pairs[n, e], metric)}" for metric, name in METRICS.items())
        for n, e in settings
    )
    ends = ", ".join(f"{100 * np.mean(control['pass_32']):.0f}%" for _, control in pairs.values())
    return Finding(
        f"Gaussian process less uniform, points: {points}",
        _better_everywhere(signs),
        f"{told}{_counted(signs)}. The widest is ± {widest:.1f} points, and none reaches above {most:+.1f}. "
        f"There is little room above uniform's Pass@32 at the end ({ends}). The area, which is the mean height of the "
        f"curve of Mean@32, has room for a gain. {READING}",
        ["rollouts, estimator", "arm", *METRICS.values(), "area", "variance", "correlation"],
        [row for each in settings for row in _rows_of(measured, each)],
    )


def _elsewhere(measured: Mapping[str, Values]) -> Finding:
    """Judge the other settings of Table 1, and tell which rates a sweep of one seed would choose there."""
    found = _against_uniform(measured, OTHERS)
    best = [max(areas, key=areas.get) for areas in measured["vip_learning.rates"].values()]
    return replace(found, why=f"The best rates of the Gaussian process at one seed are {', '.join(best)}. {found.why}")


def _rows_of(measured: Mapping[str, Values], setting: tuple[int, str]) -> list[list[str]]:
    """Return the rows of the arms in one setting."""
    control, (n, estimator) = _of(measured, "uniform", *setting), setting
    arms = {
        rule: _of(measured, rule, *setting) for rule in ("gp", *(("exact", "shuffled") if setting == FIRST else ()))
    }
    ends = {"uniform": _ends(control, None)} | {rule: _ends(each, control) for rule, each in arms.items()}
    return [[f"{n}, {NAMES[estimator]}", ARMS[rule], *own] for rule, own in ends.items()]


def _ends(mine: Values, control: Values | None) -> list[str]:
    """Return a row's metrics: means for the control, differences in points for others; then what explains them."""
    metrics = (*METRICS, "area")
    if control is None:
        return [*(f"{100 * np.mean(mine[metric]):.1f}" for metric in metrics), "1", "-"]
    belief = [each for each in mine["belief"] if each is not None]
    ratio, correlation = f"{np.mean(mine['variance']):.2f}", f"{np.mean(belief):.2f}" if belief else "-"
    return [*(_points(mine, control, metric) for metric in metrics), ratio, correlation]


def _efficiency(measured: Mapping[str, Values]) -> Finding:
    mine, control = _of(measured, "gp"), _of(measured, "uniform")
    smaller = difference(measured["controls.uniform_4_rloo"]["area"], control["area"])
    return Finding(
        f"area {_points(mine, control, 'area')} points",
        _better_everywhere(_signs([(mine, control)], ["area"])),
        "The area is the mean height of the learning curve over equal rollouts. Uniform groups of 4, with 64 rollouts "
        f"an update, gain {_in_points(smaller)} points over uniform groups of 8, without any prediction. By "
        f"Proposition 4.3 the counts of VIP have x{np.mean(mine['variance']):.2f} of uniform's variance.",
    )


def _default_belief(measured: Mapping[str, Values]) -> Finding:
    """Judge VIP as the package has it: with a belief from counts instead of the Gaussian process."""
    mine, control, gp = (_of(measured, rule) for rule in ("belief", "uniform", "gp"))
    beliefs = " and ".join(f"{np.mean(each['belief']):.2f}" for each in (mine, gp))
    ratios = " and ".join(f"x{np.mean(each['variance']):.2f}" for each in (mine, gp))
    return Finding(
        f"area {_points(mine, control, 'area')} points",
        _better_everywhere(_signs([(mine, control)], ["area"])),
        f"Less the Gaussian process {_points(mine, gp, 'area')} points. Their p correlates with the exact one by "
        f"{beliefs}. By Proposition 4.3 their counts have {ratios} of uniform's variance. The exact p gains "
        f"{_points(_of(measured, 'exact'), control, 'area')} points, so no belief can gain much here.",
    )


def _curves(measured: Mapping[str, Values]) -> Finding:
    mine, control = _of(measured, "gp"), _of(measured, "uniform")
    above = np.array(mine["curve"][1:]) > np.array(control["curve"][1:])
    return Finding(
        f"VIP's mean curve is higher at {above.sum()} of {above.size} evaluations",
        _better_everywhere(_signs([(mine, control)], ["area"])),
        "The evaluations of one run depend on each other, so their count is no test. The verdict is that of the area: "
        f"{_points(mine, control, 'area')} points.",
    )


def _allocation_itself(measured: Mapping[str, Values]) -> Finding:
    exact, shuffled, uniform = (_of(measured, rule) for rule in ("exact", "shuffled", "uniform"))
    signs, knows = (_signs([(exact, control)], [*METRICS, "area"]) for control in (uniform, shuffled))
    gained, known = (
        ", ".join(f"{name} {_points(exact, control, metric)}" for metric, name in {**METRICS, "area": "area"}.items())
        for control in (uniform, shuffled)
    )
    variance, without = (f"x{np.mean(each['variance']):.2f}" for each in (exact, shuffled))
    return Finding(
        f"exact p less uniform, points: {gained}",
        _better_everywhere(signs),
        f"{_counted(signs)}. By Proposition 4.3 the counts have {variance} of uniform's variance, and {without} with "
        f"shuffled p. Exact less shuffled p: {known} ({_counted(knows)}). No predictor can know more than the exact p.",
    )


def _ablation_rows(measured: Mapping[str, Values]) -> list[list[str]]:
    control = _of(measured, "uniform")
    rules = ("inverse_accuracy", "inverse_variance", "ridge", "gp", "belief", "exact", "shuffled")
    rows = [[ARMS["uniform"], *_ends(control, None)]]
    return rows + [[ARMS[rule], *_ends(_of(measured, rule), control)] for rule in rules]


ABLATION_COLUMNS = ("arm", *METRICS.values(), "area", "variance", "correlation")


def _allocation_matters(measured: Mapping[str, Values]) -> Finding:
    gp, heuristics = _of(measured, "gp"), [_of(measured, f"inverse_{each}") for each in ("accuracy", "variance")]
    signs = _signs([(gp, each) for each in heuristics], list(METRICS))
    areas = _signs([(gp, each) for each in heuristics], ["area"])
    return Finding(
        "VIP less inverse accuracy and less inverse variance: "
        + "; ".join(
            f"{name} {' and '.join(_points(gp, each, metric) for each in heuristics)}"
            for metric, name in METRICS.items()
        ),
        _better_everywhere(signs),
        f"{_counted(signs)}. By area {' and '.join(_points(gp, each, 'area') for each in heuristics)} points "
        f"({_counted(areas)}). By Proposition 4.3 the heuristics have "
        f"x{' and x'.join(format(np.mean(each['variance']), '.2f') for each in heuristics)} of uniform's "
        f"variance, and VIP has x{np.mean(gp['variance']):.2f}. {READING}",
        ABLATION_COLUMNS,
        _ablation_rows(measured),
    )


def _ridge_is_worse(measured: Mapping[str, Values]) -> Finding:
    gp, ridge = _of(measured, "gp"), _of(measured, "ridge")
    signs = _signs([(gp, ridge)], list(METRICS))
    beliefs = " and ".join(f"{np.mean(each['belief']):.2f}" for each in (gp, ridge))
    ratios = " and ".join(f"x{np.mean(each['variance']):.2f}" for each in (gp, ridge))
    return Finding(
        "Gaussian process less ridge: "
        + ", ".join(f"{name} {_points(gp, ridge, metric)}" for metric, name in METRICS.items()),
        _better_everywhere(signs),
        f"{_counted(signs)}, by area {_points(gp, ridge, 'area')} points. Their p correlates with the exact one by "
        f"{beliefs}. By Proposition 4.3 their counts have {ratios} of uniform's variance. VIP reads the mean of a "
        "belief alone, so the calibrated uncertainty that the paper names cannot be the reason for a difference.",
    )


def _best_of_all(measured: Mapping[str, Values]) -> Finding:
    gp = _of(measured, "gp")
    others = {rule: _of(measured, rule) for rule in ("uniform", "inverse_accuracy", "inverse_variance", "ridge")}
    signs = _signs([(gp, each) for each in others.values()], list(METRICS))
    best = {
        name: ARMS[max(("gp", *others), key=lambda rule: np.mean((others | {"gp": gp})[rule][metric]))]
        for metric, name in METRICS.items()
    }
    return Finding(
        "largest mean: " + ", ".join(f"{metric} {rule}" for metric, rule in best.items()),
        _better_everywhere(signs),
        f"VIP with the Gaussian process less each of the four other arms: {_counted(signs)}. The largest of five means "
        "within the noise is no ranking.",
    )


KNOWN = ["vip_learning.exact_8_rloo", "vip_learning.shuffled_8_rloo"]
HEURISTICS = ["vip_learning.inverse_accuracy_8_rloo", "vip_learning.inverse_variance_8_rloo"]
BELIEF = "vip_learning.belief_8_rloo"
AT_8 = ["vip_learning.gp_8_rloo", "controls.uniform_8_rloo"]
ELSEWHERE = [f"{rule}_{n}_{e}" for n, e in OTHERS for rule in ("vip_learning.gp", "controls.uniform")]
CLAIMS: tuple[Claim, ...] = (
    Claim(
        where="Table 1, 8 a prompt, RLOO",
        claim="VIP raises Pass@32, Mean@32 and Maj@32 with 8 rollouts a prompt under RLOO.",
        figure="Qwen2.5-Math-1.5B, AIME24: Pass@32 18.29 to 30.55, Mean@32 3.43 to 9.68, Maj@32 6.88 to 15.65",
        setting=HERE,
        cells=[*AT_8, *KNOWN],
        judge=lambda measured: _against_uniform(measured, [FIRST]),
    ),
    Claim(
        where="Table 1, 16 a prompt, Dr. GRPO",
        claim="VIP raises Pass@32, Mean@32 and Maj@32 under Dr. GRPO and with 16 rollouts a prompt too.",
        figure="Qwen2.5-Math-1.5B, AIME24, Pass@32: 8 and Dr. GRPO 34.56 to 33.63, 16 and RLOO 18.0 to 27.0, 16 and "
        "Dr. GRPO 23.96 to 27.37",
        setting=HERE,
        cells=[*ELSEWHERE, "vip_learning.rates"],
        judge=_elsewhere,
    ),
    Claim(
        where="Abstract",
        claim="VIP learns more from equal rollouts than uniform allocation.",
        figure='"VIP consistently improves sampling efficiency"',
        setting=HERE,
        cells=[*AT_8, "controls.uniform_4_rloo"],
        judge=_efficiency,
    ),
    Claim(
        where="Appendix F, Figures 6 and 7",
        claim="With VIP accuracy is higher at most evaluations of a run.",
        figure='"VIP performance exceeded GRPO at most training steps"',
        setting=HERE + " The paper's figures compare with GRPO.",
        cells=AT_8,
        judge=_curves,
    ),
    Claim(
        where="Section 6, ablation",
        claim="The gain of VIP comes from spending rollouts by p (1 - p).",
        figure='"VIP benefits primarily from variance-aware budget allocation"',
        setting=ABLATION + " VIP is told the exact p of the current policy, or that p shuffled within the batch.",
        cells=[*KNOWN, "controls.uniform_8_rloo"],
        judge=_allocation_itself,
    ),
    Claim(
        where="Table 3, allocation",
        claim="Heuristics in place of VIP's allocation lower all metrics, with the same Gaussian process.",
        figure="AIME24, Pass@32, Mean@32, Maj@32: VIP 30.55, 9.68, 15.65; inverse accuracy 24.61, 6.77, 7.90; inverse "
        "variance 25.83, 4.90, 10.90",
        setting=ABLATION,
        cells=[*AT_8, *HEURISTICS, *KNOWN, BELIEF, "vip_learning.ridge_8_rloo"],
        judge=_allocation_matters,
    ),
    Claim(
        where="Table 3, predictor",
        claim="Ridge regression in place of the Gaussian process is worse on all metrics.",
        figure="AIME24, Pass@32, Mean@32, Maj@32: Gaussian process 30.55, 9.68, 15.65; ridge 29.90, 6.97, 14.79",
        setting=ABLATION,
        cells=["vip_learning.gp_8_rloo", "vip_learning.ridge_8_rloo"],
        judge=_ridge_is_worse,
    ),
    Claim(
        where="Table 3, all arms",
        claim="VIP is the best of the five arms on every metric.",
        figure="AIME24 30.55, 9.68, 15.65 and AIME25 26.54, 6.35, 13.72: the highest of each column",
        setting=ABLATION,
        cells=[*AT_8, *HEURISTICS, "vip_learning.ridge_8_rloo"],
        judge=_best_of_all,
    ),
    Claim(
        where="Ours, the default belief",
        claim="VIP with the belief that it has by default, empirical Bayes, learns more than uniform allocation.",
        figure="- (not in the paper)",
        setting=ABLATION,
        cells=[*AT_8, BELIEF, "vip_learning.exact_8_rloo"],
        judge=_default_belief,
    ),
)
