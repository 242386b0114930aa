"""Small runs as files, for the tests of imports."""

import csv
import gzip
import io
import json

import pyarrow
from pyarrow.parquet import write_table


def rollouts(steps=3, prompts=3, size=4, **more):
    """Return rows of groups; rollout k of prompt q at step s is right if s + q + k is a multiple of 3."""
    return [
        {"step": s, "prompt": f"What is {q}?", "reward": float((s + q + k) % 3 == 0), "tokens": 10 + k, **more}
        for s in range(steps)
        for q in range(prompts)
        for k in range(size)
    ]


def saved(path, rows):
    """Write ``rows`` in the form that the name of the file says, and return the file."""
    form = path.name.split(".")[1]
    return {"jsonl": jsonl, "csv": comma_separated, "parquet": parquet}[form](path, rows)


def said(run, *words):
    """Return whether one doubt of ``run`` has all the ``words``."""
    return any(all(word in doubt for word in words) for doubt in run.doubts)


def renamed(rows, **names):
    return [{names.get(key, key): value for key, value in row.items()} for row in rows]


def without(name, rows):
    return [{key: value for key, value in row.items() if key != name} for row in rows]


def jsonl(path, rows):
    return written(path, "".join(f"{json.dumps(row)}\n" for row in rows).encode())


def written(path, content):
    """Write ``content``, packed if the name of the file says so, and return the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def comma_separated(path, rows):
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return written(path, text.getvalue().encode())


def parquet(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    write_table(pyarrow.Table.from_pylist(rows), path)
    return path
