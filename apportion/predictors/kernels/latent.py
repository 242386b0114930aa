"""A recursive Gaussian process over prompt embeddings: a latent value per prompt, which a link turns into a belief.

Reference: H. T. Nguyen, B. Nguyen, W. Ma, Y. Zhao, R. She, V. A. Nguyen, "Adaptive Rollout Allocation for Online
Reinforcement Learning with Verifiable Rewards", 2026, arXiv 2602.01601, section 5.1 and Algorithm 1, lines 7 to 12.
Symbols of the paper used here: x_q the embedding of prompt q, Q prompts, B the batch, g the latent value, m its mean
over all prompts, K the RBF kernel, h its bandwidth. The links are in ``gp`` (success) and ``graded_gp`` (variance).

Note: the paper stores the Q x Q matrix Sigma = K(D, D). Algorithm 1 reads only its columns of the batch, so only those
are computed, in blocks of rows: O(Q B d) time and O(Q d) memory for the same numbers.
Note: Sigma never changes, only m does. So m is always a kernel expansion m(x) = sum_q w_q K(x, x_q), and w accumulates
K(B, B)^-1 (g_B - m_B). A prompt that joins late gets its mean from that sum, as if it had been there from the start.
Note: Sigma_BB is singular if two prompts of a batch have the same embedding, which the paper does not treat. Here they
share one latent value and their rollouts are pooled. Near-duplicates need the ``noise`` on the diagonal.
Note: the paper does not say which pairs enter its median heuristic. Beyond 2,048 distinct embeddings, the median is
over the pairs of 2,048 of them, chosen by content hash.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from apportion.checks import check_numbers
from apportion.predictors.base import Predictor, check_positive
from apportion.predictors.embeddings import Embedder, SentenceTransformerEmbedder, embed
from apportion.predictors.embeddings.table import EmbeddingTable, Rows
from apportion.predictors.kernels.rbf import median_distance, rbf_blocks
from apportion.predictors.saved import SavedValues
from apportion.types import Floats, Prompt

MEDIAN_SAMPLE = 2048
NEWCOMERS_AT_ONCE = 512
SMALLEST_NOISE = 1e-10
SMALLEST_BANDWIDTH = float(np.finfo(np.float64).tiny)


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
        check_positive(self, noise=self.noise)
        if self.noise < SMALLEST_NOISE:
            raise ValueError(
                f"noise must be at least {SMALLEST_NOISE}, got {self.noise}; near-duplicate prompts need it"
            )
        if self.bandwidth is not None:
            check_positive(self, bandwidth=self.bandwidth)
        self._table = EmbeddingTable()
        self._mean, self._weights = np.empty(0), np.empty(0)
        self._h = None if self.bandwidth is None else float(self.bandwidth)

    def prepare(self, prompts: Sequence[Prompt]) -> None:
        """Embed new ``prompts``, and set the bandwidth if it is not set yet."""
        self._join(prompts)
        self._fix_bandwidth()

    def covariance(self, prompts: Sequence[Prompt], observed: Sequence[Prompt] = ()) -> Floats:
        """Return Sigma* [P, P], the covariance of the latent values of ``prompts`` given those of ``observed``.

        It is K - K_B (K_BB + noise I)^-1 K_B^T with B = ``observed``, in units of the prior variance, and 0 for the
        observed prompts up to ``noise``. Without ``observed`` it is the prior's K. Allocation does not read it.
        """
        rows, known = self._join(prompts), np.unique(self._join(observed))
        h, x = self._fix_bandwidth(), self._table.embeddings
        both = np.r_[rows, known]
        if not both.size:
            return np.zeros((0, 0))
        kernel = np.concatenate([k.copy() for _, k in rbf_blocks(x, both, x[both], h)])
        own, across = kernel[: len(rows), : len(rows)], kernel[: len(rows), len(rows) :]
        given = kernel[len(rows) :, len(rows) :] + self.noise * np.eye(len(known))
        return own - across @ np.linalg.solve(given, across.T)

    def _latent(self, prompts: Sequence[Prompt]) -> Floats:
        """Return m at ``prompts``, [P]."""
        rows = self._join(prompts)  # may replace self._mean
        return self._mean[rows]

    def _pooled(self, seen: Sequence[tuple[Prompt, float, float]]) -> tuple[Rows, Floats]:
        """Return the distinct table rows [B] of the prompts, and the ratio of the sums of their two numbers, [B]."""
        prompts, above, below = zip(*seen, strict=True)
        rows, which = np.unique(self._join(prompts), return_inverse=True)
        return rows, np.bincount(which, above) / np.bincount(which, below)

    def _observe(self, rows: Rows, g: Floats) -> None:
        """Run lines 7 to 12: update m from latent values ``g`` [B] observed at the distinct table ``rows`` [B]."""
        x, h = self._table.embeddings, self._fix_bandwidth()
        x_batch = x[rows]
        k_batch = np.concatenate([k.copy() for _, k in rbf_blocks(x, rows, x_batch, h)])
        k_batch.flat[:: len(rows) + 1] = 1.0 + self.noise
        w = np.linalg.solve(k_batch, g - self._mean[rows])
        mean = self._mean.copy()
        for some, k in rbf_blocks(x, np.arange(len(x)), x_batch, h):
            mean[some] += k @ w
        mean[rows] = g
        self._mean = mean
        self._weights[rows] += w

    def _join(self, prompts: Sequence[Prompt]) -> Rows:
        """Return the table rows [P] of ``prompts``; new prompts are embedded and get m from the kernel expansion."""
        unknown = list({prompt.id: prompt for prompt in prompts if prompt.id not in self._table}.values())
        if unknown:
            self._table.add([prompt.id for prompt in unknown], embed(self.embedder, unknown))
            joined = np.arange(len(self._mean), len(self._table))
            self._weights = np.append(self._weights, np.zeros(len(joined)))
            self._mean = np.append(self._mean, self._expand(joined))
        return self._table.rows([prompt.id for prompt in prompts])

    def _expand(self, rows: Rows) -> Floats:
        """Return m at ``rows`` [R] as the kernel expansion over the prompts observed so far."""
        mean, x, observed = np.zeros(len(rows)), self._table.embeddings, np.flatnonzero(self._weights)
        if self._h is None or not observed.size:
            return mean
        for start in range(0, len(rows), NEWCOMERS_AT_ONCE):
            newcomers = slice(start, start + NEWCOMERS_AT_ONCE)
            for some, k in rbf_blocks(x, observed, x[rows[newcomers]], self._h):
                mean[newcomers] += self._weights[some] @ k
        return mean

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
        table.add(ids, x[rows])
        if len(table.ids) != len(ids) or not np.array_equal(table.rows(ids), rows) or len(table) != len(x):
            raise saved.refusal("rows", "the row of each prompt, in order of arrival")
        mean, weights = saved.array("mean", (len(x),)), saved.array("weights", (len(x),))
        h = None if saved.values["bandwidth"] is None else saved.number("bandwidth", low=SMALLEST_BANDWIDTH)
        self._table, self._mean, self._weights, self._h = table, mean, weights, h
