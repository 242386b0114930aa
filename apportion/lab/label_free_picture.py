"""The picture of a study without labels: what was learnt for the rollouts, and how right the votes stayed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from apportion.lab.label_free_results import LabelFreeRun
from apportion.lab.picture import COLOURS

TITLE_WIDTH = 110
WINDOWS = 12
"""The votes of so many stretches of a run are told apart: those of one step are few."""

Runs = Mapping[str, Sequence[LabelFreeRun]]


def draw_label_free(runs: Runs, title: str, paths: Sequence[Path]) -> None:
    """Draws the study and saves it under each of ``paths``, the format by their suffix.

    Without gold: the drift in place of mean@16, and how united the votes were in place of how right.
    """
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    colours = dict(zip(runs, COLOURS * len(runs), strict=False))
    if all(run.has_gold for mine in runs.values() for run in mine):
        _over_rollouts(left, runs, "mean_16", colours)
        left.set(ylabel="mean@16 on the prompts", title="Learning (thin: one seed)", ylim=(0, 1))
        _votes(right, runs, ("labels_right", "false_consensus"), "labels", colours)
        right.set(ylabel="share of the labels", title="Right labels; dashed: false consensus", ylim=(0, 1))
    else:
        _over_rollouts(left, runs, "drift", colours)
        left.set(ylabel="KL to the start, nats a completion", title="Drift (thin: one seed)", ylim=(0, None))
        _votes(right, runs, ("leader_share", "unlabelled"), None, colours)
        right.set(ylabel="share", title="Leader's share of the samples; dashed: no label", ylim=(0, 1))
    figure.suptitle(fill(title[:1].upper() + title[1:], TITLE_WIDTH), fontsize=11)
    for path in paths:
        figure.savefig(path, dpi=130)


def windowed(amounts: NDArray[np.float64], of: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """The sum of ``amounts`` [S] over that ``of`` [S], in each stretch of ``width`` steps [S // width].

    nan where nothing is divided by; steps left over at the end are left out.

    >>> windowed(np.array([1.0, 2, 0, 0, 3]), np.array([2.0, 2, 0, 0, 3]), 2).tolist()
    [0.75, nan]
    """
    whole = len(amounts) // width * width
    top, bottom = (values[:whole].reshape(-1, width).sum(axis=1) for values in (amounts, of))
    return np.divide(top, bottom, out=np.full(len(top), np.nan), where=bottom > 0)


def _over_rollouts(axes: Axes, runs: Runs, key: str, colours: Mapping[str, str]) -> None:
    """Every run, thin, and the means of rollouts and of ``key`` over seeds at equal shares of their runs."""
    shares = np.linspace(0, 1, 60)
    for name, mine in runs.items():
        places, heights = [], []
        for run in mine:
            x, y = run.evaluations["rollouts"], run.evaluations[key]
            axes.plot(x, y, color=colours[name], alpha=0.25, linewidth=0.8)
            places.append(shares * x[-1])
            heights.append(np.interp(places[-1], x, y))
        axes.plot(np.mean(places, axis=0), np.mean(heights, axis=0), color=colours[name], label=name, linewidth=2)
    axes.set(xlabel="rollouts")
    axes.legend(frameon=False, loc="lower right")


def _votes(axes: Axes, runs: Runs, keys: tuple[str, str], of: str | None, colours: Mapping[str, str]) -> None:
    """The first of ``keys`` as a line and the second dashed, as shares of the votes' ``of``, all seeds together."""
    for name, mine in runs.items():
        steps = min(len(run.steps[keys[0]]) for run in mine)
        width = max(1, steps // WINDOWS)
        total = np.sum([run.steps[of][:steps] if of else np.ones(steps) for run in mine], axis=0)
        for key, style in zip(keys, ("-", "--"), strict=True):
            shares = windowed(np.sum([run.steps[key][:steps] for run in mine], axis=0), total, width)
            places = width * np.arange(len(shares)) + (width + 1) / 2
            axes.plot(places, shares, style, color=colours[name], label=name if style == "-" else None)
    axes.set(xlabel="steps")
    axes.legend(frameon=False)
