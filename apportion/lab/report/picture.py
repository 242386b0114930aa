"""The picture of a study: panels side by side, such as learning curves and where the rollouts went."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from apportion.lab.report.results import BANDS, Runs
from apportion.types import Floats

COLOURS = ("#0072B2", "#D55E00", "#999999", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
TITLE_WIDTH = 55
"""Letters of the title above each panel."""
DASHES = ("-", "--", "-.", ":")
MARKERS = "osD^vPX*"
"""Arms differ in colour, dashes and marker, so that curves that coincide are still told apart."""
LEGEND_ROW = 3
"""Names in a row of a legend, which stands below its panel."""
WINDOWS = 12
"""Shares of votes are averaged over this many stretches of a run, because one step has few votes."""

Panel = Callable[[Axes], None]
"""Draws one panel."""


def draw(panels: Sequence[Panel], title: str, paths: Sequence[Path]) -> None:
    """Draw the panels in one row and save the picture to each of ``paths``, in the format of its suffix."""
    figure = Figure(figsize=(5 * len(panels), 4.6), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels)), panels, strict=True):
        panel(axes)
    figure.suptitle(fill(title[:1].upper() + title[1:], TITLE_WIDTH * len(panels)), fontsize=11)
    for path in paths:
        figure.savefig(path, dpi=130)


def draw_curves(axes: Axes, runs: Runs, key: str, **text: Any) -> None:
    """Draw ``key`` over rollouts, with ``text`` for the axes.

    Each run has a thin line. The thick one is the mean over seeds at equal shares of their runs.
    """
    shares = np.linspace(0, 1, 60)
    for name, style in _styled(runs):
        places, heights = [], []
        for run in runs[name]:
            axes.plot(run.rollouts, run.evaluations[key], color=style["color"], alpha=0.25, linewidth=0.8)
            places.append(shares * run.rollouts[-1])
            heights.append(np.interp(places[-1], run.rollouts, run.evaluations[key]))
        axes.plot(np.mean(places, axis=0), np.mean(heights, axis=0), label=name, linewidth=2, **style)
    axes.set(xlabel="rollouts", **text)
    _add_legend(axes)


def draw_bands(axes: Axes, rollouts: Mapping[str, Sequence[float]]) -> None:
    """Draw the mean rollouts of a prompt in each of the ``BANDS``, for every arm."""
    places = np.arange(len(BANDS) - 1)
    for name, style in _styled(rollouts, every=1):
        axes.plot(places, rollouts[name], label=name, **style)
    axes.set_xticks(places, [f"{low:g}–{high:g}" for low, high in pairwise(BANDS)], fontsize=8)
    axes.set(
        xlabel="exact success of the prompt", ylabel="rollouts a prompt", title="Where rollouts go", ylim=(0, None)
    )
    _add_legend(axes)


def draw_variance(axes: Axes, measured: Sequence[Mapping[str, Any]]) -> None:
    """Draw the ratio of each rule's gradient variance to uniform's; expected hits stand below."""
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
    axes.legend(loc="upper left", fontsize=8)  # over the lowest bar, because the expected hits stand below


def draw_votes(axes: Axes, runs: Runs, solid: str, dashed: str, of: str | None, **text: Any) -> None:
    """Draw two keys of the steps as shares of the key ``of`` (None: of 1), over all seeds together."""
    for name, style in _styled(runs, every=1):
        steps = min(len(run.steps["rows"]) for run in runs[name])
        width = max(1, steps // WINDOWS)
        total = np.sum([run.steps[of][:steps] if of else np.ones(steps) for run in runs[name]], axis=0)
        for key, dashes in ((solid, "-"), (dashed, "--")):
            shares = window_shares(np.sum([run.steps[key][:steps] for run in runs[name]], axis=0), total, width)
            places = width * np.arange(len(shares)) + (width + 1) / 2
            axes.plot(places, shares, label=name if key == solid else None, **style | {"linestyle": dashes})
    axes.set(xlabel="steps", **text)
    _add_legend(axes)


def window_shares(amounts: Floats, of: Floats, width: int) -> Floats:
    """Return the sum of ``amounts`` [S] over that of ``of`` [S] in each stretch of ``width`` steps, [S // width].

    It is nan if the stretch has none of ``of``. Steps left over at the end are not counted.

    >>> window_shares(np.array([1.0, 2, 0, 0, 3]), np.array([2.0, 2, 0, 0, 3]), 2).tolist()
    [0.75, nan]
    """
    whole = len(amounts) // width * width
    top, bottom = (values[:whole].reshape(-1, width).sum(axis=1) for values in (amounts, of))
    return np.divide(top, bottom, out=np.full(len(top), np.nan), where=bottom > 0)


def _styled(arms: Iterable[str], every: int = 10) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each arm with its colour, dashes, marker and layer. It is marked at every ``every``-th point."""
    for number, name in enumerate(arms):
        yield (
            name,
            {
                "color": COLOURS[number % len(COLOURS)],
                "linestyle": DASHES[number % len(DASHES)],
                "marker": MARKERS[number % len(MARKERS)],
                "markevery": (number % every, every),
                "markersize": 5,
                "markerfacecolor": "white",
                "zorder": 3 + number,
            },
        )


def _add_legend(axes: Axes) -> None:
    """Put the legend below the panel, in a solid frame, where it hides no curve."""
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=LEGEND_ROW, framealpha=1.0, fontsize=8)
