"""Measure the bias of the gradient when counts depend on outcomes, rule by rule, and what corrects it.

The ratio of expected estimate to truth is exact for rules that treat prompts one by one (``bias_exact``). It is also
measured for every rule (``bias_measured``).

    python -m benchmarks.bias
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from matplotlib.figure import Figure

from apportion import (
    AR3PO,
    DAPO,
    HORA,
    VIP,
    Allocator,
    Belief,
    InverseAccuracy,
    InverseVariance,
    Neyman,
    Plan,
    ReinforceAda,
    Uniform,
)
from apportion.allocators.hora import maximise_hits
from apportion.predictors import DiscountedCounts, Predictor
from apportion.types import Floats
from benchmarks.bias_exact import SUCCESS, Exact, estimator, exact, expected_rollouts, first_round_factors, leaves
from benchmarks.bias_measured import (
    BATCHES,
    PROMPTS,
    SEED,
    TRUTH,
    by_prompt,
    by_round,
    inverse_binomial,
    measure,
    over_drawn,
    summed,
)
from benchmarks.common import table, write

SMALL_TARGET, SMALL_BATCHES = 8, 15_000
BATCH_WIDE = ("reinforce_plus_plus", "reinforce_plus_plus_baseline", "spo", "batch_optimal")
"""Estimators with one scale or one baseline for the batch. They have no exact expectation for one prompt."""
AT = int(np.flatnonzero(SUCCESS == 0.1)[0])
"""The index of p = .1, at which noise is compared."""
AT_SHOWN = np.isin(SUCCESS, (0.1, 0.5, 0.9))
PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "bias.png"


@dataclass
class Known(Predictor):
    """Knows every prompt's success probability, to show a rule with a perfect predictor."""

    name: ClassVar[str] = "known"

    def predict(self, prompts):
        return Belief.from_mean([SUCCESS[prompt.data] for prompt in prompts])

    def update(self, batch):
        pass


@dataclass(frozen=True, kw_only=True)
class HORAWithMore(HORA):
    """HORA with at least one rollout for every prompt beyond its pre-rollouts."""

    def plan(self, batch):
        if not batch.round:
            return super().plan(batch)
        total = self._total(len(batch.prompts))
        low = np.maximum(batch.asked, self.pre_rollouts + 1)
        return Plan(maximise_hits(batch.posterior, total, low, self.high) - batch.asked)


RULES: dict[str, Callable[[], Allocator]] = {
    "uniform": Uniform,
    "vip": lambda: VIP(predictor=Known()),
    "vip, learning": lambda: VIP(predictor=DiscountedCounts()),
    "neyman": lambda: Neyman(predictor=Known()),
    "inverse_accuracy": lambda: InverseAccuracy(predictor=Known()),
    "inverse_variance": lambda: InverseVariance(predictor=Known()),
    "hora": HORA,
    "ar3po": lambda: AR3PO(reuse="none"),
    "ar3po, reuse": AR3PO,
    "ar3po, reuse in the loss": lambda: AR3PO(reuse="recompute"),
    "reinforce_ada, positive": lambda: ReinforceAda(exit="positive"),
    "reinforce_ada, balanced": ReinforceAda,
    "reinforce_ada, all in the loss": lambda: ReinforceAda(down_sample=False),
    "dapo": DAPO,
}
SEPARABLE = {"uniform", "ar3po", "reinforce_ada, positive", "reinforce_ada, balanced", "reinforce_ada, all in the loss"}
"""Rules that treat each prompt independently of other prompts and of earlier batches."""


def exact_ratios(rule, name, weights):
    """Return the expected ratios [P] in closed form, or None unless the rule treats prompts one by one.

    DAPO's kept groups are independent draws from the mixed groups, so a kept prompt counts 1 / P(mixed).
    """
    if name in BATCH_WIDE or weights == "rollout" or (rule == "dapo" and weights == "sum"):
        return None
    if rule == "dapo":
        found = leaves(Uniform(DAPO.usual_rollouts))
        informative = np.array([leaf.group.informative for leaf in found], float)
        return exact(found, name, scale=informative / mixed_share(found)).ratio
    if rule in SEPARABLE:
        return exact(leaves(RULES[rule]()), name, weights).ratio
    return None


def mixed_share(found):
    """Return the probability that a prompt's group is mixed, averaged over ``SUCCESS``."""
    return float(np.mean([sum(x.probability(p) for x in found if x.group.informative) for p in SUCCESS]))


def batch_cosine(ratio):
    """Return the cosine of expected batch gradient and truth, for tabular policies with own parameters by p."""
    lengths = (TRUTH**2).sum(1)
    return float(ratio @ lengths / np.sqrt((ratio**2 @ lengths) * lengths.sum()))


@dataclass(frozen=True)
class Cell:
    """The results of one rule, estimator and weights: ratio, half its 95% interval and the exact ratio, all [P]."""

    ratio: Floats
    half: Floats
    exact: Floats | None

    @property
    def best(self):
        return self.ratio if self.exact is None else self.exact

    def row(self):
        """Return the exact values, or the measured ones with their intervals."""
        if self.exact is not None:
            return [f"{value:.2f}" for value in self.exact]
        return _with_intervals(self.ratio, self.half)


def _with_intervals(ratio, half):
    return [f"{value:.2f} ± {error:.2f}" for value, error in zip(ratio, half, strict=True)]


def cells_of(rule, measured):
    return {key: Cell(*measured.ratio(*key), exact_ratios(rule, *key)) for key in measured.coefficients}


Correction = tuple[str, str, str, Floats, Floats | None, float | None]
"""Rule, correction, what it estimates, ratio [P], half its interval [P] unless exact, and rollouts for error 1."""


def corrections():
    """Return every correction, and each rule without a correction."""
    found: list[Correction] = []
    for rule in ("uniform", "ar3po", "reinforce_ada, all in the loss"):
        ends = leaves(RULES[rule]())
        rollouts = expected_rollouts(ends)[AT]
        factors = first_round_factors(ends)
        ways: list[tuple[str, str, Exact]] = [("rloo", "one a prompt", exact(ends, "rloo"))]
        if rule != "uniform":
            ways.append(("rloo times the first round's factors", "one a prompt", exact(ends, "rloo", scale=factors)))
            ways.append(("rloo, summed", "E[n]", exact(ends, "rloo", "sum")))
        ways.append(("sequential, summed", "E[n]", exact(ends, "sequential", "sum")))
        ways.append(("reinforce, b = p, summed", "E[n]", exact(ends, "reinforce", "sum")))
        for what, weight, way in ways:
            found.append((rule, what, weight, way.ratio, None, float((way.noise / way.ratio)[AT] ** 2 * rollouts)))
    ends = leaves(ReinforceAda())
    kept_share = np.array([leaf.group.keep.mean() for leaf in ends])
    for what, way in (
        ("rloo, over the kept rollouts", exact(ends, "rloo")),
        ("rloo, over all rollouts", exact(ends, "rloo", scale=kept_share)),
    ):
        error = float((way.noise / way.ratio)[AT] ** 2 * expected_rollouts(ends)[AT])
        found.append(("reinforce_ada, balanced", what, "one a prompt", way.ratio, None, error))
    names = {name: estimator(name) for name in ("rloo", "sequential", "reinforce")}
    more = measure(
        HORAWithMore(pre_rollouts=8, rollouts_per_prompt=16),
        names,
        {"prompt": by_prompt, "sum": summed, "round": by_round},
    )
    for what, key, weight in (
        ("rloo", ("rloo", "prompt"), "one a prompt"),
        ("half a weight to each round's mean", ("sequential", "round"), "one a prompt"),
        ("rloo, summed", ("rloo", "sum"), "E[n]"),
        ("sequential, summed", ("sequential", "sum"), "E[n]"),
        ("reinforce, b = p, summed", ("reinforce", "sum"), "E[n]"),
    ):
        found.append(("hora, at least one extra", what, weight, *more.ratio(*key), None))
    small = measure(
        DAPO(target=SMALL_TARGET),
        {"rloo": names["rloo"]},
        {"kept": by_prompt, "drawn": over_drawn, "inverse binomial": inverse_binomial},
        prompts=SMALL_TARGET,
        batches=SMALL_BATCHES,
    )
    for what, key in (
        ("rloo, over the B kept", "kept"),
        ("over the D drawn", "drawn"),
        ("over the B kept, times (B - 1) / (D - 1)", "inverse binomial"),
    ):
        found.append((f"dapo, B = {SMALL_TARGET}", what, "one a prompt", *small.ratio("rloo", key), None))
    return found


def _correction_row(correction):
    rule, what, weight, ratio, half, rollouts = correction
    values = [f"{value:.3f}" for value in ratio] if half is None else _with_intervals(ratio, half)
    return [rule, what, weight, *np.array(values)[AT_SHOWN], "-" if rollouts is None else f"{rollouts:.1f}"]


def main():
    """Measure every rule, and write the table ``bias`` and its picture."""
    names = {name: estimator(name) for name in ("rloo", "grpo")}
    cells = {rule: cells_of(rule, measure(make(), names)) for rule, make in RULES.items()}
    mended = corrections()
    at_p = [f"p = {p:g}" for p in SUCCESS]
    known = [(cell, cell.half > 1e-9) for mine in cells.values() for cell in mine.values() if cell.exact is not None]
    scores = np.concatenate([1.96 * (cell.ratio - cell.exact)[open] / cell.half[open] for cell, open in known])
    shown = [f"p = {p:g}" for p in SUCCESS[AT_SHOWN]]
    write(
        "bias",
        "Expected gradient over the true one, by rule",
        ["rule", *at_p, "cosine of the batch"],
        [
            [rule, *mine["rloo", "prompt"].row(), f"{batch_cosine(mine['rloo', 'prompt'].best):.3f}"]
            for rule, mine in cells.items()
        ],
        [
            "RLOO, every prompt with weight 1; 1 is unbiased. Exact where no interval is given, else measured, with "
            f"95% intervals: {PROMPTS} prompts a batch, each p equally likely, {BATCHES:,} batches. Predictors know "
            "the true p, but for `vip, learning`. `reuse` is AR3PO's way, outside the loss, its store full. The cosine "
            "is that of the expected batch gradient and the truth, for tabular policies.",
            f"Measured against exact, RLOO and GRPO under all weights: {len(scores):,} values, "
            f"{np.mean(np.abs(scores) > 1.96):.1%} outside their 95% interval, the farthest at "
            f"{np.abs(scores).max():.1f} standard errors.",
            "GRPO's division by the deviation weighs prompts under any rule. With uniform counts: "
            + ", ".join(f"{value:.2f}" for value in cells["uniform"]["grpo", "prompt"].best)
            + ".",
            "## What corrects it",
            "`weight` is the factor of each prompt's gradient. The last column is the number of rollouts for a "
            f"relative standard error of 1 at p = {SUCCESS[AT]:g}.",
            table(["rule", "done", "weight", *shown, "rollouts for error 1"], [_correction_row(c) for c in mended]),
            "![Bias by p, and what corrects it](../../docs/pictures/bias.png)",
        ],
        seeds=[SEED],
    )
    draw(cells, mended)


SHOWN = {
    "uniform": "#999999",
    "hora": "#0072B2",
    "ar3po": "#009E73",
    "reinforce_ada, positive": "#E69F00",
    "reinforce_ada, balanced": "#D55E00",
    "dapo": "#CC79A7",
}


def draw(cells, mended):
    """Draw RLOO on the left, GRPO over uniform's in the middle, and corrections of weight 1 on the right."""
    figure = Figure(figsize=(15, 4.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    sixteen = exact(leaves(Uniform(16)), "grpo").ratio
    for rule, colour in SHOWN.items():
        cell, divided = cells[rule]["rloo", "prompt"], cells[rule]["grpo", "prompt"]
        left.errorbar(SUCCESS, cell.best, None if cell.exact is not None else cell.half, color=colour, label=rule)
        base = sixteen if rule in ("hora", "dapo") else cells["uniform"]["grpo", "prompt"].best
        middle.plot(SUCCESS, divided.best / base, color=colour, label=rule)
    colours = {"ar3po": "#009E73", "reinforce_ada, all": "#D55E00", "hora": "#0072B2", "dapo": "#CC79A7"}
    for rule, what, weight, ratio, half, _ in mended:
        colour = next((mine for start, mine in colours.items() if rule.startswith(start)), None)
        if colour is None or weight != "one a prompt" or what == "over the D drawn":
            continue
        raw = what.startswith("rloo") and "factors" not in what
        right.errorbar(
            SUCCESS,
            ratio,
            half,
            color=colour,
            alpha=0.35 if raw else 1,
            linestyle=":" if raw else "-",
            label=None if raw else f"{rule}: {what}",
        )
    for axes, title in (
        (left, "RLOO, every prompt with weight 1"),
        (middle, "GRPO, over its own value under uniform counts"),
        (right, "Mended (dotted: before)"),
    ):
        _dress(axes, title)
    for axes in (left, middle):
        axes.set_yscale("log")
        axes.set_ylim(0.5, 20)
        axes.set_yticks([0.5, 1, 2, 5, 10, 20], ["0.5", "1", "2", "5", "10", "20"])
        axes.minorticks_off()
    right.set_ylim(0.85, 1.75)
    right.legend(frameon=False, fontsize=7, loc="upper right")
    left.legend(frameon=False, fontsize=8)
    left.set_ylabel("expected estimate / truth")
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURE, dpi=130)


def _dress(axes, title):
    axes.axhline(1, color="black", linewidth=0.8, linestyle=":")
    axes.set_xscale("logit")
    axes.set_xticks(SUCCESS, [f"{p:g}"[1:] for p in SUCCESS], fontsize=8)
    axes.minorticks_off()
    axes.set(xlabel="success probability of the prompt", title=title)


if __name__ == "__main__":
    main()
