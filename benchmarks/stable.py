"""Train the arms of the stable protocol, which is in benchmarks/stable.md, on several bases; go on where it stopped.

    python -m benchmarks.stable sweep     # learning rates, with seeds of their own
    python -m benchmarks.stable           # then all settings, in their order
    python -m benchmarks.stable recorded  # or one of them
    python -m benchmarks.stable_table     # the tables, of what has ended

Several processes may run at the same time: each takes the next run that no other has. A run that was killed begins
again, and one that has ended is not repeated. Runs are in ``runs/stable``.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import copy
import sys
from dataclasses import dataclass, replace
from functools import cache
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
from benchmarks.bases import base_folder

RUNS = Path("runs") / "stable"
AGAIN = "uniform_8_again"
BY_EXACT_RATES = ("oracle_8", "shuffled_8")
SCEPTIC = (*BY_EXACT_RATES, AGAIN)
"""Arms that have the rate of uniform_8, and are not among those that are compared with it."""
BASES = 5
HELD_OUT = 500
RATES = (1e-3, 5e-4)
SMALLER = 2.5e-4
"""The rate of an arm that collapses at all ``RATES``."""
MIDDLE = 0.1, 0.9
LOOK_EVERY = 4
"""Updates between two looks at the exact rates."""
FALL = 0.1


@dataclass(frozen=True)
class Setting:
    """What a part of the study trains: its (base, seed) units in order, its arms, problems, and rollouts a run.

    ``rate`` is that of all arms, or None for those that the sweep chose. ``level`` is the success to which rollouts are
    counted. The exact rates of prompts are followed in the first unit.
    """

    units: tuple[tuple[int, int], ...]
    arms: tuple[str, ...]
    rate: float | None = None
    problems: int = 512
    rollouts: int = 12_800
    level: float = 0.8


def units(first, number):
    """Return so many (base, seed): the bases in turn, each seed once."""
    return tuple((seed % BASES, first + seed) for seed in range(number))


@cache
def design():
    """Return the arms and what they share."""
    return read_study(Path(__file__).with_suffix(".toml"), (), None, resume=False)


ALL = tuple(design().allocators)
ARMS = tuple(arm for arm in ALL if arm not in SCEPTIC)
FEW = ("uniform_8", "four_optimal", "single_optimal", "single_mopps", "eight_mopps")
SWEEP = Setting(units(900, 3), ARMS)
SLOW = {"rate": 1e-4, "problems": 256, "rollouts": 25_600, "level": 0.6}
SETTINGS = {
    "quick": Setting(units(1000, 10), ALL),
    "recorded": Setting(units(1100, 10), (*FEW, "oracle_8"), **SLOW),
    "pools_2048": Setting(units(1200, 5), FEW, problems=2048),
    "pools_4096": Setting(units(1300, 5), FEW, problems=4096),
}
ORDER = (("quick", 5), ("recorded", 5), ("quick", 10), ("pools_2048", 5), ("recorded", 10), ("pools_4096", 5))
"""The settings in their order, each with the units that are trained before the next."""


class Plain(Trainer):
    """A run whose metrics have the exact rates of the prompts of a step only if they are ``followed``."""

    followed = True

    def _exact(self, prompts):
        return super()._exact(prompts) if self.followed else np.full(len(prompts), np.nan)


class ExactChoice(Plain):
    """A run that draws prompts whose exact success probability is in the middle, or, ``shuffled``, as many others."""

    shuffled = False
    looks = 0

    def _draw(self, held, count):
        if self.looks % LOOK_EVERY == 0:
            self.random = np.random.default_rng([self.seed, self.looks])
            self.exact = exact_success(self.policy, self.problems)
            if self.shuffled:
                self.random.shuffle(self.exact)
        self.looks += 1
        inside = (self.exact > MIDDLE[0]) & (self.exact < MIDDLE[1])
        chosen = np.argsort(self.random.random(len(inside)) - inside)[:count]  # those outside only when too few are
        return [self.prompts[row] for row in chosen]


class ShuffledChoice(ExactChoice):
    shuffled = True


TRAINERS = {"oracle_8": ExactChoice, "shuffled_8": ShuffledChoice}


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


def finished_runs(name, setting, arm):
    """Return the runs of an arm that have ended, by (base, seed)."""
    found = {unit: finished(name, arm, *unit) for unit in setting.units}
    return {unit: run for unit, run in found.items() if run is not None}


def fall(run):
    """Return by how much the success of a run lies below its own best before, at most."""
    return float(np.max(np.maximum.accumulate(run.success) - run.success))


def collapsed(run):
    """Return whether the success of a run falls by more than ``FALL`` below its own best before."""
    return fall(run) > FALL


def sweep_name(rate):
    """Return the name of the part of the sweep with ``rate``."""
    return f"sweep-{rate}"


def kept_rates(arm):
    """Return the rates of ``arm`` that the sweep keeps, with their finished runs by unit.

    A rate is dropped if a run collapsed, and the larger one also if its area in the first unit is behind the other's.
    If all collapsed, the rate is ``SMALLER``.
    """
    found = {rate: finished_runs(sweep_name(rate), SWEEP, arm) for rate in (*RATES, SMALLER)}
    stable = {rate: runs for rate, runs in found.items() if not any(map(collapsed, runs.values()))}
    first = {rate: runs[SWEEP.units[0]].area for rate, runs in stable.items() if SWEEP.units[0] in runs}
    large, small = RATES
    if {large, small} <= first.keys() and first[large] < first[small]:
        del stable[large]
    return {rate: stable[rate] for rate in RATES if rate in stable} or {SMALLER: found[SMALLER]}


def stable_rate(arm):
    """Return the kept rate with the best mean area. Exit unless all units of the sweep have ended with each."""
    kept = kept_rates("uniform_8" if arm in SCEPTIC else arm)
    if not all(len(runs) == len(SWEEP.units) for runs in kept.values()):
        raise SystemExit(f"the sweep of {arm} must have ended, got runs that have not; run it first")
    return max(kept, key=lambda rate: np.mean([run.area for run in kept[rate].values()]))


def train(name, setting, arm, base, seed):
    """Train a run, unless it has ended or another process trains it."""
    folder = folder_of(name, arm, base, seed)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with hold_lock(folder / LOCK):
            if finished(name, arm, base, seed) is not None:
                return
            rate = setting.rate or stable_rate(arm)
            training = replace(
                design().training_of(arm),
                base=base_folder(base),
                problems=setting.problems,
                rollouts=setting.rollouts,
                evaluate_every=setting.rollouts // 10,
                learning_rate=rate,
            )
            rule, own = copy.deepcopy(design().allocators[arm]), seed + 10_000 * (arm == AGAIN)
            pool = pool_of(base, seed, setting.problems)
            trainer = TRAINERS.get(arm, Plain)(training, rule, own, folder, pool)
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
            for arm in ARMS:
                for rate in RATES if unit == SWEEP.units[0] else kept_rates(arm):
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
