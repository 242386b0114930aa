"""Judge HORA's learned priors along a recorded GRPO run: how well each foresees the next group, and the hits by it.

The logistic probes read MiniLM embeddings of the prompts, because no hidden states of the run were recorded. Where a
probe is pretrained, it knows the outcomes of the first visit of all prompts, and the replay begins at the second.

    python -m benchmarks.learned_priors
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable

from apportion.predictors import (
    DiscountedCounts,
    EmpiricalBayes,
    GaussianProcess,
    HiddenDual,
    HiddenOnline,
    HiddenStatic,
    MovingAverage,
    PrecomputedEmbeddings,
    Predictor,
    Ridge,
    UniformPrior,
)
from apportion.replay.foresight import batches_of, foresee
from benchmarks.common import write
from benchmarks.real_run_data import Recorded, grpo_run
from benchmarks.real_run_tables import Replayed, interval, squared

SEEDS = (0, 1, 2)
BATCH = 128
EPOCHS, SHOWN = 8, (0, 1, 4, 7)
FIXED = "one half for all, Beta(1, 1)"


def predictors(data: Recorded) -> dict[str, Callable[[], Predictor]]:
    """Return the predictors by name, with the embeddings of ``data``."""
    embedder = PrecomputedEmbeddings.from_array(data.prompts, data.embeddings)
    return {
        FIXED: UniformPrior,
        "counts": DiscountedCounts,
        "moving average": MovingAverage,
        "ridge": lambda: Ridge(embedder),
        "empirical Bayes": EmpiricalBayes,
        "empirical Bayes, embeddings": lambda: EmpiricalBayes(embedder),
        "hidden_static": lambda: HiddenStatic(embedder),
        "hidden_static, weight decay .01": lambda: HiddenStatic(embedder, weight_decay=0.01),
        "hidden_online": lambda: HiddenOnline(embedder),
        "hidden_dual": lambda: HiddenDual(embedder),
        "gp": lambda: GaussianProcess(embedder),
        "gp, prior mean -1": lambda: GaussianProcess(embedder, prior_mean=-1.0),
    }


def replay(predictor: Predictor, data: Recorded, seed: int, epochs: int = EPOCHS) -> Replayed:
    """Return what ``predictor`` says of each group before it sees it."""
    record = data.record(epochs)
    belief = foresee(predictor, record, batches_of(record, seed, BATCH))
    return Replayed(belief.mean.reshape(epochs, -1))


def main() -> None:
    data = grpo_run()
    found = {name: [replay(make(), data, seed) for seed in SEEDS] for name, make in predictors(data).items()}
    epochs = [f"epoch {epoch}" for epoch in SHOWN]
    write(
        "learned_priors",
        "HORA's learned priors along a real GRPO run",
        ["predictor", *epochs],
        [[name, *(interval(squared(runs, data.shares, e)) for e in SHOWN)] for name, runs in found.items()],
        [NOTE],
        seeds=SEEDS,
    )


NOTE = (
    "Mean squared error of the predicted share of right answers in the next group of 8. In brackets: 95%, bootstrap "
    f"over the 1,209 problems. Epoch e is the e-th visit of each problem; {BATCH} problems a batch. The probes read "
    "MiniLM embeddings; hidden states were not recorded. Three of our choices were taken after a look at this run: "
    "the scale of the features, that Adam's running means start anew at each update, and the weight decay of the "
    "frozen probe."
)


if __name__ == "__main__":
    main()
