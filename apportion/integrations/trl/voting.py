"""The votes of one batch: answers in the words in which an equal answer was first given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from apportion.integrations.answers import Answers, alone
from apportion.verifiers.equivalence import Classes


@dataclass
class Votes:
    """The votes of one batch, by the place of the prompt."""

    answers: Answers
    _classes: dict[int, Classes] = field(default_factory=dict, init=False, repr=False)

    def cast(self, places: Sequence[int], texts: Sequence[str]) -> list[str | None]:
        """The answer of each completion to the prompt at its place, as its equals first put it; None without one."""
        answers: list[str | None] = alone(lambda: self._cast(places, texts))
        return answers

    async def _cast(self, places: Sequence[int], texts: Sequence[str]) -> list[str | None]:
        found: list[str | None] = []
        for place, text in zip(places, texts, strict=True):
            answer = self.answers.read(text)
            if place not in self._classes:
                self._classes[place] = self.answers.classes()
            found.append(None if answer is None else await self._classes[place].join(answer))
        return found
