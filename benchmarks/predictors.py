"""Measure how well each predictor foresees the exact success of prompts that were never sampled, under a fixed policy.

Embeddings are of the problem as the policy reads it, or of the same problem in words.

    python -m benchmarks.predictors
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable

import numpy as np

from apportion import Belief, Plan, Prompt
from apportion.lab.policy.base import base_policy
from apportion.lab.policy.exact import exact_success
from apportion.lab.policy.sampler import LedgerSampler
from apportion.lab.report.results import SeedInterval
from apportion.lab.world.task import Problem, training_problems
from apportion.predictors import GaussianProcess, MovingAverage, Predictor, Ridge, SentenceTransformerEmbedder
from apportion.types import Batch
from benchmarks.common import write

SEEDS = range(10)
PROBLEMS, OBSERVED, BATCH, ROLLOUTS = 512, 256, 32, 8
TEXTS: dict[str, Callable[[Problem], str]] = {"symbols": lambda problem: problem.text, "words": Problem.describe}
PREDICTORS: dict[str, Callable[[], Predictor]] = {
    "gp": lambda: GaussianProcess(SentenceTransformerEmbedder()),
    "gp, noise 1": lambda: GaussianProcess(SentenceTransformerEmbedder(), noise=1.0),
    "ridge": lambda: Ridge(SentenceTransformerEmbedder()),
    "moving_average": MovingAverage,
}


def main() -> None:
    rows = []
    for base in ("easy", "medium", "hard"):
        policy = base_policy(base)
        found: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for seed in SEEDS:
            problems = training_problems(PROBLEMS, seed)
            success = exact_success(policy, problems)
            rollouts = LedgerSampler(policy, seed)([p.prompt() for p in problems[:OBSERVED]], [ROLLOUTS] * OBSERVED)
            for text, rendered in TEXTS.items():
                prompts = [Prompt(rendered(problem)) for problem in problems]
                for name, make in PREDICTORS.items():
                    if name == "moving_average" and text == "words":
                        continue
                    predicted = _predicted(make(), prompts, rollouts)
                    found.setdefault((name, text), []).append(_quality(predicted, success[OBSERVED:]))
        for (name, text), qualities in found.items():
            errors, correlations = np.transpose(qualities)
            rows.append([base, name, "-" if name == "moving_average" else text, _mean(errors), _mean(correlations)])
    write(
        "predictors",
        "Predicted success of unseen prompts",
        ["base", "predictor", "embedding of", "mean absolute error", "correlation"],
        rows,
        [
            f"{OBSERVED} problems sampled {ROLLOUTS} times each in batches of {BATCH}, the policy fixed; exact success "
            f"of the other {PROBLEMS - OBSERVED} predicted. Mean and 95% interval (Student's t) over seeds. The moving "
            "average predicts the mean of the others for an unseen prompt, so it has no correlation. MiniLM "
            "embeddings. Every predictor has its default settings, except `noise 1`; the paper has no noise.",
        ],
        seeds=list(SEEDS),
    )


def _predicted(predictor: Predictor, prompts: list[Prompt], rollouts: list[list]) -> np.ndarray:
    predictor.prepare(prompts)
    for first in range(0, OBSERVED, BATCH):
        batch = Batch.start(prompts[first : first + BATCH], Belief.uniform(BATCH))
        predictor.update(batch.add(Plan([ROLLOUTS] * BATCH), rollouts[first : first + BATCH]))
    return predictor.predict(prompts[OBSERVED:]).mean


def _quality(predicted: np.ndarray, success: np.ndarray) -> tuple[float, float]:
    error = float(np.abs(predicted - success).mean())
    return error, float(np.corrcoef(predicted, success)[0, 1]) if predicted.std() > 1e-9 else float("nan")


def _mean(values: np.ndarray) -> str:
    return "-" if np.isnan(values).any() else str(SeedInterval.of(values))


if __name__ == "__main__":
    main()
