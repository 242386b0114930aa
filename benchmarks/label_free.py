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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from apportion.lab.report.measures import Arm as Summary
from apportion.lab.report.measures import summarise
from apportion.lab.report.picture import draw, window_shares
from apportion.lab.report.results import Run, SeedInterval
from apportion.lab.report.without_labels import JUDGED, MEASURES, panels, verdict
from benchmarks.common import write
from benchmarks.label_free_runs import SEEDS, TRAINING, Arm, Runs, Table, plain_arms, trained

TTRL: Table = {"name": "ttrl", "max_samples": 64, "min_samples": 16}
OPTPO: Table = {"name": "optpo", "max_samples": 64, "min_samples": 16, "count_from": "min_samples"}
"""Exceedances are counted from sample N on, as in all tables of this benchmark so far."""


def voting(rule: Table | str, **settings: Any) -> Table:
    """Return the allocator of a stopping rule with the N and M of the others."""
    own = {"name": "voting", "rule": rule, "wave": 4, "retain": "first"}
    return own | {"max_samples": 64, "min_samples": 16} | settings


UPDATES: dict[str, Table] = {
    "grpo": {"estimator": "grpo"},
    "ppo": {"estimator": "gae"},
    "reinforce++": {"estimator": "reinforce_plus_plus"},
    "sft": {"estimator": "sft", "kl": 0.0},
}
RULES: dict[str, Table] = {
    "ttrl": TTRL,
    "optpo": OPTPO,
    "predictive": voting("posterior_predictive"),
}
PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "label_free.png"
SWEEP_SEEDS = (100,)
RATES = (2e-4, 3.5e-4, 6e-4)
COLUMNS = "mean@16, - {baseline}, rollouts saved"
"""Columns of every table but the last, after the arm."""
TERMS = (
    f"Medium base, {TRAINING['problems']} prompts without answers, {TRAINING['prompts_per_step']} a step, "
    f"{TRAINING['steps']} steps; at most M = 64 and at least N = 16 votes a prompt, unless stated otherwise. "
    "Intervals are 95%, Student's t over seeds, paired by seed. mean@16 is of 16 sampled answers to the prompts."
)


def main_study() -> None:
    """Run four updates under three rules."""
    rates = _best_rates()
    runs = trained("label_free", main_arms(rates))
    rows = []
    for update in UPDATES:
        mine = {rule: runs[f"{update}-{rule}"] for rule in RULES}
        rows += [[update, *row] for row in _rows(mine)]
    grpo = {rule: runs[f"grpo-{rule}"] for rule in RULES}
    draw(panels(grpo), verdict(summarise(MEASURES, grpo, "ttrl"), "ttrl"), [PICTURE])
    start = SeedInterval.of([run.evaluations["mean_16"][0] for run in grpo["ttrl"]])
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
        seeds=SEEDS,
    )


def main_arms(rates: Mapping[str, float]) -> dict[str, Arm]:
    """Return every update under every rule, at the update's rate."""
    return {
        f"{update}-{rule}": Arm(allocator, settings | {"learning_rate": rates[update]})
        for update, settings in UPDATES.items()
        for rule, allocator in RULES.items()
    }


def rate_arms() -> dict[str, Arm]:
    """TTRL with every update at every rate."""
    return {
        f"{update}-{rate:g}": Arm(TTRL, settings | {"learning_rate": rate})
        for update, settings in UPDATES.items()
        for rate in RATES
    }


def _best_rates() -> dict[str, float]:
    """Return the rate of each update at which TTRL ends highest."""
    runs = trained("label_free_rates", rate_arms(), SWEEP_SEEDS)
    success = {arm: np.mean([run.final("prompts_success") for run in mine]) for arm, mine in runs.items()}
    return {update: max(RATES, key=lambda rate: success[f"{update}-{rate:g}"]) for update in UPDATES}


def _pooled(runs: Runs) -> str:
    """Return each rule's difference to TTRL: the mean over updates for each seed, then over seeds."""
    said = []
    for rule in list(RULES)[1:]:
        differences = [
            [mine.final("mean_16") - other.final("mean_16") for mine, other in zip(*pair, strict=True)]
            for pair in ((runs[f"{update}-{rule}"], runs[f"{update}-ttrl"]) for update in UPDATES)
        ]
        said.append(f"{rule} {SeedInterval.of(list(np.mean(differences, axis=0))).signed}")
    return f"mean@16 less TTRL's, mean over the four updates: {', '.join(said)}."


def _trend(runs: Sequence[Run]) -> str:
    """Return the shares of right labels and false consensus of one arm along its run, with all seeds together."""
    labels, *others = (np.sum([run.steps[key] for run in runs], axis=0) for key in JUDGED)
    right, falsely = (window_shares(amount, labels, TRAINING["steps"] // 6) for amount in others)
    return (
        f"TTRL with GRPO by sixths of its run: labels right {' '.join(f'{share:.2f}' for share in right)}, false "
        f"consensus {' '.join(f'{share:.2f}' for share in falsely)}."
    )


VOTES: dict[str, Table] = {
    "ttrl": TTRL,
    "ttrl_16": TTRL | {"max_samples": 16},
    "ttrl_keeps_8": TTRL | {"min_samples": 8},
    "optpo": OPTPO,
    "optpo_keeps_8": OPTPO | {"min_samples": 8},
    "optpo_vote_share": OPTPO | {"reward": "vote_share"},
    "shared_24": {"name": "shared_votes", "samples_per_prompt": 24, "min_samples": 16},
}
VOTE_SEEDS = tuple(range(10, 15))
GRPO: Table = {"estimator": "grpo", "learning_rate": 4e-4}


def votes_study() -> None:
    """Compare numbers of votes, numbers of rollouts trained on, and rewards."""
    runs = trained("label_free_votes", plain_arms(VOTES), VOTE_SEEDS, **GRPO)
    note = (
        "GRPO at a learning rate of 4e-4. `ttrl`: 64 votes, the first 16 trained on; `_16`: 16 votes. `shared_24`: a "
        "fixed budget of 24 a prompt, shared by the expected gain of more votes."
    )
    _write("label_free_votes", "Votes, retained rollouts and rewards: what closes the gap", runs, note, VOTE_SEEDS)


SETTINGS: dict[str, Table] = {
    "paper": OPTPO,
    **{f"factor_{factor:g}": OPTPO | {"p0_factor": factor} for factor in (0.4, 0.8)},
    **{f"alpha_beta_{error:g}": OPTPO | {"alpha": error, "beta": error} for error in (0.01, 0.1)},
    **{f"N_{least}": OPTPO | {"min_samples": least} for least in (8, 32, 48)},
}


def settings_study() -> None:
    """Vary OptPO's p_0 factor, (alpha, beta) and N, one at a time."""
    runs = trained("label_free_settings", plain_arms(SETTINGS), **GRPO)
    note = (
        "GRPO at a learning rate of 4e-4. `paper`: p_0 factor .6, alpha = beta = .05, N = 16. With another N another "
        "number of rollouts is trained on, so this is not the effect of stopping alone."
    )
    _write("label_free_settings", "OptPO's settings, one at a time", runs, note, SEEDS)


def _write(name: str, title: str, runs: Runs, note: str, seeds: tuple[int, ...]) -> None:
    baseline = next(iter(runs))
    columns = ["arm", *COLUMNS.format(baseline=baseline).split(", ")]
    write(name, title, columns, _rows(runs), [TERMS, note], seeds=seeds)


def _rows(runs: Runs) -> list[list[str]]:
    """Return one row for each arm. The others are compared with the first."""
    baseline = next(iter(runs))
    return [_row(arm, arm.name == baseline) for arm in summarise(MEASURES, runs, baseline)]


def _row(arm: Summary, is_baseline: bool) -> list[str]:
    none = SeedInterval(float("nan"), None)
    beside = ["", ""] if is_baseline else [(arm.mean_16_difference or none).signed, arm.rollouts_saved.percent]
    return [arm.name, str(arm.scores["mean_16"]), *beside]


INSTANCES = 200
QUARTER = INSTANCES // 4
DRIFT_RATE = 1.5e-4
DRIFT_RULES = {"ttrl": TTRL, "optpo": OPTPO}
RESETS: dict[str, Table] = {"never": {}, "every_25": {"reset_every": 25}}
DRIFT_COLUMNS = ("rule and reset", *(f"false consensus, {i}/4" for i in (1, 4)))


STREAM: Table = {
    "problems": INSTANCES,
    "prompts_per_step": 1,
    "steps": INSTANCES,
    "evaluate_every": QUARTER,
    "estimator": "grpo",
    "learning_rate": DRIFT_RATE,
}


def drift_arms() -> dict[str, Arm]:
    """Return every rule with and without resets."""
    return {
        f"{rule}-{reset}": Arm(allocator, training)
        for rule, allocator in DRIFT_RULES.items()
        for reset, training in RESETS.items()
    }


def drift_study() -> None:
    """Follow the policy and its consensus along a stream with one update for each instance."""
    runs = trained("label_free_drift", drift_arms(), **STREAM)
    write(
        "label_free_drift",
        f"{INSTANCES} instances one after the other: false consensus and drift, with and without resets",
        DRIFT_COLUMNS,
        [_drift_row(arm, mine) for arm, mine in runs.items()],
        [
            f"Medium base, GRPO at {DRIFT_RATE:g}, one step for each instance, every instance once. By quarters of the "
            "stream: `false consensus`, labels that are wrong although more than half of the samples agree, as a share "
            "of the labels. `every_25`: back to the base after every 25 instances. Means over seeds with 95% "
            "intervals.",
        ],
        seeds=SEEDS,
    )


def _drift_row(arm: str, runs: list[Run]) -> list[str]:
    def falsely(run: Run, quarter: int) -> float:
        steps = slice(quarter * QUARTER, (quarter + 1) * QUARTER)
        return float(run.steps["false_consensus"][steps].sum() / run.steps["labels"][steps].sum())

    return [arm, *(str(SeedInterval.of([falsely(run, quarter) for run in runs])) for quarter in (0, 3))]


STUDIES: Mapping[str, Callable[[], None]] = {
    "main": main_study,
    "votes": votes_study,
    "settings": settings_study,
    "drift": drift_study,
}


def main(*which: str) -> None:
    """Run the named studies, or all."""
    for name in which or STUDIES:
        STUDIES[name]()


if __name__ == "__main__":
    main(*sys.argv[1:])
