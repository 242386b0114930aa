"""Evaluation: unbiased pass@k, scores of answers, and confidence intervals over prompts."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike

from apportion.checks import check_integer, integer_array, number_array
from apportion.types import Floats

BLOCK = 2**20
"""Number of resampled values held in memory at once."""


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
    right = [[answer in known for answer in own] for own, known in zip(answers, gold, strict=True)]
    votes = [Counter(answer for answer in own if answer is not None) for own in answers]
    won = [bool(count) and count.most_common(1)[0][0] in known for count, known in zip(votes, gold, strict=True)]
    means = (np.mean([np.mean(own) for own in right]), np.mean([any(own) for own in right]), np.mean(won))
    return AnswerScores(*map(float, means))


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
