"""Measure what stopping a vote early costs and saves on a real server: samples, tokens, requests, seconds, leftovers.

``transformers serve`` runs on loopback with the tiny policy of ``benchmarks.served_model``. It computes one request
after another, so the price of a vote is the server's processor time. All rules vote on the same questions. Their runs
alternate, and each begins when the server is idle.

    python -m benchmarks.serving
"""

from __future__ import annotations

import os

os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from apportion.stopping import Wave, decide
from apportion.vote import Question, read_recorded, vote
from benchmarks.common import RESULTS, spread, table, write
from benchmarks.served_model import ServedModel, problems, serving, train_model
from benchmarks.serving_left import (
    Left,
    left_behind,
    left_notes,
    settled,
)

CONCURRENCY = 8
FULL = "fixed"
CHOSEN = "rule, wave, samples/question, completion tokens, agreement, agreement on its samples, accuracy"
SPENT = (
    "rule, wave, requests, left in flight, round trips/question, server CPU s, of the full vote's, client CPU s, wall s"
)


@dataclass(frozen=True)
class Arm:
    """A rule and its wave. The fixed budget is the full vote. The others have curtailment."""

    rule: str
    wave: Wave

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the rule. OptPO counts exceedances from N on, as when the table was written."""
        return {"count_from": "min_samples"} if self.rule == "optpo" else {}

    @property
    def cells(self) -> list[str]:
        """The first two cells of the arm's row."""
        return [f"`{self.rule}`", "all" if self.rule == FULL else str(self.wave)]


ARMS = (
    Arm(FULL, "free"),
    *(Arm(rule, wave) for rule in ("optpo", "posterior_predictive") for wave in (1, 8, "free")),
)


@dataclass(frozen=True)
class Vote:
    """One vote on all questions: the answers [Q], the answers of all samples, and what it cost."""

    answers: tuple[str | None, ...]
    streams: tuple[tuple[str | None, ...], ...]
    accuracy: float
    samples: int
    tokens: int
    requests: int
    left: int
    round_trips: float
    server_seconds: float
    client_seconds: float
    seconds: float


def measure(served: ServedModel, questions: Sequence[Question], arm: Arm, seed: int, max_samples: int) -> Vote:
    """Run one vote by ``arm``. The server's seconds include those for requests that the client has left."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "answers.jsonl"
        server, client = settled(served), time.process_time()
        report = vote(
            questions,
            base_url=served.base_url,
            model=served.model,
            out=out,
            rule=arm.rule,
            rule_settings=arm.settings,
            max_samples=max_samples,
            wave=arm.wave,
            curtail=arm.rule != FULL,
            template="{question}",
            extract="last_number",
            equivalence="exact",
            temperature=1.0,
            top_p=1.0,
            max_tokens=16,
            seed=seed,
            concurrency=CONCURRENCY,
        )
        client_seconds = time.process_time() - client
        kept = read_recorded(out)
    if not report.complete:
        raise RuntimeError(f"every question must be finished, got {len(report.ballots)} of {len(questions)}")
    return Vote(
        answers=tuple(ballot.answer for ballot in report.ballots),
        streams=tuple(tuple(kept.stream(ballot.id)[: ballot.samples]) for ballot in report.ballots),
        accuracy=float(np.mean([bool(ballot.correct) for ballot in report.ballots])),
        samples=sum(ballot.samples for ballot in report.ballots),
        tokens=report.usage.completion_tokens,
        requests=report.usage.requests,
        left=report.usage.cancelled,
        round_trips=float(np.mean([ballot.waves for ballot in report.ballots])),
        server_seconds=settled(served) - server,
        client_seconds=client_seconds,
        seconds=report.seconds,
    )


def agreement(one: Sequence[str | None], other: Sequence[str | None]) -> float:
    """Return the share of the questions with the same answer in both."""
    return float(np.mean([a == b for a, b in zip(one, other, strict=True)]))


def replayed(full: Vote, arm: Arm, max_samples: int) -> float:
    """Return the agreement with the full vote if the rule sees the samples of that vote."""
    found = decide(full.streams, arm.rule, max_samples, wave=arm.wave, curtail=arm.rule != FULL, **arm.settings)
    return agreement(found.answer, full.answers)


def chosen_rows(votes: Mapping[Arm, Sequence[Vote]], max_samples: int) -> list[list[str]]:
    """Return one row for each arm. The full vote is compared with that of the next seed, which shows the noise."""
    full = votes[ARMS[0]]
    rows = []
    for arm, found in votes.items():
        others = [*full[1:], full[0]] if arm.rule == FULL else full
        agreed = [agreement(one.answers, other.answers) for one, other in zip(found, others, strict=True)]
        rows.append(
            [
                *arm.cells,
                spread([one.samples / len(one.answers) for one in found], ".1f"),
                spread([one.tokens for one in found], ",.0f"),
                "-" if arm.rule == FULL and len(full) == 1 else spread(agreed, ".1%"),
                spread([replayed(one, arm, max_samples) for one in full], ".1%"),
                spread([one.accuracy for one in found], ".1%"),
            ]
        )
    return rows


def spent_rows(votes: Mapping[Arm, Sequence[Vote]]) -> list[list[str]]:
    """Return one row for each arm. The share of the full vote's processor time is paired by seed."""
    full = votes[ARMS[0]]
    return [
        [
            *arm.cells,
            spread([one.requests for one in found], ",.0f"),
            spread([one.left for one in found], ".0f"),
            spread([one.round_trips for one in found], ".1f"),
            spread([one.server_seconds for one in found], ".2f"),
            spread([a.server_seconds / b.server_seconds for a, b in zip(found, full, strict=True)], ".2f"),
            spread([one.client_seconds for one in found], ".2f"),
            spread([one.seconds for one in found], ".2f"),
        ]
        for arm, found in votes.items()
    ]


def main(
    results: Path = RESULTS,
    questions: int = 24,
    max_samples: int = 64,
    seeds: Sequence[int] = (0, 1, 2),
    tokens: int = 400,
) -> None:
    """Train and serve the model, measure every arm, and write the table ``serving`` into ``results``."""
    load, asked = os.getloadavg()[0], [Question(one.text, one.text, one.answer) for one in problems(questions)]
    votes: dict[Arm, list[Vote]] = {arm: [] for arm in ARMS}
    left: list[dict[str, Left]] = []
    with tempfile.TemporaryDirectory() as folder:
        train_model(Path(folder) / "model")
        with serving(Path(folder) / "model") as served:
            measure(served, asked[:2], ARMS[-1], seed=0, max_samples=8)  # the first requests are slow
            for seed in seeds:
                for arm in ARMS:
                    votes[arm].append(measure(served, asked, arm, seed, max_samples))
                left.append(left_behind(served, asked[0], seed, tokens))
    left_note, left_table = left_notes(left, tokens)
    write(
        "serving",
        "Votes stopped early on a served model",
        CHOSEN.split(", "),
        chosen_rows(votes, max_samples),
        [
            f"`transformers serve` on the CPU, one thread, with a policy of 200,640 parameters: {questions} ledger "
            f"problems of one operation, of which it is sure of some and torn on others; at most M = {max_samples} "
            f"samples a question, temperature 1, {CONCURRENCY} requests in flight; every rule but `fixed` with "
            "curtailment. Mean and 95% interval (Student's t) over seeds.",
            "## What it costs",
            "Processor time of the server until it is idle, also for requests that its client has left.",
            table(SPENT.split(", "), spent_rows(votes)),
            "## Leaving requests in flight",
            left_note,
        ],
        more=[
            left_table,
            "`agreement`: questions with the answer of the full vote, which drew samples of its own; for `fixed`, that "
            "of the next seed. `agreement on its samples`: the rule replayed on the samples of the full vote. The eps "
            "of `posterior_predictive` bounds this one. `wall s` is until the last answer is on disk. The server "
            f"computes one request after another. 1-minute load of the machine when it began: {load:.1f}.",
        ],
        seeds=seeds,
        cells={
            "votes": [_record(arm, seed, one) for arm in ARMS for seed, one in zip(seeds, votes[arm], strict=True)],
            "left": [{name: vars(one) for name, one in each.items()} for each in left],
        },
        results=results,
    )


def _record(arm: Arm, seed: int, one: Vote) -> dict[str, Any]:
    return vars(arm) | {"seed": seed} | {name: value for name, value in vars(one).items() if name != "streams"}


if __name__ == "__main__":
    main()
