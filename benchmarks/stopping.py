"""Measure every stopping rule on recorded answers: samples, waves, agreement with the full vote, accuracy.

Each question's recorded answers are replayed in random orders, which are the same for every rule. The full vote is the
majority of the first M samples of an order. A rule agrees if it chooses the same answer.

    python -m benchmarks.stopping [--votes PATH] [--quick]
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from apportion.stopping import PosteriorPredictive, Rule, decide
from benchmarks.common import RESULTS, table, write
from benchmarks.recorded import VOTES, Streams, read_datasets
from benchmarks.stopping_cost import (
    CONFIDENCES,
    Cost,
    beta_beside,
    cost,
    crowded_prefixes,
    dirichlet_beside,
    installed,
    timing_streams,
)
from benchmarks.stopping_measured import (
    GRID,
    RESAMPLES,
    SEED,
    WAVES,
    Cells,
    Key,
    Measured,
    estimate,
    is_default,
    measure,
    ratio,
    settings,
)
from benchmarks.stopping_picture import PICTURE, draw
from benchmarks.stopping_tables import (
    BASE,
    OURS,
    SUMMARY,
    beside_table,
    bounds,
    by_dataset,
    cost_table,
    curves,
    differences,
    percent,
    shown,
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
"""The data sets with the target of a third fewer samples than OptPO at more agreement."""
SCATTERED = "game24_cot"
"""The data set with the target of more agreement than OptPO at no more than a fifth more samples."""
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
TIMED, SECONDS, DECISION = 10_000, 5.0, 0.2e-3
"""The number of timed questions, and the targets: seconds for all of them, and for one decision."""


def main(votes: Path = VOTES, quick: bool = False) -> None:
    """Measure, and write the table ``stopping`` and its picture, under ``runs/`` if ``quick``."""
    start = time.process_time()
    data = {
        name: Streams.draw(questions, 1 if quick else ORDERS.get(name, OTHER_ORDERS), SEED)
        for name, questions in read_datasets(votes).items()
    }
    rules = settings()
    timed = timing_streams(data, TIMED, M)
    costs = {
        label: cost(rule, timed, min(TIMED, 500) if quick else TIMED)
        for label, rule in rules.items()
        if is_default(rule)
    }
    cells = measure(data, rules, MAXIMA, WAVES)
    notes = [
        _how(data, votes),
        "## Targets",
        *claims(cells, rules, costs, data),
        f"## Each data set, M = {M}",
        by_dataset(cells, rules, M),
        f"## Against {BASE}, M = {M}",
        "Samples, and points of agreement, less OptPO's on the same streams.",
        differences(cells, rules, M),
        f"## Waves, M = {M}",
        "With curtailment, means over the data sets: samples in round trips, agreement in percent. A `free` wave is "
        "as large as the number of samples that the rule surely needs.",
        waves(cells, rules, M),
        "## Nothing but close races",
        f"Synthetic: {RACES:,} questions whose answers all have the same probabilities, at M = {M}. No prior can "
        "promise eps here, because no question tells of the others. Recorded data sets are not like this. Samples, and "
        "disagreement in percent (*: more than eps), with OptPO for comparison.",
        races(200 if quick else RACES),
        "## What a decision costs",
        f"CPU time on one core, with the tables that the rules build. `replayed`: {TIMED:,} streams of {M} "
        "answers, drawn from all recorded questions, asked after every sample. `alone`: as many questions to the rule, "
        "each about one stream so far, as a client asks: whether to stop, and how many samples are needed at least.",
        cost_table(costs),
        "## Comparison with the package AdaptiveConsistency",
        *package(data, quick),
        "![Samples against disagreement](../../docs/pictures/stopping.png)",
    ]
    notes.insert(1, f"The run took {(time.process_time() - start) / 60:.0f} minutes of CPU time.")
    write(
        "stopping",
        f"Stopping rules on recorded answers, at most {M} samples",
        SUMMARY.split(", "),
        summary(cells, rules, M),
        notes,
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
        f"Means over the data sets, asked after every sample; 95% bootstrap intervals over questions ({RESAMPLES:,} "
        f"resamples). Data: {sizes}; samples in random order, without replacement. A stream shorter than M is its own "
        "maximum. Agreement is with the full vote; `worst agreement` is that of the worst data set; `tokens` are in "
        "percent of the full vote's, if they are recorded."
        + (f" Skipped: {', '.join(missing)}, because {votes.name} is missing." if missing else "")
    )


def claims(
    cells: Cells, rules: Mapping[str, Rule], costs: Mapping[str, Cost], data: Mapping[str, Streams]
) -> list[str]:
    """Return the targets, and whether they were reached."""
    kept, bound = bounds(cells, MAXIMA)
    slowest = max(costs, key=lambda label: costs[label].replay)
    longest = max(costs, key=lambda label: costs[label].stops_now)
    quick = costs[slowest].replay < SECONDS and costs[longest].stops_now < DECISION
    return [
        *(_easy(cells, rules) if all(name in data for name in EASY) else []),
        _scattered(cells),
        f"{_verdict(kept)} eps bounds the disagreement of `{OURS}` on each data set:",
        bound,
        f"{_verdict(True)} with curtailment no stream took more samples or agreed less, with any waves: checked on "
        f"{sum(len(streams.answers) for streams in data.values()):,} streams, {len(cells) // 2:,} times each.",
        f"{_verdict(quick)} {TIMED:,} questions x {M} samples in {costs[slowest].replay:.1f} s for the slowest rule "
        f"({slowest}), and {1e3 * costs[longest].stops_now:.3f} ms for one decision alone ({longest}); target: under "
        f"{SECONDS:g} s and {1e3 * DECISION:g} ms.",
    ]


def _verdict(reached: bool) -> str:
    return "**Reached:**" if reached else "**Not reached:**"


def _easy(cells: Cells, rules: Mapping[str, Rule]) -> list[str]:
    """Return the target on the data sets of ``EASY`` together: with pooled questions, and as the mean of both."""
    rows, reached = [], {}
    base = [cells[Key(BASE, M)][name] for name in EASY]
    for label in shown(rules):
        pairs = list(zip([cells[Key(label, M)][name] for name in EASY], base, strict=True))
        samples = [(a.samples, b.samples) for a, b in pairs]
        more = [a.agreement - b.agreement for a, b in pairs]
        pooled = (np.concatenate([a for a, _ in samples]), np.concatenate([b for _, b in samples]))
        ways = ((ratio(pooled), estimate(np.concatenate(more))), (ratio(*samples), estimate(*more)))
        rows.append([label, *(text for times, gain in ways for text in (times.show(".2f"), percent(gain, "+.3f")))])
        reached[label] = [times.value <= 2 / 3 and gain.value > 0 for times, gain in ways]
    pooled_text, means_text = ("yes" if yes else "no" for yes in reached[DEFAULT])
    others = [f"`{label}`" for label, yes in reached.items() if all(yes) and label != DEFAULT]
    return [
        f"{_verdict(all(reached[DEFAULT]))} {' and '.join(EASY)} together, a third fewer samples than `{BASE}` at "
        f"higher agreement, by `{DEFAULT}` (questions pooled: {pooled_text}; mean of both: {means_text}). Of the "
        f"others below, both ways: {', '.join(others) or 'none'}. Samples over OptPO's, and points of agreement less "
        "OptPO's:",
        table(["rule", *(f"{way}: {what}" for way in ("pooled", "mean") for what in ("samples", "agreement"))], rows),
    ]


def _scattered(cells: Cells) -> str:
    base, ours = cells[Key(BASE, M)][SCATTERED], cells[Key(DEFAULT, M)][SCATTERED]
    times, more = ratio((ours.samples, base.samples)), estimate(ours.agreement - base.agreement)
    return (
        f"{_verdict(times.value <= 1.2 and more.value > 0)} {SCATTERED}, `{DEFAULT}` against `{BASE}`: "
        f"{times.show('.2f')} times the samples (target: at most 1.2) for {percent(more, '+.2f')} points of agreement, "
        f"{100 * ours.agreement.mean():.2f}% against {100 * base.agreement.mean():.2f}%."
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


def package(data: Mapping[str, Streams], quick: bool) -> list[str]:
    """Return the comparison with the package AdaptiveConsistency on the same streams."""
    if not installed():
        return ["Skipped: it is not installed; pip install AdaptiveConsistency."]
    first = [mine.answers[q * mine.orders][:M] for mine in data.values() for q in range(len(mine.questions))]
    streams = [[answer for answer in stream if answer is not None] for stream in first]
    found = {
        "Beta": beta_beside(streams[::20] if quick else streams),
        "Dirichlet, Monte Carlo": dirichlet_beside(crowded_prefixes(streams, M, 20 if quick else 300), True),
        "Dirichlet, quadrature": dirichlet_beside(crowded_prefixes(streams, 4, 5 if quick else 100), False),
    }
    return [
        f"Version 1.0.0 on the first order of each question, at confidences {', '.join(map(str, CONFIDENCES))}. Its "
        "Beta rule runs on every prefix, its Dirichlet rule on random prefixes with three distinct answers or more "
        "(its nested quadrature with three or four, because it is slow beyond). `failed`: it printed an error and does "
        "not stop. Its Monte Carlo, written for a NumPy before 1.24, does so with three answers or more. `gap`: of "
        "the probabilities, if it gives any.",
        beside_table(found),
    ]


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
    parser = argparse.ArgumentParser(description="Every stopping rule on recorded answers of language models.")
    parser.add_argument("--votes", type=Path, default=VOTES, help="the recorded votes, with gsm8k and aime24")
    parser.add_argument("--quick", action="store_true", help=f"one order a question, written to {QUICK}")
    arguments = parser.parse_args()
    main(arguments.votes, arguments.quick)
