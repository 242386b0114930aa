"""Measure every stopping rule on recorded answers: samples, waves, agreement with the full vote, accuracy.

Each question's recorded answers are replayed in random orders, which are the same for every rule. The full vote is the
majority of the first M samples of an order. A rule agrees if it chooses the same answer.

    python -m benchmarks.stopping [--votes PATH] [--quick]
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from apportion.stopping import PosteriorPredictive, decide
from benchmarks.common import RESULTS, options, table, write
from benchmarks.recorded import VOTES, Streams, read_datasets
from benchmarks.stopping_cost import (
    cost,
    timing_streams,
)
from benchmarks.stopping_measured import (
    GRID,
    SEED,
    WAVES,
    Key,
    Measured,
    is_default,
    measure,
    settings,
)
from benchmarks.stopping_picture import PICTURE, draw
from benchmarks.stopping_tables import (
    BASE,
    OURS,
    SUMMARY,
    by_dataset,
    cost_table,
    curves,
    summary,
    waves,
)

M = 64
MAXIMA = (M, 40)
ORDERS = {"gsm8k": 3, "aime24": 100}
"""The number of random orders of each question; ``OTHER_ORDERS`` for other data sets."""
OTHER_ORDERS = 20
QUICK = Path("runs") / "stopping-quick"

DEFAULT = f"{OURS}, eps = 0.01"
EASY = ("gsm8k", "aime24")
"""The data sets that may not be copied into the repository."""
RACES = 4000
SHARES = {
    ".52 .48": (0.52, 0.48),
    ".55 .45": (0.55, 0.45),
    ".6 .4": (0.6, 0.4),
    ".7 .3": (0.7, 0.3),
    "four of .25": (0.25,) * 4,
    ".4 .3 .2 .1": (0.4, 0.3, 0.2, 0.1),
    ".5 .35, three of .05": (0.5, 0.35, 0.05, 0.05, 0.05),
    ".3 .2, fifty of .01": (0.3, 0.2, *(0.01,) * 50),
}
"""Close races by a name to show."""
CLOSE = tuple(f"{OURS}, {text}" for text in GRID[OURS])
TIMED = 10_000
"""The number of timed questions."""


def main(votes: Path = VOTES, quick: bool = False) -> None:
    """Measure, and write the table ``stopping`` and its picture, under ``runs/`` if ``quick``."""
    data = {
        name: Streams.draw(questions, 1 if quick else ORDERS.get(name, OTHER_ORDERS), SEED)
        for name, questions in read_datasets(votes).items()
    }
    rules = settings()
    timed = timing_streams(data, TIMED, M)
    usual = {label: rule for label, rule in rules.items() if is_default(rule)}
    costs = {label: cost(rule, timed, min(TIMED, 500) if quick else TIMED) for label, rule in usual.items()}
    cells = measure(data, rules, MAXIMA, WAVES)
    columns, rows = by_dataset(cells, usual, M)
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
            waves(cells, usual, M),
            "## Nothing but close races",
            f"Synthetic: {RACES:,} questions whose answers all have the same probabilities, at M = {M}, unlike "
            "recorded ones. No prior can promise eps here. Samples, and disagreement in percent (*: more than eps).",
            races(200 if quick else RACES),
        ],
        more=[
            "## What a decision costs",
            f"CPU time on one core, with the tables that the rules build. `replayed`: {TIMED:,} streams of {M} "
            "answers, asked after every sample. `alone`: as many questions to the rule, each about one stream so far.",
            cost_table(costs),
            "## Every setting, means over the data sets",
            table(SUMMARY.split(", "), summary(cells, rules, M)),
            f"## Every setting on each data set, M = {M}",
            table(*by_dataset(cells, rules, M)),
        ],
        seeds=[SEED],
        cells={"cells": [record for key, mine in cells.items() for record in _records(key, mine)]},
        results=QUICK if quick else RESULTS,
    )
    draw(curves(cells, rules, M), M, QUICK / PICTURE.name if quick else PICTURE)


def _how(data: Mapping[str, Streams], votes: Path) -> str:
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


def races(questions: int) -> str:
    """Return a table of samples and disagreement of ours and OptPO on questions that are all alike."""
    rules = {label: rule for label, rule in settings().items() if label in (BASE, *CLOSE)}
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


def _records(key: Key, found: Mapping[str, Measured]) -> list[dict[str, Any]]:
    """Return a record of means over questions for each data set."""
    return [
        {
            **vars(key),
            "dataset": name,
            **{
                field: None if values is None or np.isnan(values).all() else round(float(np.nanmean(values)), 6)
                for field, values in vars(mine).items()
            },
        }
        for name, mine in found.items()
    ]


if __name__ == "__main__":
    arguments = options(__doc__, votes=VOTES, quick=False)
    main(arguments.votes, arguments.quick)
