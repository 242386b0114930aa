"""Draw prediction error and VIP's gradient variance by epoch of the real run: a curve for each predictor."""

from pathlib import Path

from matplotlib.figure import Figure

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"

STYLES = {
    "counts": ("#999999", ".", "-"),
    "gp": ("#D55E00", "s", "-"),
    "gp, noise 1": ("#E69F00", "v", "--"),
    "ridge": ("#CC79A7", "x", ":"),
    "empirical Bayes": ("#56B4E9", "D", "-"),
    "empirical Bayes, embeddings": ("#0072B2", "o", "-"),
    "empirical Bayes, known rates": ("#009E73", "^", "-"),
    "empirical Bayes, both": ("#000000", "P", "--"),
}
"""Colour, marker and line."""


def draw(errors, gains, exact):
    """Save a panel of ``errors`` and one of ``gains`` by epoch; ``exact`` are the gains at exact p."""
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, (colour, marker, line) in STYLES.items():
        style = {"color": colour, "marker": marker, "linestyle": line, "markersize": 4, "linewidth": 1.4}
        left.plot(errors[name], label=name, **style)
        right.plot(gains[name], **style)
    right.plot(exact, color="black", linestyle=":", linewidth=1, label="exact p")
    right.axhline(1, color="black", linewidth=0.6)
    left.set_yscale("log")
    left.set_yticks([0.015, 0.02, 0.03, 0.05, 0.1, 0.15], [".015", ".02", ".03", ".05", ".1", ".15"])
    left.minorticks_off()
    left.set(xlabel="epoch", title="squared error of the next group's share")
    right.set(xlabel="epoch", title="VIP's gradient variance over uniform's")
    right.legend(frameon=False)
    for axes in (left, right):
        axes.grid(alpha=0.25)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle("Replay of a real GRPO run, 1,209 problems: lower is better")
    figure.savefig(PICTURES / "real_run.png", dpi=100)
