"""A vote on many questions at the same time. Each sample is on disk when it arrives, so any run can be continued."""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, nullcontext
from dataclasses import dataclass, field, replace
from inspect import signature
from pathlib import Path
from typing import Any

from apportion.answers import Equivalence, JudgeUsage
from apportion.endpoint import PLAIN_PROMPT, Client, Completion, EndpointError, Usage
from apportion.messages import prompt_hash
from apportion.questions import Question, fill_template, read_questions, refuse_duplicate_ids
from apportion.vote.ballot import Ballot
from apportion.vote.count import MAX_FAILURES, Count
from apportion.vote.journal import Journal, Samples
from apportion.vote.lines import JournalError
from apportion.vote.progress import Tally, show_progress
from apportion.vote.right import check_golds
from apportion.vote.sample import Sample
from apportion.vote.setup import Setup, make_setup
from apportion.vote.summary import Summary, summarise

MAX_UNPARSED = 0.5
"""Default share of whole samples without an answer above which a run ends."""
MOST_CUT_OFF = 0.9
"""Share of samples cut off before their answer above which a run ends. Below it, cut samples only cost more."""

FIRST_QUESTIONS, FIRST_SAMPLES = 3, 24
"""Finished questions, and arrived samples, before these shares are checked."""


class NoAnswersError(ValueError):
    """Most samples hold no answer, so that a run would pay for nothing. The samples are kept."""


@dataclass(frozen=True)
class Report:
    """The result of a run.

    Args:
        questions: the number of questions.
        ballots: those of finished questions, also of earlier runs, in the order of the questions.
        unfinished: ballots that failures ended in this run. The deadline cut off the other missing ones.
        refused: ballots of this run whose questions the server refuses. They are finished.
        max_samples: most samples of a question.
        seconds: duration of this run.
        usage: requests and tokens of this run, without those of a judge.
        judge: what a judge of answers cost in this run; None without one.
        uncounted_tokens, uncounted_prompt_tokens: completion and prompt tokens of this run that are in no ballot,
            because they arrived after the rule had stopped or belong to a question that is not finished. Their samples
            are kept.
    """

    questions: int
    ballots: tuple[Ballot, ...]
    unfinished: tuple[Ballot, ...]
    refused: tuple[Ballot, ...]
    max_samples: int
    seconds: float
    usage: Usage
    judge: JudgeUsage | None
    uncounted_tokens: int
    uncounted_prompt_tokens: int

    @property
    def complete(self) -> bool:
        """Whether every question is finished."""
        return len(self.ballots) == self.questions

    @property
    def summary(self) -> Summary:
        """The totals over all finished questions."""
        summary = summarise(
            self.ballots, self.questions, self.max_samples, self.seconds, self.uncounted_tokens, self.judge
        )
        return replace(summary, uncounted_prompt_tokens=self.uncounted_prompt_tokens)


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
    **settings: Any,
) -> Report:
    """Ask the server at ``base_url`` for samples of each question until the stopping rule is met.

    ``questions`` may be the path of a file. ``settings`` are those of ``make_setup``: ``target``, ``rule``,
    ``rule_settings``, ``max_samples``, ``wave``, ``curtail``, ``template``, ``extract``, ``equivalence``, and those of
    ``Endpoint``; and those of ``run``: ``deadline_seconds``, ``max_unparsed``, ``save_completions``, ``overwrite``,
    ``resume`` and ``progress``. The errors are those of ``run``.
    """
    if isinstance(questions, (str, Path)):
        questions = read_questions(Path(questions))
    running = {name: settings.pop(name) for name in signature(run).parameters if name in settings}
    return await run(questions, make_setup(base_url, model, **settings), Path(out), **running)


async def run(
    questions: Sequence[Question],
    setup: Setup,
    out: Path,
    *,
    deadline_seconds: float | None = None,
    max_unparsed: float = MAX_UNPARSED,
    save_completions: bool = True,
    overwrite: bool = False,
    resume: bool = False,
    progress: bool = False,
) -> Report:
    """Ask every question that ``out`` does not hold yet, until all are finished or the deadline has passed.

    Each sample is written beside ``out`` as it arrives, with its text if ``save_completions`` is set, and each finished
    question to ``out``. A question that failures or the deadline ended is not, so another run goes on with it. All
    samples that are kept are counted before others are requested. With ``resume`` the settings may count them in
    another way than before: then all questions are counted again.

    Raises ValueError for questions and settings that cannot be used, and JournalError for an ``out`` that cannot be
    used, both before anything is asked. Raises EndpointError if the server refuses, or stops answering, and
    NoAnswersError if more than the share ``max_unparsed`` of the first samples holds no answer.
    """
    check_run(questions, setup, deadline_seconds, max_unparsed)
    started = time.monotonic()
    with Journal(out, setup, overwrite=overwrite, resume=resume) as journal:
        finished = ballots_of(questions, journal.ballots)
        check_samples(questions, journal.samples)
        tally = Tally(len(questions), setup.voting.max_samples)
        for ballot in finished:
            tally.finish(ballot)
        open_questions = _OpenQuestions(setup, journal, tally, save_completions, max_unparsed)
        async with show_progress(tally) if progress else nullcontext():
            await open_questions.run([q for q in questions if q.id not in journal.ballots], deadline_seconds)
        return Report(
            questions=len(questions),
            ballots=ballots_of(questions, journal.ballots),
            unfinished=tuple(open_questions.unfinished),
            refused=tuple(open_questions.refused),
            max_samples=setup.voting.max_samples,
            seconds=time.monotonic() - started,
            usage=open_questions.usage,
            judge=open_questions.judge,
            uncounted_tokens=open_questions.usage.completion_tokens - open_questions.counted.completion_tokens,
            uncounted_prompt_tokens=open_questions.usage.prompt_tokens - open_questions.counted.prompt_tokens,
        )


def check_run(
    questions: Sequence[Question],
    setup: Setup,
    deadline_seconds: float | None = None,
    max_unparsed: float = MAX_UNPARSED,
) -> None:
    """Raise ValueError without questions, for two with one id, and for prompts or limits that cannot be used."""
    if not 0 <= max_unparsed <= 1:
        raise ValueError(f"max_unparsed must be a share from 0 to 1, got {max_unparsed}; 1 never ends a run")
    if not questions:
        raise ValueError("questions must be at least one, got none; give a file or a list")
    for question in questions:
        if not isinstance(question, Question):
            raise ValueError(f'questions must each be a Question, got {question!r}; write Question("", prompt)')
    refuse_duplicate_ids(questions)
    check_golds(questions, setup)
    for question in questions:
        setup.endpoint.check_prompt(question.prompt)
    if deadline_seconds is not None and not deadline_seconds > 0:
        raise ValueError(f"deadline must be above 0 seconds, got {deadline_seconds}; leave it out for none")


def ballots_of(questions: Sequence[Question], ballots: Mapping[str, Ballot]) -> tuple[Ballot, ...]:
    """Return the ballots of those ``questions`` that are finished, in their order.

    Raises JournalError if a ballot with the id of a question is about another text or another gold answer.
    """
    found = [(question, ballots[question.id]) for question in questions if question.id in ballots]
    for question, ballot in found:
        _check_same(question, "answered", "text", ballot.question_hash, prompt_hash(question.prompt))
        _check_same(question, "answered", "gold answer", ballot.golds, question.golds)
    return tuple(ballot for _, ballot in found)


def check_samples(questions: Sequence[Question], samples: Mapping[str, Samples]) -> None:
    """Raise JournalError if samples with the id of a question were drawn for another text."""
    for question in questions:
        for sample in samples.get(question.id, {}).values():
            _check_same(question, "sampled", "text", sample.question_hash, prompt_hash(question.prompt))


def _check_same(question: Question, done: str, what: str, before: object, now: object) -> None:
    if before != now:
        raise JournalError(
            f"a question must be what was {done} under its id, got another {what} for {question.id!r}; "
            "rename it, choose another file for the answers, or overwrite"
        )


@dataclass
class _OpenQuestions:
    """The questions that are open at the same time, one per request in flight at most, and their cost."""

    setup: Setup
    journal: Journal
    tally: Tally
    save_completions: bool
    max_unparsed: float
    unfinished: list[Ballot] = field(default_factory=list)
    refused: list[Ballot] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    judge: JudgeUsage | None = None
    counted: Usage = field(default_factory=Usage)
    ended: int = 0
    _unwritten: list[Ballot] = field(default_factory=list)
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self, questions: Sequence[Question], deadline_seconds: float | None) -> None:
        """Ask ``questions`` until the deadline. The first error ends all of them."""
        if not questions:
            return
        async with AsyncExitStack() as stack:
            equivalence = await stack.enter_async_context(self.setup.open_equivalence(self.journal.path))
            self.judge = getattr(equivalence, "usage", None)
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
                await self._write()
            for task in tasks:
                if not task.cancelled():
                    task.result()

    async def _ask_next(self, waiting: Iterator[Question], client: Client, equivalence: Equivalence) -> None:
        for question in waiting:
            kept = self.journal.samples.get(question.id, {})
            ballot = await self._ask(question, client, equivalence, kept)
            self.ended += 1
            if ballot.finished:
                self.tally.finish(ballot)
                self._unwritten.append(ballot)
                await self._write()
                self._check_answers()
            else:
                self.unfinished.append(ballot)
                await _check_alive(client, ballot)
            if ballot.stopped == "refused":
                self.refused.append(ballot)

    async def _write(self) -> None:
        """Write all finished questions at once, in a thread, because a disk may take longer than a sample.

        Whoever is cancelled meanwhile still waits for the thread.
        """
        async with self._writing:
            if not self._unwritten:
                return  # another call has written them
            ballots, self._unwritten = self._unwritten, []
            written = asyncio.ensure_future(asyncio.to_thread(self.journal.append, *ballots))
            try:
                await asyncio.shield(written)
            finally:
                await asyncio.wait({written})

    async def _ask(self, question: Question, client: Client, equivalence: Equivalence, kept: Samples) -> Ballot:
        """Return the ballot of ``question``. Samples in ``kept``, by number, are counted and not requested.

        Samples that are still in flight when the rule stops are cancelled. The size of a wave therefore changes the
        time and the number of cancelled samples, not the answer.
        """
        setup, asked = self.setup, prompt_hash(question.prompt)
        text, fresh = fill_template(setup.template, question), dict[int, Sample]()
        count = Count(question, asked, setup.voting, setup.give_up, equivalence, setup.weight)

        def arrived(number: int, seed: int | None, completion: Completion) -> None:
            sample, read = Sample.of(question.id, asked, number, seed, completion), False
            try:
                sample, read = sample.read(setup.extractor), True
            finally:  # the text of a sample is kept even if a function of the user cannot read it
                fresh[number] = sample
                if self.save_completions or read:
                    self.journal.keep(sample if self.save_completions else sample.without_text())
                self.tally.sample(sample)

        async def draw(numbers: Sequence[int]) -> AsyncGenerator[Sample, None]:
            span = range(numbers[0], numbers[-1] + 1)
            request = client.sample(text, len(span), span.start, question.id, skip=kept, on_arrival=arrived)
            async with aclosing(request) as completions:
                for number in numbers:
                    await anext(completions)
                    yield fresh[number]

        await count.run(draw, kept)
        ballot = await count.ballot()
        if ballot.finished:
            drawn = [sample for sample in count.samples if sample.number not in kept]
            self.counted.prompt_tokens += sum(sample.prompt_tokens or 0 for sample in drawn)
            self.counted.completion_tokens += sum(sample.tokens or 0 for sample in drawn)
        return ballot

    def _check_answers(self) -> None:
        """Raise NoAnswersError if most samples of the first questions hold no answer: others may be like them."""
        arrived, unparsed, cut_off = self.tally.arrived, self.tally.unparsed, self.tally.cut
        if self.ended < FIRST_QUESTIONS or arrived < FIRST_SAMPLES:
            return
        unread = unparsed - cut_off > self.max_unparsed * (arrived - cut_off)
        if not unread and (self.max_unparsed == 1 or cut_off <= MOST_CUT_OFF * arrived):
            return
        longest = self.setup.endpoint.max_tokens or "their maximum of"
        cut = f", and {cut_off} were cut off at {longest} tokens" if cut_off else ""
        remedy = "raise max_tokens" if 2 * cut_off > unparsed else "look at the samples and choose another extract"
        raise NoAnswersError(
            f"samples must hold answers that {self.setup.extract} can read, got none in {unparsed} of {arrived}{cut}; "
            f"{remedy}, or set max_unparsed to 1 to go on"
        )


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
