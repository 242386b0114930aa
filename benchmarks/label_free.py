"""Learn at test time without labels, and measure what votes that stop early save and what that costs in accuracy.

All studies train on the medium base. They are under ``runs/`` and resume.

- main: four updates (GRPO, PPO, REINFORCE++, SFT) under TTRL, OptPO and the posterior-predictive rule.
- votes: TTRL with fewer votes, which an early stop must beat; the number of votes trained on; other rewards.
- settings: OptPO's p_0 factor, (alpha, beta) and N.
- drift: one update for each of hundreds of instances, with and without returning to the base.

    python -m benchmarks.label_free                  # all of them
    python -m benchmarks.label_free drift settings   # some
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from apportion.lab.report.measures import summarise
from apportion.lab.report.results import SeedInterval
from apportion.lab.report.without_labels import MEASURES
from benchmarks.common import write
from benchmarks.studies import Runs, trained

UPDATES = ("grpo", "ppo", "reinforce++", "sft")
RULES = ("ttrl", "optpo", "predictive")
RATES = (2e-4, 3.5e-4, 6e-4)
COLUMNS = "mean@16, - {baseline}, rollouts saved"
"""Columns of every table but the last, after the arm."""
TERMS = (
    "Medium base, 256 prompts without answers, 16 a step, 48 steps; at most M = 64 and at least N = 16 votes a prompt, "
    "unless stated otherwise. Intervals are 95%, Student's t over seeds, paired by seed. mean@16 is of 16 sampled "
    "answers to the prompts."
)


def config_of(name):
    """Return the TOML file of a study."""
    return Path(__file__).with_name(f"{name}.toml")


def main_study():
    """Run four updates under three rules."""
    rates = {f"{update}-{rule}": rate for update, rate in _best_rates().items() for rule in RULES}
    overrides = [f'trainings."{arm}".learning_rate={rate}' for arm, rate in rates.items()]
    study, runs = trained(config_of("label_free"), overrides)
    rows = []
    for update in UPDATES:
        mine = {rule: runs[f"{update}-{rule}"] for rule in RULES}
        rows += [[update, *row] for row in _rows(mine)]
    start = SeedInterval.of([run.evaluations["mean_16"][0] for run in runs["grpo-ttrl"]])
    write(
        "label_free",
        "Learning at test time without labels: what is saved, and what it costs",
        ["update", "rule", *COLUMNS.format(baseline="TTRL").split(", ")],
        rows,
        [
            f"{TERMS} Before learning, mean@16 is {start}. Differences and savings are to TTRL with the same update.",
            "Every rule trains on the first 16 votes, `ttrl` on those of 64.",
            _pooled(runs),
            _trend(runs["grpo-ttrl"]),
        ],
        seeds=study.seeds,
    )


def _best_rates():
    """Return the rate of each update at which TTRL ends highest."""
    name, ends = "label_free_rates", dict[float, Runs]()
    for rate in RATES:
        _, ends[rate] = trained(config_of(name), [f"training.learning_rate={rate}"], f"{name}-{rate:g}")
    return {
        update: max(RATES, key=lambda rate: np.mean([run.final("prompts_success") for run in ends[rate][update]]))
        for update in UPDATES
    }


def _pooled(runs):
    """Return each rule's difference to TTRL: the mean over updates for each seed, then over seeds."""
    said = []
    for rule in RULES[1:]:
        differences = [
            [mine.final("mean_16") - other.final("mean_16") for mine, other in zip(*pair, strict=True)]
            for pair in ((runs[f"{update}-{rule}"], runs[f"{update}-ttrl"]) for update in UPDATES)
        ]
        said.append(f"{rule} {SeedInterval.of(list(np.mean(differences, axis=0))).signed}")
    return f"mean@16 less TTRL's, mean over the four updates: {', '.join(said)}."


def _shares(runs, parts):
    """Return the shares of right labels and of false consensus in each part of the runs, with all seeds together."""
    labels, *judged = (
        [part.sum() for part in np.array_split(np.sum([run.steps[key] for run in runs], axis=0), parts)]
        for key in ("labels", "labels_right", "false_consensus")
    )
    return [np.divide(own, labels) for own in judged]


def _trend(runs):
    right, falsely = _shares(runs, 6)
    return (
        f"TTRL with GRPO by sixths of its run: labels right {' '.join(f'{share:.2f}' for share in right)}, false "
        f"consensus {' '.join(f'{share:.2f}' for share in falsely)}."
    )


def votes_study():
    """Compare numbers of votes, numbers of rollouts trained on, and rewards."""
    note = (
        "GRPO at a learning rate of 4e-4. `ttrl`: 64 votes, the first 16 trained on; `_16`: 16 votes. `shared_24`: a "
        "fixed budget of 24 a prompt, shared by the expected gain of more votes."
    )
    _write("label_free_votes", "Votes, retained rollouts and rewards: what closes the gap", note)


def settings_study():
    """Vary OptPO's p_0 factor, (alpha, beta) and N, one at a time."""
    note = (
        "GRPO at a learning rate of 4e-4. `paper`: p_0 factor .6, alpha = beta = .05, N = 16. With another N another "
        "number of rollouts is trained on, so this is not the effect of stopping alone."
    )
    _write("label_free_settings", "OptPO's settings, one at a time", note)


def _write(name, title, note):
    study, runs = trained(config_of(name))
    columns = ["arm", *COLUMNS.format(baseline=study.baseline).split(", ")]
    write(name, title, columns, _rows(runs), [TERMS, note], seeds=study.seeds)


def _rows(runs):
    """Return one row for each arm. The others are compared with the first."""
    baseline = next(iter(runs))
    return [_row(arm, arm.name == baseline) for arm in summarise(MEASURES, runs, baseline)]


def _row(arm, is_baseline):
    none = SeedInterval(float("nan"), None)
    beside = ["", ""] if is_baseline else [(arm.mean_16_difference or none).signed, f"{arm.rollouts_saved:.1%}"]
    return [arm.name, str(arm.mean_16), *beside]


def drift_study():
    """Follow the policy and its consensus along a stream with one update for each instance."""
    study, runs = trained(config_of("label_free_drift"))
    write(
        "label_free_drift",
        f"{study.training.steps} instances one after the other: false consensus and drift, with and without resets",
        ["rule and reset", *(f"false consensus, {i}/4" for i in (1, 4))],
        [_drift_row(arm, mine) for arm, mine in runs.items()],
        [
            f"Medium base, GRPO at {study.training.learning_rate:g}, one step for each instance, every instance once. "
            "By quarters of the stream: `false consensus`, labels that are wrong although more than half of the "
            "samples agree, as a share of the labels. `every_25`: back to the base after every 25 instances. Means "
            "over seeds with 95% intervals."
        ],
        seeds=study.seeds,
    )


def _drift_row(arm, runs):
    def falsely(run, quarter):
        labels, wrong = (np.array_split(run.steps[key], 4)[quarter].sum() for key in ("labels", "false_consensus"))
        return float(wrong / labels)

    return [arm, *(str(SeedInterval.of([falsely(run, quarter) for run in runs])) for quarter in (0, 3))]


STUDIES: Mapping[str, Callable[[], None]] = {
    "main": main_study,
    "votes": votes_study,
    "settings": settings_study,
    "drift": drift_study,
}


def main(*which):
    """Run the named studies, or all."""
    for name in which or STUDIES:
        STUDIES[name]()


if __name__ == "__main__":
    main(*sys.argv[1:])
