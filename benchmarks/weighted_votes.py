"""Does a vote weighted by its number of tokens beat the plain majority? A look whose rule was fixed before the run.

Registered before any run on the data:

- Hypothesis: with 40 votes, weighting each vote by the tokens of its completion gives a higher accuracy than the plain
  majority. An exploratory look on six other sets gave +.97 points, +.15 to +1.85.
- Data sets: all recorded sets with tokens and gold answers, gsm8k (1,318 questions x 61 samples) and aime24 (30 x 99).
- Votes: 40, the first of a random order of all samples of a question, without replacement. ``ORDERS`` orders a
  question, the same for every weight. Among equal totals the answer that appears first in the order wins, for every
  weight.
- Statistic: for each question the mean over its orders of (weighted vote is right) - (plain majority is right). Its
  mean over all 1,348 questions is the pooled difference: every question counts once. Its 95% interval is the bootstrap
  over questions.
- Decision: the weight is built in only if the pooled interval lies above 0 and the interval of neither set lies below
  0.
- Control: a placebo whose tokens are shuffled anew between the 40 votes of each order. If it gains as well, the gain
  does not come from lengths.

    python -m benchmarks.weighted_votes [--votes PATH]
"""

from __future__ import annotations

import numpy as np

from apportion.stopping import encode_answers
from benchmarks.common import options, write
from benchmarks.recorded import VOTES, read_datasets
from benchmarks.stopping_measured import SEED, estimate

VOTES_EACH = 40
ORDERS = {"gsm8k": 100, "aime24": 1000}
"""The number of random orders of each question. aime24 has few questions, so more orders cost little."""


def winners(codes, weights):
    """Return the answer [R] with the largest total weight in each of R orders, the first to appear among equals.

    ``codes`` [R, V] are the answers' numbers in the order of voting, and ``weights`` [R, V] the weights of the votes.

    >>> winners(np.array([[1, 0, 0], [1, 0, 2]]), np.array([[5.0, 1, 1], [1, 1, 1]])).tolist()
    [1, 1]
    """
    totals = np.zeros((len(codes), codes.max() + 1))
    rows = np.arange(len(codes))
    for place in range(codes.shape[1]):
        totals[rows, codes[:, place]] += weights[:, place]
    mine = np.take_along_axis(totals, codes, axis=1)
    return codes[rows, (mine == totals.max(axis=1, keepdims=True)).argmax(axis=1)]


def gain(question, orders, shuffled=None):
    """Return the accuracy of the weighted vote less that of the plain one.

    ``orders`` [R, V] are the samples that vote in each order. With ``shuffled`` the tokens are shuffled in each order.
    """
    answers, codes = encode_answers(question.answers)
    right, voted = np.array([question.right[answer] for answer in answers]), codes[orders]
    tokens = np.asarray(question.tokens, float)[orders]
    if shuffled is not None:
        tokens = shuffled.permuted(tokens, axis=1)
    plain, weighted = winners(voted, np.ones(voted.shape)), winners(voted, tokens)
    return right[weighted].mean() - right[plain].mean()


def main(votes=VOTES):
    """Measure, and write the table ``weighted_votes``."""
    data = {name: rows for name, rows in read_datasets(votes).items() if name in ORDERS}
    missing = [name for name in ORDERS if name not in data]
    if missing:
        print(f"Skipped: {', '.join(missing)} must be in {votes.name}; the registered look needs both sets")
        return
    rng, looks = np.random.default_rng(SEED), {"registered": None, "placebo": np.random.default_rng([SEED, 1])}
    gains = {look: {name: [] for name in data} for look in looks}
    for name, questions in data.items():
        for question in questions:
            places = np.tile(np.arange(len(question.answers)), (ORDERS[name], 1))
            orders = rng.permuted(places, axis=1)[:, :VOTES_EACH]
            for look, shuffled in looks.items():
                gains[look][name].append(gain(question, orders, shuffled))
    rows = []
    for look, found in gains.items():
        sets = [np.array(each) for each in found.values()]
        shown = (estimate(each).show("+.2f", 100) for each in (np.concatenate(sets), *sets))
        rows.append([look, VOTES_EACH, 1, *shown])
    write(
        "weighted_votes",
        "Votes weighted by tokens against the plain majority",
        ["look", "votes", "exponent", "pooled", *data],
        rows,
        [
            "Weighted less plain accuracy, in points. Registered before the run, in `benchmarks/weighted_votes.py`: 40 "
            "votes, exponent 1, gsm8k and aime24. "
            "Built in only if the 95% interval of the pooled difference lies above 0 and neither set's lies below 0. "
            "Intervals: bootstrap over questions. Orders: "
            + ", ".join(f"{name} {count:,} a question" for name, count in ORDERS.items())
            + ". The placebo shuffles the tokens between the votes.",
        ],
        seeds=[SEED],
    )


if __name__ == "__main__":
    main(options(__doc__, votes=VOTES).votes)
