"""Largest number of entries of x and of K in one block: 8 MiB.

Reference: H. T. Nguyen, B. Nguyen, W. Ma, Y. Zhao, R. She, V. A. Nguyen, "Adaptive Rollout Allocation for Online
Reinforcement Learning with Verifiable Rewards", 2026, arXiv 2602.01601, section 5.1 and Algorithm 1; Appendix E.2, the
same with another link, for graded rewards. Symbols of the paper used here: x_q the embedding of prompt q, Q prompts, B
the batch, g the latent value, m its mean over all prompts, K the RBF kernel, h its bandwidth, p = sigmoid(g), eps the
clipping of observed rates (``clip``), v the variance of a prompt's reward, s^2 its sample variance.

For both:

Note: the paper stores the Q x Q matrix Sigma = K(D, D). Algorithm 1 reads only its columns of the batch, so only those
are computed, in blocks of rows: O(Q B d) time and O(Q d) memory for the same numbers.
Note: Sigma never changes, only m does. So m is always a kernel expansion m(x) = sum_q w_q K(x, x_q), and w accumulates
K(B, B)^-1 (g_B - m_B). A prompt that joins late gets its mean from that sum, as if it had been there from the start.
Note: Sigma_BB is singular if two prompts of a batch have the same embedding, which the paper does not treat. Here they
share one latent value and their rollouts are pooled. Near-duplicates need the ``noise`` on the diagonal.
Note: the paper does not say which pairs enter its median heuristic. Beyond 2,048 distinct embeddings, the median is
over the pairs of 2,048 of them, chosen by content hash.

For success, in ``GaussianProcess``:

Note: the paper does not give eps. 0.05 is our choice. The authors' released code has 1e-6, a bandwidth of 0.4, a prior
mean of -1 and a noise of 1e-4 (``apportion.presets.vip_as_released``).
Note: the paper treats the logit of an observed rate as exact, although it is noisy for a few rollouts. The default
follows the paper. In benchmarks/moments, ``noise`` = 1 removes most of the harm to VIP's allocation.

For variances, in ``GradedGaussianProcess``:

Note: the paper has v = softplus(g), so a prompt unlike any other has v = log 2 whatever the rewards are, although v is
at most 1/4 for rewards in [0, 1]. Here v = S softplus(g), and S makes g = 0 the discounted mean of the sample variances
seen so far. So g compares a prompt with the others, a prompt not seen lately changes with the others, and the unit of
the rewards does not change g. ``scale = 1`` is the paper's link.
Note: every prompt has the same weight in that mean, because prompts with a large variance get more rollouts.
Note: g is -inf at s^2 = 0, which happens by chance with few rollouts. So s^2 is raised to at least ``floor`` times the
variance at g = 0. The default gives g = -3.3, similar to a success rate clipped to 0.05.
Note: log(exp(s^2) - 1) overflows from s^2 = 710 on. An equivalent formula that does not overflow is used.
Note: the paper has no noise on the observed g, but the s^2 of a few rewards is noisier than their mean. Between close
prompts an exact interpolation overshoots, which in a few dimensions may cost VIP more than it gains. ``noise`` models
it. 0.1 is our choice, and values from 0.01 to 1 do about as well.
Note: one rollout has no sample variance. A prompt with fewer than two rewards is left out of the batch.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from apportion.checks import check_least, check_numbers, check_positive
from apportion.predictors.base import Predictor, check_discount
from apportion.predictors.embeddings import Embedder, SentenceTransformerEmbedder, embed
from apportion.predictors.embeddings.embedders import Embeddings
from apportion.predictors.embeddings.table import EmbeddingTable, Rows
from apportion.predictors.saved import SavedValues
from apportion.predictors.statistics.beta_binomial import expit, logit
from apportion.predictors.statistics.per_prompt import Range, observations, rewards, saved_range
from apportion.types import LARGEST_REWARD, Batch, Belief, Floats, Needs, Prompt

BLOCK_CELLS = 2**20
"""Numbers in the rows of x and of K of a block: 8 MiB."""
MEDIAN_SAMPLE = 2048
SMALLEST_BANDWIDTH = float(np.finfo(np.float64).tiny)
SMALLEST_NOISE = 1e-10
SOFTPLUS_OF_0 = math.log(2)
LARGEST_LOGIT = 36.0
"""Latent values are clipped to it, so that no prediction is exactly 0 or 1."""


def rbf_blocks(x: Floats | Embeddings, centres: Floats | Embeddings, bandwidth: float) -> Iterator[Floats]:
    """Yield K(x, centres) [Q, B] in blocks of rows.

    K(a, b) = exp(-|a - b|^2 / (2 h^2)), where h is the bandwidth. ``x`` is [Q, d] and ``centres`` [B, d], B at least 1,
    of any float type. The arithmetic is float64, because weights of either sign and up to 1 / noise cancel in sums over
    K. Coordinates are relative to the mean of the centres, which keeps the digits of small distances.

    >>> [k.round(3).tolist() for k in rbf_blocks(np.array([[0.0], [1.0]]), np.array([[0.0]]), bandwidth=1.0)]
    [[[1.0], [0.607]]]
    >>> [*rbf_blocks(np.ones((0, 2)), np.ones((1, 2)), bandwidth=1.0)]
    []
    """
    origin = centres.mean(axis=0, dtype=np.float64)
    b = (centres - origin) / bandwidth
    step = max(1, BLOCK_CELLS // sum(centres.shape))
    for start in range(0, len(x), step):
        a = (x[start : start + step] - origin) / bandwidth
        lengths = np.einsum("rd,rd->r", a, a)[:, None] + np.einsum("bd,bd->b", b, b)
        yield np.exp(np.minimum(a @ b.T - 0.5 * lengths, 0.0))  # rounding can make the exponent positive


def median_distance(x: Floats | Embeddings) -> float:
    """Return the median distance over pairs of rows of ``x`` [n, d]; 1.0 if there is no pair or the median is 0.

    The distance is Euclidean. Takes O(n^2) time and memory.

    >>> median_distance(np.array([[0.0], [3.0], [8.0]])), [median_distance(np.zeros((n, 1))) for n in (1, 3)]
    (5.0, [1.0, 1.0])
    """
    from scipy.spatial.distance import pdist  # noqa: PLC0415 - slow to import

    return float(np.median(pdist(x))) or 1.0 if len(x) > 1 else 1.0


@dataclass
class LatentProcess(Predictor):
    """A base class that keeps the latent value of every prompt, 0 before the first update. Subclasses define the link.

    A subclass's ``predict`` reads ``_latent``. Its ``update`` gets what was observed at each distinct embedding from
    ``_pooled``, and passes the latent values to ``_observe``. The ``noise`` on an observed latent value, at least 1e-10
    times the prior variance, keeps the solve stable. The paper has none.
    """

    embedder: Embedder = field(default_factory=SentenceTransformerEmbedder)
    bandwidth: float | None = None
    noise: float = 1e-6

    def __post_init__(self) -> None:
        check_numbers(self)
        check_positive(self, "bandwidth")
        check_least(self, "near-duplicate prompts need it", noise=SMALLEST_NOISE)
        self._table = EmbeddingTable()
        self._mean, self._weights = np.empty(0), np.empty(0)
        self._h = self.bandwidth and float(self.bandwidth)

    def prepare(self, prompts: Sequence[Prompt]) -> None:
        """Embed new ``prompts``, and set the bandwidth if it is not set yet."""
        self._join(prompts)
        self._fix_bandwidth()

    def _latent(self, prompts: Sequence[Prompt]) -> Floats:
        """Return m at ``prompts``, [P]."""
        rows = self._join(prompts)  # _join may replace self._mean
        return self._mean[rows]

    def _pooled(self, seen: Sequence[tuple[Prompt, float, float]]) -> tuple[Rows, Floats]:
        """Return the distinct table rows [B] of the prompts, and for each the ratio of two sums over prompts, [B]."""
        prompts, above, below = zip(*seen, strict=True)
        rows, which = np.unique(self._join(prompts), return_inverse=True)
        return rows, np.bincount(which, above) / np.bincount(which, below)

    def _observe(self, rows: Rows, g: Floats) -> None:
        """Run lines 7 to 12: update m from latent values ``g`` [B] observed at the distinct table ``rows`` [B]."""
        x, h = self._table.embeddings, self._fix_bandwidth()
        x_batch = x[rows]
        k_batch = np.concatenate([*rbf_blocks(x_batch, x_batch, h)])
        np.fill_diagonal(k_batch, 1.0 + self.noise)
        w = np.linalg.solve(k_batch, g - self._mean[rows])
        self._mean += np.concatenate([k @ w for k in rbf_blocks(x, x_batch, h)])
        self._mean[rows] = g
        self._weights[rows] += w

    def _join(self, prompts: Sequence[Prompt]) -> Rows:
        """Return the table rows [P] of ``prompts``; new prompts are embedded and get m from the kernel expansion."""
        unknown = {prompt.id: prompt for prompt in prompts if prompt.id not in self._table}
        if unknown:
            self._table.add(list(unknown), embed(self.embedder, list(unknown.values())))
            joined = np.arange(len(self._mean), len(self._table))
            self._weights = np.append(self._weights, np.zeros(len(joined)))
            self._mean = np.append(self._mean, self._expand(joined))
        return self._table.rows([prompt.id for prompt in prompts])

    def _expand(self, rows: Rows) -> Floats:
        """Return m at ``rows`` [R] as the kernel expansion over the prompts observed so far."""
        x, observed = self._table.embeddings, np.flatnonzero(self._weights)
        if self._h is None or not observed.size:
            return np.zeros(len(rows))
        blocks = rbf_blocks(x[rows], x[observed], self._h)
        return np.concatenate([np.zeros(0), *(k @ self._weights[observed] for k in blocks)])

    def _fix_bandwidth(self) -> float:
        """Return h; set it to the median distance first if it is not set and there are embeddings."""
        if self._h is None and len(self._table):
            self._h = median_distance(self._table.embeddings[self._table.sample(MEDIAN_SAMPLE)])
        return self._h or 1.0

    def _memory(self) -> dict[str, Any]:
        return {
            "ids": self._table.ids,
            "rows": self._table.rows(self._table.ids),
            "embeddings": self._table.embeddings,
            "mean": self._mean,
            "weights": self._weights,
            "bandwidth": self._h,
        }

    def _restore(self, saved: SavedValues) -> None:
        ids, x = saved.texts("ids"), saved.array("embeddings", (None, None), dtype=np.float32)
        rows = saved.array("rows", (len(ids),), low=0, high=len(x) - 1, dtype=np.int64)
        table = EmbeddingTable()
        if ids:
            table.add(ids, x[rows])
        if len(table.ids) != len(ids) or not np.array_equal(table.rows(ids), rows) or len(table) != len(x):
            raise saved.refusal("rows", "the row of each prompt, in order of arrival")
        mean, weights = (
            saved.array(key, (len(x),), low=-LARGEST_REWARD, high=LARGEST_REWARD) for key in ("mean", "weights")
        )
        h = None if saved.values["bandwidth"] is None else saved.number("bandwidth", low=SMALLEST_BANDWIDTH)
        self._table, self._mean, self._weights, self._h = table, mean, weights, h


@dataclass
class GaussianProcess(LatentProcess):
    """Recursive GP on prompt embeddings: Algorithm 1 of arXiv 2602.01601.

    A prompt of the latest batch is predicted at its clipped success rate, other prompts by similarity to the observed
    ones. Before the first update every prompt gets 0.5. Predictions lie strictly between 0 and 1.

    Args:
        embedder: gives x_q; called once for each prompt.
        bandwidth: h of the kernel; by default the median distance between the prompts known at ``prepare``, or at the
            first update if nothing was prepared, and constant from then on. It is 1.0 if all embeddings are equal.
        noise: variance of an observed latent value, in units of the prior variance; at least 1e-10.
        clip: success rates are clipped to [clip, 1 - clip] before the logit.
        strength: rollouts of evidence that the predicted belief is worth.
        prior_mean: the latent value of a prompt that nothing is known of: 0 in the paper, which is a success of 1/2.

    >>> from apportion.predictors import PrecomputedEmbeddings
    >>> from apportion.types import Plan, Rollout
    >>> prompts = [Prompt("easy"), Prompt("much like easy"), Prompt("something else")]
    >>> predictor = GaussianProcess(PrecomputedEmbeddings.from_array(prompts, [[0.0], [0.1], [5.0]]), bandwidth=1.0)
    >>> batch = Batch.start(prompts[:1], predictor.predict(prompts[:1]))
    >>> predictor.update(batch.add(Plan([2]), [[Rollout(True), Rollout(True)]]))
    >>> predictor.predict(prompts).mean.round(2).tolist()
    [0.95, 0.95, 0.5]
    """

    clip: float = 0.05
    strength: float = 2.0
    prior_mean: float = 0.0

    name: ClassVar[str] = "gp"

    def __post_init__(self) -> None:
        check_numbers(self)
        if not 0 < self.clip < 0.5:
            raise ValueError(f"clip must be above 0 and below 0.5, got {self.clip}; leave it out for the default")
        check_positive(self, "strength")
        if not abs(self.prior_mean) < LARGEST_LOGIT:
            raise ValueError(
                f"prior_mean must be a log-odds within {LARGEST_LOGIT} of 0, got {self.prior_mean}; 0 is the paper's"
            )
        super().__post_init__()

    def predict(self, prompts: Sequence[Prompt]) -> Belief:
        latent = np.clip(self.prior_mean + self._latent(prompts), -LARGEST_LOGIT, LARGEST_LOGIT)
        return Belief.from_mean(expit(latent), self.strength)

    def update(self, batch: Batch) -> None:
        """Run Algorithm 1 once."""
        if not (seen := observations(batch)):
            return
        rows, rates = self._pooled(seen)
        self._observe(rows, logit(np.clip(rates, self.clip, 1 - self.clip)) - self.prior_mean)


def softplus(g: Floats) -> Floats:
    """Return log(1 + exp(g)), elementwise, for any g.

    >>> softplus(np.array([-1000.0, 0.0, 1000.0])).round(3).tolist()
    [0.0, 0.693, 1000.0]
    """
    return np.logaddexp(0.0, g)


def inverse_softplus(v: Floats) -> Floats:
    """Return log(exp(v) - 1), elementwise, for any v above 0."""
    return v + np.log(-np.expm1(-v))


@dataclass
class GradedGaussianProcess(LatentProcess):
    """Recursive GP on prompt embeddings for rewards of any size: Appendix E.2 of arXiv 2602.01601.

    A prompt of the latest batch is predicted at the sample variance of its rewards, other prompts by similarity to the
    observed ones. Before the first update all predictions are equal. Variances are above 0. It does not predict
    success: the mean of its beliefs is always 0.5. So it suits allocators that read only the variance, such as VIP.
    The first batch sets the range of rewards, without 5% of them at either end. A batch widens it by its width at most,
    and by rewards farther out only if they are more than 5%. Rewards beyond are clipped.

    Args:
        embedder: gives x_q; called once for each prompt.
        bandwidth: h of the kernel; by default the median distance between the prompts known at ``prepare``, or at the
            first update if nothing was prepared, and constant from then on. It is 1.0 if all embeddings are equal.
        noise: variance of an observed g, in units of its prior variance; at least 1e-10.
        floor: lower bound of a sample variance, as a share of the variance predicted for a prompt unlike any other.
        scale: S, in units of the reward squared; by default from the observed variances, and 1 before the first.
        discount: factor at each update on the earlier variances in S; 1 keeps all, 0 only those of the latest batch.

    >>> from apportion.predictors import PrecomputedEmbeddings
    >>> from apportion.types import Plan, Rollout
    >>> prompts = [Prompt("spread"), Prompt("much like it"), Prompt("flat"), Prompt("something else")]
    >>> x = [[0.0], [0.1], [5.0], [20.0]]
    >>> predictor = GradedGaussianProcess(PrecomputedEmbeddings.from_array(prompts, x), bandwidth=1.0)
    >>> rewards = [[0.0, 0.5, 1.0], [], [0.5, 0.7, 0.6], []]
    >>> batch = Batch.start(prompts, predictor.predict(prompts)).add(
    ...     Plan([3, 0, 3, 0]), [[Rollout(reward=reward) for reward in group] for group in rewards]
    ... )
    >>> predictor.update(batch)
    >>> predictor.predict(prompts).variance.round(3).tolist()
    [0.25, 0.237, 0.01, 0.13]
    """

    noise: float = 0.1
    floor: float = 0.05
    scale: float | None = None
    discount: float = 0.9

    name: ClassVar[str] = "graded_gp"
    needs: ClassVar[Needs] = Needs()

    def __post_init__(self) -> None:
        check_numbers(self)
        if not 0 < self.floor < 1:
            raise ValueError(f"floor must be above 0 and below 1, got {self.floor}; leave it out for the default")
        check_positive(self, "scale")
        check_discount(self.discount)
        super().__post_init__()
        self._variances = self._observed = 0.0
        self._range: Range | None = None

    def predict(self, prompts: Sequence[Prompt]) -> Belief:
        variance = self._scale * softplus(np.maximum(self._latent(prompts), -LARGEST_LOGIT))
        ones = np.ones(len(prompts))
        return Belief(ones, ones, variance)

    def update(self, batch: Batch) -> None:
        """Update S, then run Algorithm 1 once."""
        seen, self._range = rewards(batch, self._range)
        spreads = [(each.prompt, each.squares, each.trials - 1) for each in seen if each.trials > 1]
        if not spreads:
            return
        rows, variances = self._pooled(spreads)
        self._variances = self.discount * self._variances + sum(squares / freedom for _, squares, freedom in spreads)
        self._observed = self.discount * self._observed + len(spreads)
        self._observe(rows, inverse_softplus(np.maximum(variances / self._scale, self.floor * SOFTPLUS_OF_0)))

    @property
    def _scale(self) -> float:
        if self.scale is not None:
            return self.scale
        return self._variances / self._observed / SOFTPLUS_OF_0 if self._variances else 1.0

    def _memory(self) -> dict[str, Any]:
        limits = self._range and list(self._range)
        return super()._memory() | {"variances": self._variances, "observed": self._observed, "range": limits}

    def _restore(self, saved: SavedValues) -> None:
        variances, observed = saved.number("variances", low=0), saved.number("observed", low=0)
        if variances and not observed:
            raise saved.refusal("variances", "0 before the first is observed")
        limits = saved_range(saved)
        super()._restore(saved)
        self._variances, self._observed, self._range = variances, observed, limits
