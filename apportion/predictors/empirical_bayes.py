"""Empirical Bayes: a Beta prior for each prompt that is learned from all prompts, and the prompt's own recent rewards.

The posterior of a prompt is Beta(k m + s, k (1 - m) + n - s). s of its own n rollouts were right, discounted at each
visit. m is predicted from other prompts: by their mean, by a regression on embeddings, or by a known rate such as the
pass rate of another model. k is how many rollouts m is worth. Everything about m and k is fitted to the rewards seen so
far, by likelihood or by moments; see ``statistics/prior.py``.

References: H. Robbins, "An Empirical Bayes Approach to Statistics", 1956; J. G. Skellam, "A Probability Distribution
Derived from the Binomial Distribution by Regarding the Probability of Success as Variable between the Sets of Trials",
1948, for the Beta-binomial likelihood; R. W. M. Wedderburn, "Quasi-likelihood functions", 1974, for graded rewards.
Note: training moves prompts that are not visited, too. A shift of the log-odds of all prompts is estimated from
prompts that come again, each compared with its own earlier rewards, and applied to all; see ``statistics/drift.py``.
Note: ``Belief.variance`` is the expectation of p (1 - p) under the posterior, which is below mean (1 - mean). VIP
minimises an expected variance, in which p (1 - p) enters linearly, so this is what it needs.
Note: the kernel is approximated by 384 landmarks, the dimensions of MiniLM: O(Q r) memory and O(Q r^2) time an update.
With the median bandwidth the kernel is close to linear, so that few more directions matter.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from apportion.checks import check_numbers, check_positive
from apportion.predictors.base import Predictor, check_discount
from apportion.predictors.embeddings import Embedder, embed
from apportion.predictors.embeddings.table import EmbeddingTable, Rows
from apportion.predictors.kernels.rbf import MEDIAN_SAMPLE, SMALLEST_BANDWIDTH, median_distance
from apportion.predictors.kernels.regression import NystromFeatures
from apportion.predictors.saved import LARGEST, SavedValues
from apportion.predictors.statistics.drift import LARGEST_MOVE, LONGEST, Drift, Returns, moved
from apportion.predictors.statistics.level import Level
from apportion.predictors.statistics.per_prompt import Range, rewards_by_prompt, saved_range, widened
from apportion.predictors.statistics.prior import EDGE, History, Prior
from apportion.types import Batch, Belief, Floats, Needs, Prompt

LANDMARKS = 384
OWN_VARIANCE_STRENGTH = 2.0
TRIALS, SQUARED_WEIGHTS, MEAN, SQUARES = range(4)
NO_ROW = -1
LEAST_TRIALS = 1e-9
UNKNOWN = -1.0
"""The rate in a saved state of a prompt without a known one."""


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
        bandwidth: of the kernel; by default the median distance between the prompts known at ``prepare``, or at the
            first update if nothing was prepared, and constant from then on.

    One batch moves the log-odds of another prompt's own rewards by at most 2, or takes back an outage: see ``Drift``.
    The first batch sets the range of rewards, without 5% of them at either end. A batch widens it by its width at most,
    and by rewards farther out only if they are more than 5%. Rewards beyond are clipped.

    >>> from apportion.types import Plan, Rollout
    >>> predictor, prompts = EmpiricalBayes(), [Prompt(f"{q} + {q} =") for q in range(20)]
    >>> batch = Batch.start(prompts[:16], predictor.predict(prompts[:16]))
    >>> rollouts = [[Rollout(q % 4 == 0)] * 8 for q in range(16)]
    >>> predictor.update(batch.add(Plan([8] * 16), rollouts))
    >>> predictor.predict([prompts[0], prompts[1], prompts[19]]).mean.round(2).tolist()
    [0.98, 0.01, 0.38]
    """

    embedder: Embedder | None = None
    rates: Mapping[str, float] | None = field(default=None, repr=False, compare=False)
    discount: float = 0.9
    bandwidth: float | None = None

    name: ClassVar[str] = "empirical_bayes"
    needs: ClassVar[Needs] = Needs()

    def __post_init__(self) -> None:
        check_numbers(self)
        check_discount(self.discount)
        check_positive(self, "bandwidth")
        for id, rate in (self.rates or {}).items():
            if not 0 <= rate <= 1:
                raise ValueError(f"rates must be between 0 and 1, got {rate} for prompt {id!r}; divide by the trials")
        self._row: dict[str, int] = {}
        self._sums, self._rates = np.zeros((0, 4)), np.zeros(0)
        self._features: NDArray[np.float32] | None = None
        self._map: NystromFeatures | None = None
        self._drift, self._level, self._range, self._graded = Drift(), Level(), Range(), False
        self._prior: Prior | None = None

    @property
    def reads_texts(self) -> bool:
        return self.embedder is not None

    @property
    def reads_rates(self) -> bool:
        return True

    def prepare(self, prompts: Sequence[Prompt]) -> None:
        """Embed new ``prompts``; the first ones that are embedded set the landmarks and the bandwidth."""
        self._join(prompts)

    def predict(self, prompts: Sequence[Prompt]) -> Belief:
        if not prompts or (self._prior is None and not self._knows_a_rate(prompts)):
            return Belief.uniform(len(prompts))
        rows = self._join(prompts)
        prior = self._prior or Prior.of(self._history(rows[:0]))
        history, (low, high) = self._history(rows), self._range
        means, strengths = prior.posterior(history)
        fresh = (history.trials == 0) & np.isnan(history.rates)
        if self._level.seen and fresh.any():
            means[fresh] = np.clip(means[fresh] + self._level.at(prior.unrated) - prior.unrated, EDGE, 1 - EDGE)
        variance = prior.dispersion * means * (1 - means) * strengths / (strengths + 1)
        if self._graded:  # their variance is no function of the mean alone
            variance = (OWN_VARIANCE_STRENGTH * variance + history.squares) / (OWN_VARIANCE_STRENGTH + history.freedom)
        return Belief(strengths * means, strengths * (1 - means), variance * (high - low) ** 2)

    def update(self, batch: Batch) -> None:
        if seen := rewards_by_prompt(batch):
            rows = self._join([prompt for prompt, _ in seen.values()])
            self._widen_range(np.concatenate([rewards for _, rewards in seen.values()]))
            low, high = self._range
            units = [np.clip((rewards - low) / (high - low), 0, 1) for _, rewards in seen.values()]
            new = np.array(list(map(_summary, units)))
            if self._follow_drift(rows, new):
                self._follow_level(rows, new)
                self._add(rows, new)
            self._fit()

    def expected_rewards(self, prompts: Sequence[Prompt]) -> Floats:
        low, high = self._range
        return low + (high - low) * self.predict(prompts).mean

    def _join(self, prompts: Sequence[Prompt]) -> Rows:
        """Return the row of each prompt, [P]; new prompts get one, with their embedding's features and known rate."""
        rows = [self._row.get(prompt.id, NO_ROW) for prompt in prompts]
        if NO_ROW in rows:
            new = list({prompt.id: prompt for prompt in prompts if prompt.id not in self._row}.values())
            given = self.rates or {}
            rates = np.array([given.get(prompt.id, prompt.rate) for prompt in new], np.float64)  # nan for None
            features = np.concatenate([np.isnan(rates)[:, None], self._embed(new)], axis=1, dtype=np.float32)
            self._row |= {prompt.id: row for row, prompt in enumerate(new, start=len(self._row))}
            self._features = features if self._features is None else np.concatenate([self._features, features])
            self._rates = np.append(self._rates, rates)
            self._sums = np.concatenate([self._sums, np.zeros((len(new), 4))])
            rows = [self._row[prompt.id] for prompt in prompts]
        return np.array(rows, np.int64)

    def _knows_a_rate(self, prompts: Sequence[Prompt]) -> bool:
        """Return whether a rate is known, of ``prompts`` or of another prompt."""
        known = bool(self.rates) or not np.isnan(self._rates).all()
        return known or any(prompt.rate is not None for prompt in prompts)

    def _embed(self, prompts: Sequence[Prompt]) -> NDArray[Any]:
        """Return the features [P, f] of ``prompts``, f = 0 without an embedder."""
        if self.embedder is None:
            return np.empty((len(prompts), 0))
        x = embed(self.embedder, prompts)
        if self._map is None:
            table = EmbeddingTable()
            table.add([prompt.id for prompt in prompts], x)
            bandwidth = self.bandwidth or median_distance(table.embeddings[table.sample(MEDIAN_SAMPLE)])
            self._map = NystromFeatures.of(table.embeddings[table.sample(LANDMARKS)], bandwidth)
        return self._map(x)

    def _history(self, rows: Rows) -> History:
        features = np.ones((0, 1)) if self._features is None else self._features[rows]
        trials, squared, means, squares = self._sums[rows].T
        spreads = np.divide(squared, trials**2, out=np.full(len(rows), np.inf), where=trials > 0)
        freedom = trials - np.divide(squared, trials, out=np.zeros(len(rows)), where=trials > 0)
        return History(trials, means, spreads, squares, freedom, self._rates[rows], features)

    def _widen_range(self, rewards: Floats) -> None:
        """Make the range contain ``rewards``, as far as it may grow; what was seen so far is put into the new units."""
        old_low, old_high = self._range
        seen = self._sums[:, TRIALS] > 0
        low, high = new = widened(self._range if seen.any() else None, rewards)
        if new != self._range:
            ratio = (old_high - old_low) / (high - low)
            self._sums[seen, MEAN] = np.clip((old_low - low) / (high - low) + ratio * self._sums[seen, MEAN], 0, 1)
            self._sums[:, SQUARES] *= ratio**2
            self._level.rescale((old_low - low) / (high - low), ratio)
            self._range = new
            self._graded |= bool(seen.any())
        self._graded |= bool(((rewards > low) & (rewards < high)).any())

    def _follow_drift(self, rows: Rows, new: Floats) -> bool:
        """Shift all prompts as those that come again have moved. Return whether the batch's rewards count."""
        again = self._sums[rows, TRIALS] > 0
        if self._prior is None or not (again.any() or self._drift.outage):
            return True
        history, dispersion = self._history(rows[again]), self._prior.dispersion
        means, trials = new[again, MEAN], new[again, TRIALS] / dispersion
        seen = Returns(*self._prior.posterior(history), history.means, history.spreads * dispersion, means, trials)
        dead = int((new[:, MEAN] == 1).all()) - int((new[:, MEAN] == 0).all())
        shift, counts = self._drift.observe(seen, dead)
        self._sums[:, MEAN] = moved(self._sums[:, MEAN], shift)
        self._level.mean = float(moved(np.array(self._level.mean), shift))
        return counts

    def _follow_level(self, rows: Rows, new: Floats) -> None:
        """Let the level follow the prompts of a batch that are fresh and have no known rate."""
        fresh = new[(self._sums[rows, TRIALS] == 0) & np.isnan(self._rates[rows])]
        prior = self._prior or Prior.of(self._history(rows[:0]))
        if len(fresh):
            spread = float((fresh[:, SQUARED_WEIGHTS] / fresh[:, TRIALS] ** 2).mean())
            self._level.observe(fresh[:, MEAN], float(prior.left[0]) + prior.within * spread)

    def _add(self, rows: Rows, new: Floats) -> None:
        """Discount the sums of ``rows`` and add ``new`` ones, by the update of Chan, Golub and LeVeque (1979)."""
        old = self._sums[rows] * [self.discount, self.discount**2, 1.0, self.discount]
        trials = old[:, TRIALS] + new[:, TRIALS]
        apart = new[:, MEAN] - old[:, MEAN]
        both = old + new
        both[:, MEAN] = np.clip(old[:, MEAN] + apart * new[:, TRIALS] / trials, 0, 1)
        both[:, SQUARES] += apart**2 * old[:, TRIALS] * new[:, TRIALS] / trials
        self._sums[rows] = both

    def _fit(self) -> None:
        """Fit the prior to all prompts seen."""
        self._prior = Prior.of(self._history(np.flatnonzero(self._sums[:, TRIALS] > 0)), self._graded)

    def _settings(self) -> dict[str, Any]:
        """Return the settings, with a hash in place of the known rates."""
        rates = json.dumps(sorted((self.rates or {}).items())).encode()
        return super()._settings() | {"rates": hashlib.blake2b(rates, digest_size=16).hexdigest()}

    def _memory(self) -> dict[str, Any]:
        return {
            "ids": list(self._row),
            "sums": self._sums,
            "rates": np.where(np.isnan(self._rates), UNKNOWN, self._rates),
            "features": self._features,
            **{key: getattr(self._map, key, None) for key in ("landmarks", "projection", "bandwidth")},
            "drift": [self._drift.excess, self._drift.batches],
            "outage": [self._drift.outage, self._drift.fallen],
            "window": self._drift.window,
            "level": list(astuple(self._level)),
            "range": list(self._range),
            "graded": int(self._graded),
        }

    def _completed(self, state: dict[str, Any]) -> dict[str, Any]:
        """Version 0.2.0 had no outage, no window and no level. Its prompts are taken for a batch each."""
        seen = len(state["ids"]) if isinstance(state.get("ids"), list) else 0
        return {"outage": [0.0, 0.0], "window": Drift().window, "level": list(astuple(Level(seen=seen)))} | state

    def _restore(self, saved: SavedValues) -> None:
        ids = saved.texts("ids")
        sums = saved.array("sums", (len(ids), 4), low=0)
        rates = saved.array("rates", (len(ids),), low=UNKNOWN, high=1)
        if ((rates < 0) & (rates != UNKNOWN)).any():
            raise saved.refusal("rates", f"rates in [0, 1], or {UNKNOWN} if unknown")
        if len(set(ids)) < len(ids) or (sums[:, MEAN] > 1).any():
            raise saved.refusal("sums", "sums of rewards in [0, 1], one row for each prompt")
        features_map, features = self._saved_map(saved), None
        if ids:
            columns = 1 + (0 if features_map is None else features_map.projection.shape[1])
            features = saved.array("features", (len(ids), columns), dtype=np.float32)
        if (limits := saved_range(saved)) is None:
            raise saved.refusal("range", "a range that holds 0 and 1")
        excess, batches = saved.row("drift", (-LARGEST, 0.0))
        outage, fallen = saved.row("outage", (-LONGEST, -LARGEST_MOVE), (LONGEST, LARGEST_MOVE))
        window = saved.array("window", (None, 6), low=[0] * 5 + [LEAST_TRIALS], high=[1, LARGEST] * 3)
        self._drift = Drift(excess, batches, outage, fallen, window)
        self._level = Level(*saved.row("level", (0, 0, -LARGEST, 0, 0, 0), (1, *[LARGEST] * 5)))
        self._row = {id: row for row, id in enumerate(ids)}
        self._rates = np.where(rates == UNKNOWN, np.nan, rates)
        self._sums, self._features, self._map, self._range = sums, features, features_map, limits
        self._graded, self._prior = saved.count("graded") > 0, None
        if self._sums[:, TRIALS].any():
            self._fit()

    def _saved_map(self, saved: SavedValues) -> NystromFeatures | None:
        if self.embedder is None or saved.values["landmarks"] is None:
            return None
        landmarks = saved.array("landmarks", (None, None), dtype=np.float32)
        projection = saved.array("projection", (len(landmarks), None))
        return NystromFeatures(landmarks, saved.number("bandwidth", low=SMALLEST_BANDWIDTH), projection)


def _summary(rewards: Floats) -> tuple[float, float, float, float]:
    """Return the number of rewards, the sum of their squared weights of 1, their mean, and their squared deviations."""
    mean, count = rewards.mean(), float(len(rewards))
    return count, count, float(mean), float(((rewards - mean) ** 2).sum())
