"""The equivalence by a judge: a model is asked whether two answers to a question mean the same.

The prompt is fixed and the judge answers yes or no, so ``ask`` should sample at temperature 0. Nothing is asked about
answers with the same words or about two different plain numbers. Each pair is asked about once, whichever came first.
The number of requests is bounded for a question and for a run. Beyond the bounds, and without a clear reply, two
answers count as different. ``JudgeUsage`` counts how often that happened, and what the judge cost.

The answers stand in the prompt as JSON strings. Still, an answer can be written to persuade a judge.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import Protocol

from apportion.answers.equivalence import Equivalence
from apportion.answers.extraction import after_reasoning
from apportion.answers.normal_form import equal_by_text, normal_form
from apportion.answers.phrase import phrase_form
from apportion.checks import check_integer
from apportion.types import prompt_id
from apportion.untrusted import shown

LONGEST = 500
"""Answers with more characters than this are not shown to the judge."""
FAILURES = 8
"""Requests that may fail in a row, and first replies that may all be unclear, before a JudgeError ends the run."""

PROMPT = """Two answers to the same question are given as JSON strings. Decide whether they mean the same answer.

Question: {question}

First answer: {first}
Second answer: {second}

They mean the same if a grader who accepts one must accept the other. Wording, spelling, units that are understood and
extra words do not matter. If one names another thing, place, person, date or quantity, they differ.
Reply with one word, yes or no."""


class JudgeReply(Protocol):
    """What ``ask`` returns, such as a ``Completion``. ``text`` is None if the request failed; counts may be unknown."""

    @property
    def text(self) -> str | None: ...
    @property
    def tokens(self) -> int | None: ...
    @property
    def prompt_tokens(self) -> int | None: ...


Ask = Callable[[str], Awaitable[JudgeReply]]
"""Prompt -> the judge's reply."""


class JudgeError(RuntimeError):
    """The judge does not reply, or never clearly. It ends the run: all later answers would count as different."""


@dataclass
class JudgeUsage:
    """Counts so far.

    Attributes:
        requests: requests to the judge, each about one pair.
        prompt_tokens: tokens of their prompts, as far as the server counts them.
        completion_tokens: tokens of the replies, likewise.
        same: replies of yes.
        remembered: pairs that were compared again and cost nothing.
        unclear: replies that were neither yes nor no; the answers count as different.
        failed: requests that failed or took too long; the answers count as different.
        beyond_bound: pairs beyond a bound, or too long to be shown, that count as different without a request.
    """

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    same: int = 0
    remembered: int = 0
    unclear: int = 0
    failed: int = 0
    beyond_bound: int = 0

    def __add__(self, other: "JudgeUsage") -> "JudgeUsage":
        return JudgeUsage(*map(int.__add__, astuple(self), astuple(other)))


@dataclass(frozen=True)
class JudgeVerdict:
    """What the judge said about two answers to a question; ``first`` and ``second`` in alphabetical order.

    ``question_hash`` is ``prompt_id`` of the question's text.
    """

    question_hash: str
    first: str
    second: str
    same: bool


class JudgeEquivalence(Equivalence):
    """Answers are equal if a model says so. ``for_question`` must name the question before answers are compared.

    Args:
        ask: sends a prompt to the judge.
        max_per_question: most requests about the answers to one question.
        max_requests: most requests in all.
        timeout_seconds: time limit of one request.
        known: verdicts of an earlier run, which are not asked for again.
        on_verdict: called with each new verdict, so that it can be kept.

    Raises ValueError for settings that cannot be used.

    >>> from types import SimpleNamespace
    >>> async def ask(prompt):
    ...     return SimpleNamespace(text="Yes.", tokens=1, prompt_tokens=90)
    >>> judge = JudgeEquivalence(ask)
    >>> louvre = judge.for_question("Where is the Louvre?")
    >>> asyncio.run(louvre.find_equal("In Paris", ["Paris, France"])), judge.usage.requests
    (0, 1)
    """

    def __init__(
        self,
        ask: Ask,
        *,
        max_per_question: int = 64,
        max_requests: int = 10_000,
        timeout_seconds: float = 60.0,
        known: Iterable[JudgeVerdict] = (),
        on_verdict: Callable[[JudgeVerdict], None] = lambda verdict: None,
    ) -> None:
        check_integer("max_per_question", max_per_question, 1, "64 is usual")
        check_integer("max_requests", max_requests, 1, "10000 is usual")
        if not 0 < timeout_seconds < float("inf"):
            raise ValueError(f"timeout_seconds must be positive and finite, got {timeout_seconds}; 60 is usual")
        self.usage = JudgeUsage()
        self._ask = ask
        self._max_per_question, self._max_requests = max_per_question, max_requests
        self._timeout_seconds = timeout_seconds
        self._on_verdict = on_verdict
        self._verdicts = {(verdict.question_hash, verdict.first, verdict.second): verdict.same for verdict in known}
        self._spent: dict[str, int] = {}
        self._failed_in_a_row = 0
        self._any_clear = False

    def for_question(self, question: str) -> "JudgeOfQuestion":
        """Return the equivalence of answers to ``question``. It shares bounds, memory and usage with this one."""
        return JudgeOfQuestion(self, question)

    async def find_equal(self, answer: str, known: Sequence[str]) -> int | None:
        """Raise RuntimeError, because the judge must know the question."""
        raise RuntimeError("a judge must know the question, got none; compare with for_question(text)")

    async def same(self, question: str, answer: str, other: str) -> bool:
        """Return whether the answers to ``question`` mean the same. Raises JudgeError if the judge does not reply."""
        known = same_by_words(answer, other)
        if known is not None:
            return known
        first, second = sorted((answer.strip(), other.strip()))
        key = (prompt_id(question), first, second)
        if key in self._verdicts:
            self.usage.remembered += 1
            return self._verdicts[key]
        spent = self._spent.get(question, 0)
        too_long = len(first) > LONGEST or len(second) > LONGEST
        if too_long or spent >= self._max_per_question or self.usage.requests >= self._max_requests:
            self.usage.beyond_bound += 1
            return False
        self._spent[question] = spent + 1
        said = await self._reply(PROMPT.format(question=question, first=_quoted(first), second=_quoted(second)))
        if said is None:
            return False
        verdict = self._read(said)
        self._verdicts[key] = bool(verdict)
        if verdict is not None:  # an unclear reply is remembered in this run alone, because another judge may do better
            self._on_verdict(JudgeVerdict(*key, verdict))
        return bool(verdict)

    async def _reply(self, prompt: str) -> str | None:
        """Ask, count, and return the text of the reply; None if the request failed."""
        self.usage.requests += 1
        try:
            async with asyncio.timeout(self._timeout_seconds):
                reply = await self._ask(prompt)
        except TimeoutError:
            self._count_failure(f"none within {self._timeout_seconds:g} seconds")
            return None
        self.usage.prompt_tokens += reply.prompt_tokens or 0
        self.usage.completion_tokens += reply.tokens or 0
        if reply.text is None:
            self._count_failure(getattr(reply, "error", None) or "no text")
            return None
        self._failed_in_a_row = 0
        return reply.text

    def _read(self, text: str) -> bool | None:
        """Read and count the verdict; None if it is unclear. Raise JudgeError if none of the first was clear."""
        verdict = read_verdict(text)
        self.usage.unclear += verdict is None
        self.usage.same += verdict is True
        self._any_clear |= verdict is not None
        if self.usage.unclear >= FAILURES and not self._any_clear:
            raise JudgeError(
                f"the judge must reply yes or no, got {FAILURES} other replies and none of these, such as "
                f"{shown(text)}; choose another judge_model, or another equivalence"
            )
        return verdict

    def _count_failure(self, problem: str) -> None:
        self.usage.failed += 1
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= FAILURES:
            raise JudgeError(
                f"the judge must reply, got {FAILURES} failures in a row ({problem}); check its server, or choose "
                "another equivalence"
            )


@dataclass(frozen=True)
class JudgeOfQuestion(Equivalence):
    """The equivalence of answers to ``question``, made by ``JudgeEquivalence.for_question``."""

    judge: JudgeEquivalence
    question: str

    async def find_equal(self, answer: str, known: Sequence[str]) -> int | None:
        """Return the index of the first of ``known`` that equals ``answer``; None if none does.

        The same words are preferred to an earlier answer that only the judge finds equal, because they cost nothing.
        """
        for index, other in enumerate(known):
            if same_by_words(answer, other):
                return index
        for index, other in enumerate(known):
            if await self.judge.same(self.question, answer, other):
                return index
        return None


def same_by_words(answer: str, other: str) -> bool | None:
    """Return whether the answers are equal as far as their words or numbers tell; None if they do not.

    >>> same_by_words("The  Nile", "nile."), same_by_words("18", "19.0"), same_by_words("Nile", "River Nile")
    (True, False, None)
    """
    phrase = phrase_form(answer)
    if phrase == phrase_form(other):
        return bool(phrase)
    forms = normal_form(answer), normal_form(other)
    if all(form.value is not None for form in forms):
        return equal_by_text(*forms)
    return None if answer.strip() and other.strip() else False


def read_verdict(text: str) -> bool | None:
    """Return True for a reply of yes, False for no, and None for any other. Only the text after reasoning counts.

    >>> [read_verdict(text) for text in ("Yes.", "**no**", "<think>Yes?</think> No", "yes and no", "<think>Yes")]
    [True, False, False, None, None]
    """
    said = after_reasoning(text) or ""
    return {"yes": True, "no": False}.get(re.sub(r"[\W_]+", " ", said).strip().casefold())


def _quoted(answer: str) -> str:
    return json.dumps(answer, ensure_ascii=False)
