"""Answers as votes: equal answers to a prompt get the same text."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from apportion.answers.equivalence import AnswerClasses, run_coroutine
from apportion.answers.reader import AnswerReader


@dataclass
class Votes:
    """The distinct answers of one batch, by the index of the prompt."""

    answers: AnswerReader
    _classes: dict[int, AnswerClasses] = field(default_factory=dict, init=False, repr=False)

    def read(self, places: Sequence[int], texts: Sequence[str]) -> list[str | None]:
        """Return the answer of each completion to the prompt at its place, as first worded; None without an answer."""
        return run_coroutine(self._read(places, texts))

    async def _read(self, places: Sequence[int], texts: Sequence[str]) -> list[str | None]:
        found: list[str | None] = []
        for place, text in zip(places, texts, strict=True):
            answer = self.answers.read(text)
            if place not in self._classes:
                self._classes[place] = self.answers.new_classes()
            found.append(None if answer is None else await self._classes[place].join(answer))
        return found
