"""Draw what a real GRPO run spent its rollouts on, and what rules that choose prompts would have found in it.

``python -m benchmarks.selection`` draws it. Alone, this needs only a minute:

    python -m benchmarks.selection_picture
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from apportion.replay.choosing import choose_along
from apportion.selection import GRESO, Mixed, Selector, ShuffledEpochs
from benchmarks.real_run import BATCH
from benchmarks.real_run_data import grpo_run

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
LAYERS = {"all wrong": "#4D4D4D", "mixed": "#009E73", "all right": "#E6D8A8"}
CHOSEN: Mapping[str, tuple[Callable[[], Selector], str]] = {
    "chosen by P(mixed)": (Mixed, "#0072B2"),
    "GRESO": (GRESO, "#E69F00"),
    "no selection": (ShuffledEpochs, "#999999"),
}
SMOOTHED = 10
"""Steps of the moving mean."""


def spent(data):
    """Return the share of groups of each kind by visit, [V] each."""
    wrong, right = ((data.shares == edge).mean(axis=0) for edge in (0, 1))
    return {"all wrong": wrong, "mixed": 1 - wrong - right, "all right": right}


def found(data, seed=0):
    """Return the share of mixed groups that each rule would have found at each step, as a moving mean."""
    record = data.record(data.rewards.shape[1])
    window = np.full(SMOOTHED, 1 / SMOOTHED)
    return {
        name: np.convolve(choose_along(make(), record, seed, "near", BATCH).mixed, window, "valid")
        for name, (make, _) in CHOSEN.items()
    }


def draw():
    """Save both panels as docs/pictures/selection.png."""
    data = grpo_run()
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    shares = spent(data)
    visits = np.arange(1, data.rewards.shape[1] + 1)
    left.stackplot(visits, *(shares[name] for name in LAYERS), colors=list(LAYERS.values()))
    for name, height, colour in (("all wrong", 0.15, "white"), ("mixed", 0.5, "white"), ("all right", 0.9, "black")):
        total = f"{name}: {shares[name].mean():.0%} of all rollouts"
        left.text(visits.mean(), height, total, ha="center", va="center", color=colour, fontsize=12)
    left.set(xlim=(1, visits[-1]), ylim=(0, 1), xlabel="visit of each prompt", title="Where its rollouts went")
    for name, curve in found(data).items():
        steps = np.arange(len(curve)) + SMOOTHED
        right.plot(steps, curve, color=CHOSEN[name][1], linewidth=1.8)
        right.text(steps[-1], curve[-1] - 0.05, name, ha="right", va="top", color=CHOSEN[name][1], fontsize=12)
    right.set(ylim=(0, 1), xlabel="step of 128 prompts", title="Mixed groups that a choice of prompts finds")
    right.grid(alpha=0.25)
    for axes in (left, right):
        axes.yaxis.set_major_formatter(PercentFormatter(1))
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle("A recorded GRPO run of Qwen2.5-Math-1.5B: 1,209 problems, groups of 8")
    figure.savefig(PICTURES / "selection.png", dpi=100)


if __name__ == "__main__":
    draw()
