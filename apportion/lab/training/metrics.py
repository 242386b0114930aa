"""The metrics of a run: one JSON object for each step, on one line, from step 0 up. A kill may tear the last line."""

import json
import os
from hashlib import sha256
from pathlib import Path
from typing import Any

from apportion.runs.whole_files import is_file

METRICS = "metrics.jsonl"


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the records at ``path``, without a torn last line; none if there is no file.

    Raises ValueError for any other line that is not the record of the next step.
    """
    lines = path.read_bytes().split(b"\n")[:-1] if is_file(path) else []  # what follows the last line break is torn
    records = [_record(line) for line in lines]
    if records and records[-1] is None:
        records.pop()
    for step, record in enumerate(records):
        if record is None or record["step"] != step:
            raise ValueError(f"{path} must hold step {step} in line {step + 1}, got something else; {_remedy(path)}")
    return [record for record in records if record is not None]


def checksum_of(path: Path, size: int) -> str:
    """Return the SHA-256 of the first ``size`` bytes at ``path``, in hexadecimal."""
    with path.open("rb") as file:
        return sha256(file.read(size)).hexdigest()


def cut_metrics(path: Path, size: int, checksum: str) -> None:
    """Cut the metrics at ``path`` to ``size`` bytes, the size that the checkpoint beside them recorded.

    Raises ValueError, and changes nothing, if they are shorter or have another ``checksum``.
    """
    if not is_file(path) or path.stat().st_size < size:
        raise ValueError(f"{path} must hold all that the run has written, got less; {_remedy(path)}")
    if checksum_of(path, size) != checksum:
        raise ValueError(f"{path} must hold what the run has written, got something else; {_remedy(path)}")
    os.truncate(path, size)


def _record(line: bytes) -> dict[str, Any] | None:
    """Return the record on ``line``; None if there is none."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    counted = isinstance(record, dict) and all(type(record.get(key)) is int for key in ("step", "rollouts", "tokens"))
    return record if counted else None


def _remedy(path: Path) -> str:
    return f"delete {path.parent} to train this run again from its start"
