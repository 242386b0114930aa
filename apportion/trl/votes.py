"""Answers as votes: equal answers to a prompt get the same text."""

from collections import defaultdict
from collections.abc import Sequence

from apportion.answers.equivalence import AnswerClasses, run_coroutine
from apportion.answers.reader import AnswerReader


class Votes:
    """The distinct answers of one batch, by the index of the prompt."""

    def __init__(self, answers: AnswerReader) -> None:
        self.answers = answers
        self._classes = defaultdict[int, AnswerClasses](answers.new_classes)

    def read(self, places: Sequence[int], texts: Sequence[str]) -> list[str | None]:
        """Return the answer of each completion to the prompt at its place, as first worded; None without an answer."""
        return self.merged(places, [self.answers.read(text) for text in texts])

    def merged(self, places: Sequence[int], answers: Sequence[str | None]) -> list[str | None]:
        """Return each of the ``answers``, or the first to the prompt at its place that is equal to it."""

        async def merge() -> list[str | None]:
            pairs = zip(places, answers, strict=True)
            return [None if answer is None else await self._classes[place].join(answer) for place, answer in pairs]

        return run_coroutine(merge())
