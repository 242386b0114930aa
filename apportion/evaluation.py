"""Evaluation: mean@k, unbiased pass@k, maj@k, and confidence intervals over prompts."""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike

from apportion.checks import check_integer, integer_array, number_array
from apportion.types import Counts, Floats

BLOCK = 2**20
"""Number of resampled values held in memory at once."""

DRAWS = 1000
"""Random subsets of the answers of one prompt."""

MOST_K = 1024
"""The largest k that is chosen, as in the papers. A larger one may be named."""


class Interval(NamedTuple):
    """Bounds of a confidence interval."""

    low: float
    high: float


def pass_at_k(successes: ArrayLike, trials: ArrayLike, k: int) -> Floats:
    """Return the probability [P] that at least one of ``k`` of the ``trials`` [P] rollouts of a prompt is correct.

    The k are drawn without replacement: 1 - C(n - c, k) / C(n, k) for c ``successes`` [P] among n trials, which is
    unbiased for 1 - (1 - p)^k. It is computed as a product of k factors, so that nothing overflows. Raises ValueError
    unless 1 <= k <= n and 0 <= c <= n for every prompt.

    Reference: Chen et al. 2021, arXiv 2107.03374, equation 1.

    >>> pass_at_k([0, 1, 2, 4], [4, 4, 4, 4], k=2).round(3).tolist()
    [0.0, 0.5, 0.833, 1.0]
    """
    c, n = np.broadcast_arrays(integer_array("successes", successes), integer_array("trials", trials))
    k = check_integer("k", k)
    bad = np.flatnonzero((c < 0) | (c > n))
    if c.ndim != 1 or bad.size:
        raise ValueError(
            f"successes must be [P] and between 0 and the trials, got {c} among {n}; count each prompt's own"
        )
    if k < 1 or (n < k).any():
        raise ValueError(
            f"k must be at least 1 and at most the trials of every prompt, got {k} for trials {n}; "
            "draw more rollouts or lower k"
        )
    drawn = np.arange(k)
    failing = np.maximum((n - c)[:, None] - drawn, 0) / (n[:, None] - drawn)
    return 1.0 - failing.prod(axis=1)


class AnswerScores(NamedTuple):
    """Shares of right answers, of prompts with any right answer, and of prompts whose majority is right."""

    mean: float
    pass_any: float
    majority: float


def answer_scores(answers: Sequence[Sequence[str | None]], gold: Sequence[Collection[str]]) -> AnswerScores:
    """Return mean@k, pass@k and maj@k of k ``answers`` [P][k], given the right ones of each prompt, ``gold`` [P].

    None means no answer, and does not vote. Of several answers with the most votes the majority is the one that came
    first. Raises ValueError if there is no prompt, a prompt without answers or gold, or a text in place of a list of
    texts.

    >>> answer_scores([["7", "7", "9"], ["5", None, "4"]], [{"7"}, {"4"}])
    AnswerScores(mean=0.5, pass_any=1.0, majority=0.5)
    """
    _check_answers(answers, gold)
    right = [[answer in known for answer in own] for own, known in zip(answers, gold, strict=True)]
    votes = [Counter(answer for answer in own if answer is not None) for own in answers]
    won = [bool(count) and count.most_common(1)[0][0] in known for count, known in zip(votes, gold, strict=True)]
    means = (np.mean([np.mean(own) for own in right]), np.mean([any(own) for own in right]), np.mean(won))
    return AnswerScores(*map(float, means))


def majority_at_k(
    answers: Sequence[Sequence[Hashable | None]],
    gold: Sequence[Collection[Hashable]],
    k: int,
    draws: int = DRAWS,
    seed: int = 0,
) -> Floats:
    """Return the probability [P] that the majority of ``k`` of the ``answers`` [P][n] of a prompt is right.

    The k are drawn without replacement and stay in their order. A majority is what ``answer_scores`` counts, and
    ``gold`` [P] are the right answers of each prompt. All subsets are counted if there are at most ``draws``, so k = 1
    and k = n are exact. Otherwise that many are drawn: the standard error of one prompt is at most .016 with 1000.
    The same seed gives the same result. Raises ValueError unless 1 <= k <= n for every prompt, and as
    ``answer_scores`` does.

    >>> majority_at_k([["7", "9", "7"]], [{"7"}], k=2).round(3).tolist()
    [0.667]
    """
    _check_answers(answers, gold)
    k, draws, seed = check_integer("k", k, 1), check_integer("draws", draws, 1), check_integer("seed", seed, 0)
    fewest = min(map(len, answers))
    if k > fewest:
        raise ValueError(f"k must be at most the answers of every prompt, got {k} for {fewest}; lower k")
    rng = np.random.default_rng(seed)
    found = [_majority(own, known, k, draws, rng) for own, known in zip(answers, gold, strict=True)]
    return np.array(found, np.float64)


def _check_answers(answers: Sequence[Sequence[Hashable]], gold: Sequence[Collection[Hashable]]) -> None:
    if not answers or len(answers) != len(gold) or not all(map(len, answers)):
        raise ValueError(
            f"answers must be [{len(gold)}][k], at least one for each prompt of gold, got {[*map(len, answers)]} of "
            f"{len(answers)} prompts; leave out prompts without them"
        )
    for name, given in (("answers", [answers, *answers]), ("gold", [gold, *gold])):
        texts = [each for each in given if isinstance(each, (str, bytes))]
        if texts:
            raise ValueError(
                f"{name} must hold one list of texts a prompt, got the text {texts[0]!r:.80}; put it in a list"
            )


def _majority(
    own: Sequence[Hashable | None], known: Collection[Hashable], k: int, draws: int, rng: np.random.Generator
) -> float:
    """Return the share of subsets whose majority is in ``known``."""
    place = {answer: place for place, answer in enumerate(dict.fromkeys(each for each in own if each is not None))}
    none = len(place)
    of = np.array([place.get(answer, none) for answer in own])
    right = np.array([answer is not None and answer in known for answer in own])
    won = subsets = 0
    for drawn in _subsets(len(own), k, draws, rng):
        rows = np.arange(len(drawn))
        keys = of[drawn] + (none + 1) * rows[:, None]
        votes = np.bincount(keys.ravel())[keys]
        votes[of[drawn] == none] = 0
        won += int(right[drawn[rows, votes.argmax(axis=1)]].sum())  # of equal votes the first
        subsets += len(drawn)
    return won / subsets


def _subsets(n: int, k: int, draws: int, rng: np.random.Generator) -> Iterator[Counts]:
    """Yield subsets of k of n places, each in rising order, as rows of arrays: all, or ``draws`` random ones."""
    if comb(n, k) <= draws:
        yield np.array(list(combinations(range(n), k)))
        return
    most = max(1, BLOCK // n)
    for done in range(0, draws, most):
        order = rng.random((min(most, draws - done), n)).argpartition(k - 1, axis=1)
        yield np.sort(order[:, :k], axis=1)


@dataclass(frozen=True)
class Score:
    """A mean over problems with its 95% interval, which is nan if they are all equal: resampling says nothing there."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class ScoresAtK:
    """Pass@k and Maj@k of the ``problems`` that have ``k`` rollouts. Maj@k is None without answers."""

    k: int
    problems: int
    passed: Score
    majority: Score | None


@dataclass(frozen=True)
class Evaluation:
    """Scores of the rollouts of several problems.

    Args:
        problems: their number.
        rollouts: all of their rollouts.
        least: the fewest rollouts of a problem.
        most: the most.
        mean: Mean@k, which is the same for every k: a problem's share of right rollouts, or its mean reward.
        at: the scores at each k; none if a reward is neither 0 nor 1.
    """

    problems: int
    rollouts: int
    least: int
    most: int
    mean: Score
    at: tuple[ScoresAtK, ...]


@dataclass(frozen=True)
class Rollouts:
    """The rollouts of P problems that can be evaluated.

    Args:
        name: what they are called.
        rewards: of each rollout of a problem, [P][n].
        answers: equal ones for equal answers to a problem, None for none, [P][n]; None if they are unknown.
        failed: rollouts that are left out, because they have no reward.
        doubts: what the figures do not say, a line each.
    """

    name: str
    rewards: Sequence[ArrayLike]
    answers: Sequence[Sequence[Hashable | None]] | None
    failed: int
    doubts: tuple[str, ...]


def evaluate(
    rewards: Sequence[ArrayLike],
    answers: Sequence[Sequence[Hashable | None]] | None = None,
    ks: Sequence[int] = (),
    seed: int = 0,
) -> Evaluation:
    """Return Mean@k, Pass@k and Maj@k of the ``rewards`` [P][n] and ``answers`` [P][n] of each problem's n rollouts.

    An answer is right if a rollout with it has a reward of 1. A problem with fewer than k rollouts is left out at that
    k. By default ``ks`` are the powers of two up to the rollouts that nine tenths of the problems have, and that
    number, at most 1024. Intervals resample problems. Raises ValueError without rewards, and for a k that no problem
    has.

    >>> evaluate([[1, 0], [0, 0]], [["7", "8"], ["8", "8"]], ks=[2]).at[0].passed.mean
    0.5
    """
    values = [number_array("rewards", own) for own in rewards]
    sizes = np.array([len(own) for own in values], np.int64)
    if not len(sizes) or not sizes.all():
        raise ValueError(
            f"rewards must be [P][n], at least one a problem, got {sizes.tolist()!s:.80}; leave others out"
        )
    if answers is not None and [len(own) for own in answers] != sizes.tolist():
        raise ValueError("answers must be as many as the rewards of each problem, got others; give None for no answer")
    ks = sorted({check_integer("k", k, 1) for k in ks}) or usual_ks(min(MOST_K, int(np.sort(sizes)[len(sizes) // 10])))
    if ks[-1] > sizes.max():
        raise ValueError(
            f"k must be at most {sizes.max()}, the rollouts of the problem with the most, got {ks[-1]}; "
            "lower k, or draw more rollouts"
        )
    graded = not all(np.isin(own, (0, 1)).all() for own in values)
    at: list[ScoresAtK] = []
    for k in [] if graded else ks:
        chosen = np.flatnonzero(sizes >= k).tolist()
        majority = None
        if answers is not None:
            own = [answers[place] for place in chosen]
            gold = [right_answers(answers[place], values[place]) for place in chosen]
            majority = _score(majority_at_k(own, gold, k, seed=seed), seed)
        passed = pass_at_k([int(values[place].sum()) for place in chosen], sizes[chosen], k)
        at.append(ScoresAtK(k, len(chosen), _score(passed, seed), majority))
    mean = _score(np.array([own.mean() for own in values]), seed)
    return Evaluation(len(sizes), int(sizes.sum()), int(sizes.min()), int(sizes.max()), mean, tuple(at))


def usual_ks(most: int) -> list[int]:
    """Return the powers of two below ``most``, and ``most``.

    >>> usual_ks(12), usual_ks(1)
    ([1, 2, 4, 8, 12], [1])
    """
    return [*(2**power for power in range(most.bit_length()) if 2**power < most), most]


def right_answers(answers: Sequence[Hashable | None], rewards: ArrayLike) -> set[Hashable | None]:
    """Return the answers [n] of the rollouts with a reward of 1, [n].

    >>> right_answers(["7", "8"], [1, 0])
    {'7'}
    """
    return {answer for answer, reward in zip(answers, np.asarray(rewards), strict=True) if reward == 1}


def _score(values: Floats, seed: int) -> Score:
    low, high = bootstrap_interval(values, seed=seed) if np.ptp(values) > 0 else (np.nan, np.nan)
    return Score(float(np.mean(values)), low, high)


def bootstrap_interval(
    values: ArrayLike,
    statistic: Callable[..., Floats] = np.mean,
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Interval:
    """Return the percentile bootstrap interval of ``statistic`` over prompts, from ``values`` [P], one a prompt.

    Prompts are resampled, because the rollouts of one prompt are not independent evidence about a benchmark.
    ``statistic`` takes an array and ``axis``, as ``np.mean`` and ``np.median`` do. The same seed gives the same
    interval. Reference: Efron 1979, Annals of Statistics 7.

    >>> bootstrap_interval([0.0, 1.0] * 50)
    Interval(low=0.4, high=0.6)
    """
    values = number_array("values", values)
    resamples, seed = check_integer("resamples", resamples), check_integer("seed", seed, 0)
    if values.ndim != 1 or not values.size or not np.isfinite(values).all():
        raise ValueError(f"values must be [P], at least one and finite, got {values}; give one number a prompt")
    if not 0 < level < 1 or resamples < 1:
        raise ValueError(
            f"level must be above 0 and below 1, and resamples at least 1, got {level} and {resamples}; "
            "0.95 and 10000 are usual"
        )
    if values.size == 1:  # scipy needs two
        only = float(statistic(values, axis=-1))
        return Interval(only, only)
    found = scipy.stats.bootstrap(
        [values],
        statistic,
        n_resamples=resamples,
        batch=max(1, BLOCK // values.size),
        vectorized=True,
        confidence_level=level,
        method="percentile",
        random_state=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(float(found.low), float(found.high))


def seed_interval(values: ArrayLike) -> tuple[Floats, Floats]:
    """Return the means of ``values`` [S, ...] over S seeds, and the half widths of their 95% intervals (Student's t).

    A half width is nan for a single seed.

    >>> mean, half = seed_interval([[0.2], [0.4]])
    >>> round(float(mean[0]), 3), round(float(half[0]), 3)
    (0.3, 1.271)
    """
    values = np.asarray(values, np.float64)
    seeds = len(values)
    if seeds < 2:
        return values[0], np.full(values.shape[1:], np.nan)
    return values.mean(0), scipy.special.stdtrit(seeds - 1, 0.975) * values.std(0, ddof=1) / np.sqrt(seeds)
