"""Measure the bias of the gradient when counts depend on outcomes, rule by rule, and what corrects it.

The ratio of expected estimate to truth is exact for rules that treat prompts one by one (``bias_exact``). For the
others it is measured (``bias_measured``).

    python -m benchmarks.bias
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

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
from benchmarks.bias_exact import SUCCESS, exact, expected_rollouts, first_round_factors, leaves
from benchmarks.bias_measured import BATCHES, PROMPTS, SEED, by_prompt, by_round, inverse_binomial, measure, summed
from benchmarks.common import table, write

SMALL_TARGET, SMALL_BATCHES = 8, 15_000
AT = int(np.flatnonzero(SUCCESS == 0.1)[0])
"""The index of p = .1, at which noise is compared."""
AT_SHOWN = np.isin(SUCCESS, (0.1, 0.5, 0.9))


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


def exact_ratios(rule, name="rloo"):
    """Return the expected ratios [P] in closed form, or None unless the rule treats prompts one by one.

    DAPO's kept groups are independent draws from the mixed groups, so a kept prompt counts 1 / P(mixed).
    """
    if rule == "dapo":
        found = leaves(Uniform(DAPO.usual_rollouts))
        informative = np.array([leaf.group.informative for leaf in found], float)
        return exact(found, name, scale=informative / mixed_share(found)).ratio
    return exact(leaves(RULES[rule]()), name).ratio if rule in SEPARABLE else None


def mixed_share(found):
    """Return the probability that a prompt's group is mixed, averaged over ``SUCCESS``."""
    return float(np.mean([sum(x.probability(p) for x in found if x.group.informative) for p in SUCCESS]))


def batch_cosine(ratio):
    """Return the cosine of expected batch gradient and truth, for tabular policies with own parameters by p."""
    lengths = (SUCCESS * (1 - SUCCESS)) ** 2
    return float(ratio @ lengths / np.sqrt((ratio**2 @ lengths) * lengths.sum()))


def with_intervals(ratio, half):
    return [f"{value:.2f} ± {error:.2f}" for value, error in zip(ratio, half, strict=True)]


def row(rule):
    """Return the exact ratios of a rule, or the measured ones with their intervals, and the cosine."""
    ratio = exact_ratios(rule)
    if ratio is None:
        ratio, half = measure(RULES[rule](), ["rloo"], {"prompt": by_prompt}).ratio("rloo", "prompt")
        cells = with_intervals(ratio, half)
    else:
        cells = [f"{value:.2f}" for value in ratio]
    return [rule, *cells, f"{batch_cosine(ratio):.3f}"]


def corrections():
    """Yield every correction, and each rule without one: rule, correction, what it estimates, ratios, and noise."""
    for rule in ("uniform", "ar3po", "reinforce_ada, all in the loss"):
        ends = leaves(RULES[rule]())
        ways = [("rloo", "one a prompt", exact(ends, "rloo"))]
        if rule != "uniform":
            mended = exact(ends, "rloo", scale=first_round_factors(ends))
            ways.append(("rloo times the first round's factors", "one a prompt", mended))
            ways.append(("sequential, summed", "E[n]", exact(ends, "sequential", "sum")))
        for what, weight, way in ways:
            rollouts = (way.noise / way.ratio)[AT] ** 2 * expected_rollouts(ends)[AT]
            yield [rule, what, weight, *(f"{value:.3f}" for value in way.ratio[AT_SHOWN]), f"{rollouts:.1f}"]
    more = measure(
        HORAWithMore(pre_rollouts=8, rollouts_per_prompt=16),
        ["rloo", "sequential", "reinforce"],
        {"prompt": by_prompt, "sum": summed, "round": by_round},
    )
    small = measure(
        DAPO(target=SMALL_TARGET),
        ["rloo"],
        {"kept": by_prompt, "inverse binomial": inverse_binomial},
        prompts=SMALL_TARGET,
        batches=SMALL_BATCHES,
    )
    hora, dapo = (more, "hora, at least one extra"), (small, f"dapo, B = {SMALL_TARGET}")
    for (found, rule), what, weight, *key in (
        (hora, "rloo", "one a prompt", "rloo", "prompt"),
        (hora, "half a weight to each round's mean", "one a prompt", "sequential", "round"),
        (hora, "sequential, summed", "E[n]", "sequential", "sum"),
        (hora, "reinforce, b = p, summed", "E[n]", "reinforce", "sum"),
        (dapo, "rloo, over the B kept", "one a prompt", "rloo", "kept"),
        (dapo, "over the B kept, times (B - 1) / (D - 1)", "one a prompt", "rloo", "inverse binomial"),
    ):
        ratio, half = found.ratio(*key)
        yield [rule, what, weight, *with_intervals(ratio[AT_SHOWN], half[AT_SHOWN]), "-"]


def main():
    """Measure every rule, and write the table ``bias``."""
    at_p = np.array([f"p = {p:g}" for p in SUCCESS])
    write(
        "bias",
        "Expected gradient over the true one, by rule",
        ["rule", *at_p, "cosine of the batch"],
        [row(rule) for rule in RULES],
        [
            "RLOO, every prompt with weight 1; 1 is unbiased. Exact where no interval is given, else measured, with "
            f"95% intervals: {PROMPTS} prompts a batch, each p equally likely, {BATCHES:,} batches. Predictors know "
            "the true p, but for `vip, learning`. `reuse` is AR3PO's way, outside the loss, its store full. The cosine "
            "is that of the expected batch gradient and the truth, for tabular policies.",
            "GRPO's division by the deviation weighs prompts under any rule. With uniform counts: "
            + ", ".join(f"{value:.2f}" for value in exact_ratios("uniform", "grpo"))
            + ".",
            "## What corrects it",
            "`weight` is the factor of each prompt's gradient. The last column is the number of rollouts for a "
            f"relative standard error of 1 at p = {SUCCESS[AT]:g}.",
            table(["rule", "done", "weight", *at_p[AT_SHOWN], "rollouts for error 1"], list(corrections())),
        ],
        seeds=[SEED],
    )


if __name__ == "__main__":
    main()
