"""Find the threshold of the calibrated rule from audited questions, with a guarantee for the other questions.

Draw some of the questions at random and sample them to the end. Their streams tell how often each threshold would have
chosen another answer than the full vote. Conformal risk control picks the largest threshold with

    (n * disagreement(threshold) + 1) / (n + 1) <= eps

over the n audited questions. The loss of a question is 1 if this threshold *or any smaller one* chooses another answer
than the full vote, and 0 otherwise, because the method needs a loss that only grows with the threshold.

**Guarantee.** If the audited questions and a further question are exchangeable, as when the audited ones are drawn at
random from all, the probability that the rule with this threshold chooses another answer than the full vote on the
further question is at most eps. The probability is over the draw of the audited questions, their samples, the further
question and its samples. It says nothing about one particular draw, about questions of another kind, or about accuracy.

The guarantee needs (n + 1) eps >= 1, so at least 99 audited questions for eps = .01 and 19 for eps = .05.

Reference: Angelopoulos et al. 2022, "Conformal Risk Control", arXiv 2208.02814, Theorem 1 with B = 1, for a loss that
is made monotone. ``orders`` is ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from apportion.checks import check_integer
from apportion.stopping.calibrated import Calibrated, risk_score
from apportion.stopping.curtailment import Curtailment
from apportion.stopping.decisions import check_max_samples
from apportion.stopping.posterior_predictive import check_eps
from apportion.stopping.votes import Stream, count_votes, encode_answers, leader
from apportion.types import Floats

LARGEST = 1.0
"""The largest threshold that is returned."""


@dataclass(frozen=True)
class Audit:
    """The result of an audit: the rule for the other questions, and the figures that it is based on.

    ``questions`` is n. ``disagreement`` is the mean loss of the audited questions at this threshold, and ``bound`` is
    (n * disagreement + 1) / (n + 1), which is at most eps.
    """

    rule: Calibrated
    questions: int
    disagreement: float
    bound: float


def audited_threshold(
    streams: Sequence[Stream], eps: float, max_samples: int = 64, *, wave: int = 1, orders: int = 1, seed: int = 0
) -> Audit:
    """Return the calibrated rule with the largest threshold that the audited ``streams`` allow.

    Each stream holds the answers to one audited question in the order of sampling; None is a sample without an answer.
    It has ``max_samples`` answers, or ends when no other answer can win any more. ``wave`` is the number of samples
    between two decisions on the other questions; 1 is right for free waves. If ``orders`` is above 1, the loss of a
    question is the mean over so many random orders of its samples, drawn with ``seed``. This lowers the noise, and
    keeps the guarantee if a question's samples are exchangeable; every stream must then have ``max_samples`` answers.

    Raises ValueError if there are too few streams for eps, or if a stream ends too early.

    >>> audit = audited_threshold([["a"] * 16] * 30, eps=0.05, max_samples=16)
    >>> audit.questions, audit.disagreement, round(audit.bound, 3), audit.rule.threshold
    (30, 0.0, 0.032, 1.0)
    """
    check_max_samples(max_samples)
    for name, value in (("wave", wave), ("orders", orders)):
        check_integer(name, value, 1, "1 is usual")
    check_eps(eps)
    questions = len(streams)
    if (questions + 1) * eps < 1 - 1e-9:
        raise ValueError(
            f"eps = {eps:g} needs at least {math.ceil(1 / eps - 1 - 1e-9)} audited questions, got {questions}; "
            "audit more questions, or raise eps"
        )
    rng = np.random.default_rng(seed)
    drawn = [order for q, stream in enumerate(streams) for order in _orders(stream, q, max_samples, orders, rng)]
    losing = np.array([smallest_losing_threshold(order, max_samples, wave) for order in drawn])
    threshold = largest_threshold(losing.reshape(questions, orders), eps)
    loss = float(np.mean(losing <= threshold))
    return Audit(Calibrated(eps, threshold), questions, loss, (questions * loss + 1) / (questions + 1))


def largest_threshold(losing: Floats, eps: float) -> float:
    """Return the largest threshold with (n * loss + 1) / (n + 1) at most eps, and at most ``LARGEST``.

    ``losing`` [n, orders] are the smallest losing thresholds of n audited questions, and (n + 1) eps is at least 1.
    """
    questions, orders = losing.shape
    allowed = math.floor(((questions + 1) * eps - 1) * orders + 1e-9)
    rising = np.sort(losing, axis=None)
    return min(float(np.nextafter(rising[allowed], 0.0)) if allowed < rising.size else LARGEST, LARGEST)


def smallest_losing_threshold(stream: Stream, max_samples: int, wave: int = 1) -> float:
    """Return the smallest threshold at which the rule ends with another answer than the full vote; inf if none does.

    A threshold stops the rule at the first sample whose score is at most the threshold. So only a sample whose score is
    below all scores before it is ever a stop.
    """
    answers, codes = encode_answers(stream)
    votes, taken = count_votes(codes, len(answers)), np.arange(1, len(stream) + 1)
    scores = np.where(votes.any(axis=-1) & (taken % wave == 0), risk_score(votes, taken, max_samples), np.inf)[:-1]
    lowest_before = np.minimum.accumulate(np.append(np.inf, scores[:-1]))
    wrong = leader(votes[:-1]) != leader(votes[-1])
    return float(np.min(scores[wrong & (scores < lowest_before)], initial=np.inf))


def _orders(stream: Stream, q: int, max_samples: int, orders: int, rng: np.random.Generator) -> list[Stream]:
    """Return the stream of question ``q``, or ``orders`` random orders of it if that is above 1."""
    taken = [*stream[:max_samples]]
    if len(taken) < max_samples and (orders > 1 or not _is_decided(taken, max_samples)):
        until = "to max_samples" if orders > 1 else "until no other answer can win"
        raise ValueError(
            f"an audited question must be sampled {until}, got {len(taken)} of {max_samples} samples for question {q}; "
            "sample it further"
        )
    if orders == 1:
        return [taken]
    return [[taken[place] for place in rng.permutation(max_samples)] for _ in range(orders)]


def _is_decided(stream: Stream, max_samples: int) -> bool:
    """Return whether no further samples can change the winner after ``stream``."""
    answers, codes = encode_answers(stream)
    if not answers:
        return False
    return bool(Curtailment().stops_now(count_votes(codes, len(answers)), max_samples))
