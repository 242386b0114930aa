"""Split a budget over a batch from success probabilities, and see what that does to the gradient variance."""

import numpy as np

from apportion.solve import solve

success = np.random.default_rng(0).beta(0.7, 0.9, size=64)
for estimator in ("rloo", "dr_grpo"):
    result = solve(success, budget=8 * 64, estimator=estimator, low=3, high=24)
    ratio = result.objective / result.uniform_objective
    span = f"{result.counts.min()} to {result.counts.max()} rollouts a prompt"
    print(f"{estimator}: {span}, predicted gradient variance x{ratio:.2f} of uniform's")
