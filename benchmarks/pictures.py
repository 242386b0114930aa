"""Draw the pictures of the documents that show figures of committed tables, each with its interval.

python -m benchmarks.pictures
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from benchmarks.common import RESULTS, ROOT, cells_of

PICTURES = ROOT / "docs" / "pictures"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
NAMES = {
    "uniform_4": "groups of 4 (stock)",
    "uniform_8": "groups of 8 (stock)",
    "vip": "VIP, groups of 8 on average",
    "hora": "HORA, groups of 8 on average",
    "ar3po": "AR3PO",
    "dapo": "DAPO, groups of 8",
    "reinforce_ada": "Reinforce-Ada",
    "reinforce_ada_positive": "Reinforce-Ada, until one is right",
    "inverse_accuracy": "rollouts by inverse accuracy",
    "inverse_variance": "rollouts by inverse variance",
    "neyman_4": "rollouts by measured variance",
    "neyman": "rollouts by measured variance",
    "mixed": "prompts by P(mixed)",
    "greso": "prompts by GRESO",
    "spo": "SPO",
    "sft": "SFT on right rollouts",
    "four_optimal": "groups of 4, optimal baseline",
    "group_optimal": "groups of 4, optimal baseline of the group",
    "single_zero": "single rollouts, no baseline",
    "single_predicted": "single rollouts, predicted baseline",
    "single_optimal": "single rollouts, optimal baseline",
    "single_batch_optimal": "single rollouts, optimal baseline of the batch",
    "single_optimal_spo_weights": "single rollouts, optimal baseline, SPO's prompts",
    "all_three": "SPO's prompts, counts and optimal baseline",
    "eight_mopps": "groups of 8, prompts by MoPPS",
    "single_mopps": "single rollouts, optimal baseline, prompts by MoPPS",
    "oracle_8": "groups of 8, prompts by exact rates (oracle)",
    "shuffled_8": "groups of 8, prompts by exact rates of others (control)",
    "uniform_8_again": "groups of 8 again (A/A)",
    "ttrl_16": "16 votes for each prompt",
    "shared_24": "24 votes a prompt, shared",
    "optpo": "OptPO",
    "adaptive_consistency_beta": "Adaptive-Consistency",
    "calibrated": "calibrated",
    "game24_cot": "Game of 24, chain of thought",
    "game24_standard": "Game of 24",
    "aime24": "AIME",
    "gsm8k": "GSM8K",
}
"""What the names in the tables stand for."""

PREDICTORS = {
    "exact p": "exact success rates",
    "empirical Bayes, known rates": "empirical Bayes, known rates",
    "empirical Bayes, embeddings": "empirical Bayes, embeddings",
    "empirical Bayes": "empirical Bayes",
    "counts": "counts of each prompt",
    "gp": "the Gaussian process of VIP's paper",
}
VISITS = {"epoch 0": "first visit", "epoch 1": "second visit", "epoch 7": "eighth visit"}

MEAN_SUCCESS = "mean success over a run, less stock groups' (95% intervals)"
DECISIONS: Mapping[str, Sequence[tuple[str, str, str, str, str]]] = {
    "optimal baseline, groups of 8": (
        ("lab, five bases", "stable_more", "", "optimal baseline, groups of 8", "area"),
        ("lab, hard", "methods_factorial", "The baseline alone", "prompt", "eights"),
        ("lab, forks", "methods_factorial_forks", "The baseline alone", "prompt", "eights"),
        ("SmolLM2, sums", "model_factorial", "", "sums, eights_global", "area - groups of 8, RLOO"),
        ("SmolLM2, between", "model_factorial", "", "between, eights_global", "area - groups of 8, RLOO"),
    ),
    "optimal baseline, single rollouts": (
        ("lab, hard", "methods_factorial", "", "single_prompt", "area - baseline"),
        ("lab, forks", "methods_factorial_forks", "", "single_prompt", "area - baseline"),
        ("SmolLM2, sums", "model_factorial", "", "sums, single_global", "area - groups of 8, RLOO"),
        ("SmolLM2, between", "model_factorial", "", "between, single_global", "area - groups of 8, RLOO"),
    ),
    "optimal baseline, groups of 4": (
        ("lab, five bases", "stable", "", "optimal baseline, groups of 4", "area"),
        ("lab, hard", "methods_factorial", "The baseline alone", "prompt", "fours"),
        ("lab, forks", "methods_factorial_forks", "The baseline alone", "prompt", "fours"),
        ("SmolLM2, sums", "model_factorial", "The baseline alone", "global", "fours"),
        ("SmolLM2, between", "model_factorial", "Between.", "global", "fours"),
    ),
    "prompts by MoPPS, groups of 8": (
        ("lab, five bases", "stable", "", "eight_mopps", "area - uniform_8"),
        ("lab, five bases, slow", "stable_recorded", "", "eight_mopps", "area - uniform_8"),
    ),
    "prompts by MoPPS, single rollouts": (
        ("lab, five bases", "stable", "", "MoPPS, single rollouts", "area"),
        ("lab, five bases, slow", "stable_recorded", "", "MoPPS, single rollouts", "area"),
    ),
}
"""Each choice with the cells of its tasks: task, table, what stands before the part of the table, row, column."""


def cell(name, after, row, column):
    """Return (value, low, high) of a cell of the table ``name``, in the first part after a line with ``after``."""
    parts = (RESULTS / f"{name}.md").read_text(encoding="utf-8").split("\n\n")
    start = next(place for place, part in enumerate(parts) if after in part and not (after and part.startswith("|")))
    for columns, *rows in filter(None, map(cells_of, parts[start:])):
        for found in rows:
            if found[0] == row and column in columns:
                return interval(found[columns.index(column)])
    raise ValueError(f"{name}.md must have the row {row!r} and the column {column!r}")


def interval(text):
    """Return (value, low, high) of a cell such as "0.1 ± 0.2" or "0.1 (0.0 to 0.3)".

    >>> interval("+0.5 ± 0.25"), interval("6.8 (6.3 to 7.2)")
    ((0.5, 0.25, 0.75), (6.8, 6.3, 7.2))
    """
    numbers = [float(each) for each in re.findall(r"[-+]?\d*\.?\d+", text)]
    if "±" in text:
        value, half = numbers
        return value, value - half, value + half
    value, low, high = numbers
    return value, low, high


def first_part(name, column):
    """Return label and interval of each row of a table, the largest value last."""
    columns, *rows = cells_of((RESULTS / f"{name}.md").read_text(encoding="utf-8").split("\n\n")[1])
    found = {row[0]: interval(row[columns.index(column)]) for row in rows}
    return sorted(((NAMES[label], found[label]) for label in found), key=lambda each: each[1][0])


def draw(name, title, xlabel, rows, line=0):
    """Save intervals as docs/pictures/NAME.png. ``rows`` are (label, {series: (value, low, high)}), lowest first.

    ``line`` is where a vertical line is drawn; None: nowhere.
    """
    series = list(dict.fromkeys(each for _, own in rows for each in own))
    figure = Figure(figsize=(9, 1.6 + 0.36 * len(rows) * max(1, len(series) / 2)), layout="constrained")
    axes = figure.subplots()
    most = max(len(own) for _, own in rows)
    for number, each in enumerate(series):
        places, found = zip(
            *((row + _shift(each, own, most), own[each]) for row, (_, own) in enumerate(rows) if each in own),
            strict=True,
        )
        values, low, high = zip(*found, strict=True)
        ends = [[a - b for a, b in zip(values, low, strict=True)], [b - a for a, b in zip(values, high, strict=True)]]
        axes.errorbar(values, places, xerr=ends, fmt="o", color=COLOURS[number], label=each, markersize=6, capsize=3)
    if line is not None:
        axes.axvline(line, color="black", linewidth=0.9, linestyle=":")
    axes.set_yticks(range(len(rows)), [label for label, _ in rows])
    axes.set(xlabel=xlabel, ylim=(-0.6, len(rows) - 0.4))
    axes.grid(axis="x", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if len(series) > 1:
        figure.legend(loc="outside lower center", ncols=min(3, len(series)), frameon=False)
    figure.suptitle(title, fontsize=12)
    figure.savefig(PICTURES / f"{name}.png", dpi=110)


def _shift(each, own, most):
    """Return how far the series ``each`` is above its row: those of a row lie around its label."""
    return 0.72 / most * ((len(own) - 1) / 2 - [*own].index(each))


def main():
    rows = [
        (choice, {task: cell(*where) for task, *where in cells}) for choice, cells in reversed([*DECISIONS.items()])
    ]
    draw(
        "decisions",
        "A baseline from earlier steps gains or is level in groups; chosen prompts gain little at best",
        MEAN_SUCCESS,
        rows,
    )
    xlabel = "mean success over a run, less that of groups of 8 (95% intervals)"
    title = "Baselines and small groups gain; moving rollouts between prompts does not (lab, five bases)"
    draw("methods", title, xlabel, [(label, {"": own}) for label, own in first_part("stable", "area - uniform_8")])
    xlabel = "mean success over a run, less that of groups of 4 (95% intervals)"
    for name, title in (
        ("methods_forks", "Baselines gain on a task with several right answers too (lab, forks)"),
        ("methods_decisions_forks", "The baseline gains; choosing prompts does not (lab, forks)"),
    ):
        draw(name, title, xlabel, [(label, {"": own}) for label, own in first_part(name, "area - baseline")])
    votes = ("optpo, N = 16", "adaptive_consistency_beta, confidence = 0.95", "calibrated, eps = 0.01")
    sets = ("game24_cot", "game24_standard", "aime24", "gsm8k")
    rows = [
        (NAMES[each], {NAMES[rule.partition(",")[0]]: cell("stopping", "", rule, f"{each} samples") for rule in votes})
        for each in sets
    ]
    title = "Samples that a vote takes, of at most 64: fewer is better. OptPO agrees less with all 64"
    draw("stopping", title, "samples a question (95% intervals)", rows, line=None)
    found = first_part("label_free_votes", "- ttrl")
    saved = dict(first_part("label_free_votes", "rollouts saved"))
    rows = [(f"{label}: {saved[label][0]:g}% of the rollouts saved", {"": own}) for label, own in found]
    title = "No loss of accuracy shows at half of the rollouts or fewer"
    draw("label_free", title, "mean@16, less that with 64 votes (95% intervals)", rows)
    rows = [
        (label, {visit: cell("real_run", "", f"{each}, VIP", epoch) for epoch, visit in VISITS.items()})
        for each, label in PREDICTORS.items()
    ]
    title = "VIP lowers the variance from the second visit on; the belief of its paper is late (recorded run)"
    draw("real_run", title, "RLOO's gradient variance under VIP over uniform's (95% intervals)", rows, line=1)


if __name__ == "__main__":
    main()
