"""Shaped rewards in the lab: what phantom groups do to accuracy, and what a gate by the outcome keeps.

The protocol, fixed before the runs:

- The base ``notes`` writes notes before its answer, or leaves them out, and pauses. The reward is the outcome plus a
  weight times the share of the allowed tokens that a completion has: ``LENGTHS``, three of each sign, under each of
  which any right completion is worth more than any wrong one. A seventh shaping rewards completions that state an
  answer. Quick looks with seed 0 chose the weights: a negative one or +1 kills, +0.1 and +0.3 should do no harm.
- Every run is GRPO with 8 prompts of 8 rollouts an update. ``TRAINING`` is the same for all arms. Equal seeds have
  equal prompts.
- The arms of each shaping: ungated; gated by the outcome, which is ``outcome_gate=True``; gated by the reward, which
  leaves groups of equal rewards out of the update, as a filter by the trained reward does. One arm has no shaping.
- Accuracy is the exact success on held-out problems. A run has *died* if it ends below half of the accuracy that the
  run of its seed without shaping ends with. The gate must keep 95% of it.
- A phantom group has equal outcomes and different rewards. Its share of groups and of squared advantages is that of an
  update. The alarm sees outcome, reward, length, entropy and phantoms of what is trained on, and no accuracy.
- Runs go seed by seed, first all but those gated by the reward, so that what is unfinished leaves whole seeds. Losses
  are told as gains are.

    python -m benchmarks.shaped_rewards                # train what is missing, then the table
    python -m benchmarks.shaped_rewards --minutes 30   # stop before the next run after so long
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import time
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from apportion.allocators import Uniform
from apportion.lab.training.metrics import read_metrics
from apportion.lab.training.settings import Training
from apportion.lab.training.trainer import Trainer
from benchmarks.common import CELLS, ROOT, options

SEEDS = tuple(range(200, 210))
LENGTHS = (-0.3, 1.0, -0.1, 0.3, -1.0, 0.1)
"""Weights of the length, in the order of the runs of a seed."""
TRAINING = {
    "base": "notes",
    "estimator": "grpo",
    "prompts_per_step": 8,
    "steps": 48,
    "learning_rate": 1e-3,
    "held_out": 64,
    "evaluate_every": 4,
    "checkpoint_every": 10**6,
    "rollout_log": "none",
}
GROUP = 8
COLUMNS = ("outcome", "reward", "tokens", "entropy", "mixed", "phantom_groups", "phantom_share", "accuracy")
"""Of each update: means over its rollouts, the shares of mixed and of phantom groups, the latter's share of squared
advantages, and the accuracy after it, nan between two evaluations."""
DATA = ROOT / "benchmarks" / "data" / "shaped_rewards.npz"


def arms():
    """Return the shaping and the gate of every arm by its name, in the order of the runs."""
    shapings = {f"length {weight:+}": {"length_weight": weight} for weight in LENGTHS}
    shapings["format +0.3"] = {"format_weight": 0.3}
    found = {"no shaping": ({}, "none")}
    for gates in (("none", "outcome"), ("reward",)):
        found |= {f"{name}, gate {gate}": (shaping, gate) for name, shaping in shapings.items() for gate in gates}
    return found


class Measured(Trainer):
    """A trainer that measures ``COLUMNS``, and ``drops`` groups of equal rewards from the update or not."""

    def __init__(self, settings, seed, directory, drops):
        super().__init__(settings, Uniform(GROUP), seed, directory)
        self.measured, update = [], self.learner.update
        if drops:
            self.learner.update = lambda groups, *own: update([group for group in groups if group.spread > 0], *own)

    def _log(self, batch, groups):
        rewards = np.array([group.rewards for group in groups])
        outcomes = np.array([[rollout.correct for rollout in group.rollouts] for group in groups], float)
        squares = np.square(self.decisions.advantages(groups)).reshape(rewards.shape).sum(axis=1)
        mixed = np.ptp(outcomes, axis=1) > 0
        phantom = ~mixed & (np.ptp(rewards, axis=1) > 0)
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        entropy = -np.concatenate([rollout.completion.logprobs for rollout in rollouts]).mean()
        means = outcomes.mean(), rewards.mean(), np.mean([rollout.tokens for rollout in rollouts]), entropy
        share = squares[phantom].sum() / max(squares.sum(), 1e-12)
        self.measured.append((*means, mixed.mean(), phantom.mean(), share, np.nan))


def train(shaping, gate, seed, directory):
    """Return ``COLUMNS`` of a run [1 + updates, columns]. The first row has the accuracy of the base alone."""
    settings = Training(**TRAINING, **shaping, outcome_gate=gate == "outcome")
    trainer = Measured(settings, seed, directory, drops=gate == "reward")
    accuracy = []
    trainer.run(lambda record: accuracy.append(record.get("success", np.nan)) or True)
    found = np.full((1 + TRAINING["steps"], len(COLUMNS)), np.nan)
    found[1:] = trainer.measured
    found[1:, -1] = accuracy
    found[0, -1] = read_metrics(trainer.metrics)[0]["success"]
    return found


def train_missing(folder, minutes):
    """Train the runs that ``folder`` lacks until so many minutes have passed."""
    end = time.monotonic() + 60 * minutes
    for gates in (("none", "outcome"), ("reward",)):
        for seed, (name, (shaping, gate)) in product(SEEDS, arms().items()):
            path = folder / f"{name}, {seed}.npy"
            if gate not in gates or path.exists():
                continue
            if time.monotonic() > end:
                return
            started = time.process_time()
            with TemporaryDirectory() as directory:
                found = train(shaping, gate, seed, Path(directory))
            folder.mkdir(parents=True, exist_ok=True)
            np.save(path, found.astype(np.float32))
            accuracy = found[~np.isnan(found[:, -1]), -1].round(2).tolist()
            print(f"{name}, {seed}: {accuracy}, {time.process_time() - started:.1f} s of a core", flush=True)


if __name__ == "__main__":
    train_missing(CELLS / "shaped_rewards", options(__doc__, minutes=600.0).minutes)
