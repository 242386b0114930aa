"""Train with every method in the lab at equal rollouts and tokens: a sweep of learning rates, then fresh seeds.

Each method trains at every rate with the sweep's seed. At the rate with the best area it then trains with fresh seeds,
and only these are reported. Studies are under ``runs/`` and resume.

    python -m benchmarks.methods            # the ledger task, hard base: benchmarks/methods.toml
    python -m benchmarks.methods forks      # the second task: benchmarks/methods_forks.toml
    python -m benchmarks.methods factorial  # shapes of an update times baselines: methods_factorial.toml
    python -m benchmarks.methods factorial finished  # a table of the seeds whose runs have all ended
    python -m benchmarks.methods factorial_forks     # the same on the second task, with ten seeds
    python -m benchmarks.methods decisions_forks     # prompts, counts and baselines, alone and together, at one rate
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from apportion.config import load
from apportion.evaluation import bootstrap_interval
from apportion.lab.policy.recipes import task_of
from apportion.lab.report.measures import summarise
from apportion.lab.report.results import SeedInterval
from apportion.lab.report.with_labels import MEASURES
from apportion.lab.study.design import read_study
from benchmarks.common import table, write
from benchmarks.studies import runs_of, trained

RATES = {
    "methods": ("5e-4", "1e-3", "2e-3"),
    "methods_forks": ("3e-4", "6e-4"),
    "methods_decisions_forks": ("6e-4",),
    "methods_factorial": ("5e-4", "1e-3", "2e-3"),
    "methods_factorial_forks": ("3e-4", "6e-4", "1.2e-3"),
}
FORKS = (
    "training.base=forks",
    "training.rollouts=8192",
    "training.evaluate_every=1024",
    "training.held_out=250",
    f"seeds={list(range(60, 70))}",
)
"""What the factorial changes on the second task: its base and its usual length, and seeds that no other study used."""
SWEEP_SEEDS = (100,)
LEVEL = 0.8
FACTORS = ("single", "pairs", "fours", "eights"), ("rloo", "zero", "global", "prompt")
"""The shapes and the baselines of a factorial."""
COLUMNS = ("method", "success", "area - baseline", "over tokens", "rollouts to .8", "rollouts/prompt")
TOKENS = (
    " `over tokens` is the same difference of the curves over tokens, up to the fewest that any method took with that "
    "seed."
)
RATIOS = " `rollouts to` are geometric means of the ratio to {}'s with 95% intervals; - if a run never got there."


def main(which="", part="all"):
    name = f"methods_{which}" if which else "methods"
    factorial = which.startswith("factorial")
    changes = FORKS if which == "factorial_forks" else ()
    config = Path(__file__).with_name("methods_factorial.toml" if factorial else f"{name}.toml")
    rates = RATES[name]
    arms = list(load(config)["allocators"])
    areas = {rate: _sweep(config, name, rate, changes) for rate in rates} if len(rates) > 1 else {}
    best = {arm: max(rates, key=lambda rate: areas[rate][arm]) if areas else rates[0] for arm in arms}
    overrides = [*changes, *(f"trainings.{arm}.learning_rate={rate}" for arm, rate in best.items())]
    planned = read_study(config, overrides, name, resume=False)
    if part == "finished":
        study = finished_part(planned)
        runs = runs_of(study)
    else:
        study, runs = trained(config, overrides, name)
    summary = summarise(MEASURES, runs, study.baseline)
    forked = task_of(study.training.base) == "forks"
    write(
        name,
        (
            "Shapes of an update and baselines, at equal updates"
            if factorial
            else "Every method at equal rollouts and at equal tokens"
        )
        + f": {study.training.base} base",
        [*COLUMNS, *(["solutions"] if forked else [])],
        [[*_row(arm, runs, study), *([_solutions(runs[arm.name])] if forked else [])] for arm in summary],
        [
            f"{study.training.rollouts:,} rollouts a run on the {study.training.base} base; success is exact on "
            f"{study.training.held_out} held-out prompts. Areas are means with 95% intervals (Student's t) over seeds, "
            "differences paired by seed with "
            f"{study.baseline}, the tuned uniform."
            + (TOKENS + RATIOS.format(study.baseline) if which == "" else "")
            + (" `solutions`: right completions of a problem effectively in use at the end, of 6.7." if forked else ""),
            _how_chosen(best, rates),
            f"{len(study.seeds)} of the {len(planned.seeds)} seeds that were fixed beforehand.",
            *(
                contrasts({arm: [run.area for run in mine] for arm, mine in runs.items()}, *FACTORS)
                if factorial
                else []
            ),
        ],
        seeds=list(study.seeds),
    )


def finished_part(study):
    """Return the study with the seeds whose runs have all ended. Seeds come one after the other."""
    going = {seed for _, seed in study.open_runs()}
    return replace(study, seeds=tuple(seed for seed in study.seeds if seed not in going))


def _how_chosen(best, rates):
    if len(rates) == 1:
        return f"Every run has the rate {rates[0]}, which the sweep of benchmarks/methods chose for the uniform rule."
    edge = [arm for arm, rate in best.items() if rate in (rates[0], rates[-1])]
    return (
        f"Rates were chosen from {', '.join(rates)} by the area with seed {SWEEP_SEEDS[0]}, which is not reported. At "
        f"the edge of that range: {', '.join(edge) or 'none'}."
    )


def _sweep(config, name, rate, changes):
    """Return the mean area of every arm at one learning rate."""
    overrides = [*changes, f"training.learning_rate={rate}", f"seeds={list(SWEEP_SEEDS)}"]
    _, runs = trained(config, overrides, f"{name}-{rate}")
    return {arm: float(np.mean([run.area for run in mine])) for arm, mine in runs.items()}


def _row(arm, runs, study):
    return [
        arm.name,
        _bootstrapped(np.stack([_held_out(study, arm.name, seed) for seed in study.seeds])),
        arm.area_difference.signed,
        arm.token_area_difference.signed,
        _ratio(runs[arm.name], runs[study.baseline]),
        f"{arm.rollouts_per_prompt:.1f}",
    ]


def _held_out(study, arm, seed):
    """Return the exact success of the trained policy on each held-out prompt."""
    lines = (study.folder_of(arm, seed) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return np.array(json.loads(lines[-1])["held_out_p"])


def _solutions(runs):
    """Return how many right completions of a problem the trained policy effectively uses, as a mean over seeds."""
    return f"{np.mean([run.final('solutions') for run in runs]):.2f}"


def _bootstrapped(values):
    """Return the mean of ``values`` [seeds, prompts], with an interval from resampling seeds and prompts separately."""
    low, high = bootstrap_interval(values.mean(axis=0))
    over_seeds = bootstrap_interval(values.mean(axis=1))
    return f"{values.mean():.3f} ({min(low, over_seeds[0]):.3f} to {max(high, over_seeds[1]):.3f})"


def _ratio(mine, baseline):
    """Return the rollouts to ``LEVEL`` over the baseline's, as a geometric mean and interval over seeds.

    A run of the baseline that never got there counts as one that got there at its end. The ratio is then an upper
    bound, and marked as one.
    """
    reached = np.array([run.reached(LEVEL) for run in baseline])
    ends = np.array([run.rollouts[-1] for run in baseline])
    logs = np.log([run.reached(LEVEL) for run in mine]) - np.log(np.where(np.isfinite(reached), reached, ends))
    if not np.isfinite(logs).all():
        return "-"
    bound = "" if np.isfinite(reached).all() else "at most "
    interval = SeedInterval.of(logs)
    half = interval.half_width or 0.0
    low, high = np.exp([interval.mean - half, interval.mean + half])
    return f"{bound}{np.exp(interval.mean):.2f} ({low:.2f} to {high:.2f})"


def contrasts(area, shapes, baselines):
    """Return the differences of area that a factorial was made for, each with its table: one thing changed at a time.

    ``area`` has the seeds of each arm, ``shape_baseline``. The last shape is what shapes are compared with.
    """

    def less(arm, other):
        known = arm in area and other in area
        return SeedInterval.of(np.subtract(area[arm], area[other])).signed if known and arm != other else "-"

    by_shape = [[shape, *(less(f"{shape}_{each}", f"{shapes[-1]}_{each}") for each in baselines)] for shape in shapes]
    by_baseline = [
        [each, *(less(f"{shape}_{each}", f"{shape}_{'zero' if shape == 'single' else 'rloo'}") for shape in shapes)]
        for each in baselines
    ]
    return [
        "The shape alone: area, less that of groups of 8 with the same baseline, at 32 rollouts an update",
        table(["shape", *baselines], by_shape),
        "The baseline alone: area, less RLOO's with the same shape (for single rollouts less baseline 0's)",
        table(["baseline", *shapes], by_baseline),
    ]


if __name__ == "__main__":
    main(*sys.argv[1:])
