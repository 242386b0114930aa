"""Empirical Bayes: a Beta prior for each prompt that is learned from all prompts, and the prompt's own recent rewards.

Prompt q has n_q own rewards, of which s_q were right; both are multiplied by ``discount`` at each later visit. Then

    p_q ~ Beta(k m_q + s_q, k (1 - m_q) + n_q - s_q),    logit m_q = w . x_q,    k = 1 / rho - 1.

x_q is a constant, the log-odds of the known rate, and the embedding, and rho the correlation of two rewards of one
prompt. w and rho are fitted after each batch to the prompts seen, or to about 2,048 of them (``statistics/prior.py``).

Training moves prompts that are not visited, too. Prompts that come again show a step of the log-odds of all. It is
shrunk by its precision and added to an offset D. A prompt's own mean s_q / n_q takes what D has gained since its last
visit when it is read, so an update costs nothing for the others (``statistics/drift.py``). In the same way a second
offset, the level, follows prompts that are new: in a data set that is sorted, the next ones are like the latest.

Graded rewards are taken as shares of their range. The variance of a mean of n of them is phi / n times that of one
verdict, so they count as n / phi verdicts, a quasi-likelihood. phi is the sum of the squared deviations of rewards from
their prompt's mean, over the same of verdicts with these means.

References: H. Robbins, "An Empirical Bayes Approach to Statistics", 1956; C. N. Morris, "Parametric Empirical Bayes
Inference: Theory and Applications", 1983; those of both files.
Note: ``Belief.variance`` is the expectation of p (1 - p) under the posterior, which is below mean (1 - mean). VIP
minimises an expected variance, in which p (1 - p) enters linearly, so this is what it needs.
Note: embeddings enter by their projection on the 64 leading principal axes of at most 1,024 that are known first. Their
mean square norm is 1, and each coordinate is clipped to [-10, 10].
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from apportion.checks import LARGEST_INTEGER, check_numbers
from apportion.predictors.base import Predictor, check_discount, checked_rates
from apportion.predictors.embeddings import Embedder, embed
from apportion.predictors.saved import LARGEST, SavedValues
from apportion.predictors.statistics.beta_binomial import log_likelihood, logit
from apportion.predictors.statistics.drift import Drift, moved
from apportion.predictors.statistics.per_prompt import Range, rewards, saved_range
from apportion.predictors.statistics.prior import EDGE, KNOWN, Prior
from apportion.types import LARGEST_REWARD, Batch, Belief, Floats, Needs, Prompt

AXES, LANDMARKS, SAMPLE = 64, 1024, 2048
LARGEST_FEATURE = 10.0
TRIALS, MEAN, SQUARES, OFFSET, FEATURES = range(5)
"""Columns of a prompt's row: the discounted number, mean and squared deviations of its rewards, D at their time, and
x."""
OWN_VARIANCE_STRENGTH = 2.0
IMPLAUSIBLE, OWN_STRENGTH, PATIENCE = -13.8, 8.0, 3
"""IMPLAUSIBLE: log-probability below which a batch may be an outage. PATIENCE: how many of them in a row are
ignored."""
SMALLEST_MEAN = 1e-6
LOWEST = (-LARGEST, -LARGEST, 0, 0, -LARGEST, 0, 0, 0)
"""Least values of the numbers in ``Drift``."""
OLD_KEYS = (
    *("predictor", "settings", "ids", "sums", "rates", "features", "landmarks", "projection", "bandwidth", "drift"),
    *("outage", "window", "level", "range", "graded"),
)
"""Keys of a state of version 0.3.0."""


@dataclass
class EmpiricalBayes(Predictor):
    """Beta posteriors from each prompt's discounted rewards and a prior learned from all prompts.

    With no settings the prior's mean is that of the prompts seen so far. An ``embedder`` or known ``rates`` make it
    better for prompts never seen. Each is used as far as the rewards seen so far support it. A prompt without a known
    rate is predicted from the others without one.

    It learns ``Rollout.reward``, which is 0 or 1 for a verdict. Another reward counts as a share of the range of all
    rewards seen, which is at least [0, 1], and the belief's mean is the expected share. Rewards of two values are as
    verdicts. If there are others, the variance is that of the prompt's own rewards, shrunk with two degrees of freedom,
    as in ``RunningVariance``, to one that follows from the mean. It is in units of the reward squared.

    Args:
        embedder: gives the embedding of each prompt, once; by default none. ``SentenceTransformerEmbedder()`` needs
            ``apportion[embed]`` and embeds all prompts at ``prepare``.
        rates: known success rates by prompt id, within [0, 1]; by default those of the prompts, ``Prompt.rate``. The
            rate that a prompt has when it is first announced, predicted or learned from stays.
        discount: weight of a prompt's earlier rewards each time that it is seen again.

    One batch moves the log-odds of another prompt's own rewards by at most 2. If all rewards of a batch are the lowest
    or all are the highest, and that had a chance below 1e-6, the verifier may be out: the first three such batches in a
    row are ignored. The first batch sets the range of rewards, without 5% of them at either end. A batch widens it by
    its width at most, and by rewards farther out only if they are more than 5%. Rewards beyond are clipped.

    >>> from apportion.types import Plan, Rollout
    >>> predictor, prompts = EmpiricalBayes(), [Prompt(f"{q} + {q} =") for q in range(20)]
    >>> batch = Batch.start(prompts[:16], predictor.predict(prompts[:16]))
    >>> rollouts = [[Rollout(q % 4 == 0)] * 8 for q in range(16)]
    >>> predictor.update(batch.add(Plan([8] * 16), rollouts))
    >>> predictor.predict([prompts[0], prompts[1], prompts[19]]).mean.round(2).tolist()
    [0.99, 0.0, 0.27]
    """

    embedder: Embedder | None = None
    rates: Mapping[str, float] | None = field(default=None, repr=False, compare=False)
    discount: float = 0.9

    name: ClassVar[str] = "empirical_bayes"
    needs: ClassVar[Needs] = Needs()
    reads_rates: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_numbers(self)
        check_discount(self.discount)
        self._rates = checked_rates(self.rates)
        self._own: dict[str, Floats] = {}
        self._seen: list[str] = []
        self._axes: Floats | None = None
        self._drift, self._level, self._outage = Drift(), Drift(), 0
        self._range, self._graded = Range(), False
        self._fit()

    @property
    def reads_texts(self) -> bool:
        return self.embedder is not None

    def prepare(self, prompts: Sequence[Prompt]) -> None:
        """Read the rates of new ``prompts`` and embed them. The first ones that are embedded set the principal axes."""
        self._join(prompts)

    def predict(self, prompts: Sequence[Prompt]) -> Belief:
        own, (low, high) = self._join(prompts), self._range
        means, strengths = self._believe(own)
        variance = self._dispersion * means * (1 - means) * strengths / (strengths + 1) * (high - low) ** 2
        if self._graded:  # their variance is no function of the mean alone
            freedom = OWN_VARIANCE_STRENGTH + np.maximum(own[:, TRIALS] - 1, 0)
            variance = (OWN_VARIANCE_STRENGTH * variance + own[:, SQUARES]) / freedom
        return Belief(strengths * means, strengths * (1 - means), variance)

    def expected_rewards(self, prompts: Sequence[Prompt]) -> Floats:
        low, high = self._range
        return low + (high - low) * self.predict(prompts).mean

    def update(self, batch: Batch) -> None:
        seen, limits = rewards(batch, self._range if self._seen else None)
        if not seen:
            return
        prompts = [each.prompt for each in seen]
        own, (trials, means, squares, graded) = self._join(prompts), np.array([each[1:] for each in seen]).T
        self._graded |= bool(graded.any() or (self._seen and limits != self._range))
        self._range = low, high = limits or self._range
        if not self._follow(own, trials, (means - low) / (high - low)):
            return
        ids = [prompt.id for prompt in prompts]
        self._seen += [id for id, n in zip(ids, own[:, TRIALS], strict=True) if n == 0]
        fresh = (own[:, TRIALS] == 0) & (own[:, FEATURES] == 1)
        # discounted, then joined by the update of Chan, Golub and LeVeque, 1979
        old, n = low + (high - low) * self._read(own)[1], self.discount * own[:, TRIALS]
        total, apart = n + trials, means - old
        own[:, MEAN] = np.clip(old + apart * trials / total, low, high)
        own[:, SQUARES] = self.discount * own[:, SQUARES] + squares + apart**2 * n * trials / total
        own[:, TRIALS], own[:, OFFSET] = total, self._drift.offset
        self._own |= zip(ids, own, strict=True)
        self._fit()
        x, r, n = self._read(own[fresh])
        m, _, u = self._prior.at(x, n)
        m = moved(m, self._level.offset)
        self._level = self._level.after(m, r - m, u)

    def _join(self, prompts: Sequence[Prompt]) -> Floats:
        """Return the row of each prompt, [P, 7 + f], and add rows for new prompts."""
        if new := [prompt for prompt in prompts if prompt.id not in self._own]:
            features = self._features_of(new)
            # None becomes NaN
            rates = np.array([self._rates.get(prompt.id, prompt.rate) for prompt in new], np.float64)
            rows = np.column_stack([np.zeros((len(new), FEATURES)), _known(rates), features])
            self._own |= zip([prompt.id for prompt in new], rows, strict=True)
        return self._rows([prompt.id for prompt in prompts])

    def _rows(self, ids: Sequence[str]) -> Floats:
        width = FEATURES + KNOWN + (0 if self._axes is None else len(self._axes) - 1)
        return np.array([self._own[id] for id in ids]).reshape(-1, width)

    def _features_of(self, prompts: Sequence[Prompt]) -> Floats:
        """Return the features [P, f] of the embeddings of ``prompts``, f = 0 without an embedder."""
        if self.embedder is None:
            return np.zeros((len(prompts), 0))
        x = embed(self.embedder, prompts).astype(np.float64)
        if self._axes is None:
            centre = x[:LANDMARKS].mean(axis=0)
            _, sizes, axes = np.linalg.svd(x[:LANDMARKS] - centre, full_matrices=False)
            self._axes = np.vstack([centre, axes[:AXES] / ((sizes**2).mean() ** 0.5 or 1.0)])
            self._fit()
        return ((x - self._axes[0]) @ self._axes[1:].T).clip(-LARGEST_FEATURE, LARGEST_FEATURE)

    def _read(self, own: Floats) -> tuple[Floats, Floats, Floats]:
        """Return x, the mean rewards r (scaled to the range, at the current offset), and n / phi."""
        low, high = self._range
        r = moved(((own[:, MEAN] - low) / (high - low)).clip(0, 1), self._drift.offset - own[:, OFFSET])
        return own[:, FEATURES:], r, own[:, TRIALS] / self._dispersion

    def _believe(self, own: Floats) -> tuple[Floats, Floats]:
        """Return the mean and the strength of each posterior, [P]. Prompts without data follow the level."""
        x, r, n = self._read(own)
        k = 1 / self._prior.correlation - 1
        means = (k * self._prior.means(x, r, n) + n * r) / (k + n)
        return moved(means, self._level.offset * x[:, 0] * (n == 0)).clip(SMALLEST_MEAN, 1 - SMALLEST_MEAN), k + n

    def _follow(self, own: Floats, trials: Floats, shares: Floats) -> bool:
        """Shift all prompts by as much as returning prompts have moved. Return whether the batch's rewards count."""
        again = own[:, TRIALS] > 0
        (means, strengths), (_, r, n), y = self._believe(own[again]), self._read(own[again]), shares[again]
        trials = trials[again] / self._dispersion
        if shares.max() == 0 or shares.min() == 1:
            chance = log_likelihood(means, np.minimum(strengths, OWN_STRENGTH), y * trials, trials).sum()
            if chance < IMPLAUSIBLE and self._outage < PATIENCE:
                self._outage += 1
                return False
        else:
            self._outage = 0
        self._drift = self._drift.after(means, y - r, 1 / (1 / trials + 1 / n))
        return True

    def _fit(self) -> None:
        """Fit phi and the prior to the prompts seen; of many, to every second, every third and so on."""
        own, self._dispersion = self._rows(self._seen[:: -(-len(self._seen) // SAMPLE) or 1]), 1.0
        x, r, n = self._read(own)
        if self._graded:
            (low, high), verdicts = self._range, n @ (r * (1 - r))
            shares = own[:, SQUARES].sum() / (high - low) ** 2
            self._dispersion = float(np.clip(shares / max(verdicts, EDGE), EDGE, 1.0))
        self._prior = Prior.of(x, r, n / self._dispersion)

    def _settings(self) -> dict[str, Any]:
        """Return the settings, with a hash in place of the known rates."""
        rates = json.dumps(sorted(self._rates.items())).encode()
        return super()._settings() | {"rates": hashlib.blake2b(rates, digest_size=16).hexdigest()}

    def _memory(self) -> dict[str, Any]:
        return {
            "sums": {id: own.tolist() for id, own in self._own.items()},
            "seen": self._seen,
            "axes": self._axes,
            "drift": list(self._drift),
            "level": list(self._level),
            "outage": self._outage,
            "range": list(self._range),
            "graded": int(self._graded),
        }

    def _completed(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return a state of version 0.3.0 in today's form: it had arrays in units of the range, and other features."""
        if "landmarks" not in state:
            return state
        saved = SavedValues(state, self.name, OLD_KEYS)
        if state["landmarks"] is not None:
            raise ValueError(
                f"a state of {self.name!r} of version 0.3.0 must have no embeddings, got some, whose features are no "
                "longer used; start from an empty state"
            )
        ids, (low, high) = saved.texts("ids"), saved_range(saved) or Range()
        n, _, r, squares = saved.array("sums", (len(ids), 4), low=-LARGEST_REWARD, high=LARGEST_REWARD).T
        rates = saved.array("rates", (len(ids),))
        known = _known(np.where(rates < 0, np.nan, rates))
        own = np.column_stack([n, low + (high - low) * r, squares * (high - low) ** 2, 0 * n, known])
        return EmpiricalBayes()._state() | {
            "settings": {key: value for key, value in saved.state("settings").items() if key != "bandwidth"},
            "sums": dict(zip(ids, own.tolist(), strict=True)),
            "seen": [id for id, trials in zip(ids, n, strict=True) if trials],
            "range": state["range"],
            "graded": state["graded"],
        }

    def _restore(self, saved: SavedValues) -> None:
        axes = None if saved.values["axes"] is None else saved.array("axes", (None, None))
        f = 0 if axes is None else len(axes) - 1
        most = (LARGEST_INTEGER, LARGEST_REWARD, LARGEST, LARGEST, 1, 1, *(1 + f) * [LARGEST_FEATURE])
        own = saved.by_prompt("sums", (0, -LARGEST_REWARD, 0, -LARGEST, 0, 0, *(1 + f) * [-LARGEST_FEATURE]), most)
        seen, limits = saved.texts("seen"), saved_range(saved) or Range()
        if sorted(seen) != sorted(id for id, each in own.items() if each[TRIALS] >= 1):
            raise saved.refusal("seen", "the prompts with rewards")
        drift, level = (Drift(*saved.row(key, LOWEST)) for key in ("drift", "level"))
        self._outage, self._graded = saved.count("outage"), saved.count("graded") > 0
        self._own, self._seen, self._axes, self._range = own, seen, axes, limits
        self._drift, self._level = drift, level
        self._fit()


def _known(rates: Floats) -> Floats:
    """Return the three features [P, 3] of known ``rates`` [P], nan for none."""
    known = ~np.isnan(rates)
    return np.column_stack([~known, known, logit(np.clip(np.where(known, rates, 0.5), EDGE, 1 - EDGE))])
