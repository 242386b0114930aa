"""Measure what stopping a vote early saves on a real server: samples, and processor time.

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
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from apportion.stopping import Wave
from apportion.vote import Question, vote
from benchmarks.common import RESULTS, spread, table, write
from benchmarks.served_model import problems, serving, train_model

CONCURRENCY, IDLE_SECONDS = 8, 0.3
FULL = "fixed"


@dataclass(frozen=True)
class Arm:
    """A rule and its wave. The fixed budget is the full vote. The others have curtailment."""

    rule: str
    wave: Wave

    @property
    def settings(self):
        """The settings of the rule. OptPO counts exceedances from N on, as when the table was written."""
        return {"count_from": "min_samples"} if self.rule == "optpo" else {}

    @property
    def cells(self):
        """The first two cells of the arm's row."""
        return [f"`{self.rule}`", "all" if self.rule == FULL else str(self.wave)]


ARMS = (Arm(FULL, "free"), *(Arm(rule, wave) for rule in ("optpo", "posterior_predictive") for wave in (1, 8, "free")))


@dataclass(frozen=True)
class Vote:
    """One vote on all questions: its samples a question, its accuracy, and what it cost the server."""

    samples: float
    accuracy: float
    server_seconds: float


def settled(served):
    """Wait until the server is idle, and return its processor seconds so far."""
    before = served.cpu_seconds
    while True:
        time.sleep(IDLE_SECONDS)
        now = served.cpu_seconds
        if now - before <= 0.1 * IDLE_SECONDS:
            return now
        before = now


def measure(served, questions, arm, seed, max_samples):
    """Run one vote by ``arm``. The server's seconds include those for requests that the client has left."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "answers.jsonl"
        server = settled(served)
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
    if not report.complete:
        raise RuntimeError(f"every question must be finished, got {len(report.ballots)} of {len(questions)}")
    return Vote(
        samples=float(np.mean([ballot.samples for ballot in report.ballots])),
        accuracy=float(np.mean([bool(ballot.correct) for ballot in report.ballots])),
        server_seconds=settled(served) - server,
    )


def chosen_rows(votes):
    """Return one row for each arm."""
    return [
        [*arm.cells, spread([one.samples for one in found], ".1f"), spread([one.accuracy for one in found], ".1%")]
        for arm, found in votes.items()
    ]


def spent_rows(votes):
    """Return one row for each arm: its share of the full vote's processor time, paired by seed."""
    full = votes[ARMS[0]]
    return [
        [*arm.cells, spread([a.server_seconds / b.server_seconds for a, b in zip(found, full, strict=True)], ".2f")]
        for arm, found in votes.items()
    ]


def main(results=RESULTS, questions=24, max_samples=64, seeds=(0, 1, 2)):
    """Train and serve the model, measure every arm, and write the table ``serving`` into ``results``."""
    asked = [Question(one.text, one.text, one.answer) for one in problems(questions)]
    votes: dict[Arm, list[Vote]] = {arm: [] for arm in ARMS}
    with tempfile.TemporaryDirectory() as folder:
        train_model(Path(folder) / "model")
        with serving(Path(folder) / "model") as served:
            measure(served, asked[:2], ARMS[-1], seed=0, max_samples=8)  # the first requests are slow
            for seed in seeds:
                for arm in ARMS:
                    votes[arm].append(measure(served, asked, arm, seed, max_samples))
    write(
        "serving",
        "Votes stopped early on a served model",
        ["rule", "wave", "samples/question", "accuracy"],
        chosen_rows(votes),
        [
            f"`transformers serve` on the CPU, one thread, with a policy of 200,640 parameters: {questions} ledger "
            f"problems of one operation, of which it is sure of some and torn on others; at most M = {max_samples} "
            f"samples a question, temperature 1, {CONCURRENCY} requests in flight; every rule but `fixed` with "
            "curtailment. Mean and 95% interval (Student's t) over seeds.",
            "## What it costs",
            "Processor time of the server until it is idle, also for requests that its client has left.",
            table(["rule", "wave", "of the full vote's"], spent_rows(votes)),
        ],
        seeds=seeds,
        cells={"votes": [vars(arm) | vars(one) for arm in ARMS for one in votes[arm]]},
        results=results,
    )


if __name__ == "__main__":
    main()
