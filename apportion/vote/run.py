"""A vote on many questions at the same time. Each is on disk when it is finished, so any run can be continued."""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from apportion.answers.equivalence import EQUIVALENCES, Equivalence
from apportion.endpoint import PLAIN_PROMPT, Client, EndpointError, Usage
from apportion.questions import Question, read_questions, refuse_duplicate_ids
from apportion.types import prompt_id
from apportion.vote.ask import MAX_FAILURES, ask
from apportion.vote.ballot import Ballot
from apportion.vote.journal import Journal, JournalError
from apportion.vote.progress import Tally, show_progress
from apportion.vote.setup import Setup, make_setup
from apportion.vote.summary import Summary, summarise


@dataclass(frozen=True)
class Report:
    """The result of a run.

    Args:
        questions: the number of questions.
        ballots: those of finished questions, also of earlier runs, in the order of the questions.
        unfinished: ballots that failures ended in this run. The deadline cut off the other missing ones.
        max_samples: most samples of a question.
        seconds: duration of this run.
        usage: requests and tokens of this run.
        wasted_tokens: completion tokens of this run that are in no ballot, because they arrived after the rule had
            stopped or belong to a question that is not finished.
    """

    questions: int
    ballots: tuple[Ballot, ...]
    unfinished: tuple[Ballot, ...]
    max_samples: int
    seconds: float
    usage: Usage
    wasted_tokens: int

    @property
    def complete(self) -> bool:
        """Whether every question is finished."""
        return len(self.ballots) == self.questions

    @property
    def summary(self) -> Summary:
        """The totals over all finished questions."""
        return summarise(self.ballots, self.questions, self.max_samples, self.seconds, self.wasted_tokens)


def vote(questions: Sequence[Question] | str | Path, **settings: Any) -> Report:
    """Run ``vote_async``, with its arguments, for callers without an event loop.

    Raises RuntimeError if a loop is running, as in a notebook.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(vote_async(questions, **settings))
    raise RuntimeError("vote must be called without a running event loop, got one; await vote_async(...) instead")


async def vote_async(
    questions: Sequence[Question] | str | Path,
    *,
    base_url: str,
    model: str,
    out: str | Path,
    deadline_seconds: float | None = None,
    save_completions: bool = False,
    overwrite: bool = False,
    progress: bool = False,
    **settings: Any,
) -> Report:
    """Ask the server at ``base_url`` for samples of each question until the stopping rule is met.

    ``questions`` may be the path of a file. ``settings`` are those of ``make_setup``: ``rule``, ``rule_settings``,
    ``max_samples``, ``wave``, ``curtail``, ``template``, ``extract``, ``equivalence``, and those of ``Endpoint``. The
    other arguments and the errors are those of ``run``.
    """
    if isinstance(questions, (str, Path)):
        questions = read_questions(Path(questions))
    return await run(
        questions,
        make_setup(base_url, model, **settings),
        Path(out),
        deadline_seconds=deadline_seconds,
        save_completions=save_completions,
        overwrite=overwrite,
        progress=progress,
    )


async def run(
    questions: Sequence[Question],
    setup: Setup,
    out: Path,
    *,
    deadline_seconds: float | None = None,
    save_completions: bool = False,
    overwrite: bool = False,
    progress: bool = False,
) -> Report:
    """Ask every question that ``out`` does not hold yet, until all are finished or the deadline has passed.

    A finished question is appended to ``out`` at once, with its texts if ``save_completions`` is set. A question that
    failures or the deadline ended is not, so another run asks it again. Cancelling loses open questions only.

    Raises ValueError for questions and settings that cannot be used, and JournalError for an ``out`` that cannot be
    used, both before anything is asked. Raises EndpointError if the server refuses, or stops answering.
    """
    check_run(questions, deadline_seconds)
    started = time.monotonic()
    with Journal(out, setup.resolved(), overwrite=overwrite) as journal:
        tally = Tally(len(questions), setup.voting.max_samples)
        for ballot in ballots_of(questions, journal.ballots):
            tally.finish(ballot)
        open_questions = _OpenQuestions(setup, journal, tally, save_completions)
        async with show_progress(tally) if progress else nullcontext():
            await open_questions.run([q for q in questions if q.id not in journal.ballots], deadline_seconds)
        return Report(
            questions=len(questions),
            ballots=ballots_of(questions, journal.ballots),
            unfinished=tuple(open_questions.unfinished),
            max_samples=setup.voting.max_samples,
            seconds=time.monotonic() - started,
            usage=open_questions.usage,
            wasted_tokens=open_questions.usage.completion_tokens - open_questions.voted_tokens,
        )


def check_run(questions: Sequence[Question], deadline_seconds: float | None) -> None:
    """Raise ValueError without questions, for two questions with one id, and for a deadline that is not above 0."""
    if not questions:
        raise ValueError("questions must be at least one, got none; give a file or a list")
    for question in questions:
        if not isinstance(question, Question):
            raise ValueError(f'questions must each be a Question, got {question!r}; write Question("", prompt)')
    refuse_duplicate_ids(questions)
    if deadline_seconds is not None and not deadline_seconds > 0:
        raise ValueError(f"deadline must be above 0 seconds, got {deadline_seconds}; leave it out for none")


def ballots_of(questions: Sequence[Question], ballots: Mapping[str, Ballot]) -> tuple[Ballot, ...]:
    """Return the ballots of those ``questions`` that are finished, in their order.

    Raises JournalError if a ballot with the id of a question is about another text or another gold answer.
    """
    found = [(question, ballots[question.id]) for question in questions if question.id in ballots]
    for question, ballot in found:
        if (ballot.question_hash, ballot.gold) != (prompt_id(question.prompt), question.gold):
            what = "text" if ballot.question_hash != prompt_id(question.prompt) else "gold answer"
            raise JournalError(
                f"a question must be what was answered under its id, got another {what} for {question.id!r}; "
                "rename it, choose another file for the answers, or overwrite"
            )
    return tuple(ballot for _, ballot in found)


@dataclass
class _OpenQuestions:
    """The questions that are open at the same time, at most one for each request in flight, and what they spent."""

    setup: Setup
    journal: Journal
    tally: Tally
    save_completions: bool
    unfinished: list[Ballot] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    voted_tokens: int = 0

    async def run(self, questions: Sequence[Question], deadline_seconds: float | None) -> None:
        """Ask ``questions`` until the deadline. The first error ends all of them."""
        if not questions:
            return
        equivalence = EQUIVALENCES[self.setup.equivalence]()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(equivalence.aclose)
            client = await stack.enter_async_context(self.setup.endpoint.connect())
            self.usage, waiting = client.usage, iter(questions)
            open_at_once = min(self.setup.endpoint.concurrency, len(questions))
            tasks = [asyncio.create_task(self._ask_next(waiting, client, equivalence)) for _ in range(open_at_once)]
            try:
                await asyncio.wait(tasks, timeout=deadline_seconds, return_when=asyncio.FIRST_EXCEPTION)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            for task in tasks:
                if not task.cancelled():
                    task.result()

    async def _ask_next(self, waiting: Iterator[Question], client: Client, equivalence: Equivalence) -> None:
        for question in waiting:
            ballot = await ask(question, self.setup, client, equivalence, self.tally.sample)
            if ballot.finished:
                self.journal.append(ballot if self.save_completions else replace(ballot, completions=()))
                self.tally.finish(ballot)
                self.voted_tokens += ballot.completion_tokens or 0
            else:
                self.unfinished.append(replace(ballot, completions=()))
                await _check_alive(client, ballot)


async def _check_alive(client: Client, failed: Ballot) -> None:
    """Raise EndpointError if the server does not answer a plain prompt either, after failing for a question."""
    async with aclosing(client.sample(PLAIN_PROMPT, MAX_FAILURES, key=PLAIN_PROMPT)) as completions:
        async for completion in completions:
            if completion.text is not None:
                return
    raise EndpointError(
        f"the server must answer, got nothing but failures for {failed.id!r} and for a plain prompt "
        f"({failed.errors[-1]}); check the server, then run the same command again"
    )
