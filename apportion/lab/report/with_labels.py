"""The report of a study with labels: learning curves, what they cost, and where the rollouts went."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from operator import attrgetter
from typing import Any

import numpy as np

from apportion.lab.measure.variance import HIGH, LOW, ROLLOUTS
from apportion.lab.report.measures import Arm, ArmRuns, Measure, headline, mean, over, paired, verdict_on
from apportion.lab.report.picture import Panel, draw_bands, draw_curves, draw_variance
from apportion.lab.report.results import BANDS, Runs, SeedInterval
from apportion.lab.study.worker import MEASURED_PROMPTS
from apportion.runs.text_table import markdown_table


def _token_area_difference(arm: ArmRuns) -> SeedInterval:
    """Return the difference of areas over tokens, up to the fewest tokens that any arm took with that seed."""
    fewest = [min(run.tokens[-1] for run in runs) for runs in arm.runs_of_seed]
    pairs = zip(arm.runs, arm.baseline, fewest, strict=True)
    return SeedInterval.of([run.area_to(tokens) - other.area_to(tokens) for run, other, tokens in pairs])


def _rollouts_by_band(arm: ArmRuns) -> list[float]:
    """Return the mean rollouts of a prompt whose exact success lies in each of BANDS; nan if there was none."""
    prompts, spent = (np.sum([run.by_band(key) for run in arm.runs], axis=0) for key in (None, "counts"))
    return np.where(prompts > 0, spent / np.maximum(prompts, 1), np.nan).tolist()


_SIGNED = attrgetter("signed")
MEASURES = (
    Measure("success", over(lambda run: run.final("success")), "success"),
    Measure("area", over(lambda run: run.area), "area"),
    Measure("area_difference", paired(lambda run, other: run.area - other.area), "area - baseline", _SIGNED),
    Measure("token_area_difference", _token_area_difference, "the same over tokens", _SIGNED),
    Measure("pass_32", over(lambda run: run.final("pass_32")), "pass@32"),
    Measure("informative", over(lambda run: run.steps["informative"].mean()), "mixed"),
    Measure("without_correct", mean(lambda run: run.steps["without_correct"].mean())),
    Measure("rollouts_per_prompt", mean(lambda run: run.rollouts_per_prompt), "rollouts/prompt", "{:.2f}".format),
    Measure("updates", mean(lambda run: len(run.steps["rows"])), "updates", "{:.0f}".format),
    Measure("tokens", mean(lambda run: run.final("tokens")), "tokens", "{:,.0f}".format),
    Measure("cpu_seconds", mean(lambda run: run.cpu_seconds), "CPU s", "{:.0f}".format),
    Measure("rollouts_by_band", _rollouts_by_band),
)


def verdict(summary: Sequence[Arm], baseline: str) -> str:
    """Return one sentence: whose area differs from the baseline's by more than its 95% interval, and whose does not."""
    differences = {arm.name: arm.area_difference for arm in summary}

    def sentence(beyond: list[str], within: list[str]) -> str:
        parts = [f"within noise of {baseline}: {', '.join(within)}"] if within else []
        named = ", ".join(f"{arm} ({differences[arm].signed})" for arm in beyond)
        return "; ".join(parts + ([f"area differs from {baseline}'s beyond noise: {named}"] if beyond else []))

    return verdict_on(differences, baseline, sentence)


def findings(summary: Sequence[Arm], baseline: str, seeds: int, measured: Sequence[dict[str, Any]]) -> list[str]:
    """Return what the table says in sentences, what it does not say, and the tables of variance and of bands."""
    lines = [headline(verdict(summary, baseline), seeds)]
    sizes = {arm.name: arm.rollouts_per_prompt for arm in summary}
    for name, size in sizes.items():
        if not any(other != name and abs(theirs - size) < 0.5 for other, theirs in sizes.items()):
            lines.append(
                f"{name} has no control with as many rollouts a prompt ({size:.1f}): "
                "part of a difference may be its number of updates."
            )
    heads = ["allocator", *(f"{low:g} to {high:g}" for low, high in pairwise(BANDS))]
    rows = [[arm.name, *("-" if np.isnan(each) else f"{each:.1f}" for each in arm.rollouts_by_band)] for arm in summary]
    bands = [
        "Rollouts a prompt by its exact success probability (- if no prompt drawn had it):",
        "",
        *markdown_table(heads, rows),
    ]
    return [*lines, "", *_variance_lines(measured), "", *bands]


def _variance_lines(measured: Sequence[dict[str, Any]]) -> list[str]:
    """Return how each allocation changes the variance of the gradient and the hits of one batch."""
    if not measured:
        return []
    heads = ["rule", "gradient variance / uniform", "by the paper's formula", "expected hits", "hits - uniform"]
    rows = []
    for row in measured:
        ratio, formula = row["ratio"], row["formula_ratio"]
        spread = "-" if ratio is None else "{:.2f} ({:.2f} to {:.2f})".format(ratio, *row["ratio_interval"])
        hits = [f"{row['expected_hits']:.2f}", f"{row['hits_gain']:+.2f}"]
        rows.append([row["rule"], spread, "-" if formula is None else f"{formula:.2f}", *hits])
    return [
        f"Before training, on {MEASURED_PROMPTS} fixed prompts: the measured variance of the whole gradient (RLOO, "
        f"{ROLLOUTS} rollouts a prompt on average, {LOW} to {HIGH} under VIP). Shuffled p is the control.",
        "",
        *markdown_table(heads, rows),
    ]


def panels(runs: Runs, summary: Sequence[Arm], measured: Sequence[dict[str, Any]]) -> list[Panel]:
    """Return the panels of the picture."""
    by_band = {arm.name: arm.rollouts_by_band for arm in summary}
    curves = partial(
        draw_curves,
        runs=runs,
        key="success",
        ylabel="exact success on held-out prompts",
        title="Learning (thin: one seed)",
        ylim=(0, 1),
    )
    bands = partial(draw_bands, rollouts=by_band)
    return [curves, bands, *([partial(draw_variance, measured=measured)] if measured else [])]
