"""Measure every stopping rule on recorded answers: samples, waves, agreement with the full vote.

Each question's recorded answers are replayed in random orders, which are the same for every rule. The full vote is the
majority of the first M samples of an order. A rule agrees if it chooses the same answer.

    python -m benchmarks.stopping [--votes PATH] [--quick]
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from pathlib import Path

import numpy as np

from apportion.stopping import PosteriorPredictive, decide
from benchmarks.common import RESULTS, options, table, write
from benchmarks.recorded import VOTES, Streams, read_datasets
from benchmarks.stopping_measured import SEED, WAVES, Key, estimate, is_default, measure, settings

M = 64
ORDERS = {"gsm8k": 3, "aime24": 100}
"""The number of random orders of each question; ``OTHER_ORDERS`` for other data sets."""
OTHER_ORDERS = 20
QUICK = Path("runs") / "stopping-quick"

EASY = ("gsm8k", "aime24")
"""The data sets that may not be copied into the repository."""
CLOSE = ("optpo, N = 16", "posterior_predictive, eps = 0.01")
"""The rules that are tried on close races."""
RACES = 4000
SHARES = {".52 .48": (0.52, 0.48), ".3 .2, fifty of .01": (0.3, 0.2, *(0.01,) * 50)}
"""Close races by a name to show."""


def main(votes=VOTES, quick=False):
    """Measure, and write the table ``stopping`` and its picture, under ``runs/`` if ``quick``."""
    data = {
        name: Streams.draw(questions, 1 if quick else ORDERS.get(name, OTHER_ORDERS), SEED)
        for name, questions in read_datasets(votes).items()
    }
    rules = settings()
    usual = [label for label, rule in rules.items() if is_default(rule)]
    cells = measure(data, rules, M, WAVES)
    columns, rows = by_dataset(cells, usual)
    write(
        "stopping",
        f"Stopping rules on recorded answers, at most {M} samples",
        columns,
        rows,
        [
            _how(data, votes),
            f"With curtailment no stream took more samples or agreed less, with any waves: checked on "
            f"{sum(len(streams.answers) for streams in data.values()):,} streams, {len(cells) // 2:,} times each.",
            f"## Waves, M = {M}",
            "With curtailment, means over the data sets: samples in round trips, agreement in percent. A `free` wave "
            "is as large as the number of samples that the rule surely needs.",
            waves(cells, usual),
            "## Nothing but close races",
            f"Synthetic: {RACES:,} questions whose answers all have the same probabilities, at M = {M}, unlike "
            "recorded ones. No prior can promise eps here. Samples, and disagreement in percent (*: more than eps).",
            races(RACES),
        ],
        seeds=[SEED],
        results=QUICK if quick else RESULTS,
    )


def _how(data, votes):
    sizes = ", ".join(
        f"{name} ({len(streams.questions):,} questions x {len(streams.questions[0].answers)} answers, "
        f"{streams.orders} orders)"
        for name, streams in data.items()
    )
    missing = [name for name in EASY if name not in data]
    return (
        f"Asked after every sample; 95% bootstrap intervals over questions. Data: {sizes}; samples in random order, "
        "without replacement. Agreement is with the full vote."
        + (f" Skipped: {', '.join(missing)}, because {votes.name} is missing." if missing else "")
    )


def races(questions):
    """Return a table of samples and disagreement on questions that are all alike."""
    rules = {label: rule for label, rule in settings().items() if label in CLOSE}
    rng, rows = np.random.default_rng(SEED), []
    for name, shares in SHARES.items():
        drawn = rng.choice(len(shares), size=(questions, M), p=shares).astype(str)
        full, row = decide(drawn, "fixed", M).answer, [name]
        for rule in rules.values():
            found = decide(drawn, rule, M)
            wrong = float(np.mean([a != b for a, b in zip(found.answer, full, strict=True)]))
            starred = isinstance(rule, PosteriorPredictive) and wrong > rule.eps
            row.append(f"{found.samples.mean():.1f}, {100 * wrong:.2f}{' *' if starred else ''}")
        rows.append(row)
    return table(["probabilities", *rules], rows)


def mean(cells, key, field):
    """Return the mean over the data sets of their means."""
    return float(np.mean([getattr(mine, field).mean() for mine in cells[key].values()]))


def by_dataset(cells, rules):
    """Return the columns and rows of a table of the samples and agreement of settings on each data set."""
    found = {label: cells[Key(label)] for label in rules}
    columns = [f"{name} {what}" for name in next(iter(found.values())) for what in ("samples", "agreement %")]
    rows = []
    for label, mine in found.items():
        shown = [(estimate(m.samples).show(), estimate(m.agreement).show(".2f", 100)) for m in mine.values()]
        rows.append([label, *(cell for pair in shown for cell in pair)])
    return ["rule", *columns], rows


def waves(cells, rules):
    """Return a table of samples, waves and agreement of settings with curtailment, by wave."""
    rows = []
    for label in rules:
        row = [label]
        for wave in WAVES:
            found = (mean(cells, Key(label, wave, True), field) for field in ("samples", "waves", "agreement"))
            samples, trips, agreement = found
            row.append(f"{samples:.1f} in {trips:.1f}, {100 * agreement:.2f}")
        rows.append(row)
    return table(["rule", *(wave if wave == "free" else f"waves of {wave}" for wave in WAVES)], rows)


if __name__ == "__main__":
    arguments = options(__doc__, votes=VOTES, quick=False)
    main(arguments.votes, arguments.quick)
