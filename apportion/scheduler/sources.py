"""Where the prompts of a run come from: its selection, or the engine, which offers them."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from apportion.predictors import MeanLengths
from apportion.scheduler.decisions import RunDecisions
from apportion.scheduler.plain import encode, restored
from apportion.selection import Selector
from apportion.types import Batch, Mask, Prompt


@dataclass
class Selected:
    """Prompts that the run's selection chooses, about as many at a time as an update has.

    Prompts in flight are not chosen.

    Args:
        lengths: predicts the lengths of completions; an object of its own. Then the prompts that were chosen are opened
            longest first, which leaves fewer slots idle at a small age bound. Which ones are opened does not depend on
            it.
        seed: of the selection.
    """

    lengths: MeanLengths | None = None
    seed: int = 0
    granted: ClassVar[Mapping[int, int]] = {}
    """Rollouts granted to prompts that return after they were withdrawn: none here."""

    def prepare(self, prompts: Sequence[Prompt], decisions: RunDecisions) -> None:
        """Prepare the selection for the data set of a run. A place is an index into it."""
        assert decisions.selection is not None
        self._selection: Selector = decisions.selection
        self._selection.prepare(prompts, self.seed, getattr(decisions.allocator, "predictor", None))
        self._prompts = prompts
        self._chosen: list[int] = []
        self._postponed: list[int] = []

    def next(self, held: Mask, about: int) -> int | None:
        """Return the index of the next prompt, if an update has about ``about`` prompts.

        A turn that comes while its prompt is in flight is put off. If it were lost, as behind a barrier, slow prompts
        would get fewer turns.
        """
        for late in self._postponed:
            if not held[late]:
                self._postponed.remove(late)
                return late
        while True:
            self._chosen = self._chosen or self._choose(held, about)
            if not held[self._chosen[-1]]:
                return self._chosen.pop()
            self._postponed.append(self._chosen.pop())

    def observe(self, batch: Batch) -> None:
        """Learn from a batch that was trained on."""
        if self.lengths is not None:
            self.lengths.update(batch)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs, as values that JSON takes."""
        return {
            "chosen": list(self._chosen), "postponed": list(self._postponed),
            "selection": encode(self._selection.state_dict()),
            "lengths": encode(self.lengths.state_dict()) if self.lengths else {},
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned. Raise ValueError, KeyError or TypeError for anything else."""
        self._chosen, self._postponed = ([int(place) for place in state[key]] for key in ("chosen", "postponed"))
        self._selection.load_state_dict(restored(state["selection"]))
        if self.lengths is not None:
            self.lengths.load_state_dict(restored(state["lengths"]))

    def _choose(self, held: Mask, count: int) -> list[int]:
        """Return the indices of the next ``count`` prompts, the last one first."""
        if self._selection.learns:
            own = [self._prompts[place].id for place in np.flatnonzero(held).tolist()]
            places = self._selection.choose(min(count, len(held) - len(own)), own)[::-1]
        else:
            places = self._selection.choose(min(count, len(held)))[::-1]
        if self.lengths is None:
            return places
        predicted = self.lengths.predict([self._prompts[place] for place in places])
        return [places[i] for i in np.argsort(predicted, kind="stable").tolist()]


class Offered:
    """Prompts of an engine's own loader, in the order of ``offer``.

    One that is in flight already comes again later, and does not hold back the others. ``waiting`` are places with the
    rollouts that each had before it was withdrawn, or None; ``granted`` has these by place once it is opened.
    """

    def __init__(self) -> None:
        self.waiting: deque[tuple[int, int | None]] = deque()
        self.granted: dict[int, int] = {}

    def prepare(self, prompts: Sequence[Prompt], decisions: RunDecisions) -> None:
        """Take the data set of a run. Raise ValueError if its rule draws prompts of its own."""
        if decisions.allocator.size(1).fresh:
            raise ValueError(
                f"the rule must not draw prompts of its own, got {decisions.allocator.name}; the engine brings them, "
                "so use another"
            )
        self._place_of = {prompt.id: place for place, prompt in enumerate(prompts)}

    def offer(self, id: str, granted: int | None = None) -> None:
        """Add the prompt with this id to the end of the queue of prompts to open.

        ``granted`` is the number of rollouts that it had before it was withdrawn. It gets them again, and the budget of
        a price is not charged twice. Raises ValueError for a prompt that is not in the data set.
        """
        if id not in self._place_of:
            raise ValueError(f"a prompt must be one of the {len(self._place_of)} of the stream, got id {id!r:.80}")
        self.waiting.append((self._place_of[id], granted))

    def next(self, held: Mask, about: int) -> int | None:
        """Return the index of the next prompt that is not held; None if there is none."""
        index = next((i for i, (place, _) in enumerate(self.waiting) if not held[place]), None)
        if index is None:
            return None
        place, granted = self.waiting[index]
        del self.waiting[index]
        self.granted.pop(place, None)
        if granted is not None:
            self.granted[place] = granted
        return place

    def observe(self, batch: Batch) -> None:
        """Do nothing, because the engine's loader is not told of outcomes here."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs, as values that JSON takes."""
        return {"offered": [[*each] for each in self.waiting], "granted": [[*each] for each in self.granted.items()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned. Raise ValueError or TypeError for anything else."""
        self.waiting = deque((int(place), None if n is None else int(n)) for place, n in state["offered"])
        self.granted = {int(place): int(n) for place, n in dict(state["granted"]).items()}
