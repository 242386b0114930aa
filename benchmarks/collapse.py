"""Train four times the usual length: does a policy collapse, and do negative tokens matter? See collapse.toml.

Two seeds go side by side, each one arm after the other. The same command goes on after a kill.
Overrides are those of the lab.

    python -m benchmarks.collapse             # all seeds, then the table
    python -m benchmarks.collapse finished    # a table of the seeds whose runs have all ended
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import sys
from pathlib import Path
from typing import Any

import numpy as np

from apportion.lab.policy.base import base_policy
from apportion.lab.policy.sampler import LedgerSampler
from apportion.lab.report.results import SeedInterval
from apportion.lab.study.design import claim, read_pools, read_study
from apportion.lab.training.trainer import Trainer
from apportion.lab.world.task import held_out_problems
from apportion.runs.children import ChildTask, run_all
from benchmarks.common import RESULTS, table, write
from benchmarks.methods import finished_part
from benchmarks.studies import runs_of

CONFIG = Path(__file__).with_suffix(".toml")
MINUTES_A_RUN = 2.5
"""Of one core, for 32,768 rollouts."""
MEASURES = {"success": "success", "pass_32": "pass@32", "entropy": "entropy", "solutions": "solutions"}
SHOWN = 1, 2, 4
"""Usual lengths after which the arms are shown."""
PAIRS = {
    "groups of 8: baseline 0 less RLOO": ("eights_zero", "eights_rloo"),
    "baseline 0: single rollouts less groups of 8": ("single_zero", "eights_zero"),
    "single rollouts: one optimal baseline less 0": ("single_global", "single_zero"),
}


PROBLEMS, EACH = 200, 8
"""The problems and rollouts of each from which the entropy is measured."""


class Measured(Trainer):
    """A trainer that also measures the entropy in nats a token."""

    def _evaluate(self):
        return super()._evaluate() | {"entropy": self._entropy()}

    def _entropy(self):
        sampler = LedgerSampler(self.policy, 0, max_new_tokens=self.sampler.max_new_tokens)
        problems = held_out_problems(PROBLEMS, self.training.task)
        groups = sampler([problem.prompt() for problem in problems], [EACH] * PROBLEMS)
        return float(-np.concatenate([rollout.completion.logprobs for group in groups for rollout in group]).mean())


def main(part="all", *overrides, results=RESULTS):
    study = read_study(CONFIG, overrides, None, resume=False)
    if part == "all":
        _train(study)
    done = finished_part(study)
    runs = runs_of(done)
    rows = [
        [
            f"{arm}, {place}x",
            *(str(SeedInterval.of(at(mine, key, place))) for key in MEASURES),
            _less(mine, place, mine, 1)[1],
        ]
        for place in SHOWN
        for arm, mine in runs.items()
    ]
    starts = [f"{at(runs[study.baseline], key, 0).mean():.3f}" for key in MEASURES]
    columns = ["arm, length", *MEASURES.values(), "pass@32 - 1x"]
    write(
        study.name,
        f"Four times the usual length: {study.training.base} base",
        columns,
        [["start", *starts, "-"], *rows[-len(runs) :]],
        [
            f"1x is {study.training.evaluate_every:,} rollouts. Success and pass@32 are exact on "
            f"{study.training.held_out} held-out problems. `entropy`: nats a token. `solutions`: right completions of "
            f"a problem effectively in use. 95% intervals over seeds; differences at {SHOWN[-1]}x are paired by seed.",
            f"{len(done.seeds)} of the {len(study.seeds)} seeds that were fixed beforehand.",
            table(
                ["difference", *MEASURES.values()],
                [
                    [words, *_less(runs[arm], SHOWN[-1], runs[other], SHOWN[-1])]
                    for words, (arm, other) in PAIRS.items()
                ],
            ),
        ],
        more=[table(columns, rows)],
        cells={
            "evaluations": {
                arm: {key: [run.evaluations[key].tolist() for run in mine] for key in MEASURES}
                for arm, mine in runs.items()
            }
        },
        seeds=done.seeds,
        results=results,
    )


def at(runs, key, place):
    """Return a measure at one of the evaluations, for each run."""
    return np.array([run.evaluations[key][place] for run in runs])


def train(_, *runs):
    """Train runs one after the other, each from its checkpoint if it has one."""
    for settings in runs:
        Measured(*settings).run()


def _less(runs, place, others, then):
    return [SeedInterval.of(at(runs, key, place) - at(others, key, then)).signed for key in MEASURES]


def _train(study):
    base_policy(study.training.base)  # so that no two processes train it
    pools, left = read_pools(study), dict[int, list[Any]]()
    for arm, seed in study.open_runs():
        run = (study.training_of(arm), study.allocators[arm], seed, study.folder_of(arm, seed), pools[seed])
        left.setdefault(seed, []).append(run)
    number = sum(map(len, left.values()))
    minutes = number * MINUTES_A_RUN * study.training.length / 32768 / study.parallel
    print(f"{number} runs to go, about {minutes:.0f} minutes in {study.parallel} processes", flush=True)
    tasks = [ChildTask(f"seed {seed}", train, tuple(runs), saves=False) for seed, runs in left.items()]
    with claim(study):
        run_all(tasks, study.parallel, lambda name, message: None, lambda: print("stopped; the same command goes on"))


if __name__ == "__main__":
    main(*sys.argv[1:])
