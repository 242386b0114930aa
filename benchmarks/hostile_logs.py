"""Runs of every format that ``apportion import`` reads, as targets of ``benchmarks.hostile_input``.

No row may be lost without a word: the log that is written must have the rows and the sum of rewards that an independent
reader finds in the damaged file.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pandas
import pyarrow
import pyarrow.json  # so that no case has to import it
from pyarrow.parquet import ParquetFile, write_table

from apportion.records import open_run
from benchmarks.hostile_judges import Accepted, Unreadable
from benchmarks.hostile_mutations import BYTES, TEXT, Mutation, flip
from benchmarks.hostile_targets import Seed, Target

LOGS = "logs"
"""How the formats of these targets begin."""

Row = dict[str, Any]
Found = tuple[int, float]
"""Rows that a reader finds, and the sum of their rewards."""


def rows_of(seed: int, step: int = 0, steps: int = 3) -> list[Row]:
    """Return the rows of a small run: 4 prompts, groups of 4."""
    rng = Random(seed)
    return [
        {"step": step + s, "prompt": f"What is {q} + {q}?", "reward": float(rng.random() < 0.5), "tokens": 9 + k,
         "answer": str(q + k % 2)}
        for s in range(steps) for q in range(4) for k in range(4)
    ]  # fmt: skip


def jsonl(rows: Sequence[Row]) -> bytes:
    """Return the rows as JSON lines."""
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def comma_separated(rows: Sequence[Row]) -> bytes:
    """Return the rows as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def parquet(rows: Sequence[Row]) -> bytes:
    """Return the rows as Parquet."""
    return _table(pyarrow.Table.from_pylist(list(rows)))


def renamed(rows: Sequence[Row], **names: str) -> list[Row]:
    """Return the rows with other names of columns."""
    return [{names.get(key, key): value for key, value in row.items()} for row in rows]


def rewrite_table(rng: Random, own: bytes, other: bytes) -> bytes:
    """Rename, remove, repeat or retype a column of a Parquet file, or put null, NaN or a huge number into it."""
    try:
        return _rewritten(rng, own)
    except pyarrow.ArrowException:
        return flip(rng, own, other)


def _rewritten(rng: Random, own: bytes) -> bytes:
    table = ParquetFile(pyarrow.BufferReader(own)).read()
    place, kind = rng.randrange(table.num_columns), rng.randrange(7)
    name, cells = table.column_names[place], table.column(place).to_pylist()
    row = rng.randrange(len(cells))
    if kind == 0:
        return _table(table.remove_column(place))
    if kind == 1:
        return _table(table.rename_columns([each + "x" * (each == name) for each in table.column_names]))
    if kind == 2:
        new: Any = [str(cell) for cell in cells]
    elif kind == 3:
        new = [[cell] for cell in cells]
    else:
        value = {4: None, 5: math.nan, 6: 1e300}[kind]
        new = [value if at == row else cell if isinstance(cell, (int, float)) else 0.0 for at, cell in enumerate(cells)]
        new = new if kind != 4 or isinstance(cells[0], float) else [*cells[:row], None, *cells[row + 1 :]]
    return _table(table.set_column(place, name, pyarrow.array(new)))


def _table(table: Any) -> bytes:
    sink = pyarrow.BufferOutputStream()
    write_table(table, sink, write_page_checksum=True)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def log_targets() -> list[Target]:
    """Return a target for each format."""
    own, second = rows_of(0), rows_of(1, step=3, steps=1)
    traces = [
        {"id": str(n), "group_id": f"g{row['prompt']}", "task": {"type": "Sum", "key": row["prompt"]},
         "rewards": {"right": {"score": row["reward"], "weight": 1.0}}, "nodes": [{"message": {"content": "a"}}]}
        for n, row in enumerate(own[:16])
    ]  # fmt: skip
    trl, trl_other = (
        parquet([row | {"completion": "so 4", "advantage": 0.5} for row in renamed(rows, reward="accuracy_reward")])
        for rows in (own, second)
    )
    verl, verl_other = (
        jsonl([row | {"output": "so 4", "gts": "4"} for row in renamed(rows, prompt="input", reward="score")])
        for rows in (own, second)
    )
    visits = [{"id": f"q{q}", "prompt": f"What is {q}?", "correct_of_8": [q % 9, 3, 8]} for q in range(12)]
    counts = [{"id": f"q{q}", "step": s, "correct": (q + s) % 5, "trials": 4} for s in range(3) for q in range(5)]
    other = len(second), sum(row["reward"] for row in second)
    tables = (*BYTES, *[rewrite_table] * 9)
    rewards, scores = partial(count_json, "reward"), partial(count_json, "score")
    return [
        _target("JSON lines", {"run.jsonl": jsonl(own)}, TEXT, rewards),
        _target(
            "JSON lines, gzip", {"run.jsonl.gz": gzip.compress(jsonl(own), mtime=0)}, BYTES,
            lambda content: rewards(gzip.decompress(content)),
        ),
        _target("CSV", {"run.csv": comma_separated(own)}, TEXT, partial(count_csv, "reward")),
        _target("Parquet", {"run.parquet": parquet(own)}, tables, partial(count_parquet, "reward")),
        _target(
            "TRL completions", {"completions_00001.parquet": trl, "completions_00002.parquet": trl_other}, tables,
            partial(count_parquet, "accuracy_reward"), other,
        ),
        _target("verl dump", {"0.jsonl": verl, "3.jsonl": verl_other}, TEXT, scores, other),
        _target("prime-rl traces", {"rollouts/step_1/train/all/traces.jsonl": jsonl(traces)}, TEXT, count_traces),
        _target("group counts per visit", {"run.jsonl": jsonl(visits)}, TEXT, count_visits),
        _target("group counts per step", {"run.csv": comma_separated(counts)}, TEXT, partial(count_csv, "correct")),
    ]  # fmt: skip


def _target(
    name: str,
    files: dict[str, bytes],
    mutations: tuple[Mutation, ...],
    count: Callable[[bytes], Found],
    around: Found = (0, 0.0),
) -> Target:
    """Return the target of a run, whose first file is damaged; the others have the rows and rewards ``around``."""
    victim = next(iter(files))
    alone = len(files) == 1 and "/" not in victim

    def judge(case: Accepted) -> str:
        told, total = json.loads(case.out)["rows"], float(np.nansum(open_run(case.folder / "log").reward))
        try:
            rows, rewards = count((case.folder / "source" / victim).read_bytes())
        except (LookupError, csv.Error, EOFError) as error:
            raise Unreadable(repr(error)) from error
        if told == rows + around[0] and math.isclose(total, rewards + around[1], abs_tol=1e-6):
            return ""
        return f"{told} rows and {total:g}, not {rows + around[0]} and {rewards:g}"

    line = ("import", f"source/{victim}" if alone else "source", "--out", "log", "--json")
    seed = Seed({f"source/{each}": content for each, content in files.items()}, f"source/{victim}", line)
    return Target(f"{LOGS}: {name}", "import", [seed], judge, mutations)


def count_json(reward: str, content: bytes) -> Found:
    """Return the rows and rewards of JSON lines, as Python reads them."""
    rows = [json.loads(line) for line in content.decode("utf-8-sig").split("\n") if line.strip()]
    return len(rows), sum(_number(row.get(reward)) for row in rows)


def count_traces(content: bytes) -> Found:
    """Return the traces and rewards of prime-rl. A line may be an episode, or a flat row."""
    rows = [json.loads(line) for line in content.decode("utf-8-sig").split("\n") if line.strip()]
    cells = [cell for row in rows for cell in (row.get("rewards") or {}).values() if cell is not None]
    values = [cell.get("score", 0) * cell.get("weight", 1) if isinstance(cell, dict) else cell for cell in cells]
    return len(rows), float(sum(values))


def count_visits(content: bytes) -> Found:
    """Return the lines of group counts, and the correct rollouts."""
    rows = [json.loads(line) for line in content.decode("utf-8-sig").split("\n") if line.strip()]
    lists = [cells for row in rows for key, cells in row.items() if key.startswith("correct_of_")]
    return len(rows), float(sum(sum(cells) for cells in lists))


def count_csv(reward: str, content: bytes) -> Found:
    """Return the rows and rewards of CSV, as Python reads them."""
    rows = list(csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True))
    header = [name.strip() for name in rows[0]]
    cells = [dict(zip(header, row, strict=True)) for row in rows[1:] if row]
    return len(cells), sum(_number(row.get(reward)) for row in cells)


def count_parquet(reward: str, content: bytes) -> Found:
    """Return the rows and rewards of Parquet, as pandas reads them."""
    names = ParquetFile(pyarrow.BufferReader(content)).schema_arrow.names
    named = [name for name in names if name in (reward, reward + "x")]  # a lone column of numbers is the reward
    wanted = [name for name in ("step", "prompt") if name in names]  # without a step all rows are one
    frame = pandas.read_parquet(io.BytesIO(content), columns=[*wanted, *named])  # others may be damaged
    cells = frame[named[0]].explode() if named else []  # a list is as many rollouts
    return len(frame), sum(_number(cell) for cell in cells)


def _number(cell: Any) -> float:
    """Return the number in a cell, 0 for none."""
    if cell is None or (isinstance(cell, str) and not cell.strip()) or (isinstance(cell, float) and math.isnan(cell)):
        return 0.0
    return float({"true": 1, "True": 1, "false": 0, "False": 0}.get(cell, cell) if isinstance(cell, str) else cell)
