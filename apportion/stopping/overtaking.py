"""The exact probability that a rival overtakes the leader in the remaining samples, under each of several hypotheses.

The distribution of a question's answers is unknown, so there are several hypotheses (``HYPOTHESES``), weighed by the
votes seen. Each gives the probability that, after t samples, the next sample is an answer with v votes:

- open: v / (t + a), and a / (t + a) for an answer not seen yet. This is a Chinese restaurant process.
- few: (v + c) / (t + k c) for each of k answers, seen or not. This is a symmetric Dirichlet prior worth c votes an
  answer.

Both are (v + c) / (t + A): the first with c = 0 and A = a, the second with A = k c. Of M samples, R = M - t are
left. The number m of them that go to the leader (v_1 votes) or to rival j (v_j votes) is
Beta-binomial(R; v_1 + v_j + 2 c, t - v_1 - v_j + A - 2 c). Of these m, X go to the rival, and X is
Beta-binomial(m; v_j + c, v_1 + c). The rival's new votes exceed the leader's by D = 2 X - m. The rival overtakes if
D >= g with g = v_1 - v_j. A tie counts as overtaking, because users break ties in different ways.

P(D >= g) is a running sum over m. From m to m + 1 it loses the probability of stepping down from D = g and gains that
of stepping up from D = g - 1. So one probability takes R terms instead of R^2.
"""

from functools import lru_cache
from itertools import product
from math import perm

import numpy as np

from apportion.types import Counts, Floats

OPEN = tuple(np.geomspace(0.1, 100.0, 7).tolist())
"""Concentrations a of the open hypotheses. The mean number of distinct answers in 64 samples is 1.5 to 50."""

FEW = tuple(product((2, 4), (1, 4, 16)))
"""Pairs (k, c) of the few hypotheses. c = 1 is uniform over all shares, c = 16 prefers nearly equal shares."""

HYPOTHESES = len(OPEN) + len(FEW)
"""H, the number of hypotheses."""

ANSWERS = np.array([0] * len(OPEN) + [k for k, _ in FEW])
EXTRA = np.array([0] * len(OPEN) + [c for _, c in FEW])
TOTAL = np.array([*OPEN, *(k * c for k, c in FEW)])
"""k, c and A of each hypothesis. k and c are 0 for an open hypothesis."""

with np.errstate(divide="ignore"):
    LOG_LABELS = np.log([[perm(k, d) for k, _ in FEW] for d in range(ANSWERS.max() + 2)])
"""The log number of ways to label d distinct answers, k! / (k - d)!, for each few hypothesis; none if d > k."""


def log_prior(few: float) -> Floats:
    """Return the log prior probability [H] of each hypothesis. The few ones share ``few``, the open ones the rest.

    >>> [round(float(p), 3) for p in np.exp(log_prior(0.25))[[0, -1]]]
    [0.107, 0.042]
    """
    return np.log([(1 - few) / len(OPEN)] * len(OPEN) + [few / len(FEW)] * len(FEW))


LOG_PRIOR = log_prior(0.5)

WHOLE = 64
"""Up to this ``max_samples``, all probabilities after t samples are computed together and kept."""

INFINITE = 700.0
"""Stands for log Gamma(0): dividing by Gamma(0) gives 0."""


class Overtaking:
    """Overtaking probabilities for one ``max_samples``. ``overtaking`` returns the shared instance."""

    def __init__(self, max_samples: int) -> None:
        self.max_samples = max_samples
        self._tables: dict[int, Floats] = {}
        n = np.arange(max_samples + 1)
        self._log_factorial = _log_gamma(n + 1)
        self._extra, self._extra_of = np.unique(EXTRA, return_inverse=True)
        self._log_gamma_one = _log_gamma(n + self._extra[:, None])
        self._log_gamma_pair = _log_gamma(n + 2 * self._extra[:, None])
        self._log_gamma_rest = _log_gamma(n + (TOTAL - 2 * EXTRA)[:, None], at_zero=INFINITE)
        self._log_gamma_total = _log_gamma(n + TOTAL[:, None])

    def weights(self, votes: Counts, samples: Counts, prior: Floats = LOG_PRIOR) -> Floats:
        """Return the posterior weights [N, H] of the hypotheses given ``samples`` [N] and their ``votes`` [N, K].

        ``prior`` [H] is the log prior. By default open and few have probability 1/2 each.

        The likelihood is the probability of the partition into d distinct unlabelled answers:
        prod_j Gamma(c + v_j) / Gamma(c), times a^d (open) or k! / (k - d)! (few), times Gamma(A) / Gamma(A + t).

        Reference: Pitman 1995, Probability Theory and Related Fields 102; Ewens' formula is the case c = 0.
        """
        distinct, opened = (votes > 0).sum(axis=1), len(OPEN)
        log = prior + (self._log_gamma_total[:, :1] - self._log_gamma_total[:, samples]).T
        log[:, :opened] += distinct[:, None] * np.log(OPEN)
        few = np.flatnonzero(distinct <= ANSWERS.max())
        table = self._log_gamma_one - self._log_gamma_one[:, :1]
        log[few] += table[:, votes[few]].sum(axis=-1).T[:, self._extra_of]
        log[:, opened:] += LOG_LABELS[np.minimum(distinct, len(LOG_LABELS) - 1)]
        weights = np.exp(log - log.max(axis=1, keepdims=True))
        return weights / weights.sum(axis=1, keepdims=True)

    def probabilities(self, samples: Counts, leader: Counts, rival: Counts) -> Floats:
        """Return the probability [N, H] that a rival overtakes the leader or draws level, under each hypothesis.

        The leader has ``leader`` [N] votes after ``samples`` [N], the rival ``rival`` [N]. If the rival has no votes, a
        few hypothesis gives the probability of one such answer, an open one the expected number of such answers that
        overtake.
        """
        found = np.empty((len(samples), HYPOTHESES))
        for t in set(samples.tolist()):
            same = samples == t
            found[same] = self._after(t, leader[same], rival[same])
        return found

    def _after(self, t: int, leader: Counts, rival: Counts) -> Floats:
        """Return the probabilities [n, H] after ``t`` samples, each of which is computed once."""
        size = self.max_samples + 1
        if self.max_samples > WHOLE:
            pairs, index = np.unique(leader * size + rival, return_inverse=True)
            return self._compute(t, *np.divmod(pairs, size))[index]
        if t not in self._tables:
            one, other = np.indices((t + 1, t + 1))
            possible = (one > 0) & (other <= one) & (one + other <= t)
            self._tables[t] = np.zeros((t + 1, t + 1, HYPOTHESES))
            self._tables[t][possible] = self._compute(t, one[possible], other[possible])
        return self._tables[t][leader, rival]

    def _compute(self, t: int, leader: Counts, rival: Counts) -> Floats:
        """Return the probabilities [n, H] after ``t`` samples: the sum over m of P(m) P(D >= g after m)."""
        left, pair = self.max_samples - t, (leader + rival)[:, None]
        m = np.arange(left + 1)
        log = (self._log_gamma_pair[:, pair + m] - self._log_gamma_pair[:, pair])[self._extra_of]
        rest = self._log_gamma_rest
        log = log + self._log_choose(left, m) + rest[:, t - pair + left - m] - rest[:, t - pair]
        log = log + (self._log_gamma_total[:, t] - self._log_gamma_total[:, t + left])[:, None, None]
        total = (np.exp(log) * self._overtaken(left, leader[:, None], rival[:, None])[self._extra_of]).sum(axis=-1)
        unseen = (rival == 0) & (ANSWERS == 0)[:, None]
        return np.where(unseen, TOTAL[:, None] * total, total).T

    def _overtaken(self, left: int, leader: Counts, rival: Counts) -> Floats:
        """Return P(D >= g) after m = 0 .. ``left`` votes for the pair, [C, n, left + 1], for each distinct c.

        If c = 0 and the rival has no votes, this is the limit of P(D >= g) / w as its weight w goes to 0.
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
        """Return the log of the number of ways to choose ``part`` of ``total``."""
        table = self._log_factorial
        return table[total] - table[part] - table[total - part]


@lru_cache(maxsize=16)
def overtaking(max_samples: int) -> Overtaking:
    """Return the shared ``Overtaking`` for ``max_samples``."""
    return Overtaking(max_samples)


def _log_gamma(values: Floats | Counts, at_zero: float = 0.0) -> Floats:
    """Return log Gamma of ``values``, with ``at_zero`` for 0."""
    from scipy import special  # noqa: PLC0415 - slow to import

    return np.where(values == 0, at_zero, special.gammaln(np.maximum(values, np.finfo(float).tiny)))
