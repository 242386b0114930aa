"""Measure votes under one budget for a batch against as many samples for each prompt, and against stopping rules.

Equally many streams of each data set are replayed: its recorded answers in random orders, the same for every rule. The
full vote is the majority of the first M samples of an order. A rule agrees if it chooses the same answer.

    python -m benchmarks.shared_votes [--votes PATH] [--streams 600] [--results FOLDER]
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from apportion import Prompt, Rollout, collect
from apportion.allocators import SharedVotes
from apportion.stopping import BayesianSPRT, Fixed, PosteriorPredictive, Rule, decide
from benchmarks.common import RESULTS, options, table, write
from benchmarks.recorded import VOTES, Streams, read_datasets
from benchmarks.stopping_measured import SEED, estimate

M = 61
"""The number of answers of the shortest record."""
BATCH, FIRST, ROUNDS = 64, 4, 8
BUDGETS = (8, 16, 32)
RULES: dict[str, Rule] = {
    "optpo, N = 16": BayesianSPRT(count_from="min_samples"),
    "posterior_predictive, eps = 0.01": PosteriorPredictive(0.01),
}
STREAMS = 600
"""Streams of each data set."""
NAME = "all, mixed"


class Mixture:
    """Equally many streams of each data set, with equal weights."""

    def __init__(self, data, streams):
        rng, self.parts = np.random.default_rng(SEED), []
        for questions in data.values():
            some = rng.permutation(len(questions))[:streams]
            self.parts.append(Streams.draw([questions[place] for place in some], max(1, streams // len(some)), SEED))
        self.answers = [answers for part in self.parts for answers in part.answers]
        self.full = decide(self.answers, "fixed", M).answer

    def agreed(self, chosen):
        """Return whether each of the ``chosen`` [S] answers is that of the full vote, 1 or 0."""
        return np.array([one == other for one, other in zip(chosen, self.full, strict=True)], float)

    def mean(self, values):
        """Return the mean of ``values`` [S] with its interval over questions."""
        pieces = np.split(values, np.cumsum([len(part.answers) for part in self.parts])[:-1])
        return estimate(*(part.by_question(own) for part, own in zip(self.parts, pieces, strict=True)))

    def alone(self, rule):
        """Return the samples of ``rule`` on each stream by itself, and whether it agreed."""
        decided = decide(self.answers, rule, M)
        return decided.samples, self.agreed(decided.answer)

    def together(self, budget):
        """Return whether ``SharedVotes`` agreed, in random batches, with ``budget`` samples a stream on average."""
        allocator = SharedVotes(budget, min_samples=FIRST, max_samples=M, rounds=ROUNDS)
        chosen = np.full(len(self.answers), None, object)
        order = np.random.default_rng(SEED).permutation(len(chosen))
        for places in np.array_split(order, max(1, round(len(order) / BATCH))):
            batch = replay(allocator, [self.answers[place] for place in places])
            chosen[places] = [allocator.winner(batch, q) for q in range(len(places))]
        return self.agreed(chosen)


def replay(allocator, streams):
    """Return the finished batch of prompts that ``streams`` answer in order."""
    waiting = {str(q): (Rollout(answer=answer) for answer in stream) for q, stream in enumerate(streams)}

    def sample(prompts, counts):
        return [[next(waiting[prompt.text]) for _ in range(n)] for prompt, n in zip(prompts, counts, strict=True)]

    return collect(allocator, [Prompt(text) for text in waiting], sample)


def main():
    """Measure and write the table ``shared_votes``."""
    given = options(__doc__, votes=VOTES, streams=STREAMS, results=RESULTS)
    data = read_datasets(given.votes)
    mixture, even, stopped = Mixture(data, given.streams), [], []
    for budget in BUDGETS:
        (_, alike), shared = mixture.alone(Fixed(budget)), mixture.together(budget)
        percent = (f"{100 * mixture.mean(each).value:.1f}" for each in (alike, shared))
        even.append([NAME, budget, *percent, mixture.mean(shared - alike).show("+.1f", 100)])
    for label, rule in RULES.items():
        samples, agreed = mixture.alone(rule)
        mean = mixture.mean(samples).value
        gain = mixture.mean(mixture.together(mean) - agreed)
        stopped.append([NAME, label, f"{mean:.1f}", gain.show("+.1f", 100)])
    write(
        "shared_votes",
        "Votes under one budget for the batch, on recorded answers",
        ["answers", "samples", "agreement %: each alike", "shared", "gain"],
        even,
        [
            f"`shared_votes` with N = {FIRST}, at most {M} samples a prompt and {ROUNDS} rounds, in random batches of "
            f"about {BATCH}, against the first so many samples of every prompt. Agreement is with the majority of all "
            f"{M}. Gains in points, with 95% bootstrap intervals over questions. `{NAME}`: {given.streams} streams of "
            f"each of {', '.join(data)}, with equal weights.",
            "## Against stopping rules, each at the samples that it takes",
            "The samples that a rule takes over all questions are the budget here, which every batch must keep by "
            "itself. Points of agreement, less the rule's.",
            table(["answers", "rule", "samples", f"gain in {ROUNDS} rounds"], stopped),
        ],
        seeds=[SEED],
        results=given.results,
    )


if __name__ == "__main__":
    main()
