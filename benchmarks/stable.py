"""Train the arms of the stable protocol, which is in benchmarks/stable.md, on several bases; go on where it stopped.

    python -m benchmarks.stable sweep     # learning rates, with seeds of their own
    python -m benchmarks.stable           # then all settings, in their order
    python -m benchmarks.stable recorded  # or one of them
    python -m benchmarks.stable_table     # the tables, of what has ended

Several processes may run at the same time: each takes the next run that no other has. A run that was killed begins
again, and one that has ended is not repeated, nor one whose curve is in ``benchmarks/data/stable.json``: delete that
file to train all again. Runs are in ``runs/stable``.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import copy
import json
import sys
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np

from apportion.lab.policy.exact import exact_success
from apportion.lab.report.results import Run
from apportion.lab.study.design import read_study
from apportion.lab.training.metrics import METRICS, read_metrics
from apportion.lab.training.pool import Pool
from apportion.lab.training.trainer import Trainer
from apportion.lab.world.task import problem_pool
from apportion.runs.folder import LOCK, hold_lock
from apportion.selection.base import BeliefSelector
from benchmarks.bases import base_folder

RUNS = Path("runs") / "stable"
DATA = Path(__file__).parent / "data" / "stable.json"
"""The curves of all runs that have ended, by setting, arm and "base seed"."""
AGAIN = "uniform_8_again"
KNOWN = {"oracle_8": 1.0, "oracle_8_half": 0.5, "shuffled_8": 0.0}
"""Arms that draw by exact rates, and the share of the prompts with their own; the others' are exchanged."""
SCEPTIC = (*KNOWN, AGAIN)
"""Arms that have the rate of uniform_8, and are not among those that are compared with it."""
BASES = 5
HELD_OUT = 500
RATES = (1e-3, 5e-4)
SMALLER, LARGER = 2.5e-4, 2e-3
"""The rate of an arm that collapses at all ``RATES``, and one that is tried for ``BOLD`` arms as well."""
MIDDLE = 0.1, 0.9
LOOK_EVERY = 4
"""Updates between two looks at the exact rates."""
FALL = 0.1


@dataclass(frozen=True)
class Setting:
    """What a part of the study trains: its (base, seed) units in order, its arms, problems, and rollouts a run.

    ``rate`` is that of all arms, or None for those that the sweep chose. ``level`` is the success to which rollouts are
    counted. The exact rates of prompts are followed in the first unit. ``like`` is the setting with the same units
    whose runs of ``beside`` are compared with. An update has ``prompts`` prompts if that is set.
    """

    units: tuple[tuple[int, int], ...]
    arms: tuple[str, ...]
    rate: float | None = None
    problems: int = 512
    rollouts: int = 12_800
    level: float = 0.8
    prompts: int | None = None
    like: str = ""
    beside: tuple[str, ...] = ()


def units(first, number):
    """Return so many (base, seed): the bases in turn, each seed once."""
    return tuple((seed % BASES, first + seed) for seed in range(number))


def sweep_name(rate):
    """Return the name of the part of the sweep with ``rate``."""
    return f"sweep-{rate}"


@cache
def design():
    """Return the arms and what they share."""
    return read_study(Path(__file__).with_suffix(".toml"), (), None, resume=False)


BOLD = ("single_optimal",)
ALL = tuple(design().allocators)
ARMS = tuple(arm for arm in ALL if arm not in SCEPTIC)
FEW = ("uniform_8", "four_optimal", "single_optimal", "single_mopps", "eight_mopps")
CHOICES = ("eight_spo", "eight_mixed")
"""Arms without a sweep, which have the rate of uniform_8."""
SWEEP = Setting(units(900, 3), tuple(arm for arm in ARMS if arm not in CHOICES))
SLOW = {"rate": 1e-4, "problems": 256, "rollouts": 25_600, "level": 0.6}
SWEEPS = {sweep_name(rate): replace(SWEEP, rate=rate) for rate in (SMALLER, *reversed(RATES), LARGER)}
SHAPES = ("uniform_2", "uniform_16", "two_optimal", "eight_optimal")
MORE = ("oracle_8_half", *CHOICES, *SHAPES)
RULES = ("uniform_8", "vip", "hora")
SETTINGS = {
    "quick": Setting(units(1000, 10), tuple(arm for arm in ALL if arm not in MORE)),
    "recorded": Setting(units(1100, 10), (*FEW, "oracle_8"), **SLOW),
    "pools_2048": Setting(units(1200, 5), FEW, problems=2048),
    "pools_4096": Setting(units(1300, 5), FEW, problems=4096),
    "more": Setting(units(1000, 10), MORE, like="quick", beside=("uniform_8", "uniform_4", *FEW[1:3], "oracle_8")),
    "slow_rules": Setting(
        units(1100, 10), (*RULES[1:], CHOICES[0]), like="recorded", beside=("uniform_8", "oracle_8"), **SLOW
    ),
    "few_prompts": Setting(units(1400, 5), RULES, problems=64),
    "small_updates": Setting(units(1510, 5), RULES, rate=SMALLER / 2, problems=64, rollouts=6400, level=0.6, prompts=2),
    "long": Setting(units(1600, 5), ("uniform_8", "single_optimal"), rollouts=51_200),
}
PAGES = {
    "stable": ("quick",),
    **{f"stable_{name}": (name,) for name in ("recorded", "pools_2048", "pools_4096")},
    "stable_more": ("more", "slow_rules", "few_prompts", "small_updates", "long"),
}
"""The pages of results, each with its settings."""
ORDER = (
    *(("quick", 5), ("recorded", 5), ("quick", 10), ("pools_2048", 5), ("recorded", 10), ("pools_4096", 5)),
    *(("more", 5), ("few_prompts", 5), ("long", 2), ("small_updates", 5), ("slow_rules", 5), ("more", 10)),
)
"""The settings in their order, each with the units that are trained before the next."""


class Plain(Trainer):
    """A run whose metrics have the exact rates of the prompts of a step only if they are ``followed``.

    They then have, for a choice by a belief, its correlation with the exact rates of all prompts and its mean square
    error, before each step.
    """

    followed = True

    def _step(self):
        if not (self.followed and isinstance(self.selector, BeliefSelector)):
            return super()._step()
        exact, mean = exact_success(self.policy, self.problems), self.selector._predict().mean
        spread = exact.std() * mean.std()
        agrees = np.mean((exact - exact.mean()) * (mean - mean.mean())) / spread if spread else 0.0
        return super()._step() | {"belief": [float(agrees), float(np.mean((mean - exact) ** 2))]}

    def _exact(self, prompts):
        return super()._exact(prompts) if self.followed else np.full(len(prompts), np.nan)


class ExactChoice(Plain):
    """A run that draws prompts whose exact success probability is in the middle.

    Only the share ``known`` of the prompts has its own probability, anew at each look; the others' are exchanged.
    """

    known = 1.0
    looks = 0

    def _draw(self, held, count):
        if self.looks % LOOK_EVERY == 0:
            self.random = np.random.default_rng([self.seed, self.looks])
            self.exact = exact_success(self.policy, self.problems)
            others = self.random.permutation(len(self.exact))[round(self.known * len(self.exact)) :]
            self.exact[others] = self.exact[self.random.permutation(others)]
        self.looks += 1
        inside = (self.exact > MIDDLE[0]) & (self.exact < MIDDLE[1])
        chosen = np.argsort(self.random.random(len(inside)) - inside)[:count]  # those outside only when too few are
        return [self.prompts[row] for row in chosen]


def pool_of(base, seed, problems):
    """Return problems to train on that depend on the seed, and held-out ones that depend on the base."""
    held_out = problem_pool(HELD_OUT, seed=10_000 + base)
    return Pool(problem_pool(problems, seed=seed, exclude=held_out), held_out, {})


def folder_of(name, arm, base, seed):
    """Return the folder of a run."""
    return RUNS / name / f"{arm}-base{base}-seed{seed}"


def finished(name, arm, base, seed):
    """Return the run, or None if it has not ended."""
    folder = folder_of(name, arm, base, seed)
    records = read_metrics(folder / METRICS)[-1:]
    return Run.read(folder) if records and "held_out_p" in records[0] else None


@cache
def stored():
    """Return what is known of the runs that ended before."""
    return json.loads(DATA.read_text(encoding="utf-8")) if DATA.is_file() else {}


def as_run(row):
    """Return the run of a row of the data, with its curve alone."""
    columns = {key: np.array(row[key], float) for key in ("rollouts", "success")}
    return Run(columns, {})


def finished_runs(name, setting, arm):
    """Return the runs of an arm that have ended, by (base, seed). Of stored ones there is the curve alone."""
    rows = stored().get(name, {}).get(arm, {})
    found = {}
    for base, seed in setting.units:
        run = finished(name, arm, base, seed)
        if run is None and f"{base} {seed}" in rows:
            run = as_run(rows[f"{base} {seed}"])
        if run is not None:
            found[base, seed] = run
    return found


def fall(run):
    """Return by how much the success of a run lies below its own best before, at most."""
    return float(np.max(np.maximum.accumulate(run.success) - run.success))


def collapsed(run):
    """Return whether the success of a run falls by more than ``FALL`` below its own best before."""
    return fall(run) > FALL


def tried_rates(arm):
    """Return the rates that the sweep tries for ``arm``, the largest first."""
    return (LARGER, *RATES) if arm in BOLD else RATES


def kept_rates(arm):
    """Return the rates of ``arm`` that the sweep keeps, with their finished runs by unit.

    A rate is dropped if a run collapsed, and a larger one also if its area in the first unit is behind the next one's.
    If all collapsed, the rate is ``SMALLER``.
    """
    tried = tried_rates(arm)
    found = {rate: finished_runs(sweep_name(rate), SWEEP, arm) for rate in (*tried, SMALLER)}
    stable = {rate: runs for rate, runs in found.items() if not any(map(collapsed, runs.values()))}
    first = {rate: runs[SWEEP.units[0]].area for rate, runs in stable.items() if SWEEP.units[0] in runs}
    for large, small in pairwise(tried):
        if {large, small} <= first.keys() and first[large] < first[small]:
            del stable[large]
    return {rate: stable[rate] for rate in tried if rate in stable} or {SMALLER: found[SMALLER]}


def stable_rate(arm):
    """Return the kept rate with the best mean area. Exit unless all units of the sweep have ended with each."""
    kept = kept_rates(arm if arm in SWEEP.arms else "uniform_8")
    if not all(len(runs) == len(SWEEP.units) for runs in kept.values()):
        raise SystemExit(f"the sweep of {arm} must have ended, got runs that have not; run it first")
    return max(kept, key=lambda rate: np.mean([run.area for run in kept[rate].values()]))


def train(name, setting, arm, base, seed):
    """Train a run, unless it has ended or another process trains it."""
    folder = folder_of(name, arm, base, seed)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with hold_lock(folder / LOCK):
            if (base, seed) in finished_runs(name, setting, arm):
                return
            rate = setting.rate or stable_rate(arm)
            training = design().training_of(arm)
            training = replace(
                training,
                base=base_folder(base),
                problems=setting.problems,
                rollouts=setting.rollouts,
                evaluate_every=setting.rollouts // 10,
                learning_rate=rate,
                prompts_per_step=setting.prompts or training.prompts_per_step,
            )
            rule, own = copy.deepcopy(design().allocators[arm]), seed + 10_000 * (arm == AGAIN)
            pool = pool_of(base, seed, setting.problems)
            trainer = (ExactChoice if arm in KNOWN else Plain)(training, rule, own, folder, pool)
            trainer.known = KNOWN.get(arm)
            trainer.followed = (base, seed) == setting.units[0]
            trainer.run()
            (folder / "checkpoint.pt").unlink()
    except BlockingIOError:
        return
    print(name, arm, base, seed, rate, flush=True)


def sweep():
    """Train every arm at all rates with the first unit, and at those that are kept with the others."""
    for _ in (*RATES, SMALLER):  # a collapse may leave only a smaller rate
        for unit in SWEEP.units:
            for arm in SWEEP.arms:
                for rate in tried_rates(arm) if unit == SWEEP.units[0] else kept_rates(arm):
                    train(sweep_name(rate), replace(SWEEP, rate=rate), arm, *unit)


def main(name=""):
    if name == "sweep":
        sweep()
    for each, number in [(name, None)] if name in SETTINGS else [] if name else ORDER:
        setting = SETTINGS[each]
        for unit in setting.units[:number]:
            for arm in setting.arms:
                train(each, setting, arm, *unit)


if __name__ == "__main__":
    main(*sys.argv[1:])
