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
  update. The alarm sees the shaping of each update, and no accuracy. ``agreement`` is known of the ungated runs, which
  were trained once more for it, with the same curves up to rounding.
- Runs go seed by seed, first all but those gated by the reward, so that what is unfinished leaves whole seeds. Losses
  are told as gains are.

    python -m benchmarks.shaped_rewards                # train what ``DATA`` lacks, then the table
    python -m benchmarks.shaped_rewards --minutes 30   # no further run after so long
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
from apportion.scheduler.shaping import ShapingAlarm, StepShaping, shaping_of_groups
from benchmarks.common import RESULTS, ROOT, options, spread, write

SEEDS = tuple(range(200, 210))
SET = SEEDS[:3]
"""The thresholds of ``ShapingAlarm`` were set on these seeds."""
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
COLUMNS = (
    *("outcome", "reward", "tokens", "entropy", "mixed", "phantom_groups", "phantom_share", "agreement"),
    "accuracy",
)
"""Of each update: means over its rollouts, the shares of mixed and of phantom groups, the latter's share of squared
advantages, ``agreement`` of ``StepShaping``, and the accuracy after it, nan between two evaluations."""
SHOWN = {"phantom_groups": "phantom groups", "phantom_share": "of squared advantages", "tokens": "tokens"}
DIED, KEPT, LOST = 0.5, 0.95, 0.05
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
        shaping = shaping_of_groups(batch.rollouts, None)
        agreement = np.nan if shaping is None else shaping.agreement
        self.measured.append((*means, mixed.mean(), phantom.mean(), share, agreement, np.nan))


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


def read_runs():
    """Return the runs in ``DATA`` by arm and seed."""
    if not DATA.exists():
        return {}
    with np.load(DATA) as stored:
        return dict(
            zip(zip(stored["arms"].tolist(), stored["seeds"].tolist(), strict=True), stored["runs"], strict=True)
        )


def save_runs(runs):
    """Write runs by arm and seed to ``DATA``, in the order of the arms."""
    keys = sorted(runs, key=lambda key: ([*arms()].index(key[0]), key[1]))
    names, seeds = zip(*keys, strict=True)
    values = np.array([runs[key] for key in keys], np.float32)
    np.savez_compressed(DATA, arms=names, seeds=seeds, columns=COLUMNS, runs=values)


def train_missing(runs, minutes):
    """Train what ``runs`` lacks until so many minutes have passed, and save after each run."""
    end = time.monotonic() + 60 * minutes
    for gates in (("none", "outcome"), ("reward",)):
        for seed, (name, (shaping, gate)) in product(SEEDS, arms().items()):
            if gate not in gates or (name, seed) in runs:
                continue
            if time.monotonic() > end:
                return
            with TemporaryDirectory() as directory:
                runs[name, seed] = train(shaping, gate, seed, Path(directory))
            save_runs(runs)
            print(name, seed, accuracy_of(runs[name, seed]).round(2).tolist(), flush=True)


def accuracy_of(run):
    """Return the accuracy at each evaluation of a run."""
    return run[~np.isnan(run[:, -1]), -1]


def alarm_of(run):
    """Return the update at which ``ShapingAlarm`` calls a run sick; None if it does not."""
    alarm = ShapingAlarm()
    for step, row in enumerate(run[1:], 1):
        found = dict(zip(COLUMNS, row.tolist(), strict=True))
        rest, gradient = found["reward"] - found["outcome"], found["phantom_share"]
        row = StepShaping(found["outcome"], rest, found["phantom_groups"], gradient, found["agreement"])
        if alarm.add(row, step):
            return step
    return None


def lost_at(run):
    """Return the update at whose evaluation the accuracy is ``LOST`` below its highest so far; None if it never is."""
    accuracy, steps = accuracy_of(run), np.flatnonzero(~np.isnan(run[:, -1]))
    return next(iter(steps[accuracy < np.maximum.accumulate(accuracy) - LOST].tolist()), None)


def alarm_statement(runs, kept):
    """Return what the alarm said of the ungated ``runs``, which kept shares of the accuracy without shaping.

    Runs of the seeds that set its thresholds are left out. Gated runs have no alarm.
    """
    kept = {key: share for key, share in kept.items() if key[0].endswith("none") and key[1] not in SET}
    alarms = {key: alarm_of(runs[key]) for key in kept}
    died = [key for key, share in kept.items() if share < DIED]
    first = [alarms[key] is not None and alarms[key] <= (lost_at(runs[key]) or np.inf) for key in died]
    harmed = [key for key, share in kept.items() if DIED <= share < KEPT]
    healthy = [key for key, share in kept.items() if share >= KEPT]

    def told(keys):
        return f"{sum(alarms[key] is not None for key in keys)} of {len(keys)}"

    return (
        f"Seeds {SET[0]} to {SET[-1]} set the thresholds of the alarm. With others and no gate it was raised in "
        f"{told(died)} runs that died, in {sum(first)} of these before the accuracy on held-out problems was {LOST} "
        f"below its highest; in {told(harmed)} runs that ended below {KEPT:.0%} and did not die; in {told(healthy)} "
        f"runs that kept {KEPT:.0%}. `shaped_healthy.md` has more healthy ones."
    )


def main(minutes, results=RESULTS):
    """Train what ``DATA`` lacks for so many minutes, and write the table of the seeds that have no shaping, too."""
    runs = read_runs()
    train_missing(runs, minutes)
    paired = {seed: float(accuracy_of(runs["no shaping", seed])[-1]) for name, seed in runs if name == "no shaping"}
    rows, kept = [], {}
    for name in arms():
        own = {seed: runs[name, seed] for seed in paired if (name, seed) in runs}
        if not own:
            continue
        last = {seed: float(accuracy_of(run)[-1]) for seed, run in own.items()}
        shares = {(name, seed): last[seed] / paired[seed] for seed in own}
        kept |= shares
        ends = [[run[1:, COLUMNS.index(each)] for run in own.values()] for each in SHOWN]
        means = [np.mean(each, axis=0) for each in ends]
        died = sum(share < DIED for share in shares.values())
        alarms = sum(alarm_of(run) is not None for run in own.values()) if name.endswith("none") else "-"
        words = spread([*last.values()], ".3f"), spread([*shares.values()], ".2f"), died, alarms
        rows.append([name, len(own), *words, *(f"{each[:5].mean():.2f}, {each[-5:].mean():.2f}" for each in means)])
    ungated = [share for (name, _), share in kept.items() if name.startswith("length") and name.endswith("none")]
    gated = [share for (name, _), share in kept.items() if name.endswith("gate outcome")]
    write(
        "shaped_rewards",
        "Shaped rewards: phantom groups, and a gate by the outcome",
        ["arm", "runs", "accuracy at the end", "of that without shaping", "died", "alarms", *SHOWN.values()],
        rows,
        [
            "The lab's base `notes`, GRPO, 48 updates of 8 prompts by 8 rollouts; the protocol is in "
            "`benchmarks/shaped_rewards.py`. Accuracy is exact on 64 held-out problems. 95% intervals over seeds, "
            "paired with the run of the same seed without shaping. *Died*: less than half of its accuracy. The other "
            "columns are means of the first and of the last five updates.",
            f"{sum(share < DIED for share in ungated)} of {len(ungated)} ungated runs with a length term died. With "
            f"the gate by the outcome {sum(share >= KEPT for share in gated)} of {len(gated)} runs kept {KEPT:.0%} of "
            f"the accuracy without shaping, the mean is {np.mean(gated):.2f}, the least {min(gated):.2f}.",
            alarm_statement(runs, kept),
            f"{len(runs)} of the {len(SEEDS) * len(arms())} runs of the protocol.",
        ],
        seeds=sorted(paired),
        results=results,
    )


if __name__ == "__main__":
    main(options(__doc__, minutes=600.0).minutes)
