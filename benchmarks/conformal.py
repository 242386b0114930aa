"""C-GRPO's conformal stopping beside explore-then-commit, its control, at equal rollouts.

The package trl-cgrpo 0.2 samples a prompt to 2, 4, 8, 16 and 32 rollouts and stops at the first k whose conformal set
of answers has one member. Its thresholds are calibrated on other questions, each with 32 rollouts. Its formulas are
written out here. The control knows verdicts alone: pilots for every prompt, then 32 rollouts if they are mixed.

Each rule is judged against an even split of as many rollouts, at success rates p over all recorded samples: RLOO's
variance 4 p (1 - p) / (n - 1), which matters under a mean over prompts; and the signal of a rollout under a loss that
weighs tokens equally, sum n p (1 - p) / sum n. The questions are halved. One half calibrates, the other is judged, and
then they change places.

    python -m benchmarks.conformal [--votes PATH]
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from apportion.types import Counts, Floats
from benchmarks.common import options, write
from benchmarks.real_run_data import grpo_run
from benchmarks.recorded import VOTES, read_datasets

GRID = (2, 4, 8, 16, 32)
MARGIN = 0.05
SEEDS = (0, 1, 2, 3, 4)
LEAST = 100
"""Questions of a data set that is halved: fewer leave too few to calibrate on."""
COLUMNS = ["data, rule", "rollouts", "4v/(n-1) over even's", "signal over even's"]


@dataclass(frozen=True)
class Samples:
    """Answers [Q, 32] as codes, 0 for the right one and -1 for none, and the success rates [Q]."""

    answers: Counts
    rates: Floats

    def __getitem__(self, some):
        return Samples(self.answers[some], self.rates[some])


def drawn(questions, rng):
    """Return 32 of each question's recorded samples, in a random order."""
    rows, rates = [], []
    for question in questions:
        right = question.right or {}
        names = [answer for answer in dict.fromkeys(question.answers) if answer is not None and not right[answer]]
        codes = {answer: 0 if right[answer] else 1 + names.index(answer) for answer in right if answer is not None}
        own = np.array([codes.get(answer, -1) for answer in question.answers])
        rows.append(rng.permutation(own)[: GRID[-1]])
        rates.append(np.mean(own == 0))
    return Samples(np.array(rows), np.array(rates))


def simulated(alike, rng, visit=20):
    """Return samples at the success rates of the recorded GRPO run; wrong answers are all alike, or all distinct."""
    rates = grpo_run().shares[:, visit - 5 : visit + 5].mean(axis=1)
    right = rng.random((len(rates), GRID[-1])) < rates[:, None]
    wrong = np.ones(GRID[-1], int) if alike else 1 + np.arange(GRID[-1])
    return Samples(np.where(right, 0, wrong), rates)


def ranked(answers, rng):
    """Return answers by their share of the samples, the largest first and ties in a random order."""
    shares = [(answer, count / len(answers)) for answer, count in Counter(answers.tolist()).items() if answer >= 0]
    return sorted(shares, key=lambda item: (-item[1], rng.random()))


def score(answers, rng):
    """Return the mass of the answers ahead of the right one, and a random part of its own; 1 if it was not drawn."""
    ahead = 0.0
    for answer, share in ranked(answers, rng):
        if answer == 0:
            return min(ahead + rng.random() * share, 1.0)
        ahead += share
    return 1.0


def thresholds(answers, rng):
    """Return the threshold of each k of ``GRID``, and the coverage 1 - delta that they promise at it."""
    scores = np.sort([[score(row[:k], rng) for k in GRID] for row in answers], axis=0)
    delta = float(np.clip(np.mean(scores[:, -1] >= 1 - 1e-9) + MARGIN, 0.05, 0.95))
    place = int(np.ceil((len(answers) + 1) * (1 - delta)))
    return scores[min(max(place, 1), len(answers)) - 1].tolist(), 1 - delta


def stopped(answers, limits, rng):
    """Return the k at which C-GRPO stops."""
    for k, limit in zip(GRID, limits, strict=True):
        order = ranked(answers[:k], rng)
        mass = np.cumsum([share for _, share in order])
        size = int(np.searchsorted(mass, limit)) + 1
        if (size == 1 and order and mass[0] >= limit) or k == GRID[-1]:
            return k
    raise AssertionError


def committed(answers, pilots):
    """Return the rollouts [Q] of explore-then-commit: the pilots, or 32 if they are mixed."""
    right = (answers[:, :pilots] == 0).sum(axis=1)
    return np.where((right > 0) & (right < pilots), GRID[-1], pilots)


def figures(samples, counts):
    """Return mean rollouts, and variance and signal over those of an even split of as many."""
    p, n, even = samples.rates, counts, counts.mean()
    v = p * (1 - p)
    return [even, np.mean(v / (n - 1)) / np.mean(v / (even - 1)), np.sum(n * v) / (n.sum() * v.mean())]


def measured(make, seed):
    """Return, by rule, the figures of both halves."""
    rng = np.random.default_rng(seed)
    samples, found = make(rng), {}
    order = rng.permutation(len(samples.rates))
    halves = order[::2], order[1::2]
    for calibrating, judged in (halves, halves[::-1]):
        own = samples[judged]
        limits, _ = thresholds(samples.answers[calibrating], rng)
        rules = {"C-GRPO": np.array([stopped(row, limits, rng) for row in own.answers])}
        for pilots in (2, 4):
            rules[f"explore-then-commit, {pilots} pilots"] = committed(own.answers, pilots)
        for name, n in rules.items():
            found.setdefault(name, []).append(figures(own, n))
    return found


def rows(name, make, seeds):
    """Return a row a rule: means over seeds and halves, and twice their standard error over seeds."""
    runs = [measured(make, seed) for seed in seeds]
    made = []
    for rule in runs[0]:
        own = np.array([np.mean(run[rule], axis=0) for run in runs])
        means, errors = own.mean(axis=0), 2 * own.std(axis=0, ddof=1) / len(runs) ** 0.5
        cells = [f"{mean:.2f} ± {error:.2f}" for mean, error in zip(means, errors, strict=True)]
        made.append([f"{name}: {rule}", *cells])
    return made


def main(votes=VOTES):
    """Measure, and write the table ``conformal``."""
    sets = {
        name: questions
        for name, questions in read_datasets(votes).items()
        if len(questions) >= LEAST and all(each.right for each in questions)
    }
    found = [
        row for name, questions in sets.items() for row in rows(name, lambda rng, q=questions: drawn(q, rng), SEEDS)
    ]
    for alike in (False, True):
        name = f"GRPO run, wrong answers {'alike' if alike else 'distinct'}"
        found += rows(name, lambda rng, alike=alike: simulated(alike, rng), SEEDS)
    write(
        "conformal", "C-GRPO's stopping and explore-then-commit at equal rollouts", COLUMNS, found, NOTES, seeds=SEEDS
    )


NOTES = (
    "Each figure is over that of an even split of as many rollouts. '4v/(n-1)': RLOO's variance under a mean over "
    "prompts, lower is better. 'Signal': p (1 - p) of the prompt that a rollout belongs to, on average, which is what "
    "counts under a loss that weighs tokens equally; higher is better. ± is twice the standard error over seeds.",
    "C-GRPO also pays 32 rollouts for each question that it calibrates on, which are not counted here. The answers of "
    "the GRPO run were not recorded, so both extremes are shown.",
)

if __name__ == "__main__":
    main(**vars(options(__doc__, votes=VOTES)))
