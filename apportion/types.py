"""The values that all parts exchange: prompts, rollouts, beliefs, plans, batches and groups. All are frozen.

Letters mean the same in the whole package: ``P`` prompts in a batch, ``N`` rollouts in a batch, ``G`` rollouts of one
prompt, ``T`` tokens, ``Q`` prompts in a data set. Arrays inside these values are read-only copies.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from html import escape
from numbers import Real
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from apportion.checks import LARGEST_INTEGER, check_integer, integer_array, number_array
from apportion.untrusted import shown

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Mask = NDArray[np.bool_]

SHOWN_PROMPTS = 5
"""Prompts that the ``repr`` of a batch shows."""

SHOWN_ROWS = 20
"""Rows that a table in a notebook shows."""

LARGEST_REWARD = 1e100
"""The largest size of a reward: sums of squares of many of them stay finite."""

TIE = 2.0**-22
"""Relative difference up to which rewards count as equal: a few roundings of single precision."""


def prompt_id(text: str, dataset: str = "") -> str:
    """Return a hash of the text and the data set, so that a prompt has the same id in any order and any run.

    >>> prompt_id("1 + 1 =") == prompt_id("1 + 1 ="), prompt_id("1 + 1 =") == prompt_id("1 + 1 =", dataset="sums")
    (True, False)
    """
    return hashlib.blake2b(f"{dataset}\0{text}".encode(), digest_size=16).hexdigest()


class ArrayValue:
    """Equality and a short ``repr`` of dataclasses that hold arrays: equal if of the same type, with equal fields.

    >>> Plan(np.zeros(10_000))  # doctest: +ELLIPSIS
    Plan(counts=array([0, 0, 0, ..., 0, 0, 0]...), fresh=0)
    """

    __slots__ = ()

    def __repr__(self) -> str:
        shown = (f"{each.name}={_brief(getattr(self, each.name))}" for each in fields(self) if each.repr)  # type: ignore[arg-type]
        return f"{type(self).__name__}({', '.join(shown)})"

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        pairs = [(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)]  # type: ignore[arg-type]
        return all(np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b for a, b in pairs)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, repr=False)
class Prompt:
    """One question for the policy. ``id`` is a content hash by default; the core never reads ``data``.

    ``rate`` is a success rate that is known before training, within [0, 1], such as the pass rate of another model.
    It is a prior for predictors that take known rates.

    >>> Prompt("What is 2 + 2?").id == Prompt("What is 2 + 2?", data={"row": 7}).id
    True
    """

    text: str
    id: str = ""
    data: Any = field(default=None, compare=False)
    rate: float | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for name, value in (("text", self.text), ("id", self.id)):
            if not isinstance(value, str):
                raise ValueError(f"the {name} of a prompt must be a string, got {value!r:.80}; put the rest into data")
        if not self.id:
            object.__setattr__(self, "id", prompt_id(self.text))
        if self.rate is not None and not (isinstance(self.rate, Real) and 0 <= self.rate <= 1):
            raise ValueError(
                f"the rate of a prompt must be a number between 0 and 1, got {self.rate!r:.80} for {self.id!r:.40}; "
                "divide the successes by the trials, or leave it out if it is unknown"
            )

    def __repr__(self) -> str:
        data = "" if self.data is None else f", data={_brief(self.data)}"
        rate = "" if self.rate is None else f", rate={self.rate}"
        return f"Prompt({_brief(self.text)}, id={self.id!r:.40}{data}{rate})"


@dataclass(frozen=True, slots=True, repr=False)
class Rollout:
    """One sampled and verified response. The core never reads ``completion`` (tokens, log-probabilities, ...).

    ``correct`` is None if nothing was verified (test-time RL, graded rewards); ``reward`` defaults to 1.0 or 0.0 by
    ``correct``. A rollout that failed has no Rollout, but it counts in ``Batch.asked``. Only some methods read these:

    ``tokens``: length of the completion, including the end token. ``score_norm``: squared norm of the gradient of its
    log-probability, up to a common factor, or a proxy such as ``sampled_score_norm``; of one kind in a run. ``round``:
    the round of its batch, from 0; ``Batch.add`` sets it. ``step``: the earlier step that the rollout is reused from;
    None for a fresh one. ``components``: what an estimator compares in place of ``reward``, such as the rewards of
    several functions that it normalises one by one (GDPO), NaN for one that is missing, or a clipped reward; else ().
    ``truncated``: whether the completion was cut at a limit of tokens, for the rollout log; None if unknown.
    """

    correct: bool | None = None
    answer: str | None = None
    reward: float | None = None
    completion: Any = field(default=None, compare=False)
    tokens: int | None = None
    score_norm: float | None = None
    round: int = 0
    step: int | None = None
    components: tuple[float, ...] = ()
    truncated: bool | None = None

    def __post_init__(self) -> None:
        correct, reward, tokens = self.correct, self.reward, self.tokens
        if not (correct is None or correct is True or correct is False):
            if not isinstance(correct, np.bool_):
                raise ValueError(
                    f"correct must be True, False or None, got {correct!r:.80}; give a graded score as reward="
                )
            object.__setattr__(self, "correct", bool(correct))
        if reward is not None:
            _check_reward(reward)
        elif correct is not None:
            object.__setattr__(self, "reward", float(correct))
        if not (tokens is None or (type(tokens) is int and 0 <= tokens <= LARGEST_INTEGER)):
            check_integer("tokens", tokens, 0, "count the tokens of the completion")

    def __reduce__(self) -> tuple[type[Rollout], tuple[Any, ...]]:
        """Pickle the fields as a tuple, which takes a tenth of the time of a dataclass with slots."""
        return Rollout, (
            self.correct, self.answer, self.reward, self.completion, self.tokens, self.score_norm, self.round,
            self.step, self.components, self.truncated,
        )  # fmt: skip

    def __repr__(self) -> str:
        """Return the fields that are set."""
        values = ((each.name, each.default, getattr(self, each.name)) for each in fields(self))
        shown = [f"{name}={_brief(value)}" for name, usual, value in values if not (value is None or value is usual)]
        return f"Rollout({', '.join(shown)})"


@dataclass(frozen=True, slots=True)
class Needs:
    """What an allocator, predictor or baseline needs to know of each rollout. ``a | b`` is what both of them need.

    Args:
        labels: rewards come from a verifier or a reward function; if False, from pseudo-labels by votes on the answers.
        binary: ``Rollout.correct`` is set, because correct rollouts are counted; graded rewards are refused.
        score_norms: ``Rollout.score_norm`` is set on every rollout with a reward.
        tokens: ``Rollout.tokens`` is set on every fresh rollout.
        reused_rollouts: rollouts of earlier steps (those with a ``step``) may enter the loss, so they must be kept.
        reused_incorrect: among them are incorrect ones; if False, all that are reused are correct.
        behaviour_logprobs: reused rollouts enter the loss with the log-probabilities they were sampled with; if False,
            all of them are in ``Group.recompute``. Only with ``reused_rollouts``.
        estimator: the advantage estimator that must train, with the same weight for every prompt, because the rule
            minimises its variance; None if any will do.

    >>> (Needs(binary=True) | Needs(score_norms=True)) == Needs(binary=True, score_norms=True)
    True
    """

    labels: bool = True
    binary: bool = False
    score_norms: bool = False
    tokens: bool = False
    reused_rollouts: bool = False
    reused_incorrect: bool = False
    behaviour_logprobs: bool = False
    estimator: str | None = None

    def __or__(self, other: Needs) -> Needs:
        return _both(self, other)


@cache
def _both(one: Needs, other: Needs) -> Needs:
    return Needs(**{each.name: getattr(one, each.name) or getattr(other, each.name) for each in fields(Needs)})


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Belief(ArrayValue):
    """Beta(alpha[P], beta[P]): the belief about each prompt's success probability.

    One parameter may be 0 (then the mean is exactly 0 or 1), but not both. ``variance`` [P] is the variance of one
    rollout's reward, at least 0. The default, ``mean (1 - mean)``, is right for rewards of 0 and 1.

    >>> Belief.uniform(2).condition(successes=[0, 3], trials=[4, 4]).mean.round(3).tolist()
    [0.167, 0.667]
    """

    alpha: Floats
    beta: Floats
    variance: Floats = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        alpha, beta = _frozen(number_array("alpha", self.alpha)), _frozen(number_array("beta", self.beta))
        if alpha.ndim != 1 or alpha.shape != beta.shape:
            raise ValueError(
                f"alpha and beta must be [P] each, got {alpha.shape} and {beta.shape}; give one pair a prompt"
            )
        bad = np.flatnonzero(~((alpha >= 0) & (beta >= 0) & (alpha + beta > 0) & np.isfinite(alpha + beta)))
        if bad.size:
            q = bad[0]
            raise ValueError(
                f"alpha and beta must be finite, at least 0 and not both 0, got ({alpha[q]}, {beta[q]}) for prompt "
                f"{q}; use Belief.uniform if nothing is known"
            )
        variance = _frozen(number_array("variance", self.variance))
        if not variance.size:
            variance = _frozen(alpha * beta / (alpha + beta) ** 2)
        if variance.shape != alpha.shape or not ((variance >= 0) & np.isfinite(variance)).all():
            raise ValueError(
                f"variance must be [{len(alpha)}], finite and at least 0, got {variance}; leave it out for 0/1 rewards"
            )
        object.__setattr__(self, "alpha", alpha)
        object.__setattr__(self, "beta", beta)
        object.__setattr__(self, "variance", variance)

    @classmethod
    def uniform(cls, prompts: int) -> Self:
        """Return Beta(1, 1) for each of ``prompts`` prompts."""
        return cls(np.ones(prompts), np.ones(prompts))

    @classmethod
    def from_mean(cls, mean: ArrayLike, strength: float = 2.0) -> Self:
        """Return the Beta with the given means [P] that weighs as much as ``strength`` rollouts."""
        mean = number_array("mean", mean)
        bad = np.flatnonzero(~((mean >= 0) & (mean <= 1)))
        if bad.size:
            raise ValueError(f"a mean must be in [0, 1], got {mean[bad[0]]} for prompt {bad[0]}; give a probability")
        return cls(mean * strength, (1 - mean) * strength)

    @property
    def mean(self) -> Floats:
        """Expected success probability, [P]."""
        return self.alpha / (self.alpha + self.beta)

    def condition(self, successes: ArrayLike, trials: ArrayLike) -> Belief:
        """Return the posterior after ``successes`` [P] among ``trials`` [P]."""
        successes, trials = number_array("successes", successes), number_array("trials", trials)
        return Belief(self.alpha + successes, self.beta + trials - successes)

    def __len__(self) -> int:
        return len(self.alpha)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Plan(ArrayValue):
    """The next request: ``fresh`` new prompts for the batch, or else ``counts`` [P] more rollouts. Falsy if finished.

    >>> bool(Plan([0, 0])), bool(Plan([0, 2])), bool(Plan([0], fresh=3))
    (False, True, True)
    """

    counts: Counts
    fresh: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "counts", _frozen(integer_array("counts", self.counts)))
        if type(self.fresh) is not int:
            check_integer("fresh", self.fresh)
        if np.count_nonzero(self.counts < 0) or self.fresh < 0:
            raise ValueError(f"a plan cannot take rollouts back, got counts {self.counts} and fresh {self.fresh}")

    def __bool__(self) -> bool:
        return bool(np.count_nonzero(self.counts)) or self.fresh > 0

    def _repr_html_(self) -> str:
        title = f"Plan of {self.counts.sum()} rollouts and {self.fresh} fresh prompts"
        return html_table(title, ("prompt", "rollouts"), enumerate(self.counts[:SHOWN_ROWS]), len(self.counts))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Batch(ArrayValue):
    """Everything known about one step. Plans are pure functions of it.

    ``belief`` is the belief before the first rollout. ``asked`` [P] counts the rollouts requested, for which the budget
    pays; ``trials`` [P] counts the verified ones, for statistics. They differ because samples fail. ``costs`` [P] is
    the expected cost of one rollout: 1 if the budget counts rollouts, the predicted length if it counts tokens.
    ``started`` is the number of prompts before any fresh ones.

    >>> batch = Batch.start([Prompt("a"), Prompt("b")], Belief.uniform(2))
    >>> batch = batch.add(Plan([2, 1]), [[Rollout(True), Rollout(False)], []])
    >>> batch.asked.tolist(), batch.trials.tolist(), batch.successes.tolist(), batch.round
    ([2, 1], [2, 0], [1, 0], 1)
    """

    prompts: tuple[Prompt, ...]
    belief: Belief
    rollouts: tuple[tuple[Rollout, ...], ...]
    asked: Counts
    costs: Floats
    started: int
    round: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "asked", _frozen(integer_array("asked", self.asked)))
        object.__setattr__(self, "costs", _frozen(number_array("costs", self.costs)))
        sizes = {len(self.prompts), len(self.belief), len(self.rollouts), len(self.asked), len(self.costs)}
        if len(sizes) != 1:
            raise ValueError(
                f"prompts, belief, rollouts, asked and costs must have one entry per prompt, got sizes {sorted(sizes)}"
            )

    def __repr__(self) -> str:
        """Return a line for the batch and one for each of its first prompts."""
        size = len(self.prompts)
        lines = [self._title()]
        for text, asked, got, correct, expected in self._rows(SHOWN_PROMPTS):
            lines.append(f"  {text}: asked {asked}, got {got}, {correct} correct, expected {expected}")
        if size > SHOWN_PROMPTS:
            lines.append(f"  and {size - SHOWN_PROMPTS} more")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head = ("prompt", "asked", "got", "correct", "expected")
        return html_table(self._title(), head, self._rows(SHOWN_ROWS), len(self.prompts))

    def _title(self) -> str:
        asked = f"{self.asked.sum()} rollouts asked in {self.round} rounds"
        return f"{type(self).__name__} of {len(self.prompts)} prompts, {asked}"

    def _rows(self, most: int) -> Iterator[tuple[object, ...]]:
        """Yield the columns of each of the first prompts."""
        for q in range(min(len(self.prompts), most)):
            verdicts = [rollout.correct for rollout in self.rollouts[q]]
            correct = f"{verdicts.count(True)} of {len(verdicts) - verdicts.count(None)}"
            yield _brief(self.prompts[q].text), self.asked[q], len(verdicts), correct, f"{self.belief.mean[q]:.2f}"

    @classmethod
    def start(cls, prompts: Sequence[Prompt], belief: Belief, costs: ArrayLike | None = None) -> Self:
        """Return a batch without rollouts. By default every rollout costs 1."""
        prompts = prompt_list(prompts)
        size = len(prompts)
        costs = np.ones(size) if costs is None else number_array("costs", costs)
        if not (np.isfinite(costs) & (costs > 0)).all():
            raise ValueError(f"costs must be finite and above 0, got {costs}; leave them out if all are equal")
        return cls(tuple(prompts), belief, ((),) * size, np.zeros(size, np.int64), costs, started=size)

    @property
    def sampled(self) -> Batch:
        """This batch without rollouts reused from earlier steps: what learns from batches has seen those before."""
        own = tuple(tuple(rollout for rollout in group if rollout.step is None) for group in self.rollouts)
        return replace(self, rollouts=own)

    @property
    def judged(self) -> Batch:
        """This batch with rewards 1 and 0 by the verdict. Rollouts without a verdict keep their reward."""
        found = (
            tuple(
                own if own.correct in (None, own.reward) else replace(own, reward=float(own.correct)) for own in group
            )
            for group in self.rollouts
        )
        return replace(self, rollouts=tuple(found))

    @property
    def trials(self) -> Counts:
        """Verified rollouts, [P]."""
        return np.array([sum(r.correct is not None for r in group) for group in self.rollouts], np.int64)

    @property
    def successes(self) -> Counts:
        """Correct rollouts, [P]."""
        return np.array([sum(r.correct is True for r in group) for group in self.rollouts], np.int64)

    @property
    def spread(self) -> Floats:
        """Standard deviation of each prompt's outcomes, [P].

        An outcome is the verdict (1 or 0), or the reward without one.

        Without verdicts it is the largest one of the ``components`` if there are any, because equal sums can have
        unequal parts. It is exactly 0 if all outcomes are equal up to ``TIE`` or there are none, and above 0 if any two
        differ.
        """
        return np.array([_spread(group) for group in self.rollouts], np.float64)

    @property
    def votes(self) -> tuple[Counter[str], ...]:
        """How often each parsed answer was given: one Counter per prompt."""
        return tuple(Counter(r.answer for r in group if r.answer is not None) for group in self.rollouts)

    @property
    def posterior(self) -> Belief:
        """The belief after every verified rollout so far."""
        return self.belief.condition(self.successes, self.trials)

    def add(self, plan: Plan, rollouts: Sequence[Sequence[Rollout]]) -> Batch:
        """Return the batch with ``rollouts`` of ``plan``, one list per prompt. If one is short, the others failed."""
        rollouts = [_rollout_list(new, q) for q, new in enumerate(rollouts)]
        received = np.array(list(map(len, rollouts)), np.int64)
        if received.shape != plan.counts.shape or plan.counts.shape != self.asked.shape:
            raise ValueError(
                f"a round needs one list of rollouts per prompt, got {len(received)} lists for a plan of "
                f"{len(plan.counts)} and a batch of {len(self.prompts)} prompts; "
                "give an empty list if nothing was asked"
            )
        over = (received > plan.counts).nonzero()[0]
        if over.size:
            q = over[0]
            raise ValueError(
                f"prompt {q} got {received[q]} rollouts, but {plan.counts[q]} were asked for; "
                "return at most the planned number to keep the budget"
            )
        merged = tuple((*old, *map(self._with_round, new)) for old, new in zip(self.rollouts, rollouts, strict=True))
        return replace(self, rollouts=merged, asked=self.asked + plan.counts, round=self.round + 1)

    def part(self, indices: Sequence[int]) -> Batch:
        """Return the batch of the prompts at ``indices``, as if it had started with them alone."""
        own = list(indices)
        belief = Belief(*(getattr(self.belief, each.name)[own] for each in fields(Belief)))
        prompts, rollouts = tuple(self.prompts[q] for q in own), tuple(self.rollouts[q] for q in own)
        return Batch(prompts, belief, rollouts, self.asked[own], self.costs[own], len(own), self.round)

    def join(self, other: Batch) -> Batch:
        """Return both batches as one, this one's prompts first. ``started`` stays that of this batch."""
        return replace(Batch.concatenate([self, other]), started=self.started)

    @staticmethod
    def concatenate(parts: Sequence[Batch]) -> Batch:
        """Return all ``parts`` as one batch, an empty one if there are none. ``started`` is the sum of theirs."""
        parts = parts or [Batch.start([], Belief.uniform(0))]
        belief = Belief(*(np.concatenate([getattr(b.belief, each.name) for b in parts]) for each in fields(Belief)))
        return Batch(
            tuple(prompt for part in parts for prompt in part.prompts),
            belief,
            tuple(rollouts for part in parts for rollouts in part.rollouts),
            np.concatenate([part.asked for part in parts]),
            np.concatenate([part.costs for part in parts]),
            started=sum(part.started for part in parts),
            round=max(part.round for part in parts),
        )

    def _with_round(self, rollout: Rollout) -> Rollout:
        return rollout if rollout.round == self.round else replace(rollout, round=self.round)


@cache
def _mask(size: int, value: bool) -> Mask:
    """Return a read-only mask [``size``] of equal entries."""
    return _frozen(np.full(size, value))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Group(ArrayValue):
    """The rollouts of one prompt that share a baseline; only those in ``keep`` [G] enter the loss.

    ``recompute`` [G] marks rollouts reused from an earlier step whose behaviour log-probabilities the loss replaces by
    those of the current policy, so that the importance ratio starts at 1. ``keep`` defaults to all, ``recompute`` to
    none.
    """

    prompt: Prompt
    rollouts: tuple[Rollout, ...]
    keep: Mask = field(default_factory=lambda: _mask(0, True))
    recompute: Mask = field(default_factory=lambda: _mask(0, True))

    def __post_init__(self) -> None:
        size = len(self.rollouts)
        for name, default in (("keep", True), ("recompute", False)):
            mask = np.asarray(getattr(self, name), np.bool_)
            mask = _frozen(mask) if mask.size else _mask(size, default)
            if mask.shape != (size,):
                raise ValueError(f"{name} must be [{size}], one entry per rollout, got {mask.shape}; or leave it out")
            object.__setattr__(self, name, mask)

    @property
    def rewards(self) -> Floats:
        """Rewards [G]. Raises ValueError for a rollout without a reward."""
        missing = [i for i, r in enumerate(self.rollouts) if r.reward is None]
        if missing:
            raise ValueError(
                f"rollout {missing[0]} of prompt {self.prompt.text!r} has no reward; verify it before estimating"
            )
        return np.array([r.reward for r in self.rollouts], np.float64)

    @property
    def spread(self) -> float:
        """Standard deviation of the rewards, or the largest one of their components; see ``Batch.spread``."""
        self.rewards  # noqa: B018 - raises if a rollout has none
        return _spread(self.rollouts, verdicts=False)

    @property
    def informative(self) -> bool:
        """Whether the group is mixed: its verdicts differ, or without them its rewards or a component of these."""
        self.rewards  # noqa: B018 - raises if a rollout has none
        return _spread(self.rollouts) > 0


def prompt_list(prompts: Iterable[Prompt]) -> tuple[Prompt, ...]:
    """Return ``prompts`` as a list. Raise ValueError for a text, or for an entry that is no prompt.

    >>> [prompt.text for prompt in prompt_list(Prompt(text) for text in ("a", "b"))]
    ['a', 'b']
    """
    if isinstance(prompts, (str, bytes, Mapping, Prompt)) or not isinstance(prompts, Iterable):
        raise ValueError(f"prompts must be a sequence of Prompt, got {prompts!r:.80}; write [Prompt(text), ...]")
    listed = tuple(prompts)
    for q, prompt in enumerate(listed):
        if not isinstance(prompt, Prompt):
            raise ValueError(f"prompts must be a sequence of Prompt, got {prompt!r:.80} at {q}; write Prompt(text)")
    return listed


def html_table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]], size: int) -> str:
    """Return the first of ``size`` rows as a table in HTML, for notebooks. Every text is escaped.

    >>> html_table("a < b", ["n"], [[1]], size=1)
    '<table><caption>a &lt; b</caption><tr><th>n</th></tr><tr><td>1</td></tr></table>'
    """
    lines = [("th", head), *(("td", row) for row in rows)]
    more = f", the first {len(lines) - 1} rows" if len(lines) - 1 < size else ""
    cells = ("".join(f"<{tag}>{escape(str(cell))}</{tag}>" for cell in line) for tag, line in lines)
    body = "".join(f"<tr>{line}</tr>" for line in cells)
    return f"<table><caption>{escape(title + more)}</caption>{body}</table>"


def _rollout_list(rollouts: Iterable[Rollout], q: int) -> tuple[Rollout, ...]:
    """Return the rollouts of prompt ``q`` as a list. Raise ValueError for an entry that is no rollout."""
    listed = tuple(rollouts) if isinstance(rollouts, Iterable) else (rollouts,)
    for rollout in listed:
        if not isinstance(rollout, Rollout):
            raise ValueError(
                f"rollouts must be lists of Rollout, one list a prompt, got {rollout!r:.80} for prompt {q}; "
                "return [Rollout(correct=...), ...] for each"
            )
    return listed


def _spread(rollouts: Iterable[Rollout], verdicts: bool = True) -> float:
    """Return the standard deviation of verdicts, of rewards, or the largest one of their components."""
    scored = [rollout for rollout in rollouts if rollout.reward is not None]
    judged = [verdicts and rollout.correct is not None for rollout in scored]
    if scored and not any(judged) and all(rollout.components for rollout in scored):
        return max(map(_deviation, np.array([rollout.components for rollout in scored], np.float64).T))
    outcomes = [r.correct if known else r.reward for r, known in zip(scored, judged, strict=True)]
    return _deviation(np.array(outcomes, np.float64))


def _deviation(values: Floats) -> float:
    """Return the standard deviation of ``values`` without NaN, scaled by their range: squares do not underflow."""
    values = values[~np.isnan(values)]
    low, high = values.min(initial=np.inf), values.max(initial=-np.inf)
    if not high - low > TIE * max(abs(low), abs(high)):
        return 0.0
    return float((high - low) * np.std((values - low) / (high - low)))


def _brief(value: Any) -> str:
    """Return a ``repr`` of one line and at most a few dozen characters."""
    if isinstance(value, np.ndarray):
        with np.printoptions(threshold=10, edgeitems=3, linewidth=10**6):
            return " ".join(repr(value).split())
    if isinstance(value, tuple) and len(value) > 3:
        return f"({', '.join(map(_brief, value[:3]))}, and {len(value) - 3} more)"
    if isinstance(value, (tuple, Prompt, Rollout, ArrayValue)):
        return repr(value)
    return " ".join(shown(value).split())


def _check_reward(reward: Any) -> None:
    if type(reward) is float and -LARGEST_REWARD <= reward <= LARGEST_REWARD:
        return
    number = isinstance(reward, Real)
    reward = float(reward) if isinstance(reward, np.floating) else reward  # 1e100 does not fit into float32
    if number and abs(reward) <= LARGEST_REWARD:
        return
    if number and np.isfinite(reward):
        raise ValueError(f"a reward must be at most {LARGEST_REWARD:g} in size, got {reward}; rescale the rewards")
    raise ValueError(f"a reward must be finite, got {reward!r:.80}; drop the rollout or give it a score")


def _frozen(values: NDArray[Any]) -> NDArray[Any]:
    array = values.copy()
    array.flags.writeable = False
    return array
