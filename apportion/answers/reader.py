"""How a trainer without labels reads votes: an extractor and an equivalence, as its settings name them."""

from collections.abc import Callable
from dataclasses import dataclass, field

from apportion.answers.equivalence import AnswerClasses, Equivalence, run_coroutine
from apportion.answers.extraction import extract
from apportion.answers.making import EQUIVALENCES


@dataclass
class AnswerReader:
    """Reads and compares answers. ``how`` is a name for ``extract`` or a function; ``equivalence`` a name or an object.

    An equivalence given by name is made when it is first needed, and closed by ``close``.
    """

    how: str | Callable[[str], str | None] = "auto"
    equivalence: str | Equivalence = "exact"
    _made: Equivalence | None = field(default=None, init=False, repr=False)

    def read(self, text: str) -> str | None:
        """Return the answer in ``text``; None if there is none."""
        return extract(text, self.how) if isinstance(self.how, str) else self.how(text)

    def new_classes(self) -> AnswerClasses:
        """Return empty answer classes, for the answers to one question."""
        if not isinstance(self.equivalence, str):
            return AnswerClasses(self.equivalence)
        if self._made is None:
            self._made = EQUIVALENCES[self.equivalence]()
        return AnswerClasses(self._made)

    def close(self) -> None:
        """Close the equivalence if it was made here."""
        if self._made is not None:
            run_coroutine(self._made.aclose())
        self._made = None
