"""One prompt at a time by score, without ranking the data set at each choice: what a stream asks a selection for.

A ``RankingSelector`` scores and sorts all prompts at each choice, 47 ms for 20,000 prompts. Here the scores are kept,
and a short list of the best is made from them by a partial sort:

- The prompts of an update are scored again at once, because their own rewards came in.
- The drift of the policy moves the scores of all other prompts as well. They are scored again in turn, ``TURN`` prompts
  an update, as arrays. Between its turns a prompt keeps the score that it had, so its rank is at most Q / ``TURN``
  updates old. A common shift of the log-odds changes ranks little: prompts of equal belief stay equal.
- The list of the best, and that of those not chosen the longest, are made anew after each update and when they run out.

A choice takes a prompt off one of the lists, in constant time. Prompts that are held, because they are in flight, are
passed over.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from apportion.predictors import Predictor
from apportion.predictors.saved import SavedValues
from apportion.selection.base import RankingSelector
from apportion.types import Batch, Counts, Floats, Mask, Prompt

TURN = 8_192
"""Prompts whose scores are read again after an update, beyond those of the update."""
SHORT = 1_024
"""Prompts of a short list."""
TIE = 1e-9
"""The largest difference of scores between which chance decides."""


class RankedPrompts:
    """The prompts of a data set by the score of ``selector``, one at a time, with its share of exploration.

    ``predictor`` is the allocator's, which then learns elsewhere. Without one it is that of the selector, or
    ``EmpiricalBayes()``, which learns here.

    >>> from apportion.selection import Mixed
    >>> ranked = RankedPrompts(Mixed(), [Prompt(f"{q} + {q} =") for q in range(4)])
    >>> held, chosen = np.zeros(4, bool), []
    >>> for _ in range(4):
    ...     chosen.append(ranked.next(held))
    ...     held[chosen[-1]] = True
    >>> sorted(chosen), ranked.next(held)
    ([0, 1, 2, 3], None)
    """

    def __init__(
        self, selector: RankingSelector, prompts: Sequence[Prompt], seed: int = 0, predictor: Predictor | None = None
    ) -> None:
        selector.prepare(prompts, seed, predictor)
        self._selector, self._seed, self._size = selector, seed, len(prompts)
        self._scores, self._seen = self._scored(np.arange(self._size)), np.zeros(self._size, np.int64)
        self._chosen = self._turn = self._lists = 0
        self._best, self._oldest = list[int](), list[int]()

    def next(self, held: Mask) -> int | None:
        """Return the place of the next prompt that is not ``held`` [Q]; None if all are."""
        share = self._selector.explore
        explores = int((self._chosen + 1) * share) > int(self._chosen * share)
        place = self._off(self._oldest if explores else self._best, explores, held)
        if place is not None:
            self._chosen += 1
            self._seen[place] = self._chosen
        return place

    def observe(self, batch: Batch) -> None:
        """Score the prompts of ``batch`` again, and the next ``TURN`` ones; call it after the predictor has learnt."""
        self._selector.observe(batch)
        turn = np.arange(self._turn, self._turn + min(TURN, self._size)) % self._size
        place_of = self._selector._place
        own = [place_of[prompt.id] for prompt in batch.prompts if prompt.id in place_of]
        places = np.unique(np.concatenate([np.array(own, np.int64), turn]))
        self._scores[places], self._turn = self._scored(places), int((self._turn + len(turn)) % self._size)
        self._best, self._oldest = [], []

    def state_dict(self) -> dict[str, Any]:
        """Return the scores, the order of the choices, and the short lists."""
        return {
            "scores": self._scores.copy(), "seen": self._seen.copy(), "best": np.array(self._best, np.int64),
            "oldest": np.array(self._oldest, np.int64), "chosen": self._chosen, "turn": self._turn,
            "lists": self._lists, **self._selector._memory(),
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned for the same prompts. Raise ValueError for anything else."""
        saved, size = SavedValues(state, "ranked prompts", list(self.state_dict())), self._size
        scores = saved.array("scores", (size,))
        seen = saved.array("seen", (size,), low=0, dtype=np.int64)
        lists = [saved.array(key, (None,), low=0, high=size - 1, dtype=np.int64) for key in ("best", "oldest")]
        counts = [saved.count(key) for key in ("chosen", "turn", "lists")]
        self._selector._restore_own(saved)
        self._scores, self._seen = scores.copy(), seen.copy()
        self._best, self._oldest = lists[0].tolist(), lists[1].tolist()
        self._chosen, self._turn, self._lists = counts

    def _off(self, listed: list[int], explores: bool, held: Mask) -> int | None:
        """Take the next prompt that is not held off a short list, made anew from all prompts if it runs out."""
        while listed:
            place = listed.pop()
            if not held[place]:
                return place
        free = np.flatnonzero(~held)
        if not len(free):
            return None
        self._lists += 1
        draws = np.random.default_rng([self._seed, self._lists]).random(len(free))
        worth = -self._seen[free] + draws if explores else self._scores[free] + TIE * draws
        short = min(SHORT, len(free))
        top = np.argpartition(-worth, short - 1)[:short]
        listed.extend(free[top[np.argsort(worth[top], kind="stable")]].tolist())
        return listed.pop()

    def _scored(self, places: Counts) -> Floats:
        return self._selector.score(self._selector._predict(places))
