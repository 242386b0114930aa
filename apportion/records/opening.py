"""Open a recorded run, whatever wrote it."""

from __future__ import annotations

import gzip
from pathlib import Path

from apportion.records.reading import record_of_log, record_of_visits
from apportion.records.rollout_log import RecordError
from apportion.records.run_record import RunRecord
from apportion.untrusted import parse_json, shown


def open_run(path: Path) -> RunRecord:
    """Return the run at ``path``: the folder of a rollout log, or a file of group counts per visit.

    Raises RecordError if it is neither, or damaged.
    """
    if path.is_dir():
        return record_of_log(path)
    lines = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    rows = [parse_json(line) for line in lines.decode().splitlines()]
    named = [name for name in rows[0] if name.startswith("correct_of_")]
    if len(named) != 1:
        raise RecordError(f"a run must be a rollout log or group counts, got {shown(str(path))}; check the path")
    counts, ids = [row[named[0]] for row in rows], [row["id"] for row in rows]
    size = int(named[0].removeprefix("correct_of_"))
    return record_of_visits(counts, size, ids, [row["prompt"] for row in rows], path.name.partition(".")[0])
