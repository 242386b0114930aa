"""A vote on many questions: each at its own pace, each on disk when it is finished, and any run can be gone on with."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from apportion.questions import Question, read_questions, refuse_twins
from apportion.samplers import PLAIN_PROMPT, Client, EndpointError, Usage
from apportion.types import prompt_id
from apportion.verifiers.equivalence import EQUIVALENCES, Equivalence
from apportion.vote.ask import GIVE_UP, ask
from apportion.vote.ballot import Ballot
from apportion.vote.journal import Journal, JournalError
from apportion.vote.progress import Tally, shown
from apportion.vote.setup import Setup, make_setup
from apportion.vote.summary import Summary, summarise


@dataclass(frozen=True)
class Report:
    """What is known after a run: the ``ballots`` of finished questions, earlier runs' too, in the questions' order.

    ``unfinished`` are those that failures ended in this run; the others that are missing were cut off by the deadline.
    ``usage`` is what this run spent. ``wasted_tokens``, of its completions, are in no ballot: they came when nobody
    needed them any more, all at once where the server honours n, or belong to a question that is not finished.
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
        """The totals."""
        return summarise(self.ballots, self.questions, self.max_samples, self.seconds, self.wasted_tokens)


def vote(questions: Sequence[Question] | str | Path, **settings: Any) -> Report:
    """``vote_async``, with its arguments, for callers without an event loop.

    Raises RuntimeError where one is running, as in a notebook.
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
    """Asks the server at ``base_url`` for samples of each question until the rule is content with the votes.

    ``questions`` may be the path of a file. ``settings`` are those of ``make_setup``: ``rule``, ``rule_settings``,
    ``max_samples``, ``wave``, ``curtail``, ``template``, ``extract``, ``equivalence``, and the endpoint's. For the
    rest, and the errors, see ``run``.
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
    """The report after every question that ``out`` does not hold yet was asked, or the deadline came.

    A finished question is appended to ``out`` at once, with its texts where ``save_completions`` is set; one that
    failures or the deadline ended is not, and another run asks it again. So cancelling loses open questions only.

    Raises ValueError for questions and settings that cannot be used, JournalError for an ``out`` that cannot, both
    before anything is asked; EndpointError where the server refuses or does not answer any more.
    """
    check_run(questions, deadline_seconds)
    started = time.monotonic()
    with Journal(out, setup.resolved(), overwrite=overwrite) as journal:
        tally = Tally(len(questions), setup.voting.max_samples)
        for ballot in finished_among(questions, journal.ballots):
            tally.finish(ballot)
        polling = _Polling(setup, journal, tally, save_completions)
        async with AsyncExitStack() as stack:
            if progress:
                await stack.enter_async_context(shown(tally))
            await polling.run([q for q in questions if q.id not in journal.ballots], deadline_seconds)
        return Report(
            questions=len(questions),
            ballots=finished_among(questions, journal.ballots),
            unfinished=tuple(polling.unfinished),
            max_samples=setup.voting.max_samples,
            seconds=time.monotonic() - started,
            usage=polling.usage,
            wasted_tokens=polling.usage.completion_tokens - polling.voted_tokens,
        )


def check_run(questions: Sequence[Question], deadline_seconds: float | None) -> None:
    """Raises ValueError without questions, for an id that is there twice, and for a deadline that is over already."""
    if not questions:
        raise ValueError("questions must be at least one, got none; give a file or a list")
    for question in questions:
        if not isinstance(question, Question):
            raise ValueError(f'questions must each be a Question, got {question!r}; write Question("", prompt)')
    refuse_twins(questions)
    if deadline_seconds is not None and not deadline_seconds > 0:
        raise ValueError(f"deadline must be above 0 seconds, got {deadline_seconds}; leave it out for none")


def finished_among(questions: Sequence[Question], ballots: Mapping[str, Ballot]) -> tuple[Ballot, ...]:
    """The ballots of ``questions``, in their order, of those that are finished.

    Raises JournalError where the id is the same and the question, or its gold answer, is another.
    """
    found = []
    for question in (question for question in questions if question.id in ballots):
        ballot = ballots[question.id]
        if (ballot.question_hash, ballot.gold) != (prompt_id(question.prompt), question.gold):
            what = "text" if ballot.question_hash != prompt_id(question.prompt) else "gold answer"
            raise JournalError(
                f"a question must be what was answered under its id, got another {what} for {question.id!r}; "
                "rename it, choose another file for the answers, or overwrite"
            )
        found.append(ballot)
    return tuple(found)


@dataclass
class _Polling:
    """Questions that are open at the same time, no more of them than requests may be; what came of those so far."""

    setup: Setup
    journal: Journal
    tally: Tally
    save_completions: bool
    unfinished: list[Ballot] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    voted_tokens: int = 0

    async def run(self, questions: Sequence[Question], deadline_seconds: float | None) -> None:
        """Settles each of ``questions``, until the deadline; the first error ends all. Nothing is asked for none."""
        if not questions:
            return
        equivalence = EQUIVALENCES[self.setup.equivalence]()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(equivalence.aclose)
            client = await stack.enter_async_context(self.setup.endpoint.connect())
            self.usage, waiting = client.usage, iter(questions)
            open_at_once = min(self.setup.endpoint.concurrency, len(questions))
            tasks = [asyncio.create_task(self._work(waiting, client, equivalence)) for _ in range(open_at_once)]
            try:
                await asyncio.wait(tasks, timeout=deadline_seconds, return_when=asyncio.FIRST_EXCEPTION)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            for task in tasks:
                if not task.cancelled():
                    task.result()

    async def _work(self, waiting: Iterator[Question], client: Client, equivalence: Equivalence) -> None:
        for question in waiting:
            ballot = await ask(question, self.setup, client, equivalence, self.tally.sample)
            if ballot.finished:
                self.journal.append(ballot if self.save_completions else replace(ballot, completions=()))
                self.tally.finish(ballot)
                self.voted_tokens += ballot.completion_tokens or 0
            else:
                self.unfinished.append(replace(ballot, completions=()))
                await _check_alive(client, ballot)


async def _check_alive(client: Client, lost: Ballot) -> None:
    """Raises EndpointError where the server answers a plain prompt no more than it did the ``lost`` question."""
    async with aclosing(client.sample(PLAIN_PROMPT, GIVE_UP, key=PLAIN_PROMPT)) as completions:
        async for completion in completions:
            if completion.text is not None:
                return
    raise EndpointError(
        f"the server must answer, got nothing but failures for {lost.id!r} and for a plain prompt ({lost.errors[-1]}); "
        "look after the server, then run the same command again"
    )
