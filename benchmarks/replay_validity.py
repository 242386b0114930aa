"""Do replayed rules agree with the same rules really run? A check in the lab, with a fixed policy and one that learns.

A run with 16 rollouts a prompt is logged. Other rules are replayed on its log, and really run from the same policy with
other random numbers.

    python -m benchmarks.replay_validity
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from apportion import AR3PO, DAPO, HORA, VIP, Uniform, collect
from apportion.allocators import ReinforceAda
from apportion.lab.policy.base import base_policy
from apportion.lab.policy.exact import exact_success
from apportion.lab.policy.sampler import LedgerSampler
from apportion.lab.training.pool import pool_of
from apportion.lab.training.settings import Training
from apportion.lab.training.trainer import Trainer
from apportion.records import open_run, write_step
from apportion.replay import replay
from apportion.selection import ShuffledEpochs
from benchmarks.common import spread, table, write

FIXED_SEEDS, TRAINED_SEEDS = tuple(range(4)), tuple(range(3))
PROBLEMS, PROMPTS, LOGGED, BUDGET = 128, 32, 16, 8
STEPS = {"fixed": 16, "trained": 16}
MEASURES = ("rollouts", "mixed", "hits", "variance")
SOURCES = ("pools", "expected")
FAR = 1000
"""Added to the seed of a real run, so that it shares no random number with the log."""


@dataclass(frozen=True)
class LoggedUniform(Uniform):
    """Uniform allocation that writes each batch to a rollout log."""

    folder: Path = field(default=Path(), kw_only=True)

    def observe(self, batch):
        step = 1 + len(list(self.folder.iterdir()))
        write_step(self.folder, step, batch, self.groups(batch), text=lambda completion: "")


def rules():
    """Return the rules that are replayed and run."""
    return {
        "uniform": Uniform(BUDGET),
        "vip": VIP(rollouts_per_prompt=BUDGET),
        "hora": HORA(rollouts_per_prompt=BUDGET),
        "ar3po": AR3PO(),
        "dapo": DAPO(rollouts_per_prompt=BUDGET),
        "reinforce_ada": ReinforceAda(rollouts_per_round=4, rounds=4),
    }


def settings(kind):
    """Return the settings of a run in the lab."""
    never = 10**6
    return Training(
        problems=PROBLEMS,
        prompts_per_step=PROMPTS,
        steps=STEPS[kind],
        held_out=50,
        evaluate_every=never,
        checkpoint_every=never,
    )


def trained(allocator, seed, folder):
    """Train with ``allocator`` and return the metrics of each step."""
    found: list[dict[str, Any]] = []
    trainer = Trainer(settings("trained"), allocator, seed, folder)
    trainer.sampler = LedgerSampler(trainer.policy, _sampling_seed(allocator, seed))
    trainer.run(lambda record: found.append(record) or True)
    return found


def fixed(allocator, seed):
    """Sample with ``allocator`` from a policy that does not learn, and return the same metrics of each step."""
    training = settings("fixed")
    policy, pool, selector = base_policy(training.base), pool_of(training, seed), ShuffledEpochs()
    success = dict(zip([prompt.id for prompt in pool.prompts], exact_success(policy, pool.problems), strict=True))
    sampler, found = LedgerSampler(policy, _sampling_seed(allocator, seed)), []
    allocator.prepare(pool.prompts)
    selector.prepare(pool.prompts, seed)
    for _ in range(STEPS["fixed"]):
        held: set[str] = set()

        def draw(count, held=held):
            chosen = [pool.prompts[row] for row in selector.choose(count, held)]
            held.update(prompt.id for prompt in chosen)
            return chosen

        batch = collect(allocator, draw(PROMPTS), sampler, source=draw)
        mixed = sum(group.informative for group in allocator.groups(batch))
        found.append(
            {
                "counts": batch.asked.tolist(),
                "p": [success[prompt.id] for prompt in batch.prompts],
                "informative": mixed / len(batch.prompts),
                "without_correct": float((batch.successes == 0).mean()),
            }
        )
        allocator.observe(batch)
    return found


def _sampling_seed(allocator, seed):
    return seed if isinstance(allocator, LoggedUniform) else seed + FAR


def measured(records):
    """Return the measures of each step of a real run, [T]. The variance is over that of an even split, at exact p."""
    found = np.empty((len(MEASURES), len(records)))
    for step, record in enumerate(records):
        counts, p = np.array(record["counts"]), np.array(record["p"])
        asked = (counts > 0).sum()
        even = np.full(len(counts), counts.mean())
        with np.errstate(divide="ignore", invalid="ignore"):
            variance = [np.nansum(p * (1 - p) / (n - 1)) for n in (counts, even)]
        hits = (1 - record["without_correct"]) * asked
        found[:, step] = counts.sum(), record["informative"] * asked, hits, variance[0] / variance[1]
    return dict(zip(MEASURES, found, strict=True))


def replayed(found):
    """Return the measures of each step of a replay, [T]."""
    cells = found.cells
    variance = cells.by_step("variance") / cells.by_step("variance", even=True)
    return {name: variance if name == "variance" else cells.by_step(name) for name in MEASURES}


def one_seed(kind, seed):
    """Return the measures of every rule by step, really run and replayed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log = folder / "rollouts"
        log.mkdir()

        def run(name, allocator):
            return fixed(allocator, seed) if kind == "fixed" else trained(allocator, seed, folder / name)

        logged = run("logged", LoggedUniform(LOGGED, folder=log))
        record = open_run(log)
        real = {rule: run(rule, made) for rule, made in rules().items()}
    found: dict[str, Any] = {"real": {rule: measured(records) for rule, records in real.items()}}
    for source in SOURCES:
        again = replay(record, rules(), outcomes=source, allow_missing=True, seeds=(seed,))
        found[source] = {each.name: replayed(each) for each in again.allocators}
    found["success"] = [np.mean(each["p"]) for each in logged]
    return found


def rows_of(kind, seeds, part):
    """Return a row for each rule and measure: the real mean, and the paired difference of each kind of replay to it."""
    rows = []
    for rule in rules():
        for measure in MEASURES:
            real = np.array([each["real"][rule][measure][part].mean() for each in seeds])
            form = ".3f" if measure == "variance" else ".1f"
            cells = [f"{kind}, {rule}, {measure}", spread(real.tolist(), form)]
            for source in SOURCES:
                apart = np.array([each[source][rule][measure][part].mean() for each in seeds]) - real
                cells.append("+" * int(apart.mean() >= 0) + spread(apart.tolist(), form))
            rows.append(cells)
    return rows


def main():
    jobs = [("fixed", seed) for seed in FIXED_SEEDS] + [("trained", seed) for seed in TRAINED_SEEDS]
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        done = list(pool.map(one_seed, *zip(*jobs, strict=True)))
    write_tables(done[: len(FIXED_SEEDS)], done[len(FIXED_SEEDS) :])


def write_tables(still, moving):
    """Write the tables of what ``one_seed`` found for each seed, of a fixed and of a trained policy."""
    columns = ["policy, rule, measure", "really run", "pools less real", "expected less real"]
    part = slice(STEPS["trained"] - 6, STEPS["trained"])
    last = [row for row in rows_of("trained", moving, part) if row[0].endswith("hits")]
    success = [spread([np.mean(each["success"][some]) for each in moving], ".3f") for some in (slice(4), part)]
    write(
        "replay_validity",
        "Replayed rules beside the same rules really run",
        columns,
        rows_of("fixed", still, slice(0, None)),
        [NOTES[0], table(columns, last), NOTES[1].format(first=success[0], last=success[1])],
        seeds=FIXED_SEEDS,
    )


NOTES = [
    f"The lab's medium policy, {PROBLEMS} problems, {PROMPTS} prompts a step. A run with {LOGGED} rollouts a prompt is "
    f"logged and replayed; each rule, with {BUDGET} rollouts a prompt, is also really run from the same policy. Fixed: "
    f"{STEPS['fixed']} steps (four visits of each problem) in which the policy does not change. rollouts, mixed and "
    "hits (prompts with a correct rollout) are per step. variance: RLOO's, summed over prompts, over that of an even "
    f"split. Differences are paired by seed: mean and 95% interval (Student's t) over {len(FIXED_SEEDS)} seeds.",
    f"Trained: the last 6 of {STEPS['trained']} steps (four visits of each problem), {len(TRAINED_SEEDS)} seeds. Each "
    f"rule trains its own policy, and the log has that of uniform {LOGGED}, whose exact success rises from "
    "{first} in the first four steps to {last} in the last six.",
]


if __name__ == "__main__":
    main()
