"""Count kept samples again by another rule, extraction or equivalence, or as rollouts. Nothing is requested."""

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from apportion.allocators import Voting
from apportion.answers import AnswerClasses, Equivalence, is_correct
from apportion.answers.equivalence import run_coroutine
from apportion.answers.making import JUDGE
from apportion.evaluation import Rollouts
from apportion.questions import Question
from apportion.runs.json_text import json_text, plain
from apportion.runs.text_table import text_table
from apportion.runs.whole_files import write_whole
from apportion.stopping import Fixed
from apportion.untrusted import shown
from apportion.vote.ballot import Ballot
from apportion.vote.count import Count
from apportion.vote.journal import Samples, VoteRecord, check_path, read_recorded, read_started
from apportion.vote.lines import JournalError, unwritable
from apportion.vote.right import RightWinners, check_golds, check_labels, right_winners
from apportion.vote.run import check_samples
from apportion.vote.sample import Sample
from apportion.vote.setup import ENDPOINT_SETTINGS, READING, VOTING, Setup, make_setup
from apportion.vote.summary import Summary, summarise, summary_rows


@dataclass(frozen=True)
class Revote:
    """The result of counting kept samples again.

    Args:
        setup: the settings of this count.
        ballots: those of the questions whose samples are enough.
        wanting: for each other question, the minimum number of further samples before the rule can stop.
        compared: number of questions that were finished before and are now.
        same: those of them whose answer means the same as before.
        before: the ballots before.
        right: a bound on right winners from labelled questions; None without labels.
    """

    setup: Setup
    ballots: tuple[Ballot, ...]
    wanting: Mapping[str, int]
    compared: int
    same: int
    before: tuple[Ballot, ...]
    right: RightWinners | None = None

    @property
    def summary(self) -> Summary:
        """The totals over all questions whose samples are enough."""
        most = self.setup.voting.max_samples
        return replace(summarise(self.ballots, len(self.ballots) + len(self.wanting), most, 0.0), right=self.right)

    def to_json(self) -> str:
        """Return one JSON object: the summary, the accuracy before, and the samples that are wanted."""
        result = plain(self.summary) | {
            "accuracy_before": self._summary_before.accuracy,
            "same_answers": self.same,
            "compared": self.compared,
            "wanting": self.wanting,
        }
        return json_text(result)

    def to_text(self, terminal: bool = False) -> str:
        """Return the summary as a table. A ``terminal`` gets the same one as a file."""
        rows = [row for row in summary_rows(self.summary) if row[0] != "seconds"]
        if self.compared:
            rows.append(("same answer as before", f"{self.same} of {self.compared} questions"))
        if (before := self._summary_before.accuracy) is not None:
            rows.append(("accuracy before", f"{before.mean:.1%} of {before.questions} with a gold answer"))
        if self.wanting:
            rows.append(
                ("more samples wanted", f"at least {sum(self.wanting.values())} for {len(self.wanting)} questions")
            )
        return text_table(rows, align="ll")

    @property
    def _summary_before(self) -> Summary:
        return summarise(self.before, len(self.before), self.setup.voting.max_samples, 0.0)


def revote(
    path: str | Path,
    questions: Sequence[Question] | None = None,
    *,
    out: str | Path | None = None,
    labels: Mapping[str, Question] | None = None,
    **changes: Any,
) -> Revote:
    """Count the samples at ``path`` again, with ``changes`` of the settings that it was started with.

    ``changes`` are ``target``, ``rule``, ``rule_settings``, ``max_samples``, ``curtail``, ``extract``, ``equivalence``,
    ``equivalence_settings``, ``give_up`` and ``weight``. ``questions`` are needed for gold answers of questions that
    were not finished. ``labels`` are right answers by the id of a question, for the bound on right winners. The new
    ballots are written to ``out`` if it is given, which must not exist. Nothing else is written, and no server is
    contacted.

    Settings that name a function of the user must be given again, because nothing that is loaded may run code.

    Raises JournalError for files that cannot be used, and ValueError for settings that cannot.
    """
    path = Path(path)
    if out is not None:
        check_path(Path(out))
        if Path(out).exists():
            raise JournalError(
                f"the new answers to {path} must go to a new file, got {out}, which exists; name another"
            )
    known = {question.id: question for question in questions or ()}
    setup, record = read_again(path, list(known.values()), **changes)
    check_golds([*known.values(), *(labels or {}).values()], setup)
    if not record.samples:
        raise JournalError(
            f"{path} must have its samples beside it to count them again, got none; vote once with this version"
        )
    found = run_coroutine(_count_all(record, setup, known, labels))
    if out is not None:
        try:
            write_whole(Path(out), "".join(f"{ballot.to_json()}\n" for ballot in found.ballots))
        except OSError as error:
            raise unwritable(Path(out), error) from error
    return found


def read_again(path: Path, questions: Sequence[Question], **changes: Any) -> tuple[Setup, VoteRecord]:
    """Return the answers at ``path``, read under their settings with ``changes``, and these settings.

    No server is asked.

    Raises JournalError and ValueError as ``revote`` does.
    """
    setup = setup_of(path, **changes)
    if setup.equivalence == JUDGE:
        raise ValueError(
            "equivalence must need no server to count kept samples, got 'judge'; name another, or resume the vote"
        )
    record = read_recorded(path, setup.extractor, must_read=setup.extract != read_started(path).get("extract"))
    check_samples(questions, record.samples)
    return setup, record


def setup_of(path: Path, **changes: Any) -> Setup:
    """Return the settings that the answers at ``path`` were started with, with ``changes``."""
    check_path(path)
    started = read_started(path)
    given = {name: started[name] for name in (*ENDPOINT_SETTINGS, *VOTING, *READING) if name in started}
    missing = [name for name in ("base_url", "model", "rule") if name not in given]
    if missing:
        raise JournalError(f"the settings of {path} must name {missing[0]}, got none; restore them")
    own = {key.removeprefix("rule."): value for key, value in started.items() if key.startswith("rule.")}
    changes = {name: value for name, value in changes.items() if value is not None}
    if "target" in changes or changes.get("rule", given["rule"]) != given["rule"]:
        own = {}
    if "target" in changes:
        del given["rule"]
    for name in ("extract", "equivalence"):
        if name not in changes and ":" in str(given.get(name, "")):
            raise JournalError(
                f"{name} must be given again, because a file may not name code to run, got {shown(given[name])} in the "
                f"settings of {path}; name it, or another"
            )
    own |= changes.pop("rule_settings", {})
    return make_setup(**given | changes, rule_settings=own)


async def _count_all(
    record: VoteRecord, setup: Setup, known: Mapping[str, Question], labels: Mapping[str, Question] | None
) -> Revote:
    ballots, wanting, compared, same = [], {}, 0, 0
    async with setup.open_equivalence() as equivalence:
        for id in record.ids:
            samples, before = record.samples.get(id, {}), record.ballots.get(id)
            question = known.get(id) or Question(id, "?", golds=before.golds if before else ())
            found = await _count(question, samples, setup, equivalence)
            if isinstance(found, int):
                wanting[id] = found
                continue
            ballots.append(found)
            if before is not None:
                compared += 1
                earlier = [] if before.answer is None else [before.answer]
                same += before.answer == found.answer or await is_correct(found.answer, earlier, equivalence)
        right = None if labels is None else await right_winners(ballots, labels, equivalence)
    return Revote(setup, tuple(ballots), wanting, compared, same, tuple(record.ballots.values()), right)


async def _count(question: Question, samples: Samples, setup: Setup, equivalence: Equivalence) -> Ballot | int:
    """Return the ballot, or the minimum number of further samples if there are not enough."""
    asked = next((sample.question_hash for sample in samples.values()), "")
    count = Count(question, asked, setup.voting, setup.give_up, equivalence, setup.weight)
    if not await count.run(_no_more, samples):
        return max(1, sum(number not in samples for number in count.wanted()))
    ballot = await count.ballot()
    return ballot if ballot.finished else 1


async def _no_more(numbers: Sequence[int]) -> AsyncGenerator[Sample, None]:
    """Yield nothing, because no sample is requested here."""
    none: tuple[Sample, ...] = ()
    for sample in none:
        yield sample


def kept_rollouts(
    path: Path,
    questions: Sequence[Question] = (),
    labels: Mapping[str, Question] | None = None,
    only: bool = False,
) -> Rollouts:
    """Return the kept samples of the vote at ``path``, with rewards of 0 and 1. Nothing is requested.

    With ``only`` these are samples of ``questions``, and samples of others at ``path`` are not read.

    Right answers are those of ``labels`` by the id of a question, else of ``questions``, else those that the vote had.
    Questions without any are left out. Raises JournalError for files that cannot be used, and ValueError if no right
    answer is known.
    """
    setup, record = read_again(path, questions)
    if labels is not None:
        sampled = {id: each.question_hash for id, own in record.samples.items() for each in own.values()}
        check_labels(labels, sampled)
    known: dict[str, Sequence[str]] = {
        **{id: each.golds for id, each in record.ballots.items() if each.golds},
        **{each.id: each.golds for each in questions if each.golds},
        **{id: each.golds for id, each in (labels or {}).items()},
    }
    ids = {question.id for question in questions} if only else record.ids
    arrived = {
        id: [sample for _, sample in sorted(record.samples.get(id, {}).items()) if sample.arrived]
        for id in record.ids
        if id in ids
    }
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
    left_out = [
        f"{count:,} questions {why} are left out" if count > 1 else f"1 question {why} is left out"
        for why, count in lost.items()
        if count
    ]
    return Rollouts(
        name=f"{path.stem} (vote)",
        rewards=rewards,
        answers=answers,
        failed=sum(len(samples) for samples in record.samples.values()) - sum(map(len, arrived.values())),
        doubts=(*_doubts(record, setup.voting), *left_out),
    )


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
