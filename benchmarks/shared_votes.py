"""Measure votes under one budget for a batch against as many samples for each prompt, and against stopping rules.

Each question's recorded answers are replayed in random orders, which are the same for every rule. The full vote is the
majority of the first M samples of an order. A rule agrees if it chooses the same answer.

    python -m benchmarks.shared_votes [--votes PATH] [--quick]
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from apportion import Prompt, Rollout, collect
from apportion.allocators import SharedVotes
from apportion.stopping import AdaptiveConsistencyBeta, BayesianSPRT, Fixed, PosteriorPredictive, Rule, decide
from apportion.types import Counts, Mask
from benchmarks.common import RESULTS, options, table, write
from benchmarks.recorded import VOTES, Streams, read_datasets
from benchmarks.stopping_measured import SEED, Estimate, estimate

M = 61
"""The number of answers of the shortest record."""
BATCH, FIRST = 64, 4
BUDGETS = (8, 12, 16, 24, 32)
ROUNDS = (8, 32)
RULES: dict[str, Rule] = {
    "optpo, N = 16": BayesianSPRT(count_from="min_samples"),
    "posterior_predictive, eps = 0.01": PosteriorPredictive(0.01),
    "posterior_predictive, eps = 0.05": PosteriorPredictive(0.05),
    "adaptive_consistency_beta, confidence = 0.95": AdaptiveConsistencyBeta(0.95),
}
ORDERS = {"gsm8k": 1}
"""The number of random orders of each question; ``OTHER_ORDERS`` for other data sets."""
OTHER_ORDERS = 20
MIXTURE, MIXED = "all, mixed", 600
"""The name of the mixture of the data sets, and the number of streams from each."""
QUICK = Path("runs") / "shared-votes-quick"
EVEN = "answers, samples, agreement %: each alike, shared, gain"
STOPPED = "answers, rule, samples, agreement %: rule, " + ", ".join(f"gain in {n} rounds" for n in ROUNDS)


@dataclass(frozen=True)
class Found:
    """The results of a rule on each stream [S] of a pool: its samples, and whether it agreed."""

    samples: Counts
    agreed: Mask


@dataclass(frozen=True)
class Pool:
    """The streams that batches are drawn from, of one data set or of several with equal weights."""

    parts: tuple[Streams, ...]

    @property
    def answers(self):
        """All streams, part by part."""
        return [answers for part in self.parts for answers in part.answers]

    def found(self, samples, chosen):
        """Return the results for ``chosen`` [S] answers."""
        full = decide(self.answers, "fixed", M).answer
        return Found(samples, np.array([one == other for one, other in zip(chosen, full, strict=True)]))

    def mean(self, values):
        """Return the mean of ``values`` [S] with its interval over questions."""
        pieces = zip(self.parts, self._split(values), strict=True)
        return estimate(*(part.by_question(mine) for part, mine in pieces))

    def _split(self, values):
        return np.split(values, np.cumsum([len(part.answers) for part in self.parts])[:-1])


def main(votes=VOTES, quick=False):
    """Measure and write the table ``shared_votes``, under ``runs/`` if ``quick``."""
    data = read_datasets(votes)
    pools = pools_of(data, quick)
    even, stopped, gains = [], [], []
    for name, pool in pools.items():
        for budget in BUDGETS:
            alike, shared = alone(pool, Fixed(budget)), together(pool, budget, ROUNDS[0])
            gains.append(difference(pool, shared, alike))
            even.append([name, budget, percent(pool, alike), percent(pool, shared), points(gains[-1])])
    against: list[list[Estimate]] = [[] for _ in ROUNDS]
    for name, pool in pools.items():
        for label, rule in RULES.items():
            found = alone(pool, rule)
            mean = pool.mean(found.samples).value
            ours = [difference(pool, together(pool, mean, rounds), found) for rounds in ROUNDS]
            stopped.append([name, label, f"{mean:.1f}", percent(pool, found), *map(points, ours)])
            for kept, gain in zip(against, ours, strict=True):
                kept.append(gain)
    counted = [f"in {rounds} rounds {verdict(mine)}" for rounds, mine in zip(ROUNDS, against, strict=True)]
    write(
        "shared_votes",
        "Votes under one budget for the batch, on recorded answers",
        EVEN.split(", "),
        even,
        [
            how(data, pools, votes),
            f"Agreement with the full vote against as many samples each, over all data sets: {verdict(gains)}.",
            "## Against stopping rules, each at the samples that it takes",
            "The samples that a rule takes over all questions are the budget here, which every batch must keep by "
            f"itself. Points of agreement, less the rule's, over all data sets: {'; '.join(counted)}.",
            table(STOPPED.split(", "), stopped),
        ],
        seeds=[SEED],
        results=QUICK if quick else RESULTS,
    )


def pools_of(data, quick=False):
    """Return a pool for each data set, and one for all of them with equally many streams."""
    orders = {name: 1 if quick else ORDERS.get(name, OTHER_ORDERS) for name in data}
    pools = {name: Pool((Streams.draw(data[name], orders[name], SEED),)) for name in data}
    rng, parts = np.random.default_rng(SEED), []
    for questions in data.values():
        streams = MIXED // OTHER_ORDERS if quick else MIXED
        some = rng.permutation(len(questions))[:streams]
        parts.append(Streams.draw([questions[place] for place in some], max(1, streams // len(some)), SEED))
    return pools | {MIXTURE: Pool(tuple(parts))}


def alone(pool, rule):
    """Run ``rule`` on each stream by itself."""
    decided = decide(pool.answers, rule, M)
    return pool.found(decided.samples, decided.answer)


def together(pool, budget, rounds):
    """Run ``SharedVotes`` on random batches of about ``BATCH`` streams, with ``budget`` samples a stream on average."""
    answers = pool.answers
    allocator = SharedVotes(budget, min_samples=FIRST, max_samples=M, rounds=rounds)
    samples, chosen = np.zeros(len(answers), np.int64), np.full(len(answers), None, object)
    order = np.random.default_rng(SEED).permutation(len(answers))
    for places in np.array_split(order, max(1, round(len(order) / BATCH))):
        batch = replay(allocator, [answers[place] for place in places])
        samples[places] = batch.asked
        chosen[places] = [allocator.winner(batch, q) for q in range(len(places))]
    return pool.found(samples, list(chosen))


def replay(allocator, streams):
    """Return the finished batch of prompts that ``streams`` answer in order."""
    waiting = {str(q): (Rollout(answer=answer) for answer in stream) for q, stream in enumerate(streams)}

    def sample(prompts, counts):
        return [[next(waiting[prompt.text]) for _ in range(n)] for prompt, n in zip(prompts, counts, strict=True)]

    return collect(allocator, [Prompt(text) for text in waiting], sample)


def difference(pool, found, base):
    """Return how much more often ``found`` agreed than ``base``, on the same streams."""
    return pool.mean(found.agreed.astype(float) - base.agreed)


def percent(pool, found):
    """Return how often ``found`` agreed, in percent."""
    return f"{100 * pool.mean(found.agreed).value:.1f}"


def points(gain):
    """Return a difference in percentage points, with its interval."""
    return gain.show("+.1f", 100)


def verdict(gains):
    """Return how many of the intervals are above 0, and how many below."""
    more, less = sum(gain.low > 0 for gain in gains), sum(gain.high < 0 for gain in gains)
    return f"more in {more} of {len(gains)} cells, less in {less}, and no sure difference in {len(gains) - more - less}"


def how(data, pools, votes):
    """Return the note that says what was measured."""
    sizes = ", ".join(f"{name} ({len(data[name]):,} questions, {pools[name].parts[0].orders} orders)" for name in data)
    missing = sorted({"gsm8k", "aime24"} - data.keys())
    return (
        f"`shared_votes` with N = {FIRST}, at most {M} samples a prompt and {ROUNDS[0]} rounds, in random batches of "
        f"about {BATCH}, against the first so many samples of every prompt. Agreement is with the majority of all {M}. "
        f"Gains in points, with 95% bootstrap intervals over questions. Data: {sizes}; `{MIXTURE}`: {MIXED} streams of "
        "each, with equal weights."
        + (f" Skipped: {', '.join(missing)}, because {votes.name} is missing." if missing else "")
    )


if __name__ == "__main__":
    arguments = options(__doc__, votes=VOTES, quick=False)
    main(arguments.votes, arguments.quick)
