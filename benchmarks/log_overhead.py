"""What the rollout log of a lab run costs, and what kills and damage do to it.

    python -m benchmarks.log_overhead

Linux only: the killed writers are forks of this process.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from apportion import Uniform
from apportion.lab.training.settings import Training
from apportion.lab.training.trainer import Trainer
from apportion.records import (
    LoggedStep,
    RecordError,
    read_log,
    record_of_log,
    resume_log,
    start_log,
    write_record,
    write_steps,
)
from benchmarks.common import options, write
from benchmarks.hostile_mutations import BYTES
from tests.builders import make_batch

SIZES = {"16 x 4": (16, 4), "32 x 8": (32, 8)}
ROLLOUTS, SEEDS, KILLS, MUTATIONS = 7680, (0, 1, 2), 100, 1000


def overhead(prompts: int, rollouts_per_prompt: int, seed: int) -> tuple[float, float, int]:
    """Return the CPU seconds of a run, those for its log, and the bytes of the log."""
    with tempfile.TemporaryDirectory() as folder:
        training = Training(rollouts=ROLLOUTS, prompts_per_step=prompts)
        trainer = Trainer(training, Uniform(rollouts_per_prompt), seed, Path(folder))
        spent = 0.0

        def timed(call: Callable[..., None]) -> Callable[..., None]:
            def measured(*arguments: Any) -> None:
                nonlocal spent
                began = time.process_time()
                call(*arguments)
                spent += time.process_time() - began

            return measured

        trainer._write_log = timed(trainer._write_log)  # type: ignore[method-assign]
        began = time.process_time()
        trainer.run()
        total = time.process_time() - began
        return total, spent, sum(path.stat().st_size for path in trainer.rollouts.iterdir())


def interval(pairs: np.ndarray) -> str:
    """Return the share of the log over all runs in per cent, and its range over the runs."""
    shares = 100 * pairs[:, 1] / pairs[:, 0]
    return f"{100 * pairs[:, 1].sum() / pairs[:, 0].sum():.2f} [{shares.min():.2f}, {shares.max():.2f}]"


def kills(count: int) -> int:
    """Kill a writer at ``count`` random moments. Return how many logs could be read, with whole steps without a gap."""
    rng, survived = Random(0), 0
    for _ in range(count):
        with tempfile.TemporaryDirectory() as folder:
            child = os.fork()
            if not child:
                write_without_end(Path(folder))
            while not any(Path(folder).glob("step*")):
                time.sleep(0.001)
            time.sleep(0.1 * rng.random())
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            steps = read_log(Path(folder))["step"].to_numpy()
            sizes = {int(step): int((steps == step).sum()) for step in np.unique(steps)}
            survived += list(sizes) == list(range(1, len(sizes) + 1)) and set(sizes.values()) == {200}
    return survived


def write_without_end(folder: Path) -> None:
    """Write steps, one or two a file, until the process is killed."""
    batch, step = make_batch([[0, 1] * 20] * 5), 1
    groups = Uniform(1).groups(batch)
    while True:
        steps = [LoggedStep(step + k, batch, groups) for k in range(1 + step % 2)]
        write_steps(folder, steps)
        step += len(steps)


def damage(count: int) -> Iterator[str]:
    """Yield what came of each damage to one file of a log: refused, as it was, or changed."""
    rng = Random(0)
    with tempfile.TemporaryDirectory() as folder:
        run, imported, own = (Path(folder) / name for name in ("log", "imported", "own"))
        id = start_log(run)
        batches = [make_batch([[rng.random() < 0.5 for _ in range(4)] for _ in range(4)]) for _ in range(4)]
        steps = [LoggedStep(k, each, Uniform(4).groups(each)) for k, each in enumerate(batches)]
        for part in (steps[:2], steps[2:3], steps[3:]):
            write_steps(run, part)
        write_record(record_of_log(run), imported)
        for case in range(count):
            source = (run, imported)[case % 2]
            names = sorted(path.name for path in source.iterdir())
            name, other = rng.choice(names), rng.choice(names)
            shutil.copytree(source, own)
            content = (source / name).read_bytes()
            changed = rng.choice(BYTES)(rng, content, (source / other).read_bytes())
            (own / name).write_bytes(changed)
            yield "as it was" if changed == content else outcome(own, source, id, name)
            shutil.rmtree(own)


def outcome(own: Path, source: Path, id: str, name: str) -> str:
    """Return what came of reading ``own``, a copy of ``source`` in which the file ``name`` was damaged."""
    try:
        same = read_log(own).equals(read_log(source))
        found, expected = record_of_log(own), record_of_log(source)
        same &= np.array_equal(found.reward, expected.reward) and np.array_equal(found.first, expected.first)
        if name == "run.txt" and source.name == "log":
            resume_log(own, id, 3)
    except RecordError:
        return "refused"
    return "as it was" if same and (found.ordered, found.visits) == (expected.ordered, expected.visits) else "changed"


def main() -> None:
    """Measure everything and write ``results/log_overhead.md``."""
    arguments = options(__doc__, kills=KILLS, mutations=MUTATIONS)
    rows: list[list[object]] = []
    survived = kills(arguments.kills)
    found = list(damage(arguments.mutations))
    overhead(*SIZES["16 x 4"], seed=99)  # imports pyarrow, once a process
    for name, sizes in SIZES.items():
        runs = np.array([overhead(*sizes, seed=seed) for seed in SEEDS])
        bytes_a_rollout = runs[:, 2].sum() / (len(SEEDS) * ROLLOUTS)
        rows.append(
            [name, f"{runs[:, 0].mean():.1f}", f"{runs[:, 1].mean():.3f}", interval(runs), f"{bytes_a_rollout:.0f}"]
        )
    columns = ("prompts x rollouts", "CPU s of a run", "CPU s of its log", "share of the log in %", "bytes a rollout")
    notes = [
        f"Each run is {ROLLOUTS:,} rollouts of the medium base. Brackets hold the least and the largest share of the "
        "runs. The import of pyarrow, about 0.03 s once a process, is left out.",
        f"A writer was killed at {arguments.kills} random moments. {survived} of the logs it left could be read, with "
        "whole steps and no gap.",
        f"One file of a log was damaged in {len(found):,} ways: "
        f"{found.count('refused')} were refused with one line, {found.count('as it was')} were read as they were, and "
        f"{found.count('changed')} were read as something else.",
    ]
    write("log_overhead", "What a rollout log costs", columns, rows, notes, seeds=SEEDS)


if __name__ == "__main__":
    main()
