"""Measure whether the bound on right winners holds, on recorded votes that a rule has stopped.

The winners of all questions of a data set are known to be right or wrong. A number of the questions is drawn as the
labelled ones, many times, and each draw gives a bound. It must be above the true share in at most 5% of the draws.
Beside it are what people read from so many labels: the share of right ones among them, and the low end of a bootstrap.

    python -m benchmarks.right_winners [--votes PATH]
"""

import numpy as np

from apportion.stopping import decide, make_rule
from apportion.vote.right import least_share
from benchmarks.common import options, write
from benchmarks.recorded import VOTES, Streams, read_datasets

DRAWS, RESAMPLES, SEED, MOST = 4000, 200, 0, 40
LABELLED = (10, 50, 200)
RULES = ("calibrated",)


def rows(votes):
    """Yield a row for each data set, rule and number of labels."""
    rng = np.random.default_rng(SEED)
    for name, questions in read_datasets(votes).items():
        if any(question.right is None for question in questions):
            continue
        streams = Streams.draw(questions, 1, SEED)
        for rule in RULES:
            found = decide(streams.answers, make_rule(rule), max_samples=MOST)
            right = streams.right(found.answer).astype(bool)
            for labelled in (count for count in LABELLED if count < len(right)):
                hits = rng.hypergeometric(int(right.sum()), int((~right).sum()), labelled, DRAWS)
                bound = {int(k): least_share(int(k), labelled, len(right)) for k in np.unique(hits)}
                low = np.quantile(rng.binomial(labelled, hits / labelled, (RESAMPLES, DRAWS)), 0.05, axis=0) / labelled
                bounds, truth = np.array([bound[int(k)] for k in hits]), right.mean()
                above = [float(np.mean(each > truth)) for each in (bounds, low, hits / labelled)]
                cells = [f"{truth:.1%}", f"{bounds.mean():.1%}", *(f"{100 * share:.1f}" for share in above)]
                yield [name, rule, f"{found.samples.mean():.1f}", len(right), labelled, *cells]


def main():
    """Write the table."""
    given = options(__doc__, votes=VOTES)
    write(
        "right_winners",
        "A bound on the share of right winners, from labelled questions",
        [
            *("answers", "rule", "samples", "questions", "labelled", "right", "bound, mean"),
            *(f"{name} > right, %" for name in ("bound", "bootstrap", "share")),
        ],
        list(rows(given.votes)),
        notes=[
            f"{DRAWS} draws of the labelled questions. The last columns are the shares of draws in which the bound, "
            "the 5% quantile of a bootstrap, and the share among the labelled ones are above the true share. With a "
            "confidence of 95% the bound may be so in 5%.",
            f"At most {MOST} samples of a question. The answers of GSM8K and AIME are not in the project, because they "
            "state no licence; they are read where they are.",
        ],
        seeds=[SEED],
    )


if __name__ == "__main__":
    main()
