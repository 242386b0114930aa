"""What the printed tables of the papers say about themselves. Nothing is trained."""

from __future__ import annotations

import numpy as np
from scipy import stats

from apportion.types import Floats
from benchmarks.evidence.rules import Effect, share

MODELS = ("Qwen2.5-Math-1.5B", "Qwen2.5-Math-7B", "Llama-3.2-3B-Instruct")
METRICS = ("Pass@32", "Mean@32", "Maj@32")
PRINTED = """\
34.56 7.91 11.26 24.03 7.62 4.89
33.63 9.167 15.5 29.82 6.14 10.76
18.29 3.43 6.88 15.90 2.29 8.04
30.55 9.68 15.65 26.54 6.35 13.72
50.0 19.0 34.0 34.0 10.0 15.0
58.98 23.65 38.15 36.08 10.0 19.74
53.0 18.0 24.0 45.0 11.0 16.0
58.0 20.0 35.0 34.0 11.0 18.0
24.68 6.25 10.62 4.28 0.21 0.07
29.18 8.85 17.21 9.37 0.94 2.35
28.84 8.229 13.95 9.157 0.5208 0.3633
35.59 9.479 19.0 9.99 0.625 0.61
23.96 9.479 13.64 28.21 5.83 9.97
27.37 12.08 15.01 33.05 8.43 13.77
18.0 3.0 7.0 22.0 2.0 3.0
27.0 6.0 14.0 26.0 8.0 4.0
52.0 19.0 35.0 36.0 10.0 20.0
57.0 20.0 33.0 36.0 13.0 21.0
37.43 14.79 21.93 41.51 10.0 19.44
53.85 21.77 35.59 38.32 10.31 21.4
23.26 6.35 10.09 5.49 0.63 1.31
32.34 8.23 14.96 10.67 0.52 0.05
29.3 6.88 1.74 9.57 0.73 1.68
31.32 7.71 1.77 11.42 0.63 0.32
"""
"""Percentages: rows are 8 and 16 a prompt, by model, Dr. GRPO and RLOO, without and with VIP; columns are AIME24 and
AIME25, by metric."""
TABLE = np.array([[float(word) for word in line.split()] for line in PRINTED.splitlines()]).reshape(2, 3, 2, 2, 2, 3)
"""[budget, model, estimator, without and with VIP, benchmark, metric]."""
GAINS: Floats = TABLE[:, :, :, 1] - TABLE[:, :, :, 0]


def vip_lower(_, metric, **bounds):
    """Yield the share of pairs that are lower with VIP. "Consistent", which the paper does not say of Maj@32, means at
    most a tenth."""
    found = GAINS[..., METRICS.index(metric)].round(6).ravel()
    higher, lower = int((found > 0).sum()), int((found < 0).sum())
    yield share(f"{metric}: {higher} higher, lower", lower, len(found), **bounds)


def vip_by_model(_):
    """Yield the relative gain of the smaller models over that of the 7B model: a ratio, with Welch's interval."""
    for metric in ("Pass@32", "Mean@32"):
        place = METRICS.index(metric)
        found = np.log(TABLE[..., 1, :, place] / TABLE[..., 0, :, place])
        by_model = found.transpose(1, 0, 2, 3).reshape(len(MODELS), -1)
        small, large = by_model[[0, 2]].ravel(), by_model[1]
        ends = stats.ttest_ind(small, large, equal_var=False).confidence_interval()
        middle, low, high = (float(np.exp(each)) for each in (small.mean() - large.mean(), ends.low, ends.high))
        yield Effect(f"{metric} x", middle, low, high, above=1.0, form=".2f")


OPTPO_TABLE_1 = """\
15.6 14.6 43.3 46.7 17.25 | 47.7 48.5 83.1 81.9 26.93 | 72.3 72.3 90.6 90.8 32.57 | 26.5 26.8 87.8 87.8 43.20
18.5 16.0 46.7 46.7 15.20 | 48.1 48.1 83.1 83.1 26.80 | 71.9 72.3 91.2 91.0 35.01 | 25.9 26.6 87.8 89.8 45.06
11.9 10.4 43.3 46.7 14.35 | 39.3 38.3 81.9 81.9 27.42 | 55.9 56.2 90.2 89.8 25.53 | 26.3 26.5 93.9 90.9 43.52
3.5 1.7 23.3 20.0 47.62 | 14.9 15.2 51.8 55.4 78.36 | 30.3 35.4 66.0 64.4 14.77 | 26.4 25.2 82.2 81.2 44.74
3.8 3.8 30.0 30.0 13.70 | 13.9 17.1 55.4 54.2 41.76 | 31.2 34.1 64.6 64.4 44.49 | 25.7 26.7 83.2 81.7 46.19
1.5 1.7 16.7 23.3 30.02 | 11.4 11.0 54.2 51.8 18.96 | 33.4 36.1 65.4 66.6 29.40 | 27.1 26.7 85.8 85.8 41.96
23.5 23.5 40.0 43.3 38.56 | 52.1 56.8 78.3 77.1 49.06 | 79.7 79.5 91.0 91.6 45.02 | 35.1 35.7 85.3 84.8 40.31
24.4 24.0 46.7 43.3 42.85 | 54.3 53.2 79.5 79.5 41.66 | 80.3 78.1 91.0 91.0 48.96 | 37.9 36.8 83.8 88.8 39.83
20.8 20.6 40.0 40.0 41.45 | 52.9 56.0 80.7 79.5 43.50 | 78.9 79.4 90.8 91.0 44.52 | 33.0 33.0 85.3 84.3 45.47
"""
"""Figures of the paper's Table 1. Rows: three backbones, each with GRPO, PPO and REINFORCE++. Columns: AIME 2024, AMC,
MATH-500 and GPQA, each with mean@16 of TTRL and OptPO, pass@16 of both, and the saving in percent."""


OPTPO_PASS_1 = """\
20.0 20.0 | 54.2 54.2 | 73.6 73.8 | 30.5 34.5
23.3 23.3 | 55.4 53.0 | 73.8 73.8 | 29.9 32.5
20.0 20.0 | 49.4 44.6 | 56.4 57.6 | 32.0 28.9
6.7 6.7 | 18.1 16.9 | 30.8 36.0 | 28.4 26.9
6.7 6.7 | 19.3 22.9 | 31.6 34.8 | 28.9 31.0
6.7 6.7 | 16.9 13.3 | 32.2 38.0 | 30.5 28.9
23.3 23.3 | 54.2 57.8 | 80.0 79.8 | 39.1 38.6
23.3 26.7 | 55.4 55.4 | 80.4 78.4 | 40.1 39.1
23.3 23.3 | 55.4 57.8 | 80.0 80.6 | 32.5 34.0
"""
"""Pass@1 of TTRL and OptPO in the same table, in the same order."""


def optpo_pairs(table=OPTPO_TABLE_1):
    """Return the figures of ``table``, one row for each of its 36 pairs.

    >>> optpo_pairs().shape
    (36, 5)
    """
    return np.array([pair.split() for line in table.splitlines() for pair in line.split("|")], float)
