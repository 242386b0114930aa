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
from apportion.types import Counts, Floats, Mask

BLOCK = 2**20
"""Number of resampled values held in memory at once."""

FEW = 1024
"""If there are at most so many different values, a resample draws how often each occurs, which is faster."""

DRAWS, LEAST_DRAWS = 1000, 128
"""Random subsets of the answers of one prompt, and the fewest if there are more than 1000 prompts. The error of the
mean over P prompts is at most 0.5 / sqrt(P times subsets), so below 0.0005 there."""

MOST_K = 1024
"""The largest k that is chosen by default, as in the papers. A user may name a larger one."""


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
    """Return mean@k, pass@k and maj@k of k ``answers`` [P][k], given the right answers of each prompt, ``gold`` [P].

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

    The k are drawn without replacement. Each of several answers with the most votes is as likely to be the majority, so
    the order of the answers does not matter. ``gold`` [P] are the right answers of each prompt. All subsets are counted
    if there are at most ``draws``, so k = 1 and k = n are exact. Otherwise that many are drawn: the standard error of
    one prompt is at most .016 with 1000. The same seed gives the same result.

    Raises ValueError unless 1 <= k <= n for every prompt, and as ``answer_scores`` does.

    >>> majority_at_k([["7", "9", "7"]], [{"7"}], k=2).round(3).tolist()
    [0.667]
    """
    _check_answers(answers, gold)
    k, draws, seed = check_integer("k", k, 1), check_integer("draws", draws, 1), check_integer("seed", seed, 0)
    fewest = min(map(len, answers))
    if k > fewest:
        raise ValueError(f"k must be at most the answers of every prompt, got {k} for {fewest}; lower k")
    rng, found = np.random.default_rng(seed), np.zeros(len(answers))
    for places, codes, right in _coded(answers, gold):
        found[places] = _majorities(codes, right, k, draws, rng)
    return found


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


def _coded(
    answers: Sequence[Sequence[Hashable | None]], gold: Sequence[Collection[Hashable]]
) -> Iterator[tuple[Counts, Counts, Mask]]:
    """Yield, for each n, the prompts with n answers: their indices [Q], coded answers, and which answers are right.

    Codes and verdicts are [Q, n]. Equal answers of a prompt have the same code, below n. No answer is n.
    """
    sizes = np.array([len(own) for own in answers])
    for n in np.unique(sizes).tolist():
        places = np.flatnonzero(sizes == n)
        codes, right = np.full((len(places), n), n), np.zeros((len(places), n), np.bool_)
        for row, place in enumerate(places.tolist()):
            code: dict[Hashable, int] = {}
            for at, answer in enumerate(answers[place]):
                if answer is not None:
                    codes[row, at] = code.setdefault(answer, len(code))
                    right[row, at] = answer in gold[place]
        yield places, codes, right


def _majorities(codes: Counts, right: Mask, k: int, draws: int, rng: np.random.Generator) -> Floats:
    """Return the share of subsets of k whose majority is right, [Q], of answers as ``_coded`` gives them, [Q, n].

    The answers with the most votes of a subset share it.
    """
    prompts, n = codes.shape
    every = np.array(list(combinations(range(n), k))) if comb(n, k) <= draws else None
    subsets = draws if every is None else len(every)
    won = np.zeros(prompts)
    most = max(1, BLOCK // (subsets * (n + 1)))
    for start in range(0, prompts, most):
        block = slice(start, start + most)
        rows = np.repeat(np.arange(prompts)[block], subsets)[:, None]
        if every is None:
            drawn = np.sort(rng.random((len(rows), n)).argpartition(k - 1, axis=1)[:, :k], axis=1)
        else:
            drawn = np.tile(every, (len(rows) // subsets, 1))
        chosen = codes[rows, drawn]
        keys = chosen + (n + 1) * np.arange(len(rows))[:, None]
        votes = np.where(chosen < n, np.bincount(keys.ravel(), minlength=len(rows) * (n + 1))[keys], 0)
        most_voted = votes == votes.max(axis=1, keepdims=True)
        shares = (right[rows, drawn] & most_voted).sum(axis=1) / most_voted.sum(axis=1)
        won[block] = shares.reshape(-1, subsets).mean(axis=1)
    return won


@dataclass(frozen=True)
class Score:
    """A mean over problems with its 95% interval.

    It is NaN if all values are equal, because then resampling says nothing.
    """

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
    graded = not np.isin(np.concatenate(values), (0, 1)).all()
    draws = int(np.clip(DRAWS * DRAWS // len(sizes), LEAST_DRAWS, DRAWS))
    sums = np.add.reduceat(np.concatenate(values), np.cumsum(sizes) - sizes)
    coded = [] if answers is None or graded else list(_coded(answers, list(map(right_answers, answers, values))))
    at: list[ScoresAtK] = []
    for k in [] if graded else ks:
        enough = sizes >= k
        passed = _score(pass_at_k(sums[enough].astype(np.int64), sizes[enough], k), seed)
        majority = None
        if answers is not None:
            rng = np.random.default_rng(seed)
            each = [_majorities(codes, right, k, draws, rng) for _, codes, right in coded if codes.shape[1] >= k]
            majority = _score(np.concatenate(each), seed)
        at.append(ScoresAtK(k, int(enough.sum()), passed, majority))
    mean = _score(sums / sizes, seed)
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
    if values.size == 1:  # scipy needs two values
        only = float(statistic(values, axis=-1))
        return Interval(only, only)
    distinct, times = np.unique(values, return_counts=True)
    if statistic is np.mean and len(distinct) <= min(values.size / 4, FEW):
        counts = np.random.default_rng(seed).multinomial(values.size, times / values.size, resamples)
        return Interval(*np.quantile(counts @ distinct / values.size, [(1 - level) / 2, (1 + level) / 2]).tolist())
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
