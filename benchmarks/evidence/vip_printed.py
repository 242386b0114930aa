"""What the printed figures of arXiv 2602.01601 say about themselves: Table 1, and the settings of Table 9."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import stats

from apportion.toml import load
from apportion.types import Floats
from benchmarks.common import ROOT
from benchmarks.evidence.cell import Cell
from benchmarks.evidence.claim import Claim, Finding, Values, Verdict

CELLS: Mapping[str, Cell] = {}

MODELS = ("Qwen2.5-Math-1.5B", "Qwen2.5-Math-7B", "Llama-3.2-3B-Instruct")
METRICS = ("Pass@32", "Mean@32", "Maj@32")
PROBLEMS = 30
"""Problems of AIME24, and of AIME25."""
PRINTED = """\
34.56 7.91 11.26 24.03 7.62 4.89
33.63 9.167 15.5 29.82 6.14 10.76
18.29 3.43 6.88 15.90 2.29 8.04
30.55 9.68 15.65 26.54 6.35 13.72
50.0 19.0 34.0 34.0 10.0 15.0
58.98 23.65 38.15 36.08 10.0 19.74
53.0 18.0 24.0 45.0 11.0 16.0
58.0 20.0 35.0 34.0 11.0 18.0
24.68 6.25 10.62 4.28 0.21 0.07
29.18 8.85 17.21 9.37 0.94 2.35
28.84 8.229 13.95 9.157 0.5208 0.3633
35.59 9.479 19.0 9.99 0.625 0.61
23.96 9.479 13.64 28.21 5.83 9.97
27.37 12.08 15.01 33.05 8.43 13.77
18.0 3.0 7.0 22.0 2.0 3.0
27.0 6.0 14.0 26.0 8.0 4.0
52.0 19.0 35.0 36.0 10.0 20.0
57.0 20.0 33.0 36.0 13.0 21.0
37.43 14.79 21.93 41.51 10.0 19.44
53.85 21.77 35.59 38.32 10.31 21.4
23.26 6.35 10.09 5.49 0.63 1.31
32.34 8.23 14.96 10.67 0.52 0.05
29.3 6.88 1.74 9.57 0.73 1.68
31.32 7.71 1.77 11.42 0.63 0.32
"""
"""Percentages: rows are 8 and 16 a prompt, by model, Dr. GRPO and RLOO, without and with VIP; columns are AIME24 and
AIME25, by metric."""
TABLE = np.array([[float(word) for word in line.split()] for line in PRINTED.splitlines()]).reshape(2, 3, 2, 2, 2, 3)
"""[budget, model, estimator, without and with VIP, benchmark, metric]."""
GAINS: Floats = TABLE[:, :, :, 1] - TABLE[:, :, :, 0]


@dataclass(frozen=True)
class Power:
    """How large the gain of the paper's example is beside its error, in points.

    ``largest_error`` is for arms that solve problems independently, ``least_error`` for one that loses none.
    ``significant`` differences in Pass@32 of the whole table exceed 1.96 independent errors.
    """

    gain: float
    largest_error: float
    least_error: float
    significant: int
    problems: int = PROBLEMS


def power() -> Power:
    """Return the power of Pass@32 on AIME24: Qwen2.5-Math-1.5B, 8 a prompt, RLOO."""
    before, after = TABLE[0, 0, 1, :, 0, 0]
    shares = TABLE[..., 0] / 100
    errors = 100 * np.sqrt((shares * (1 - shares) / PROBLEMS).sum(axis=3))
    won = (after - before) / 100  # the variance of a paired difference is least if no problem is lost
    return Power(
        gain=float(after - before),
        largest_error=float(errors[0, 0, 1, 0]),
        least_error=100 * float(np.sqrt(won * (1 - won) / PROBLEMS)),
        significant=int((np.abs(GAINS[..., 0]) > 1.96 * errors).sum()),
    )


@dataclass(frozen=True)
class Gains:
    """How often a metric is higher, equal and lower with VIP, and the p of a sign test without the equal ones."""

    higher: int
    equal: int
    lower: int
    mean: float
    worst: float
    p: float


def gains(metric: str) -> Gains:
    """Return the gains of a metric over the 24 pairs of the table."""
    found = GAINS[..., METRICS.index(metric)].round(6)
    higher, lower = int((found > 0).sum()), int((found < 0).sum())
    p = stats.binomtest(higher, higher + lower).pvalue
    return Gains(higher, int((found == 0).sum()), lower, float(found.mean()), float(found.min()), float(p))


@dataclass(frozen=True)
class ByModel:
    """Mean relative gains by model, and by how much more the smaller ones gain than the 7B model.

    All are logarithms of after over before. The interval is Welch's.
    """

    means: tuple[float, ...]
    difference: float
    interval: tuple[float, float]


def gains_by_model(metric: str) -> ByModel:
    """Return the relative gains of a metric by model, over 8 pairs each."""
    found = np.log(TABLE[..., 1, :, METRICS.index(metric)] / TABLE[..., 0, :, METRICS.index(metric)])
    by_model = found.transpose(1, 0, 2, 3).reshape(len(MODELS), -1)
    small, large = by_model[[0, 2]].ravel(), by_model[1]
    interval = stats.ttest_ind(small, large, equal_var=False).confidence_interval()
    means = tuple(float(each) for each in by_model.mean(axis=1))
    return ByModel(means, float(small.mean() - large.mean()), (float(interval.low), float(interval.high)))


def _single_gain(measured: Mapping[str, Values]) -> Finding:
    found = power()
    low, high = found.gain / found.largest_error, found.gain / found.least_error
    return Finding(
        f"standard error of the printed difference: {found.least_error:.1f} to {found.largest_error:.1f} points",
        Verdict.HOLDS if low > 1.96 else Verdict.OPEN,
        f"The benchmark has {found.problems} problems and the paper prints one run an arm and no interval. If the arms "
        f"solve problems independently, the error is {found.largest_error:.1f} points and the gain {low:.1f} errors. "
        f"If VIP loses no problem that RLOO solves, it is {found.least_error:.1f} and {high:.1f}. Neither has the "
        "differences between training seeds, which an interval would need. Of the 24 differences in Pass@32 in "
        f"Table 1, {found.significant} exceed 1.96 independent errors.",
    )


def _whole_table(measured: Mapping[str, Values]) -> Finding:
    found = {metric: gains(metric) for metric in METRICS}
    least = {metric: each for metric, each in found.items() if metric != "Maj@32"}
    always = all(each.lower == 0 for each in least.values())
    return Finding(
        ", ".join(f"{metric}: {each.higher} higher, {each.lower} lower" for metric, each in found.items()),
        Verdict.HOLDS if always else Verdict.CONDITIONS,
        "This counts the 24 pairs of the paper's own table: two budgets, three models, two estimators and two "
        "benchmarks. A sign test over them gives "
        + ", ".join(f"p = {each.p:.1g} for {metric}" for metric, each in found.items())
        + ". It takes the pairs as independent, which they are not, because they share 60 problems and their starting "
        "models. So the table speaks for a gain in most settings, and not in every one.",
        ["metric", "higher", "equal", "lower", "mean gain, points", "largest loss, points"],
        [[m, g.higher, g.equal, g.lower, f"{g.mean:+.1f}", f"{g.worst:+.1f}"] for m, g in found.items()],
    )


def _weaker_models(measured: Mapping[str, Values]) -> Finding:
    found = {metric: gains_by_model(metric) for metric in ("Pass@32", "Mean@32")}
    above = [metric for metric, each in found.items() if each.interval[0] > 0]
    below = [metric for metric, each in found.items() if each.interval[1] < 0]
    some = Verdict.CONDITIONS if above else Verdict.FAILS if below else Verdict.OPEN
    return Finding(
        "gain of the smaller models over that of the 7B model: "
        + ", ".join(
            f"{metric} x{np.exp(each.difference):.2f} [{np.exp(each.interval[0]):.2f}, {np.exp(each.interval[1]):.2f}]"
            for metric, each in found.items()
        ),
        Verdict.HOLDS if len(above) == len(found) else some,
        f"The interval lies above 1 for {' and '.join(above) or 'no metric'}. A gain is the metric with VIP over that "
        "without, as a geometric mean over the paper's own pairs; the interval is Welch's. The smaller models start "
        "from lower figures, so the same points are a larger share. We have measured no other size.",
        ["metric", *MODELS],
        [[metric, *(f"x{np.exp(gain):.2f}" for gain in each.means)] for metric, each in found.items()],
    )


TABLE_9 = {
    "optim": "adamw_torch",
    "learning_rate": 1e-6,
    "warmup_steps": 20,
    "prompts a batch": 512,
    "prompts a mini-batch": 512,
    "max_completion_length": 10_240,
    "temperature": 1.0,
}


NOT_PRINTED = (
    "the upper bound U",
    "the clipping epsilon",
    "the schedule after the warm-up",
    "the number of training seeds",
)


def _table_9(measured: Mapping[str, Values]) -> Finding:
    training = load(ROOT / "examples" / "papers" / "vip.toml", [])["training"]
    rows = 8 * training["per_device_train_batch_size"]  # on eight processes, as the file says
    ours = {
        **training,
        "prompts a batch": rows * training["steps_per_generation"] // training["num_generations"],
        "prompts a mini-batch": rows * training["gradient_accumulation_steps"] // training["num_generations"],
    }
    agree = [ours[key] == value for key, value in TABLE_9.items()]
    return Finding(
        f"examples/papers/vip.toml has {sum(agree)} of {len(agree)} values",
        (Verdict.CONDITIONS if NOT_PRINTED else Verdict.HOLDS) if all(agree) else Verdict.FAILS,
        f"A rerun has to choose what the paper does not print: {', '.join(NOT_PRINTED)}. The paper contradicts itself "
        'in two rows: Table 9 has "6/8/Dynamic" responses a prompt and mini-batches of 512, section 6 has 8 and 16 and '
        "Appendix F has mini-batches of 64. We follow section 6 and Table 9.",
    )


CLAIMS: tuple[Claim, ...] = (
    Claim(
        where="Table 1, one difference",
        claim="On AIME24 the gain of 12.3 points in Pass@32 is larger than its sampling error.",
        figure="18.29 to 30.55 on 30 problems, no interval",
        setting="This is computed from the paper's figures and the size of its benchmark. We have trained nothing.",
        judge=_single_gain,
    ),
    Claim(
        where="Table 1, all rows",
        claim="Pass@32 and Mean@32 are higher with VIP for all three models and both budgets.",
        figure='"consistent improvements on Pass@32 and Mean@32 across all three base models and both budgets"',
        setting="This is counted in the paper's own table. We have trained nothing.",
        judge=_whole_table,
    ),
    Claim(
        where="Section 6, size of the model",
        claim="The gain is larger for the 1.5B and 3B models than for the 7B model.",
        figure='"the relative performance gain from VIP is larger for the 1.5B and 3B models than for the 7B model"',
        setting="This is computed from the paper's own table. We have trained nothing.",
        judge=_weaker_models,
    ),
    Claim(
        where="Table 9",
        claim="Table 9 has the settings that a rerun needs.",
        figure="AdamW, 1e-6, 20 warm-up steps, 512 prompts, mini-batch 512, 10,240 tokens, temperature 1.0",
        setting="The file is checked against the table, and a test trains it on the lab's policy. We have not trained "
        "the paper's model.",
        judge=_table_9,
    ),
)
