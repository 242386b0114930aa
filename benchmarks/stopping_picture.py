"""Draw samples against disagreement with the full vote: a curve for each stopping rule, a panel for each data set."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "stopping.png"
NOTHING = 1e-4
"""The height at which no disagreement is drawn."""
TICKS = {NOTHING: "0", 1e-3: "0.1%", 1e-2: "1%", 1e-1: "10%"}

STYLES = {
    "posterior_predictive": ("#0072B2", "o", "-", 3),
    "calibrated": ("#F0E442", "X", "-", 3),
    "optpo": ("#D55E00", "s", "-", 2),
    "adaptive_consistency_beta": ("#009E73", "^", "-", 1.5),
    "adaptive_consistency_dirichlet": ("#CC79A7", "v", "--", 1.5),
    "p_value": ("#56B4E9", "D", "--", 1.5),
    "esc": ("#E69F00", "P", "-", 1.5),
    "sprt": ("#000000", "x", "", 0),
    "msprt": ("#000000", "+", "", 0),
    "fixed": ("#999999", ".", ":", 1.5),
    "curtailment": ("#000000", "*", "", 0),
}
"""Colour, marker, line and its width."""

Curve = Sequence[tuple[float, float]]
"""Samples and disagreement at each setting of a rule."""


def draw(curves, max_samples, path=PICTURE):
    """Draw a panel for each data set of ``curves`` (data set, then rule), and save them at ``path``."""
    figure = Figure(figsize=(4.2 * len(curves), 4.9), layout="constrained")
    panels = figure.subplots(1, len(curves), sharey=True, squeeze=False)[0]
    for axes, (dataset, mine) in zip(panels, curves.items(), strict=True):
        for rule, curve in mine.items():
            colour, marker, line, width = STYLES[rule]
            points = sorted((samples, max(disagreement, NOTHING)) for samples, disagreement in curve)
            axes.plot(
                *zip(*points, strict=True),
                color=colour,
                marker=marker,
                linestyle=line or "none",
                linewidth=width,
                label=rule,
                zorder=2 + width,
                clip_on=False,
            )
        _dress(axes, dataset)
    panels[0].set_ylabel("disagreement with the full vote")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    figure.suptitle(f"Stopping rules on recorded answers, at most {max_samples} samples: lower left is better")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def _dress(axes, title):
    axes.set_xscale("log")
    axes.set_xlim(3.5, 66)
    axes.set_xticks([4, 8, 16, 32, 64], ["4", "8", "16", "32", "64"])
    axes.set_yscale("log")
    axes.set_yticks(list(TICKS), list(TICKS.values()))
    axes.minorticks_off()
    axes.set_ylim(NOTHING, 1)
    axes.grid(alpha=0.25)
    axes.set(xlabel="samples a question", title=title)
