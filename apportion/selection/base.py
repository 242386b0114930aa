"""The selector protocol: which prompts of a data set get rollouts next, decided before anything is sampled."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from apportion.checks import check_integer, check_numbers, check_object
from apportion.predictors import EmpiricalBayes, Predictor
from apportion.predictors.saved import Learner, SavedValues
from apportion.types import Batch, Belief, Counts, Floats, Mask, Needs, Prompt, Rollout, prompt_list

NEVER = -1
WAITING_STEPS = 8
"""A prompt whose outcome was not observed can be chosen again after this many choices, if all others had their turn."""


class Column(NamedTuple):
    """An array with an entry for each prompt of the data set, as it is saved under ``name``.

    ``fresh`` is the entry of a prompt that was never chosen, a number or an array of numpy, and ``least`` the least
    number that a saved state may have.
    """

    name: str
    fresh: Any
    least: float = 0

    def of(self, size: int) -> NDArray[Any]:
        """Return the column of ``size`` fresh prompts."""
        return np.repeat(np.expand_dims(self.fresh, -1), size, axis=-1)


COLUMNS = {each: Column(each[1:], np.int64(NEVER), NEVER) for each in ("_seen", "_waiting")}
"""Columns of every rule: when each prompt was last chosen, and which choices have no observed outcome yet."""


@dataclass
class Selector(Learner, ABC):
    """Chooses the prompts of the next batch from all prompts of a data set.

    A choice depends on what was observed, on the seed and on the number of choices so far, and on nothing else. A rule
    that learns does not choose a prompt again before its outcome is observed, if there are enough others, because
    engines ask for the next batch early. With importance weights it may, because a rest would bias them. A data set may
    hold a prompt several times; then the first row stands for all.

    Note: selecting changes the objective, which becomes a mean over the chosen prompts. Every rule says how it
    explores. Rules that know the probability of their choice offer ``importance_weights``, which restore the mean over
    all prompts.

    A subclass is a dataclass. Its settings are init fields. It implements ``_choose`` and, if it learns, ``_learn``. It
    names arrays that it keeps of all prompts in ``columns``, which are then made and saved, and remembers anything else
    by ``_memory`` and ``_restore_own``. One with ``importance_weights`` sets ``_probability`` [Q] at the places that it
    chooses, in units of the mean of all prompts that it could choose, and has a column of it.
    """

    kind: ClassVar[str] = "selector"
    columns: ClassVar[Mapping[str, Column]] = {}
    """Arrays with one entry per prompt that a rule keeps in addition to ``COLUMNS``, by attribute."""
    _ids: tuple[str, ...] = field(default=(), init=False, repr=False, compare=False)
    _rows: Counts = field(default_factory=lambda: np.zeros(0, np.int64), init=False, repr=False, compare=False)
    _place: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)
    _seed: int = field(default=0, init=False, repr=False, compare=False)
    _steps: int = field(default=0, init=False, repr=False, compare=False)
    _seen: Counts = field(init=False, repr=False, compare=False)
    _waiting: Counts = field(init=False, repr=False, compare=False)
    _probability: Floats = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_numbers(self)
        self._make_columns()

    @property
    def needs(self) -> Needs:
        """What this rule needs to know of each rollout."""
        return Needs()

    @property
    def learns(self) -> bool:
        """Whether the rule decides by the rewards of earlier batches."""
        return type(self)._learn is not Selector._learn

    @property
    def weighted(self) -> bool:
        """Whether ``weights`` returns importance weights: the setting ``importance_weights`` of rules that have it."""
        return bool(getattr(self, "importance_weights", False))

    @property
    def steps(self) -> int:
        """The number of choices so far."""
        return self._steps

    def prepare(self, prompts: Sequence[Prompt], seed: int = 0, predictor: Predictor | None = None) -> None:
        """Announce all ``prompts`` [Q] of the data set in the order of its rows. Call it once, before the first choice.

        ``seed`` is that of the run. ``predictor`` is the allocator's, which is shared by rules that read beliefs and
        have none of their own. Only the allocator then updates it.
        """
        check_integer("seed", seed, 0, "give the seed of the run")
        first: dict[str, int] = {}
        for row, prompt in enumerate(prompt_list(prompts)):
            first.setdefault(prompt.id, row)
        self._ids, self._rows = tuple(first), np.array(list(first.values()), np.int64)
        self._place = {id: place for place, id in enumerate(first)}
        self._seed, self._steps = seed, 0
        self._make_columns()

    def choose(self, count: int, held: Collection[str] = ()) -> list[int]:
        """Return the rows [count] of distinct prompts for the next batch. Prompts whose ids are ``held`` are left out.

        Raises ValueError if the data set does not have so many.
        """
        check_integer("count", count, 1, "a batch needs a prompt")
        allowed = np.ones(len(self._ids), bool)
        allowed[[self._place[id] for id in held if id in self._place]] = False
        if allowed.sum() < count:
            raise ValueError(
                f"a batch needs {count + len(held)} distinct prompts, the data set holds {len(self._ids)}; lower the "
                "number of prompts in a batch, or use a larger data set"
            )
        if self.learns and not self.weighted:  # a rest would bias importance weights
            lost = max(WAITING_STEPS, len(self._ids) // count)  # choices after which a missing outcome is given up
            rested = allowed & ((self._waiting == NEVER) | (self._steps - self._waiting >= lost))
            allowed = rested if rested.sum() >= count else allowed
        places = self._choose(allowed, count, np.random.default_rng([self._seed, self._steps]))
        self._seen[places] = self._waiting[places] = self._steps
        self._steps += 1
        return self._rows[places].tolist()

    def observe(self, batch: Batch) -> None:
        """Learn from a finished batch, after its allocator did. Prompts of another data set are ignored."""
        means: dict[int, tuple[float, int]] = {}
        for prompt, rollouts in zip(batch.prompts, batch.rollouts, strict=True):
            place = self._place.get(prompt.id)
            if place is None:
                continue
            self._waiting[place] = NEVER
            self._seen[place] = max(self._seen[place], self._steps - 1)
            if outcomes := [_outcome(rollout) for rollout in rollouts if rollout.reward is not None]:
                total, number = means.get(place, (0.0, 0))
                means[place] = total + sum(outcomes), number + len(outcomes)
        if means:
            places = np.array(list(means), np.int64)
            self._learn(places, np.array([total / number for total, number in means.values()]))

    def weights(self, prompts: Sequence[Prompt]) -> Floats | None:
        """Return the weight of each prompt in the loss, [P], by its latest choice; None if all have the same."""
        if not self.weighted:
            return None
        return np.array([1 / self._probability[self._place[prompt.id]] for prompt in prompts])

    def metrics(self) -> dict[str, float]:
        """Return the coverage so far: the share of prompts never chosen, and the longest wait of any prompt in steps.

        A prompt never chosen has waited for all steps.
        """
        if not self._ids:
            return {}
        never = float((self._seen == NEVER).mean())
        return {"never_chosen": never, "longest_wait": float(self._steps - 1 - self._seen.min())}

    def _restore(self, saved: SavedValues) -> None:
        """Restore a state; call ``prepare`` first.

        Prompts that the data set gained since then were never chosen; those that it lost are forgotten.
        """
        ids = saved.texts("ids")
        if len(set(ids)) < len(ids):
            raise saved.refusal("ids", "texts that differ")
        columns = {
            attribute: saved.array(name, (*fresh.shape, len(ids)), low=least, dtype=fresh.dtype)
            for attribute, (name, fresh, least) in self._columns.items()
        }
        kept = np.array([place for place, id in enumerate(ids) if id in self._place], np.int64)
        places = np.array([self._place[ids[place]] for place in kept], np.int64)
        seed, steps = saved.count("seed"), saved.count("steps")
        self._restore_own(saved)
        self._seed, self._steps = seed, steps
        self._make_columns()
        for attribute, values in columns.items():
            getattr(self, attribute)[..., places] = values[..., kept]

    @abstractmethod
    def _choose(self, allowed: Mask, count: int, generator: Generator) -> Counts:
        """Return ``count`` distinct indices where ``allowed`` [Q] is true. There must be enough."""

    def _learn(self, places: Counts, means: Floats) -> None:
        """Learn the means [n] of the prompts at ``places`` [n]: of verdicts, or of rewards if there are none."""

    def _restore_own(self, saved: SavedValues) -> None:
        """Restore what ``_memory`` returned. Raise ValueError if it cannot."""

    @property
    def _columns(self) -> Mapping[str, Column]:
        return {**COLUMNS, **self.columns}

    def _make_columns(self) -> None:
        """Reset the columns for a data set of which nothing was chosen yet."""
        self._probability = np.ones(len(self._ids))
        for attribute, column in self._columns.items():
            setattr(self, attribute, column.of(len(self._ids)))

    def _settings(self) -> dict[str, Any]:
        return {key: value for key, value in super()._settings().items() if not isinstance(value, Predictor)}

    def _state(self) -> dict[str, Any]:
        columns = {column.name: getattr(self, attribute) for attribute, column in self._columns.items()}
        return super()._state() | columns | {"ids": list(self._ids), "seed": self._seed, "steps": self._steps}


@dataclass
class BeliefSelector(Selector):
    """A selector that reads a belief about every prompt.

    Args:
        predictor: predicts all prompts. By default it is the allocator's, if that has one, and otherwise
            ``EmpiricalBayes()``, which then learns from the same batches.
    """

    predictor: Predictor | None = None

    _prompts: tuple[Prompt, ...] = field(default=(), init=False, repr=False, compare=False)
    _reader: Predictor | None = field(default=None, init=False, repr=False, compare=False)
    _shared: bool = field(default=False, init=False, repr=False, compare=False)

    @property
    def needs(self) -> Needs:
        return Needs() if self.predictor is None else self.predictor.needs

    @property
    def learns(self) -> bool:
        return True

    def prepare(self, prompts: Sequence[Prompt], seed: int = 0, predictor: Predictor | None = None) -> None:
        prompts = prompt_list(prompts)
        super().prepare(prompts, seed, predictor)
        self._prompts = tuple(prompts[row] for row in self._rows)
        self._shared = predictor is not None and (self.predictor is None or self.predictor is predictor)
        self._reader = predictor if self._shared else self.predictor or EmpiricalBayes()
        if not self._shared:
            self._belief.prepare(self._prompts)

    def observe(self, batch: Batch) -> None:
        super().observe(batch)
        if not self._shared:
            self._belief.update(batch.judged)

    @property
    def _belief(self) -> Predictor:
        if self._reader is None:
            raise ValueError(f"{self.name} must know the data set before it chooses, got none; call prepare first")
        return self._reader

    def _predict(self, places: Counts | None = None) -> Belief:
        """Return the belief about the prompts at ``places``, or about all, [Q]."""
        own = self._prompts if places is None else [self._prompts[place] for place in places.tolist()]
        return self._belief.predict(own)

    def _memory(self) -> dict[str, Any]:
        return {"predictor": None if self._shared or self._reader is None else self._reader.state_dict()}

    def _restore_own(self, saved: SavedValues) -> None:
        if (saved.values["predictor"] is None) != self._shared:
            wanted = "None, because the allocator's predictor is shared" if self._shared else "that of a predictor"
            raise saved.refusal("predictor", wanted)
        if not self._shared:
            self._belief.load_state_dict(saved.state("predictor"))


@dataclass
class RankingSelector(BeliefSelector):
    """Chooses the prompts with the best scores, and explores: some places are for those not chosen the longest.

    Args:
        explore: share of the places for the prompts that were not chosen the longest. A fraction of a place is carried
            to the next choice. A prompt is chosen again within about Q / (explore x count) steps, whatever is believed
            about it. 0 explores nothing.

    Note: prompts have no probability of being chosen, so no importance weight undoes the choice.
    """

    explore: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.explore <= 1:
            raise ValueError(f"explore must be between 0 and 1, got {self.explore}; it is a share of the places")

    @property
    def scores_alone(self) -> bool:
        """Whether the rule has ``score``. Then a stream can rank prompts one by one."""
        return type(self).score is not RankingSelector.score

    def score(self, belief: Belief) -> Floats:
        """Return the score of each prompt, [P]; larger is better. A prompt's score depends on its own belief alone.

        Optional: a rule whose scores depend on more, such as random draws, has ``_scores`` only.
        """
        raise NotImplementedError(f"{type(self).__name__} must score prompts alone, got no score; choose in batches")

    def _scores(self, generator: Generator) -> Floats:
        """Return the score of every prompt, [Q]; larger is better."""
        return self.score(self._predict())

    def _choose(self, allowed: Mask, count: int, generator: Generator) -> Counts:
        scores, draws = self._scores(generator), generator.random(len(allowed))
        places = np.flatnonzero(allowed)
        ranking = places[np.lexsort((draws[places], -scores[places]))]
        share = round(self.explore * count, 9)
        explored = int((self._steps + 1) * share) - int(self._steps * share)  # a fraction is carried to the next choice
        best, rest = np.split(ranking, [count - explored])
        return np.append(best, rest[np.lexsort((draws[rest], self._seen[rest]))[:explored]])


def _outcome(rollout: Rollout) -> float:
    """Return the verdict as 1 or 0; without one, the reward, which may have parts beside the outcome."""
    return float(rollout.correct) if rollout.correct is not None else float(rollout.reward or 0.0)


def check_selector(selector: Selector, needs: Needs, graded: bool = False) -> None:
    """Raise ValueError if ``selector`` cannot learn beside an allocator with these ``needs``, or from such rewards."""
    check_object("selection", selector, "Selector")
    if selector.learns and not needs.labels:
        raise ValueError(
            f"selection must be shuffled without labels, because votes give no rewards to learn from, got "
            f"{selector.name}; leave it out"
        )
    if graded and selector.needs.binary:
        raise ValueError(
            f"the predictor of the selection {selector.name} must take graded rewards, got one that counts right "
            "rollouts; leave it out, or use empirical_bayes"
        )
