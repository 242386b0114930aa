"""The kept samples of a vote as rewards and answers of each question, for Mean@k, Pass@k and Maj@k."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from apportion.allocators import Voting
from apportion.answers import AnswerClasses, Equivalence, is_correct
from apportion.answers.equivalence import run_coroutine
from apportion.evaluation import Rollouts
from apportion.questions import Question
from apportion.stopping import Fixed
from apportion.vote.journal import Samples, VoteRecord
from apportion.vote.revote import read_again
from apportion.vote.sample import Sample


def kept_rollouts(
    path: Path,
    questions: Sequence[Question] = (),
    labels: Mapping[str, Sequence[str]] | None = None,
    **changes: Any,
) -> Rollouts:
    """Return the kept samples of the vote at ``path``, with rewards of 0 and 1. Nothing is requested.

    Right answers are those of ``labels`` by the id of a question, else of ``questions``, else those that the vote had.
    Questions without any are left out. ``changes`` are ``extract`` and ``equivalence``; None is no change. Raises
    JournalError for files that cannot be used, and ValueError for settings that cannot and if no right answer is known.
    """
    setup, record = read_again(path, questions, **changes)
    known: dict[str, Sequence[str]] = {
        **{id: (each.gold, *each.aliases) for id, each in record.ballots.items() if each.gold is not None},
        **{each.id: each.golds for each in questions if each.golds},
        **(labels or {}),
    }
    arrived = {id: _arrived(samples) for id, samples in record.samples.items()}
    chosen = {id: samples for id, samples in arrived.items() if samples and id in known}
    if not chosen:
        raise ValueError(
            f"an evaluation needs samples with a right answer, got none of {len(arrived)} questions of {path}; "
            "give right answers by --questions or --labels"
        )

    async def judge() -> list[tuple[list[str | None], list[float]]]:
        async with setup.open_equivalence() as equivalence:
            return [await _judged(samples, known[id], equivalence) for id, samples in chosen.items()]

    answers, rewards = zip(*run_coroutine(judge()), strict=True)
    lost = {
        "without a known right answer": sum(bool(samples) and id not in known for id, samples in arrived.items()),
        "without a sample": sum(not samples for samples in arrived.values()),
    }
    left_out = [f"{count:,} questions {why} are left out" for why, count in lost.items() if count]
    return Rollouts(
        name=f"{path.stem} (vote)",
        rewards=rewards,
        answers=answers,
        failed=sum(len(samples) - len(arrived[id]) for id, samples in record.samples.items()),
        doubts=(*_doubts(record, setup.voting), *left_out),
    )


def _arrived(samples: Samples) -> list[Sample]:
    """Return those that did not fail, in the order of their numbers."""
    return [samples[number] for number in sorted(samples) if samples[number].arrived]


async def _judged(
    samples: Sequence[Sample], golds: Sequence[str], equivalence: Equivalence
) -> tuple[list[str | None], list[float]]:
    classes = AnswerClasses(equivalence)
    answers = [None if each.answer is None else await classes.join(each.answer) for each in samples]
    right = {answer: await is_correct(answer, golds, equivalence) for answer in dict.fromkeys(answers)}
    return answers, [float(right[answer]) for answer in answers]


def _doubts(record: VoteRecord, voting: Voting) -> Iterator[str]:
    if voting.curtail or not isinstance(voting.rule, Fixed):
        yield (
            f"the vote stopped by its answers ({voting.rule.name}{', curtailed' if voting.curtail else ''}), so the "
            "number of samples depends on them and these figures are biased; vote with --rule fixed --no-curtail"
        )
    short = [each.samples for each in record.ballots.values() if each.stopped == "unanswered"]
    if short and min(short) < voting.max_samples:
        yield (
            f"{len(short)} questions ended after {min(short)} samples or more without an answer, and a larger k leaves "
            f"them out, which flatters; vote with --give-up {voting.max_samples}"
        )
