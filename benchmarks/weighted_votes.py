"""Does a vote weighted by its number of tokens beat the plain majority? A look whose rule was fixed before the run.

Registered before any run on the data; the commit before the one with the table holds this text without results.

- Hypothesis: with 40 votes, weighting each vote by (tokens of its completion) ** 1 gives a higher accuracy than the
  plain majority. An exploratory look on six other sets gave +.97 points, +.15 to +1.85.
- Data sets: all recorded sets with tokens and gold answers, gsm8k (1,318 questions x 61 samples) and aime24 (30 x 99).
- Votes: 40, the first of a random order of all samples of a question, without replacement. ``ORDERS`` orders a
  question, the same for every weight. Among equal totals the answer that appears first in the order wins, for every
  weight.
- Statistic: for each question the mean over its orders of (weighted vote is right) - (plain majority is right). Its
  mean over all 1,348 questions is the pooled difference: every question counts once. Its 95% interval is the percentile
  bootstrap over questions, ``RESAMPLES`` resamples, seed ``SEED``.
- Decision: the weight is built in only if the pooled interval lies above 0 and the interval of neither set lies below
  0. In every other case it is not built in. Nothing else that this benchmark shows decides.
- Control: a placebo whose tokens are shuffled anew between the 40 votes of each order. If it gains as well, the gain
  does not come from lengths.
- Exploratory, and labelled so in the table: exponents .5 and 2; 8 and 16 votes; the mean of the two sets instead of
  the pooled questions; whether right samples are longer than wrong samples of the same question.
- Tokens over their mean in the question are not another weight: one factor for all votes of a question changes no
  winner. No set here has log-probabilities, so weights by confidence are not tried.

    python -m benchmarks.weighted_votes [--votes PATH]
"""

from __future__ import annotations

import numpy as np

from apportion.stopping import encode_answers
from apportion.types import Floats
from benchmarks.common import options, write
from benchmarks.recorded import VOTES, read_datasets
from benchmarks.stopping_measured import SEED, estimate

VOTES_EACH = 40
EXPONENT = 1.0
ORDERS = {"gsm8k": 100, "aime24": 1000}
"""The number of random orders of each question. aime24 has few questions, so more orders cost little."""
PLACEBO = "placebo"
LOOKS: tuple[tuple[str, int, float], ...] = (
    ("registered", VOTES_EACH, EXPONENT),
    (PLACEBO, VOTES_EACH, EXPONENT),
    ("exploratory", VOTES_EACH, 0.5),
    ("exploratory", VOTES_EACH, 2.0),
    ("exploratory", 16, EXPONENT),
    ("exploratory", 8, EXPONENT),
)
"""The kind of each look, its number of votes, and the exponent of the tokens."""
MEANS = ("plain, %", "weighted, %")
"""Accuracies over the pooled questions."""


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


def compare(question, orders, exponent, shuffled=None):
    """Return the accuracy of the plain and of the weighted vote, and how often their winners differ: [3] shares.

    ``orders`` [R, V] are the samples that vote in each order. With ``shuffled`` the tokens are shuffled in each order.
    """
    answers, codes = encode_answers(question.answers)
    right, voted = np.array([question.right[answer] for answer in answers]), codes[orders]
    tokens = np.asarray(question.tokens, float)[orders]
    if shuffled is not None:
        tokens = shuffled.permuted(tokens, axis=1)
    plain, weighted = winners(voted, np.ones(voted.shape)), winners(voted, tokens**exponent)
    return np.array([right[plain].mean(), right[weighted].mean(), (plain != weighted).mean()])


def measure(data, orders=ORDERS):
    """Return ``compare`` of each question [Q, 3] by look and data set."""
    found: dict[tuple[str, int, float], dict[str, list[Floats]]] = {look: {name: [] for name in data} for look in LOOKS}
    rng, placebo = np.random.default_rng(SEED), np.random.default_rng([SEED, 1])
    for name, questions in data.items():
        for question in questions:
            places = np.tile(np.arange(len(question.answers)), (orders[name], 1))
            drawn = rng.permuted(places, axis=1)
            for look in LOOKS:
                kind, votes, exponent = look
                shuffled = placebo if kind == PLACEBO else None
                found[look][name].append(compare(question, drawn[:, :votes], exponent, shuffled))
    return {look: {name: np.array(rows) for name, rows in mine.items()} for look, mine in found.items()}


def differences(mine):
    """Return weighted less plain accuracy: of the pooled questions, of each data set, and the mean of the data sets."""
    gains = {name: found[:, 1] - found[:, 0] for name, found in mine.items()}
    return {
        "pooled": estimate(np.concatenate(list(gains.values()))),
        **{name: estimate(gain) for name, gain in gains.items()},
        "mean of sets": estimate(*gains.values()),
    }


def holds(found):
    """Return whether the registered rule says to build the weight in."""
    sets = [estimate for name, estimate in found.items() if name not in ("pooled", "mean of sets")]
    return found["pooled"].low > 0 and all(mine.high >= 0 for mine in sets)


def table_rows(cells):
    """Yield the rows of the table, one a look: accuracies and differences in percent and points."""
    for (kind, votes, exponent), mine in cells.items():
        plain, weighted, differs = (f"{100 * mean:.2f}" for mean in np.concatenate(list(mine.values())).mean(axis=0))
        gains = [gain.show("+.2f", 100) for gain in differences(mine).values()]
        yield [kind, votes, f"{exponent:g}", plain, weighted, *gains, differs]


def main(votes=VOTES):
    """Measure, and write the table ``weighted_votes``."""
    data = {name: rows for name, rows in read_datasets(votes).items() if name in ORDERS}
    missing = [name for name in ORDERS if name not in data]
    if missing:
        print(f"Skipped: {', '.join(missing)} must be in {votes.name}; the registered look needs both sets")
        return
    cells = measure(data)
    found = differences(cells[LOOKS[0]])
    write(
        "weighted_votes",
        "Votes weighted by tokens against the plain majority",
        ["look", "votes", "exponent", *MEANS, *found, "winner differs, %"],
        list(table_rows(cells)),
        [
            "**The hypothesis holds:** the weight may be built in."
            if holds(found)
            else "**The hypothesis does not hold:** the weight is not built in.",
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
