"""Damage runs of every format that ``apportion import`` reads, and check that no row is lost without a word.

    python -m benchmarks.hostile_logs                # the table
    python -m benchmarks.hostile_logs --cases 50 --only CSV --show

A case is a valid run with one seeded mutation, imported by the real command in a process of its own. It passes if it is
refused in one line with exit code 2, or if the log that was written has the rows and the sum of rewards that an
independent reader finds in the damaged file.
"""

from __future__ import annotations

import argparse
import csv
import gc
import gzip
import io
import json
import math
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas
import pyarrow
import pyarrow.json  # so that no case has to import it
from pyarrow.parquet import ParquetFile, write_table

from apportion.cli import app
from apportion.records import open_run
from benchmarks.common import RESULTS, write
from benchmarks.hostile_forks import CPU_SECONDS, MEMORY_BYTES, Outcome, run_forked
from benchmarks.hostile_mutations import BYTES, TEXT, Mutation, flip

CASES, SEED = 1000, 0
VERDICTS = ("refused", "right", "traceback", "lines", "lost", "bounds")
COLUMNS = (
    "format", "cases", "refused", "accepted and right", "tracebacks", "wrong exit or lines", "rows lost or wrong",
    "beyond the bounds", "slowest s", "most MiB",
)  # fmt: skip

Row = dict[str, Any]
Found = tuple[int, float]
"""Rows that a reader finds, and the sum of their rewards."""


@dataclass(frozen=True)
class Format:
    """A valid run: its ``files`` by name, the ``victim`` among them, and an independent reader of the victim."""

    name: str
    files: dict[str, bytes]
    victim: str
    mutations: tuple[Mutation, ...]
    count: Callable[[bytes], Found]
    around: Found = (0, 0.0)
    """Rows and rewards of the other files."""


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


def formats() -> list[Format]:
    """Return a valid run of each format."""
    own, second = rows_of(0), rows_of(1, step=3, steps=1)
    traces = [
        {"id": str(n), "group_id": f"g{row['prompt']}", "task": {"type": "Sum", "key": row["prompt"]},
         "rewards": {"right": {"score": row["reward"], "weight": 1.0}}, "nodes": [{"message": {"content": "a"}}]}
        for n, row in enumerate(own[:16])
    ]  # fmt: skip
    trl = [row | {"completion": "so 4", "advantage": 0.5} for row in renamed(own, reward="accuracy_reward")]
    verl = [row | {"output": "so 4", "gts": "4"} for row in renamed(own, prompt="input", reward="score")]
    visits = [{"id": f"q{q}", "prompt": f"What is {q}?", "correct_of_8": [q % 9, 3, 8]} for q in range(12)]
    counts = [{"id": f"q{q}", "step": s, "correct": (q + s) % 5, "trials": 4} for s in range(3) for q in range(5)]
    trl_other = [row | {"completion": "4", "advantage": 0.1} for row in renamed(second, reward="accuracy_reward")]
    other = len(second), sum(row["reward"] for row in second)
    verl_other = [row | {"output": "4", "gts": "4"} for row in renamed(second, prompt="input", reward="score")]
    return [
        Format("JSON lines", {"run.jsonl": jsonl(own)}, "run.jsonl", TEXT, partial(count_json, "reward")),
        Format(
            "JSON lines, gzip",
            {"run.jsonl.gz": gzip.compress(jsonl(own), mtime=0)},
            "run.jsonl.gz",
            BYTES,
            lambda content: count_json("reward", gzip.decompress(content)),
        ),
        Format("CSV", {"run.csv": comma_separated(own)}, "run.csv", TEXT, partial(count_csv, "reward")),
        Format(
            "Parquet",
            {"run.parquet": parquet(own)},
            "run.parquet",
            (*BYTES, *[rewrite_table] * 9),
            partial(count_parquet, "reward"),
        ),
        Format(
            "TRL completions",
            {"completions_00001.parquet": parquet(trl), "completions_00002.parquet": parquet(trl_other)},
            "completions_00001.parquet",
            (*BYTES, *[rewrite_table] * 9),
            partial(count_parquet, "accuracy_reward"),
            other,
        ),
        Format(
            "verl dump",
            {"0.jsonl": jsonl(verl), "3.jsonl": jsonl(verl_other)},
            "0.jsonl",
            TEXT,
            partial(count_json, "score"),
            other,
        ),
        Format(
            "prime-rl traces",
            {"rollouts/step_1/train/all/traces.jsonl": jsonl(traces)},
            "rollouts/step_1/train/all/traces.jsonl",
            TEXT,
            count_traces,
        ),
        Format("group counts per visit", {"run.jsonl": jsonl(visits)}, "run.jsonl", TEXT, count_visits),
        Format(
            "group counts per step",
            {"run.csv": comma_separated(counts)},
            "run.csv",
            TEXT,
            partial(count_csv, "correct"),
        ),
    ]


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


def study(results: Path = RESULTS, cases: int = CASES, only: Sequence[str] = (), show: bool = False) -> list[list[Any]]:
    """Run ``cases`` mutations of every format and write the table ``hostile_logs``; return its rows."""
    names = [each.name for each in formats() if not only or each.name in only]
    import_once()
    gc.collect()
    gc.freeze()  # children then share the imported modules' memory
    with ProcessPoolExecutor(len(names), get_context("fork")) as pool:
        table = list(pool.map(partial(study_format, cases=cases, show=show), names))
    write(
        "hostile_logs",
        "Damaged runs of other tools",
        COLUMNS,
        table,
        [
            "A case is a valid run with one seeded mutation: bits flipped, ranges lost, repeated or overwritten, lines "
            "swapped, numbers and strings made extreme, columns renamed or of another type, values nested deeply, "
            "other encodings, byte order marks and ends of lines, compressed content. `apportion import` reads it in a "
            f"process of its own, with {CPU_SECONDS} s of processor time and {MEMORY_BYTES // 2**30} GiB of memory "
            "beyond the start.",
            "Refused: exit code 2 and one line that begins with `error:`. Accepted and right: exit code 0, and the log "
            "has as many rows and the same sum of rewards as json, csv or pandas find in the damaged file. All further "
            "columns but the last two are defects.",
        ],
        seeds=[SEED],
        results=results,
    )
    return table


def import_once() -> None:
    """Import a run in this process, so that no case has to load what the command needs."""
    with tempfile.TemporaryDirectory() as place, redirect_stdout(io.StringIO()), suppress(SystemExit):
        path = Path(place) / "run.csv"
        path.write_bytes(comma_separated(rows_of(0)))
        app(["import", str(path), "--out", str(Path(place) / "log")])


def study_format(name: str, cases: int, show: bool) -> list[Any]:
    """Return the row of one format. Raise ValueError if its valid run is refused: then a case would prove nothing."""
    (format,) = [each for each in formats() if each.name == name]
    ended, seconds, memory = Counter[str](), 0.0, 0
    with tempfile.TemporaryDirectory() as place:
        verdict, why, _ = run(format, format.files[format.victim], Path(place) / "case")
        if verdict != "right":
            raise ValueError(f"a valid run must be imported, got {verdict} for {name}: {why}; correct it")
        for number in range(cases):
            mutation, content = damaged(format, number)
            verdict, why, outcome = run(format, content, Path(place) / "case")
            ended[verdict] += 1
            seconds, memory = max(seconds, outcome.seconds), max(memory, outcome.memory)
            if show and verdict not in VERDICTS[:2]:
                print(name, number, mutation, verdict, why, flush=True)
    row = [name, cases, *(ended[each] for each in VERDICTS), f"{seconds:.1f}", f"{memory / 2**20:.0f}"]
    print(*row, flush=True)
    return row


def damaged(format: Format, number: int) -> tuple[str, bytes]:
    """Return the name of a mutation, and what it makes of the victim."""
    rng = Random(f"{SEED} {format.name} {number}")
    mutation, own = rng.choice(format.mutations), format.files[format.victim]
    try:
        return mutation.__name__, mutation(rng, own, own)
    except pyarrow.ArrowException:
        return "flip", flip(rng, own, own)


def run(format: Format, content: bytes, folder: Path) -> tuple[str, str, Outcome]:
    """Import the run with another ``content`` of its victim; return the verdict, what is wrong, and how it ended."""
    work = folder / "work"
    for name, own in (format.files | {format.victim: content}).items():
        path = work / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if name == format.victim else own)
    source = "source" if len(format.files) > 1 or "/" in format.victim else f"source/{format.victim}"
    outcome = run_forked(lambda: app(["import", source, "--out", "log", "--json"]), work, {})
    verdict, why = judge(format, content, outcome, work / "log")
    shutil.rmtree(folder)
    return verdict, why, outcome


def judge(format: Format, content: bytes, outcome: Outcome, log: Path) -> tuple[str, str]:
    """Return the verdict on a case, and what is wrong."""
    lines = outcome.err.splitlines()
    if outcome.code < 0 or outcome.code > 128 or outcome.memory > MEMORY_BYTES or "MemoryError" in outcome.err:
        return "bounds", f"exit {outcome.code} after {outcome.seconds:.1f} s and {outcome.memory / 2**20:.0f} MiB"
    if "Traceback (most recent call last)" in outcome.err:
        return "traceback", " ".join(lines[-1].split())[:300]
    if outcome.code == 2:
        good = len(lines) == 1 and lines[0].startswith("error: ") and lines[0].isprintable() and len(lines[0]) < 2100
        return ("refused", "") if good else ("lines", repr(outcome.err[:300]))
    if outcome.code or lines:
        return "lines", f"exit {outcome.code} and {outcome.err[:200]!r}"
    told, record = json.loads(outcome.out), open_run(log)
    try:
        rows, rewards = format.count(content)
    except (ValueError, TypeError, AttributeError, LookupError, OSError, csv.Error, EOFError) as error:
        return "lost", f"accepted what cannot be read: {type(error).__name__}: {error}"
    total = float(np.nansum(record.reward))
    if told["rows"] != rows + format.around[0] or not math.isclose(total, rewards + format.around[1], abs_tol=1e-6):
        return "lost", f"{told['rows']} rows and {total:g}, not {rows + format.around[0]} and {rewards:g}"
    return "right", ""


def _number(cell: Any) -> float:
    """Return the number in a cell, 0 for none."""
    if cell is None or (isinstance(cell, str) and not cell.strip()) or (isinstance(cell, float) and math.isnan(cell)):
        return 0.0
    return float({"true": 1, "True": 1, "false": 0, "False": 0}.get(cell, cell) if isinstance(cell, str) else cell)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=CASES)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    study(given.out, given.cases, given.only, given.show)
