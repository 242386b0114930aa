"""Replay the votes of the package its_hub beside ours, on the same recorded answers in the same order.

its_hub 1.2 has three votes: ``SelfConsistency`` takes every sample, ``AdaptiveSelfConsistency`` doubles its samples
until a share agrees, and ``BetaSelfConsistency`` has Adaptive-Consistency's rule. Its own code runs here, with an
orchestrator that answers from the recorded samples, one after the other. Requires ``pip install its_hub``, which needs
only numpy.

    python -m benchmarks.its_hub_votes [--votes PATH]
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import numpy as np

from apportion.stopping import count_votes, decide, encode_answers
from benchmarks.common import options, write
from benchmarks.recorded import VOTES, Streams, read_datasets
from benchmarks.stopping_measured import SEED

BUDGET = 40
ORDERS = {"gsm8k": 1, "aime24": 20, "game24_cot": 5, "game24_standard": 5}
TURNS = 4
"""Turns of the event loop between two answers, so that its_hub sees them one by one."""
OURS: dict[str, dict[str, Any]] = {"fixed": {}, "adaptive_consistency_beta, confidence = .95": {"confidence": 0.95}}
"""Settings of our rules by a name to show, which begins with the rule's."""
FIGURES = ("samples", "agreement, %")


@dataclass
class Recorded:
    """An orchestrator of its_hub that answers with ``answers``, in order; ``asked`` counts the requests so far."""

    answers: Sequence[str]
    asked: int = 0

    async def agenerate(self, lm, messages_lst, **_):
        """Return the next answers, one for each conversation; the nth request ends after ``TURNS`` * n turns."""
        first, self.asked = self.asked, self.asked + len(messages_lst)
        mine = self.answers[first : self.asked]
        for _ in range(TURNS * first):
            await asyncio.sleep(0)
        return [{"role": "assistant", "content": answer} for answer in mine]


def theirs():
    """Return the votes of its_hub by name, with its default settings."""
    from its_hub import BetaSelfConsistency, SelfConsistency  # noqa: PLC0415 - optional

    return {"its_hub SelfConsistency": SelfConsistency, "its_hub BetaSelfConsistency, .95": BetaSelfConsistency}


async def ask(vote, answers, budget=BUDGET, **settings):
    """Return the answer that ``vote`` of its_hub chooses and the number of samples that it counts."""
    made = vote(orchestrator=Recorded(answers), **settings)
    result = await made.ainfer(None, "question", budget, return_response_only=False)
    return result.the_one["content"], len(result.responses)


async def _ask_all(vote, streams):
    return [await ask(vote, answers) for answers in streams]


def tied(answers):
    """Return whether two answers have the most votes."""
    names, codes = encode_answers(answers)
    votes = count_votes(codes, len(names))[-1]
    return bool((votes == votes.max()).sum() > 1)


def cells(streams, chosen, samples):
    """Return the cells of ``FIGURES``: samples, and agreement with the full vote of ``BUDGET`` samples."""
    cut = [stream[:BUDGET] for stream in streams.answers]
    agreed = [a == b for a, b in zip(chosen, decide(cut, "fixed", BUDGET).answer, strict=True)]
    return [f"{np.mean(samples):.2f}", f"{100 * np.mean(agreed):.2f}"]


def ties(streams):
    """Return the share of streams in which two answers have the most votes."""
    return f"{100 * np.mean([tied(stream[:BUDGET]) for stream in streams.answers]):.2f}%"


def main(votes=VOTES):
    """Measure, and write the table ``its_hub_votes``."""
    if find_spec("its_hub") is None:
        print("Skipped: its_hub is not installed; pip install --no-deps its_hub")
        return
    logging.disable(logging.INFO)
    random.seed(SEED)
    data = {name: Streams.draw(rows, ORDERS[name], SEED) for name, rows in read_datasets(votes).items()}
    found: dict[str, list[str]] = {label: [] for label in (*theirs(), *OURS)}
    for streams in data.values():
        for label, vote in theirs().items():
            asked = asyncio.run(_ask_all(vote, streams.answers))
            found[label] += cells(streams, [answer for answer, _ in asked], [taken for _, taken in asked])
        for label, settings in OURS.items():
            ours = decide(streams.answers, label.split(",")[0], BUDGET, **settings)
            found[label] += cells(streams, ours.answer, ours.samples.tolist())
    write(
        "its_hub_votes",
        f"The votes of its_hub {version('its_hub')} beside ours, at most {BUDGET} samples",
        ["vote", *(f"{name}: {figure}" for name in data for figure in FIGURES)],
        [[label, *shown] for label, shown in found.items()],
        [
            f"Agreement is with the majority of all {BUDGET} samples, the first answer among equals. its_hub draws "
            "among equals at random, without a seed; ours is the answer that appeared first. Ties at the top: "
            + ", ".join(f"{name} {ties(streams)}" for name, streams in data.items())
            + ". Random orders, the same for each: "
            + ", ".join(f"{name} {len(mine.questions):,} questions x {mine.orders}" for name, mine in data.items())
            + ".",
            "BetaSelfConsistency sends all requests at once; only samples that had arrived when it stops are counted.",
        ],
        seeds=[SEED],
    )


if __name__ == "__main__":
    main(options(__doc__, votes=VOTES).votes)
