"""The probability that a rival overtakes the leader in the samples that are left, exactly.

Answers come from a Chinese restaurant process: after t samples the next one is answer j with probability v_j / (t + a)
and an answer not seen yet with a / (t + a), for votes v_j and concentration a. So of the R = M - t samples left, the
number m that go to the leader (v_1) or to rival j is Beta-binomial(R; v_1 + v_j, t + a - v_1 - v_j), and of these m, X
go to the rival with X Beta-binomial(m; v_j, v_1). The rival overtakes where D = 2 X - m, by which its new votes exceed
the leader's, reaches the gap g = v_1 - v_j: a tie counts against the leader, for readers break ties in different ways.
All answers not seen yet are taken as one rival of weight a. That overstates them, on purpose: that a strong rival has
not shown itself is what goes wrong after few samples.

P(D >= g) after m samples is a running sum over m: it falls by those that stand at D = g and step down, and rises by
those at g - 1 that step up. That makes one probability cost R terms instead of R^2.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy.special import gammaln

from apportion.types import Counts, Floats

CONCENTRATIONS = np.geomspace(0.1, 100.0, 13)
"""a, equally likely beforehand: 64 samples have 1.4 distinct answers on average at the first, 50 at the last."""

KEPT = 200_000
"""Probabilities kept for the next question, of one maximum."""


class Overtaking:
    """Probabilities for one ``max_samples``; those computed once are kept. From ``overtaking``, which shares them."""

    def __init__(self, max_samples: int) -> None:
        self.max_samples = max_samples
        self._keys = np.full(1, np.iinfo(np.int64).max)  # greater than any case, so that each has a place before it
        self._odds = np.zeros((1, len(CONCENTRATIONS)))
        whole = np.arange(2 * max_samples + 2)
        self._log_gamma = gammaln(np.maximum(whole, 1))
        self._log_gamma_shifted = gammaln(whole[: max_samples + 2] + CONCENTRATIONS[:, None])

    def concentrations(self, samples: Counts, distinct: Counts) -> Floats:
        """Posterior weights [N, A] of the concentrations after ``samples`` [N] with so many ``distinct`` answers [N].

        Proportional to a^k Gamma(a) / Gamma(a + t): Ewens 1972, Theoretical Population Biology 3.
        """
        table = self._log_gamma_shifted
        log = distinct[:, None] * np.log(CONCENTRATIONS) + table[:, 0] - table[:, samples].T
        weights = np.exp(log - log.max(axis=1, keepdims=True))
        normed: Floats = weights / weights.sum(axis=1, keepdims=True)
        return normed

    def odds(self, samples: Counts, leader: Counts, rival: Counts) -> Floats:
        """Probability [N, A] that a rival overtakes the leader or draws level, under each concentration.

        After ``samples`` [N], with ``leader`` [N] and ``rival`` [N] votes, 0 for all answers not seen yet.
        """
        size = self.max_samples + 1
        wanted, places = np.unique((samples * size + leader) * size + rival, return_inverse=True)
        missing = wanted[self._keys[np.searchsorted(self._keys, wanted)] != wanted]
        if missing.size:
            self._remember(missing)
        found: Floats = self._odds[np.searchsorted(self._keys, wanted)][places]
        return found

    def _remember(self, keys: Counts) -> None:
        rest, rival = np.divmod(keys, self.max_samples + 1)
        samples, leader = np.divmod(rest, self.max_samples + 1)
        odds = np.zeros((len(keys), len(CONCENTRATIONS)))
        for t in np.unique(samples):
            for same, each in (
                ((samples == t) & (rival > 0), self._seen),
                ((samples == t) & (rival == 0), self._unseen),
            ):
                if same.any():
                    odds[same] = each(int(t), leader[same], rival[same])
        kept = slice(None) if len(self._keys) <= KEPT else slice(-1, None)
        keys, odds = np.concatenate([self._keys[kept], keys]), np.concatenate([self._odds[kept], odds])
        order = np.argsort(keys)
        self._keys, self._odds = keys[order], odds[order]

    def _seen(self, t: int, leader: Counts, rival: Counts) -> Floats:
        """[n, A] for rivals with votes."""
        whole, shifted = self._log_gamma[None], self._log_gamma_shifted
        ahead = self._ahead(t, leader, rival, rival[:, None], whole)
        return _mean(ahead, self._drawn(t, leader + rival, whole, shifted))

    def _unseen(self, t: int, leader: Counts, rival: Counts) -> Floats:
        """[n, A] for all answers without votes, as one rival of weight a."""
        whole, shifted = self._log_gamma[None], self._log_gamma_shifted
        ahead = self._ahead(t, leader, rival, CONCENTRATIONS[:, None, None], shifted)
        drawn = self._drawn(t, leader, shifted, whole)
        every_one = np.arange(self.max_samples - t + 1) == self.max_samples - t
        return _mean(ahead, np.where((leader == t)[:, None], every_one, drawn))

    def _ahead(self, t: int, leader: Counts, rival: Counts, weight: Floats | Counts, log_gamma: Floats) -> Floats:
        """P(D >= g) after m = 0 .. R draws of the pair, [A or 1, n, m].

        ``weight`` is the rival's; ``log_gamma`` [A or 1, ...] that of the weight plus whatever is beyond ``rival``.
        """
        v, j, m = leader[:, None], rival[:, None], np.arange(self.max_samples - t)
        level = m + v - j
        x = np.minimum(level // 2, m)
        log = self._log_choose(m, x) + self._log_gamma[v + m - x] - self._log_gamma[v]
        log = log + log_gamma[:, j + x] - log_gamma[:, j] - log_gamma[:, j + v + m] + log_gamma[:, j + v]
        stepping = np.where(level % 2 == 0, -(v + m - x), weight + x) / (weight + v + m)
        steps = np.where(level // 2 <= m, stepping * np.exp(log), 0.0)
        start = np.broadcast_to(v == j, (*steps.shape[:-1], 1))
        return np.concatenate([start, start + steps.cumsum(axis=-1)], axis=-1)

    def _drawn(self, t: int, pair: Counts, pair_log_gamma: Floats, rest_log_gamma: Floats) -> Floats:
        """P(m of the R samples left go to the pair), m = 0 .. R, [A, n, m]; ``pair`` [n] and the rest are votes."""
        left, s, r = self.max_samples - t, pair[:, None], t - pair[:, None]
        m, total = np.arange(left + 1), self._log_gamma_shifted[:, [t, self.max_samples]]
        log = self._log_choose(left, m) + (total[:, 0] - total[:, 1])[:, None, None]
        log = log + pair_log_gamma[:, s + m] - pair_log_gamma[:, s]
        weights: Floats = np.exp(log + rest_log_gamma[:, r + left - m] - rest_log_gamma[:, r])
        return weights

    def _log_choose(self, total: Counts | int, part: Counts) -> Floats:
        """log of the number of ways to choose ``part`` among ``total``."""
        table = self._log_gamma
        log: Floats = table[total + 1] - table[part + 1] - table[total - part + 1]
        return log


@lru_cache(maxsize=16)
def overtaking(max_samples: int) -> Overtaking:
    """The one ``Overtaking`` for ``max_samples``."""
    return Overtaking(max_samples)


def _mean(ahead: Floats, drawn: Floats) -> Floats:
    """[n, A] from [A, n, m] each: the probability of being ahead, over the number of draws."""
    odds: Floats = (ahead * drawn).sum(axis=-1).T
    return odds
