"""The probability that a rival overtakes the leader in the samples that are left, exactly.

What the answers to a question look like is not known, so several hypotheses are kept (``HYPOTHESES``) and weighed by
the votes seen. Each says how likely the next sample is to be an answer with v votes, after t samples:

- open: v / (t + a), and a / (t + a) for an answer not seen yet: a Chinese restaurant process of concentration a;
- few: (v + c) / (t + m c), for each of m answers, seen or not: a symmetric Dirichlet prior worth c votes an answer.

Both are (v + c) / (t + A), with c = 0 and A = a, or A = m c; so of the R = M - t samples left, the number m that go to
the leader (v_1) or to rival j is Beta-binomial(R; v_1 + v_j + 2 c, t - v_1 - v_j + A - 2 c), and of these m, X go to
the rival with X Beta-binomial(m; v_j + c, v_1 + c). The rival overtakes where D = 2 X - m, by which its new votes
exceed the leader's, reaches the gap g = v_1 - v_j: a tie counts against the leader, for readers break ties in different
ways.

P(D >= g) after m samples is a running sum over m: it falls by those that stand at D = g and step down, and rises by
those at g - 1 that step up. That makes one probability cost R terms instead of R^2.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product

import numpy as np
from scipy.special import gammaln

from apportion.types import Counts, Floats

OPEN = tuple(np.geomspace(0.1, 100.0, 7).tolist())
"""Concentrations a: 64 samples have 1.5 distinct answers on average at the first, 50 at the last."""

FEW = tuple(product((2, 4), (1, 4, 16)))
"""Pairs (m, c): of two answers, or of four, from any shares being equally likely to nearly equal ones."""

HYPOTHESES = len(OPEN) + len(FEW)
"""H. Beforehand open and few have probability 1/2 each, spread evenly."""

ANSWERS = np.array([0] * len(OPEN) + [m for m, _ in FEW])
EXTRA = np.array([0] * len(OPEN) + [c for _, c in FEW])
TOTAL = np.array([*OPEN, *(m * c for m, c in FEW)])
LOG_PRIOR = np.log([0.5 / len(OPEN)] * len(OPEN) + [0.5 / len(FEW)] * len(FEW))

KEPT = 200_000
"""Probabilities kept for the next question, of one maximum."""

WHOLE = 64
"""Up to this maximum, all probabilities after t samples are computed when the first of them is asked for."""

INFINITE = 700.0
"""As the logarithm of Gamma(0): whatever is divided by it is nothing."""


class Overtaking:
    """Probabilities for one ``max_samples``; those computed once are kept. From ``overtaking``, which shares them."""

    def __init__(self, max_samples: int) -> None:
        self.max_samples = max_samples
        self._keys = np.full(1, np.iinfo(np.int64).max)  # greater than any case, so that each has a place before it
        self._odds = np.zeros((1, HYPOTHESES))
        n = np.arange(max_samples + 1)
        self._log_factorial = gammaln(n + 1.0)
        self._extra, self._extra_of = np.unique(EXTRA, return_inverse=True)
        self._log_gamma_one = _log_gamma(n + self._extra[:, None], at_zero=0.0)
        self._log_gamma_pair = _log_gamma(n + 2 * self._extra[:, None], at_zero=0.0)
        self._log_gamma_rest = _log_gamma(n + (TOTAL - 2 * EXTRA)[:, None], at_zero=INFINITE)
        self._log_gamma_total = _log_gamma(n + TOTAL[:, None], at_zero=0.0)

    def weights(self, votes: Counts, samples: Counts) -> Floats:
        """Posterior weights [N, H] of the hypotheses after ``samples`` [N], split into ``votes`` [N, K].

        From the probability of the partition, labels aside: prod_j Gamma(c + v_j) / Gamma(c), times a^k or
        m! / (m - k)! for k distinct answers, times Gamma(A) / Gamma(A + t). Reference: Pitman 1995, Probability Theory
        and Related Fields 102, of which Ewens' formula is the case c = 0.
        """
        distinct, opened = (votes > 0).sum(axis=1), len(OPEN)
        log = LOG_PRIOR + (self._log_gamma_total[:, :1] - self._log_gamma_total[:, samples]).T
        log[:, :opened] += distinct[:, None] * np.log(OPEN)
        few = np.flatnonzero(distinct <= ANSWERS.max())
        log[distinct > ANSWERS.max(), opened:] = -np.inf
        table = self._log_gamma_one - self._log_gamma_one[:, :1]
        log[few] += table[:, votes[few]].sum(axis=-1).T[:, self._extra_of]
        unseen = ANSWERS[opened:] - distinct[few, None]
        labels = gammaln(ANSWERS[opened:] + 1) - gammaln(np.maximum(unseen, 0) + 1)
        log[few, opened:] += np.where(unseen < 0, -np.inf, labels)
        weights = np.exp(log - log.max(axis=1, keepdims=True))
        normed: Floats = weights / weights.sum(axis=1, keepdims=True)
        return normed

    def odds(self, samples: Counts, leader: Counts, rival: Counts) -> Floats:
        """Probability [N, H] that a rival overtakes the leader or draws level, under each hypothesis.

        After ``samples`` [N], with ``leader`` [N] and ``rival`` [N] votes. For a rival without votes: that of one among
        few; and the expected number of such answers, where answers are open.
        """
        size = self.max_samples + 1
        wanted = (samples * size + leader) * size + rival
        places = np.searchsorted(self._keys, wanted)
        missing = self._keys[places] != wanted
        if missing.any():
            self._remember(np.unique(wanted[missing]), np.unique(wanted))
            places = np.searchsorted(self._keys, wanted)
        found: Floats = self._odds[places]
        return found

    def _remember(self, missing: Counts, wanted: Counts) -> None:
        """Computes what is ``missing`` among the ``wanted`` keys, and with it what will be asked for soon."""
        size = self.max_samples + 1
        if len(self._keys) > KEPT:
            self._keys, self._odds, missing = self._keys[-1:], self._odds[-1:], wanted
        if self.max_samples <= WHOLE:
            missing = np.setdiff1d(np.unique(missing // size**2)[:, None] * size**2 + np.arange(size**2), self._keys)
        rest, rival = np.divmod(missing, size)
        samples, leader = np.divmod(rest, size)
        possible = (leader > 0) & (rival <= leader) & (leader + rival <= samples)
        missing, samples, leader, rival = (each[possible] for each in (missing, samples, leader, rival))
        odds = np.zeros((len(missing), HYPOTHESES))
        for t in np.unique(samples):
            same = samples == t
            odds[same] = self._computed(int(t), leader[same], rival[same])
        keys = np.concatenate([self._keys, missing])
        order = np.argsort(keys)
        self._keys, self._odds = keys[order], np.concatenate([self._odds, odds])[order]

    def _computed(self, t: int, leader: Counts, rival: Counts) -> Floats:
        """The odds [n, H] after ``t`` samples: being ahead after m draws of the pair, times the probability of m."""
        left, pair = self.max_samples - t, (leader + rival)[:, None]
        m = np.arange(left + 1)
        log = (self._log_gamma_pair[:, pair + m] - self._log_gamma_pair[:, pair])[self._extra_of]
        log = (
            log
            + self._log_choose(left, m)
            + self._log_gamma_rest[:, t - pair + left - m]
            - self._log_gamma_rest[:, t - pair]
        )
        log = log + (self._log_gamma_total[:, t] - self._log_gamma_total[:, t + left])[:, None, None]
        odds = (np.exp(log) * self._ahead(left, leader[:, None], rival[:, None])[self._extra_of]).sum(axis=-1)
        unseen = (rival == 0) & (ANSWERS == 0)[:, None]
        result: Floats = np.where(unseen, TOTAL[:, None] * odds, odds).T
        return result

    def _ahead(self, left: int, leader: Counts, rival: Counts) -> Floats:
        """P(D >= g) after m = 0 .. ``left`` draws of the pair, [C, n, m], for each number c of extra votes.

        For c = 0 and no votes of the rival's: the limit of P(D >= g) / w as its weight w goes to 0.
        """
        m, c, one, pair = np.arange(left), self._extra[:, None, None], self._log_gamma_one, self._log_gamma_pair
        level = m + leader - rival
        x = np.minimum(level // 2, m)
        log = self._log_choose(m, x) + one[:, rival + x] - one[:, rival] + one[:, leader + m - x] - one[:, leader]
        log = log - pair[:, leader + rival + m] + pair[:, leader + rival]
        up = rival + c + x
        stepping = np.where(level % 2 == 0, -(leader + c + m - x), np.where(up == 0, 1, up))
        steps = np.where(level // 2 <= m, stepping / (leader + rival + 2 * c + m) * np.exp(log), 0.0)
        start = np.broadcast_to(leader == rival, (*steps.shape[:-1], 1))
        return np.concatenate([start, start + steps.cumsum(axis=-1)], axis=-1)

    def _log_choose(self, total: Counts | int, part: Counts) -> Floats:
        """log of the number of ways to choose ``part`` among ``total``."""
        table = self._log_factorial
        log: Floats = table[total] - table[part] - table[total - part]
        return log


@lru_cache(maxsize=16)
def overtaking(max_samples: int) -> Overtaking:
    """The one ``Overtaking`` for ``max_samples``."""
    return Overtaking(max_samples)


def _log_gamma(values: Floats | Counts, at_zero: float) -> Floats:
    """log Gamma of ``values``, and ``at_zero`` of 0."""
    log: Floats = np.where(values == 0, at_zero, gammaln(np.where(values == 0, 1, values)))
    return log
