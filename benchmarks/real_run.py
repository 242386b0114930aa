"""Replay a real GRPO run to predictors: how well do they foresee the next group, and what do VIP and HORA gain by it?

Each epoch visits all prompts in a random order, in batches of 128. A predictor predicts a batch, then sees its recorded
group of 8. VIP and HORA plan by the same predictions; what they would have got is computed in expectation, from success
rates in a window of visits.

    python -m benchmarks.real_run
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable, Mapping

import numpy as np

from apportion import Batch, Belief
from apportion.predictors import (
    DiscountedCounts,
    EmpiricalBayes,
    GaussianProcess,
    PrecomputedEmbeddings,
    Predictor,
    Shuffled,
    UniformPrior,
)
from apportion.presets import vip_as_released
from apportion.replay.foresight import batches_of, foresee
from benchmarks.common import table, write
from benchmarks.expected import HIGH, HORA_HIGH, LOW, SIZE, hora, near_truth, variances, vip
from benchmarks.real_run_data import grpo_run
from benchmarks.real_run_tables import Replayed, all_seeds, errors, interval, ratio
from benchmarks.ridge import Ridge

SEEDS = (0, 1, 2)
BATCH, GROUP = 128, SIZE
EPOCHS, SHOWN = 8, (0, 1, 2, 7)

RELEASED = vip_as_released("rloo", SIZE).allocator
BY_PRESET = ("gp as released", "gp as released, mean reset")
"""Predictors whose rollouts are split by the whole preset: its bounds and its bonus."""

Predictors = Mapping[str, Callable[[], Predictor]]


class Resetting(GaussianProcess):
    """The process as the released class is by default: each update begins at the prior mean again."""

    def update(self, batch):
        self._mean[:], self._weights[:] = 0.0, 0.0
        super().update(batch)


def predictors(data):
    """Return the predictors to compare, by name, with the embeddings and known rates of ``data``."""
    embedder = PrecomputedEmbeddings.from_array(data.prompts, data.embeddings)
    known = {str(q): float(rate) for q, rate in enumerate(data.rates) if not np.isnan(rate)}
    process = RELEASED.predictor
    settings = {key: getattr(process, key) for key in ("bandwidth", "noise", "clip", "prior_mean")}
    return {
        "one half for all": UniformPrior,
        "counts": DiscountedCounts,
        "ridge": lambda: Ridge(embedder),
        "gp": lambda: GaussianProcess(embedder),
        "gp, noise 1": lambda: GaussianProcess(embedder, noise=1.0),
        "gp, width .4": lambda: GaussianProcess(embedder, bandwidth=0.4),
        "gp as released": lambda: GaussianProcess(embedder, **settings),
        "gp as released, mean reset": lambda: Resetting(embedder, **settings),
        "empirical Bayes": EmpiricalBayes,
        "empirical Bayes, embeddings": lambda: EmpiricalBayes(embedder),
        "empirical Bayes, embeddings, shuffled": lambda: Shuffled(EmpiricalBayes(embedder)),
        "empirical Bayes, known rates": lambda: EmpiricalBayes(rates=known),
        "empirical Bayes, both": lambda: EmpiricalBayes(embedder, known),
    }


def replay(predictor, data, epochs, seed, allocate=True, rule=None):
    """Return what ``predictor`` says of each group before it sees it, and what VIP and HORA make of that.

    ``rule`` splits the rollouts in place of VIP by the believed variance alone.
    """
    record = data.record(epochs)
    batches = batches_of(record, seed, BATCH)
    belief = foresee(predictor, record, batches)
    found = Replayed(belief.mean.reshape(epochs, -1), [[] for _ in range(epochs)], [[] for _ in range(epochs)])
    for places in batches if allocate else []:
        epoch, some = int(record.step[places[0]]), record.prompt[places]
        before = Belief(belief.alpha[places], belief.beta[places], belief.variance[places])
        truth = near_truth(data.shares, epoch)[some]
        if rule is None:
            found.variances[epoch].append(vip(before.variance, truth))
        else:
            counts = rule.plan(Batch.start([data.prompts[q] for q in some], before)).counts
            found.variances[epoch].append(variances(truth, counts))
        found.hits[epoch].append(hora(before, record.totals[places], truth))
    return found


def main():
    data = grpo_run()
    found = {
        name: [replay(make(), data, EPOCHS, seed, rule=RELEASED if name in BY_PRESET else None) for seed in SEEDS]
        for name, make in predictors(data).items()
    }
    future = [near_truth(data.shares, epoch, without=True) for epoch in SHOWN]
    seen = [interval((mean - data.shares[:, epoch]) ** 2) for mean, epoch in zip(future, SHOWN, strict=True)]
    epochs = [f"epoch {epoch}" for epoch in SHOWN]
    gains = [
        [f"{name}, VIP", *(ratio(all_seeds(r.variances[e] for r in runs)) for e in SHOWN)]
        for name, runs in found.items()
    ]
    gains.append(["exact p, VIP", *(ratio(best(data, epoch)[0]) for epoch in SHOWN)])
    hits = [
        [f"{name}, hits", *(ratio(all_seeds(r.hits[e] for r in runs)) for e in SHOWN)] for name, runs in found.items()
    ]
    hits.append(["exact p, hits", *(ratio(best(data, epoch)[1]) for epoch in SHOWN)])
    first = [*errors(found, data.shares, SHOWN), ["sees the future", *seen]]
    write(
        "real_run",
        "Predictors along a real GRPO run",
        ["predictor", *epochs],
        first,
        [
            NOTES[0],
            table(["VIP's variance over uniform's", *epochs], gains),
            NOTES[1],
            table(["HORA's hits over uniform's", *epochs], hits),
            NOTES[2],
        ],
        seeds=SEEDS,
    )


def best(data, epoch):
    """Return ``vip`` and ``hora`` with the success rates themselves, in batches of the first seed's size."""
    truth, right = near_truth(data.shares, epoch), data.rewards[:, epoch].sum(axis=1)
    order, certain = np.random.default_rng(0).permutation(len(truth)), 1e9
    batches = [order[first : first + BATCH] for first in range(0, len(order), BATCH)]
    known = [Belief.from_mean(truth[some], certain) for some in batches]
    return (
        [vip(belief.variance, truth[some]) for belief, some in zip(known, batches, strict=True)],
        [hora(belief, right[some], truth[some]) for belief, some in zip(known, batches, strict=True)],
    )


NOTES = [
    "Mean squared error of the predicted share of right answers in the next group of 8, whose own binomial noise is in "
    "it. In brackets: 95%, bootstrap over the 1,209 problems. Epoch e is the e-th visit of each problem; 128 problems "
    "a batch. All predictors have their default settings, except `noise 1`. Known rates are Qwen2.5-Math-7B's, for 898 "
    "of the problems. 'Sees the future' is the mean of up to nine visits around.",
    f"RLOO's gradient variance in expectation under VIP ({LOW} to {HIGH} a prompt, {GROUP} on average), over that "
    f"under {GROUP} each, at the success rates of a window of ten visits around. 95%: bootstrap over batches of all "
    "seeds. `Shuffled` has the same beliefs at random prompts. `As released` is the whole preset `vip_as_released`: 4 "
    "to 32 a prompt, and a bonus for hard prompts.",
    f"Expected prompts with a right answer among {GROUP} extra rollouts a prompt, which HORA places (at most "
    f"{HORA_HIGH} a prompt in all), over the same with {GROUP} extra for each. HORA as published has "
    "`one half for all`.",
]


if __name__ == "__main__":
    main()
