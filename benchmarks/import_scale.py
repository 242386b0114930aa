"""Import ten million rollouts of each format, and measure the seconds and the memory that it takes.

    python -m benchmarks.import_scale                 # the table
    python -m benchmarks.import_scale --rows 100000 --out DIR

Each import is a process of its own. Its memory is the largest resident size of the whole process, pyarrow included.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow.parquet import ParquetWriter

from benchmarks.common import RESULTS, ROOT, options, write

ROWS, SLOW_ROWS, PROMPTS, GROUP, GROUPS, SEED = 10_000_000, 200_000, 100_000, 8, 128, 0
CHILD = """
import resource, sys, time
from pathlib import Path
from apportion.records import open_run
began = time.perf_counter()
run = open_run(Path(sys.argv[1]))
print(len(run.reward), time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""

Row = dict[str, Any]


def steps(rows):
    """Yield the rows of each step: 128 groups of 8, of prompts drawn at random."""
    rng = np.random.default_rng(SEED)
    for step in range(rows // (GROUP * GROUPS)):
        prompts = np.repeat(rng.choice(PROMPTS, GROUPS, replace=False), GROUP).tolist()
        rewards, tokens = (rng.random(len(prompts)) < 0.4).astype(float).tolist(), rng.integers(50, 2000, len(prompts))
        yield (
            step,
            [
                {
                    "step": step,
                    "prompt": f"Question {prompt}: what is {prompt} plus {prompt + 1}? Answer with one number.",
                    "completion": "A short completion that nobody reads when a run is imported. " * 2,
                    "reward": reward,
                    "tokens": count,
                    "answer": str(prompt + count % 5),
                }
                for prompt, reward, count in zip(prompts, rewards, tokens.tolist(), strict=True)
            ],
        )


def write_jsonl(folder, rows, opened=lambda path: path.open("wb")):
    """Write one file of JSON lines."""
    path = folder / ("run.jsonl.gz" if opened is packed else "run.jsonl")
    with opened(path) as file:
        for _, made in steps(rows):
            file.write("".join(f"{json.dumps(row)}\n" for row in made).encode())
    return path


def packed(path):
    """Open a compressed file for writing."""
    return gzip.open(path, "wb", compresslevel=1)


def write_csv(folder, rows):
    """Write one CSV file with quoted texts."""
    path = folder / "run.csv"
    with path.open("w", encoding="utf-8") as file:
        file.write("step,prompt,completion,reward,tokens,answer\n")
        for _, made in steps(rows):
            file.write(
                "".join('{step},"{prompt}","{completion}",{reward},{tokens},{answer}\n'.format(**r) for r in made)
            )
    return path


def write_parquet(folder, rows):
    """Write one Parquet file."""
    path, writer = folder / "run.parquet", None
    for _, made in steps(rows):
        table = pyarrow.Table.from_pylist(made)
        writer = writer or ParquetWriter(path, table.schema)
        writer.write_table(table)
    if writer:
        writer.close()
    return path


def write_trl(folder, rows):
    """Write TRL's tables, one a step, with the columns of ``log_completions``."""
    for step, made in steps(rows):
        table = pyarrow.Table.from_pylist(
            [
                {
                    "step": row["step"],
                    "prompt": row["prompt"],
                    "completion": row["completion"],
                    "accuracy_reward": row["reward"],
                    "advantage": row["reward"] - 0.4,
                }
                for row in made
            ]
        )
        with ParquetWriter(folder / f"completions_{step:05d}.parquet", table.schema) as writer:
            writer.write_table(table)
    return folder


def write_verl(folder, rows):
    """Write verl's dumps, one a step."""
    for step, made in steps(rows):
        lines = [
            {
                "input": row["prompt"],
                "output": row["completion"],
                "gts": "1",
                "score": row["reward"],
                "step": step,
                "acc": row["reward"],
            }
            for row in made
        ]
        (folder / f"{step}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return folder


def write_counts(folder, rows):
    """Write the group counts of each step, a row a group."""
    path = folder / "counts.csv"
    with path.open("w", encoding="utf-8") as file:
        file.write("id,step,correct,trials\n")
        for step, made in steps(rows):
            for group in range(0, len(made), GROUP):
                right = int(sum(row["reward"] for row in made[group : group + GROUP]))
                file.write(f"{made[group]['prompt'][9:15].strip(': w')},{step},{right},{GROUP}\n")
    return path


def write_prime_rl(folder, rows):
    """Write traces as prime-rl does, which are read cell by cell."""
    for step, made in steps(rows):
        inside = folder / "rollouts" / f"step_{step}" / "train" / "all"
        inside.mkdir(parents=True)
        lines = [
            {
                "id": f"{step}-{number}",
                "task": {"type": "Sum", "data": {"idx": 0, "prompt": row["prompt"]}, "key": row["prompt"]},
                "nodes": [{"message": {"role": "assistant", "content": row["completion"]}}],
                "calls": [{"usage": {"completion_tokens": row["tokens"]}}],
                "rewards": {"correct": {"score": row["reward"], "weight": 1.0}},
            }
            for number, row in enumerate(made)
        ]
        (inside / "traces.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return folder


FORMATS: dict[str, tuple[Callable[[Path, int], Path], bool]] = {
    "JSON lines": (write_jsonl, True),
    "JSON lines, gzip": (lambda folder, rows: write_jsonl(folder, rows, packed), True),
    "CSV": (write_csv, True),
    "Parquet": (write_parquet, True),
    "TRL, a table a step": (write_trl, True),
    "verl, a dump a step": (write_verl, True),
    "group counts per step, CSV": (write_counts, True),
    "prime-rl traces": (write_prime_rl, False),
}
"""How each format is written, and whether it is read by whole blocks."""


def study(rows=ROWS, results=RESULTS):
    """Write each format, import it in a process of its own, and write the table ``import_scale``."""
    table, load = [], os.getloadavg()[0]
    for name, (make, quick) in FORMATS.items():
        with tempfile.TemporaryDirectory() as place:
            path = make(Path(place), rows if quick else min(rows, SLOW_ROWS))
            done = subprocess.run(
                [sys.executable, "-c", CHILD, str(path)], cwd=ROOT, capture_output=True, encoding="utf-8", check=True
            )
        count, seconds, memory = (float(each) for each in done.stdout.split())
        table.append([name, f"{int(count):,}", f"{seconds / count * 1e7:.0f}", f"{memory / 2**20:.2f}"])
        print(*table[-1], flush=True)
    write(
        "import_scale",
        f"Imports of {rows:,} rollouts",
        ("format", "rollouts", "seconds for ten million", "most GiB"),
        table,
        [
            f"`open_run` on synthetic runs of groups of {GROUP}, {GROUPS} groups a step, of {PROMPTS:,} prompts, with "
            "a completion in each row (not in the counts). Each import is a process of its own. Its memory is the "
            f"largest resident size of the whole process. The machine was busy: its load was {load:.1f}.",
            f"Traces of prime-rl are nested, and are read line by line, so {SLOW_ROWS:,} were enough to measure them.",
        ],
        seeds=[SEED],
        results=results,
    )


if __name__ == "__main__":
    given = options(__doc__, rows=ROWS, out=RESULTS)
    study(given.rows, given.out)
