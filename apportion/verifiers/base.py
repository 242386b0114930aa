"""The interface of a verifier, and what verifiers share that compare a stated answer with gold."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

from apportion.answers import EXTRACTORS, extract
from apportion.checks import choices
from apportion.questions import Question
from apportion.rows import TableError
from apportion.untrusted import shown

NAMED_OFFENDERS = 3


class Verifier(ABC):
    """Says how right a completion is. A frozen dataclass of its settings; copying and pickling keep only these."""

    name: ClassVar[str]

    @abstractmethod
    def verdict(self, text: str, gold: str | None) -> float | None:
        """Return 1.0 if the completion ``text`` is right, 0.0 if it is wrong or states no answer, None if unknown.

        An error inside is raised and never scored.
        """

    @abstractmethod
    def check(self, questions: Sequence[Question]) -> None:
        """Raise TableError if some of ``questions`` cannot be verified, and name the first of them.

        Call it before training. It refuses questions without a gold answer, or with one that cannot be read.
        """

    def best_verdict(self, text: str, golds: Sequence[str | None]) -> float | None:
        """Return the highest verdict on ``text`` by any of its right answers ``golds``; None if all are unknown.

        ``check`` sees one gold answer a question, so ask it about each.
        """
        verdicts = (self.verdict(text, gold) for gold in golds)
        return max((verdict for verdict in verdicts if verdict is not None), default=None)

    def answer(self, text: str) -> str | None:
        """Return the answer that ``text`` states; None if it states none, or if this verifier reads none."""
        return None

    def with_extractor(self, extractor: str) -> Verifier:
        """Return this verifier with ``extractor``, unless its settings name another or it needs none.

        So the prompt template, which asks for a form of answer, decides how it is read, unless the user does.
        """
        return self

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Free resources, such as a process. They are taken again when next needed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]


@dataclass(frozen=True)
class StatedAnswer(Verifier):
    """A verifier that extracts the stated answer and compares it with gold.

    ``extract`` names an extractor of ``apportion.answers.EXTRACTORS``. The default is that of the prompt template, or
    "auto" without a template.
    """

    extract: str | None = None

    def __post_init__(self) -> None:
        if self.extract is not None and self.extract not in EXTRACTORS:
            raise ValueError(f"extract must be known, got {shown(self.extract)}; {choices(self.extract, EXTRACTORS)}")

    def with_extractor(self, extractor: str) -> Self:
        return replace(self, extract=extractor) if self.extract is None else self

    def answer(self, text: str) -> str | None:
        return extract(text, self.extract or "auto")

    def verdict(self, text: str, gold: str | None) -> float | None:
        if gold is None:
            return None
        answer = self.answer(text)
        return float(answer is not None and self._same(answer, gold))

    def check(self, questions: Sequence[Question]) -> None:
        offenders = [question for question in questions if not (question.gold or "").strip()]
        refuse_questions(offenders, "a text", "add it, or drop those questions")

    @abstractmethod
    def _same(self, answer: str, gold: str) -> bool:
        """Return whether the two answers mean the same."""


def refuse_questions(offenders: Iterable[Question], wanted: str, remedy: str) -> None:
    """Raise TableError if there are ``offenders``: questions whose gold answers are not what is ``wanted``."""
    named = [f"{offender.gold!r} for {offender.id!r}" for offender in offenders]
    more = f" and {len(named) - NAMED_OFFENDERS} more" if len(named) > NAMED_OFFENDERS else ""
    if named:
        raise TableError(f"each gold answer must be {wanted}, got {', '.join(named[:NAMED_OFFENDERS])}{more}; {remedy}")
