"""The picture of a study: learning curves, where the rollouts went, and what that did to the gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from apportion.lab.results import BANDS, Arm, Run

COLOURS = ("#0072B2", "#D55E00", "#999999", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def draw(
    runs: Mapping[str, Sequence[Run]],
    summary: Sequence[Arm],
    measured: Sequence[Mapping[str, Any]],
    title: str,
    paths: Sequence[Path],
) -> None:
    """Draws the study and saves it under each of ``paths``, the format by their suffix."""
    figure = Figure(figsize=(15 if measured else 10, 4.6), layout="constrained")
    panels = figure.subplots(1, 3 if measured else 2)
    colours = dict(zip(runs, COLOURS * len(runs), strict=False))
    _curves(panels[0], runs, colours)
    _where(panels[1], summary, colours)
    if measured:
        _variance(panels[2], measured)
    figure.suptitle(title[:1].upper() + title[1:], fontsize=11)
    for path in paths:
        figure.savefig(path, dpi=130)


def _curves(axes: Axes, runs: Mapping[str, Sequence[Run]], colours: Mapping[str, str]) -> None:
    for name, mine in runs.items():
        grid = np.linspace(0, max(run.rollouts[-1] for run in mine), 60)
        curves = np.array([np.interp(grid, run.rollouts, run.success) for run in mine])
        for curve in curves:
            axes.plot(grid, curve, color=colours[name], alpha=0.25, linewidth=0.8)
        axes.plot(grid, curves.mean(axis=0), color=colours[name], label=name, linewidth=2)
    axes.set(
        xlabel="rollouts", ylabel="exact success on held-out prompts", title="Learning (thin: one seed)", ylim=(0, 1)
    )
    axes.legend(frameon=False, loc="lower right")


def _where(axes: Axes, summary: Sequence[Arm], colours: Mapping[str, str]) -> None:
    places = np.arange(len(BANDS) - 1)
    for arm in summary:
        axes.plot(places, arm.rollouts_by_band, "o-", color=colours[arm.name], label=arm.name)
    axes.set_xticks(places, [f"{low:g}–{high:g}" for low, high in pairwise(BANDS)], fontsize=8)
    axes.set(
        xlabel="exact success of the prompt", ylabel="rollouts a prompt", title="Where rollouts go", ylim=(0, None)
    )
    axes.legend(frameon=False)


def _variance(axes: Axes, measured: Sequence[Mapping[str, Any]]) -> None:
    rows = [row for row in measured if row["ratio"] is not None]
    ratios = np.array([row["ratio"] for row in rows])
    low, high = np.array([row["ratio_interval"] for row in rows]).T
    places = np.arange(len(rows))
    axes.bar(places, ratios, 0.6, color=COLOURS[: len(rows)], alpha=0.85)
    axes.errorbar(places, ratios, np.maximum([ratios - low, high - ratios], 0), fmt="none", ecolor="black", capsize=4)
    axes.plot(places, [row["formula_ratio"] for row in rows], "k_", markersize=22, label="the paper's formula")
    axes.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    axes.set_xticks(places, [row["rule"] for row in rows])
    hits = "; ".join(f"{row['rule']} {row['hits_gain']:+.2f}" for row in measured[1:])
    axes.set(
        ylabel="measured gradient variance / uniform",
        title="Gradient variance on fixed prompts, equal budget",
        xlabel=f"expected hits (uniform {measured[0]['expected_hits']:.1f}), less uniform's:\n{hits}",
    )
    axes.xaxis.label.set_fontsize(8)
    axes.legend(frameon=False)
