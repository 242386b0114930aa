"""Shaped rewards that do no harm: does the alarm stay silent in healthy runs of all sizes?

The protocol, fixed before the runs:

- Each of ``SEEDS`` draws a setting: the base, 1 to 8 prompts an update, groups of 4 to 16, an estimator, a learning
  rate of 1e-4 to 1e-3. The runs of a seed have these settings and the same prompts, without shaping, and with each of
  ``SHAPINGS``: a format term, small length terms of both signs, a term of noise that is fixed for a completion, a term
  for written notes, and a length term that kills, under the gate by the outcome. Without notes two of these say nothing
  that the others do not, and are left out.
- A shaped run is *healthy* if its accuracy, exact on held-out problems, ends at ``KEPT`` of that of its seed's run
  without shaping or above, and at no evaluation was ``LOST`` below its highest. Others are told apart, not left out.
- A run without shaping is healthy if it was never ``LOST`` below its highest. It has no phantom groups, and an alarm
  that reads no shaping, so these are not counted among the runs that test the alarm.
- *Phantoms that train*: they have a tenth of the squared advantages by the estimator that ran, over all updates.
  *Named*: the shaping of a step, which every trainer logs, has phantom groups.
- The alarm reads what a driver gives it, the shaping of each update, and nothing under a gate. Seeds below 1000 may be
  looked at when its thresholds are chosen, and are not reported.

    python -m benchmarks.shaped_healthy                # train what ``DATA`` lacks, then the table
    python -m benchmarks.shaped_healthy --minutes 30   # no further seed after so long
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import hashlib
import random
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from apportion.allocators import Uniform
from apportion.baselines import Optimal
from apportion.lab.training.settings import Training
from apportion.lab.training.trainer import Trainer
from apportion.lab.world.task import LABELS, decode
from apportion.scheduler.shaping import DIVIDED, ShapingAlarm, StepShaping, shaping_of_groups
from benchmarks.common import RESULTS, ROOT, options, spread, write
from benchmarks.shaped_rewards import DIED, KEPT, LOST, accuracy_of, lost_at

SEEDS = tuple(range(1000, 1090))
STEPS, EVALUATE, HELD_OUT = 40, 8, 64
SETTINGS = {
    "base": ("notes", "medium"),
    "prompts_per_step": (1, 2, 4, 8),
    "group": (4, 8, 16),
    "estimator": ("grpo", "rloo", "dr_grpo", "reinforce"),
    "learning_rate": (1e-4, 3e-4, 1e-3),
}
COLUMNS = ("outcome", "rest", "groups", "gradient", "agreement", "differ", "centred", "share", "accuracy")
"""Of each update: the fields of ``StepShaping``, nan without shaping, the share of groups whose rewards differ, the
phantom groups' share of the sum of squares within groups and of the squared advantages that trained, and the accuracy
after it, nan between two evaluations."""
SHAPINGS = {
    "none": {},
    "format +0.3": {"format_weight": 0.3},
    "length +0.03": {"length_weight": 0.03},
    "length -0.01": {"length_weight": -0.01},
    "noise 0.1": {"noise": 0.1},
    "notes +0.1": {"notes": 0.1},
    "length -0.3, gated": {"length_weight": -0.3, "outcome_gate": True},
}
ONLY_NOTES = ("length -0.01", "notes +0.1")
TRAINS = 0.1
DATA = ROOT / "benchmarks" / "data" / "shaped_healthy.npz"


def setting_of(seed):
    """Return the setting that ``seed`` draws."""
    rng = random.Random(f"shaped {seed}")
    return {name: rng.choice(values) for name, values in SETTINGS.items()}


def names_of(seed):
    """Return the shapings of the runs of ``seed``."""
    return [name for name in SHAPINGS if setting_of(seed)["base"] == "notes" or name not in ONLY_NOTES]


def share_of_noise(text):
    """Return a number in [0, 1) that is fixed for a completion."""
    return hashlib.blake2b(text.encode(), digest_size=1).digest()[0] / 256


class Measured(Trainer):
    """A trainer that measures ``COLUMNS``, with further terms of the reward for ``noise`` and written ``notes``."""

    def __init__(self, settings, group, seed, directory, noise, notes):
        super().__init__(settings, Uniform(group), seed, directory)
        self.measured, judged = [], self.sampler._reward

        def reward(problem, completions):
            texts = [decode(completion.tokens) for completion in completions]
            written = [sum(text.count(label) for label in LABELS) / len(problem.operations) for text in texts]
            terms = [
                noise * share_of_noise(text) + notes * min(1, own) for text, own in zip(texts, written, strict=True)
            ]
            pairs = zip(judged(problem, completions), terms, strict=True)
            return [replace(rollout, reward=rollout.reward + term) for rollout, term in pairs]

        if noise or notes:
            self.sampler._reward = reward

    def _exact(self, prompts):
        return np.zeros(len(prompts))  # only for metrics that are not read here

    def _log(self, batch, groups):
        advantages = np.square(self.used)
        owner = np.repeat(np.arange(len(groups)), [len(group.rollouts) for group in groups])
        squares = np.bincount(owner, advantages)
        differ = np.array([group.spread > 0 for group in groups])
        phantom = differ & ~np.array([group.informative for group in groups])
        found = shaping_of_groups(batch.rollouts, None) or (np.nan,) * 5
        within = np.array([group.spread**2 for group in groups])  # the groups have equal sizes
        centred, share = (each[phantom].sum() / max(each.sum(), 1e-12) for each in (within, squares))
        self.measured.append((*found, differ.mean(), centred, share, np.nan))


def train(seed, name, directory):
    """Return ``COLUMNS`` of a run [1 + updates, columns]. The first row has the accuracy of the base alone."""
    setting, own = setting_of(seed), dict(SHAPINGS[name])
    group, noise, notes = setting.pop("group"), own.pop("noise", 0.0), own.pop("notes", 0.0)
    settings = Training(
        **setting,
        **own,
        baseline=Optimal() if setting["estimator"] == "reinforce" else None,
        steps=STEPS,
        held_out=HELD_OUT,
        evaluate_every=EVALUATE,
        checkpoint_every=10**6,
        rollout_log="none",
    )
    trainer = Measured(settings, group, seed, directory, noise, notes)
    weighted = trainer.decisions.advantages

    def advantages(groups, baseline=None):
        trainer.used = weighted(groups, baseline)
        return trainer.used

    object.__setattr__(trainer.decisions, "advantages", advantages)
    found = np.full((1 + STEPS, len(COLUMNS)), np.nan)
    found[0, -1] = trainer._evaluate()["success"]
    accuracy = []
    trainer.run(lambda record: accuracy.append(record.get("success", np.nan)) or True)
    found[1:], found[1:, -1] = trainer.measured, accuracy
    return found


def read_runs():
    """Return the runs in ``DATA`` by seed and shaping."""
    if not DATA.exists():
        return {}
    with np.load(DATA) as stored:
        keys = zip(stored["seeds"].tolist(), stored["names"].tolist(), strict=True)
        return dict(zip(keys, stored["runs"], strict=True))


def train_missing(runs, minutes):
    """Train the runs of ``SEEDS`` that ``runs`` lacks until so many minutes have passed, and save after each seed."""
    end = time.monotonic() + 60 * minutes
    for seed in SEEDS:
        for name in names_of(seed):
            if (seed, name) not in runs:
                if time.monotonic() > end:
                    return
                with TemporaryDirectory() as directory:
                    runs[seed, name] = train(seed, name, Path(directory))
                print(seed, name, setting_of(seed), accuracy_of(runs[seed, name]).round(2).tolist(), flush=True)
        save_runs(runs)


def save_runs(runs):
    """Write runs by seed and shaping to ``DATA``."""
    seeds, names = zip(*runs, strict=True)
    values = np.array([*runs.values()], np.float32)
    np.savez_compressed(DATA, seeds=seeds, names=names, columns=COLUMNS, runs=values)


def alarm_of(runs, seed, name):
    """Return the update at which ``ShapingAlarm`` calls a run sick, by its estimator; None if not, and under a gate."""
    alarm, estimator = ShapingAlarm(), setting_of(seed)["estimator"]
    for step, values in enumerate(runs[seed, name][1:].tolist(), 1):
        row = dict(zip(COLUMNS, values, strict=True))
        gradient = row["gradient" if estimator in DIVIDED else "centred"] if row["differ"] else np.nan
        found = StepShaping(row["outcome"], row["rest"], row["groups"], gradient, row["agreement"])
        if alarm.add(None if np.isnan(row["rest"]) or "gated" in name else found, step):
            return step
    return None


def ratio_of(runs, seed, name):
    """Return the accuracy at the end beside that of the seed's run without shaping."""
    own, unshaped = (float(accuracy_of(runs[seed, each])[-1]) for each in (name, "none"))
    return own / unshaped


def class_of(runs, seed, name):
    """Return "healthy", "harmed" or "died"."""
    ratio = ratio_of(runs, seed, name)
    if ratio < DIED:
        return "died"
    return "healthy" if ratio >= KEPT and lost_at(runs[seed, name]) is None else "harmed"


def counts_of(runs, keys):
    """Return of the runs ``keys``: how many, with phantoms that train, named, and with an alarm."""
    columns = [dict(zip(COLUMNS, runs[key][1:].T, strict=True)) for key in keys]
    train = sum(bool(each["share"].mean() >= TRAINS) for each in columns)
    named = sum(bool((each["groups"] > 0).any()) for each in columns)
    return len(keys), train, named, sum(alarm_of(runs, *key) is not None for key in keys)


def main(minutes, results=RESULTS):
    """Train what ``DATA`` lacks for so many minutes, and write the table of the seeds that are whole."""
    runs = read_runs()
    train_missing(runs, minutes)
    whole = [seed for seed in SEEDS if all((seed, name) in runs for name in names_of(seed))]
    keys = [(seed, name) for seed in whole for name in names_of(seed)]
    classes = {key: class_of(runs, *key) for key in keys}
    shaped = [key for key in keys if key[1] != "none"]
    ungated = [key for key in shaped if "gated" not in key[1]]
    healthy = [key for key in ungated if classes[key] == "healthy"]
    parts = {kind: [key for key in ungated if classes[key] == kind] for kind in ("healthy", "harmed", "died")}
    parts["gated, healthy"] = [key for key in shaped if "gated" in key[1] and classes[key] == "healthy"]
    parts |= {
        f"healthy, {setting} {value}": [key for key in healthy if setting_of(key[0])[setting] == value]
        for setting in ("prompts_per_step", "estimator")
        for value in SETTINGS[setting]
    }
    kept = {name: [ratio_of(runs, *key) for key in keys if key[1] == name] for name in list(SHAPINGS)[1:]}
    write(
        "shaped_healthy",
        "Shaped rewards: is the alarm silent in healthy runs?",
        ["runs", "number", "phantoms train", "phantoms named", "alarms"],
        [[label, *counts_of(runs, own)] for label, own in parts.items() if own],
        [
            f"Ungated runs with shaping, {STEPS} updates each; the protocol is in `benchmarks/shaped_healthy.py`. "
            f"*Harmed*: below {KEPT:.0%} of the accuracy without shaping, or once {LOST} below its highest. *Died*: "
            f"below {DIED:.0%}. {len(whole)} of {len(SEEDS)} seeds are whole.",
            "Of the accuracy without shaping the runs end with: "
            + "; ".join(f"{name} {spread(own, '.2f')}" for name, own in kept.items() if own)
            + ".",
        ],
        seeds=whole,
        results=results,
    )


if __name__ == "__main__":
    main(options(__doc__, minutes=600.0).minutes)
