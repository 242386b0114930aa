"""VIP's assumptions about rewards and gradient norms (Assumption 4.1, Appendix B), and its variance formula."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from benchmarks.evidence.cell import Cell
from benchmarks.evidence.claim import Claim, Finding, Values, Verdict, headline
from benchmarks.evidence.vip_assumptions_measured import LEVEL, SHUFFLES, again, formula, lab, model

CELLS: Mapping[str, Cell] = {
    **{f"vip_assumptions.lab_{base}": Cell(partial(lab, base), 3.0) for base in ("hard", "medium")},
    "vip_assumptions.again": Cell(again, 1.0, tuple(range(20, 28))),
    "vip_assumptions.model": Cell(model, 0.2),
    "vip_assumptions.formula": Cell(formula, 0.2),
}
LABS = {f"{base} base": f"vip_assumptions.lab_{base}" for base in ("hard", "medium")}
BANDS = ("0.05 to 0.2", "0.2 to 0.4", "0.4 to 0.6", "0.6 to 0.8", "0.8 to 0.9", "0.9 to 0.95", "0.95 to 0.99")
OBRIEN = "O'Brien"
FISHER = (
    "Fisher's test rejects true hypotheses too often there, because the norms are not normal. So we judge by the "
    "shuffles and not by its printed p. "
)
SETTING = (
    "The hard and the medium base of the lab with the paper's 600 questions of 16 rollouts, at the start and after "
    "4,032 and 9,600 rollouts of RLOO, one run each; and SmolLM2-135M-Instruct on three few-shot tasks of 40 "
    "questions with 16 completions, not trained by us. A p-value by shuffles is the test's rank among 999 shuffles "
    "that make its null hypothesis true."
)


def settings(values: Mapping[str, Values], kind: str) -> Iterator[tuple[str, Values]]:
    """Yield the name of each setting and its tests of one ``kind``: "correlation", "variance" or "sum of entries"."""
    for base, cell in LABS.items():
        for point, own in values[cell].items():
            yield f"{base}, {int(point):,} rollouts", own[kind]
    for task, own in values["vip_assumptions.model"].items():
        if kind in own:
            yield f"SmolLM2, {task}", own[kind]


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for their number, after Holm (1979), in their order.

    >>> [round(p, 2) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted


def rejected(tested: Sequence[tuple[str, Values]]) -> dict[str, bool]:
    """Return for each setting whether all its tests reject at .05, by shuffles and adjusted for all tests."""
    adjusted = iter(holm([each["by shuffles"] for _, own in tested for each in own["tests"].values()]))
    below = {setting: [next(adjusted) < LEVEL for _ in own["tests"]] for setting, own in tested}
    return {setting: all(each) for setting, each in below.items()}


def never(found: Mapping[str, bool]) -> Verdict:
    """Return the verdict on a claim that nothing is rejected."""
    return Verdict.FAILS if all(found.values()) else Verdict.CONDITIONS if any(found.values()) else Verdict.HOLDS


def correlation(values: Mapping[str, Values]) -> Finding:
    """Judge that rewards and gradient norms are uncorrelated."""
    tested = list(settings(values, "correlation"))
    found = rejected(tested)
    means = [own["mean"] for _, own in tested]
    edgington = [own["tests"]["Edgington"]["p"] for _, own in tested]
    fisher = [own["tests"]["Fisher"]["control"] for _, own in tested]
    return Finding(
        ours=f"mean correlation {min(means):+.2f} to {max(means):+.2f}; Edgington's p {_p(min(edgington))} to "
        f"{_p(max(edgington))}; both tests reject in {sum(found.values())} of {len(found)} settings",
        verdict=never(found),
        why=_note(found, len(tested) * 2)
        + " The control is to shuffle rewards among the rollouts of a question. There Edgington's test rejects in "
        f"{_range([own['tests']['Edgington']['control'] for _, own in tested])} of shuffles at a level of 5%, and "
        f"Fisher's in {_range(fisher)}. "
        + (FISHER if max(fisher) > 2 * LEVEL else "")
        + _again(values["vip_assumptions.again"], ("Fisher", "Edgington")),
        columns=["setting", "questions with both outcomes", "mean correlation", "Fisher p, by shuffles",
                 "Edgington p, by shuffles", "control rejects: Fisher, Edgington"],
        rows=[
            [setting, own["questions"], f"{own['mean']:+.2f}", _both(own, "Fisher"), _both(own, "Edgington"),
             _controls(own)]
            for setting, own in tested
        ],
    )  # fmt: skip


def variance(values: Mapping[str, Values]) -> Finding:
    """Judge that the gradient norm varies equally for all questions."""
    tested = list(settings(values, "variance"))
    sums = [(f"{setting}, sum of entries", own) for setting, own in settings(values, "sum of entries")]
    found = rejected(tested + sums)
    levene = [own["tests"]["Levene"]["p"] for _, own in tested + sums]
    obrien = [own["tests"]["O'Brien"]["p"] for _, own in tested + sums]
    some = [own["90% over 10%"] for _, own in tested if own["90% over 10%"] is not None]
    return Finding(
        ours=f"Levene's p {_p(min(levene))} to {_p(max(levene))}, O'Brien's {_p(min(obrien))} to {_p(max(obrien))}; "
        f"both reject in {sum(found.values())} of {len(found)} settings",
        verdict=never(found),
        why=_note(found, 2 * len(found))
        + " Between the 10% and the 90% quantile of questions the standard deviation of the norm differs by a factor "
        f"of {min(some):.1f} to {max(some):.1f}, where the lower one is not 0. The control is to deal the distances "
        "from the medians to random questions. There Levene's test rejects in "
        f"{_range([own['tests']['Levene']['control'] for _, own in tested])} of shuffles at a level of 5%, and "
        f"O'Brien's in {_range([own['tests'][OBRIEN]['control'] for _, own in tested])}. "
        + _again(values["vip_assumptions.again"], ("Levene", OBRIEN)),
        columns=["setting", "90% over 10% quantile", "Levene p, by shuffles", "O'Brien p, by shuffles",
                 "control rejects: Levene, O'Brien"],
        rows=[
            [setting, "-" if own["90% over 10%"] is None else f"{own['90% over 10%']:.1f}", _both(own, "Levene"),
             _both(own, "O'Brien"), _controls(own)]
            for setting, own in tested + sums
        ],
    )  # fmt: skip


def propositions(values: Mapping[str, Values]) -> Finding:
    """Judge the variance formula: with its assumption made true, and in the lab by a recorded table."""
    cell = values["vip_assumptions.formula"]
    checks = [each for name in ("dr_grpo", "rloo") for each in cell[name].values()]
    right = all(abs(ratio - 1) <= 3 * error for ratio, error, _ in checks)
    shown = {band: headline("gradient_variance", band, "total variance") for band in BANDS}
    ranges = {band: [float(each) for each in re.findall(r"\d+\.\d+", text)] for band, text in shown.items()}
    above = [band for band, (_, low, _) in ranges.items() if low > 1]
    off = [abs(mean) for _, _, mean in cell["rloo, as in section 4"].values()]
    verdict = Verdict.FAILS if not right else Verdict.CONDITIONS if above else Verdict.HOLDS
    ratios = [ratio for ratio, _, _ in checks]
    return Finding(
        ours=f"with the assumption made true {min(ratios):.2f} to {max(ratios):.2f} times the formula; in the lab "
        f"{ranges[BANDS[0]][0]:g} times at p of {BANDS[0]} and {ranges[BANDS[-1]][0]:g} times at {BANDS[-1]}",
        verdict=verdict,
        why="The formula is right where rewards and norms are independent. In the lab they are not, and every measured "
        f"prompt has more variance than the formula for p of {', '.join(above)}. VIP gives too little to such prompts. "
        "Section 4 prints RLOO's baseline with a factor 1/n. The proof in Appendix A has 1/(n - 1), which is right: "
        f"with 1/n the mean of the projected gradient is not 0 but up to {max(off):.2f} times the scale of Z.",
        columns=["p", "with independent Z: RLOO, n = 8", "in the lab: total variance", "in the lab: Z is the norm"],
        rows=[
            *([f"{p}", f"{ratio:.3f} ± {1.96 * error:.3f}", "-", "-"] for p, (ratio, error, _) in cell["rloo"].items()),
            *([band, "-", shown[band], headline("gradient_variance", band, "Z = norm of h")] for band in BANDS),
        ],
    )  # fmt: skip


def _note(found: Mapping[str, bool], number: int) -> str:
    kept = [setting for setting, each in found.items() if not each]
    return (
        f"A setting counts as rejected if both tests reject at .05 after Holm's correction for {number} tests; with "
        f"{SHUFFLES} shuffles the smallest possible p is .001."
    ) + (f" Not rejected: {'; '.join(kept)}." if kept else "")


def _again(values: Values, names: Sequence[str]) -> str:
    """Return how many of the recorded samples are rejected, by tests ``names``."""
    samples = sum(own["runs"] for own in values.values())
    told = " and ".join(f"{name}'s test rejects {sum(own[name] for own in values.values())}" for name in names)
    return (
        f"{samples} recorded samples of 48 questions come from eight other runs of the lab on two bases, at three "
        f"points of training. {told} of them at .05, by shuffles and without correction."
    )


def _both(own: Values, name: str) -> str:
    each = own["tests"][name]
    return f"{_p(each['p'])}, {each['by shuffles']:.3f}"


def _controls(own: Values) -> str:
    return ", ".join(f"{each['control']:.1%}" for each in own["tests"].values())


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.1%} to {max(values):.1%}"


def _p(value: float) -> str:
    return "below 1e-300" if value < 1e-300 else f"{value:.0e}" if value < 0.001 else f"{value:.3f}"


CLAIMS = (
    Claim(
        where="Appendix B.1 and B.2, Tables 5 and 6",
        claim="Tests find no correlation between the reward of a rollout and its gradient norm (Assumption 4.1).",
        figure="Fisher's p .7322, .1108, .2186 and Edgington's p .7894, .3964, .2148 after 0, .5 and 1 epochs",
        setting=SETTING,
        cells=(*LABS.values(), "vip_assumptions.model", "vip_assumptions.again"),
        judge=correlation,
    ),
    Claim(
        where="Appendix B.3 and B.4, Tables 7 and 8",
        claim="Tests find no difference between questions in the variance of the gradient norm.",
        figure="Levene's p .2705, .4785, .3847 (norm) and .5019, .4132, .3847 (sum of entries), O'Brien's p .3009, "
        ".2563, .2420 after 0, .5 and 1 epochs",
        setting=SETTING + " The sum of a gradient's entries is tested in the lab only.",
        cells=(*LABS.values(), "vip_assumptions.model", "vip_assumptions.again"),
        judge=variance,
    ),
    Claim(
        where="Propositions 4.2 and 4.3",
        claim="The variance of a prompt's projected gradient is 4 sigma^2 p (1 - p) times (n - 1)/n^2 for Dr. GRPO and "
        "1/(n - 1) for RLOO.",
        figure="an equation",
        setting="First 200,000 groups of 8 with Z drawn independently of the reward, so that the assumption is true. "
        "Then the lab's own gradients, medians over prompts with their range "
        "(benchmarks/results/gradient_variance.md).",
        cells=("vip_assumptions.formula",),
        judge=propositions,
    ),
)
