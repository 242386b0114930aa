"""How long ``apportion report`` takes, and how large its page is: by steps of the run and by runs side by side."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from apportion.records import RunRecord, open_run, write_record
from apportion.report import page_of, profile_of, report_of
from benchmarks.common import write

STEPS, RUNS = (100, 1000, 5000), (1, 4)
REPEATS = {100: 3, 1000: 3, 5000: 1}
PROMPTS, SIZE, QUESTIONS = 64, 8, 256


def made(steps: int, seed: int) -> RunRecord:
    """Return a run of 512 rollouts a step, with tokens, times and predictions, whose success rises."""
    rng = np.random.default_rng(seed)
    groups = steps * PROMPTS
    step = np.repeat(np.arange(steps), PROMPTS)
    prompt = np.concatenate([rng.permutation(QUESTIONS)[:PROMPTS] for _ in range(steps)])
    p = 1 / (1 + np.exp(-(rng.normal(0, 2.5, QUESTIONS)[prompt] + 2 * step / steps - 1)))
    reward = (rng.random((groups, SIZE)) < p[:, None]).astype(float).reshape(-1)
    return RunRecord(
        name="made",
        source="rollout log",
        ids=tuple(f"q{q}" for q in range(QUESTIONS)),
        texts=tuple(f"What is {q} + {q}? {'Show your work. ' * 20}" for q in range(QUESTIONS)),
        step=step,
        prompt=prompt,
        predicted=np.clip(p + rng.normal(0, 0.1, groups), 0.01, 0.99),
        written=1.8e9 + 30.0 * (step + 1),
        first=SIZE * np.arange(groups + 1),
        reward=reward,
        tokens=rng.integers(50, 4000, len(reward)).astype(float),
    )


def command(log: Path, runs: int, out: Path) -> tuple[float, float]:
    """Return the seconds, and the seconds of CPU, of the command on ``runs`` runs."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "apportion", "report", *[str(log)] * runs, "--out", str(out)],
        check=True,
        capture_output=True,
    )
    after, seconds = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - started
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def parts(log: Path, runs: int) -> tuple[float, float]:
    """Return the seconds of CPU of reading the logs, and of making the page of what was read."""
    started = time.process_time()
    records = [open_run(log) for _ in range(runs)]
    read = time.process_time()
    page_of(report_of([profile_of(record, f"run {at}") for at, record in enumerate(records)]))
    return read - started, time.process_time() - read


def main() -> None:
    """Write the table."""
    rows, seeds = [], []
    with tempfile.TemporaryDirectory() as folder:
        for seed, steps in enumerate(STEPS):
            log, out = Path(folder) / f"log-{steps}", Path(folder) / "report.html"
            write_record(made(steps, seed), log)
            seeds.append(seed)
            for runs in RUNS:
                whole = np.array([command(log, runs, out) for _ in range(REPEATS[steps])])
                split = np.array([parts(log, runs) for _ in range(REPEATS[steps])])
                seconds, cpu = np.median(whole, axis=0)
                reading, page = np.median(split, axis=0)
                size = out.stat().st_size / 1000
                cells = (f"{seconds:.1f}", f"{cpu:.1f}", f"{reading:.1f}", f"{page:.2f}", f"{size:,.0f}")
                rows.append((f"{steps:,}", runs, f"{runs * steps * PROMPTS * SIZE:,}", *cells))
    columns = ("steps", "runs", "rollouts", "seconds", "CPU seconds", "reading", "making the page", "page, kB")
    notes = [
        f"Rollout logs of {PROMPTS} prompts a step with {SIZE} rollouts each. Medians of 3, but for 5,000 steps, which "
        "were measured once.",
        "CPU seconds are of the whole command, start of Python included. Several runs are the same log read several "
        "times. The log has one file a step, so reading it takes nearly all of the time.",
    ]
    write("report_time", "Time and size of a report", columns, rows, notes, seeds=seeds)


if __name__ == "__main__":
    main()
