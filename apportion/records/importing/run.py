"""Import a run that another tool recorded: find the files, detect the format, read the rows, report what was read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from apportion.records.importing.assembly import RunAssembly
from apportion.records.importing.csv_table import Doubt, blocks_of_csv, first_csv_row
from apportion.records.importing.files import SUFFIXES, files_of, kind_of, reading
from apportion.records.importing.jsonl import blocks_of_jsonl, first_row
from apportion.records.importing.layout import NAMES, Layout, detect, layout_of, weights_of
from apportion.records.importing.parquet import blocks_of_parquet, numeric_columns, schema_of
from apportion.records.importing.prime_rl import LAYOUT, blocks_of_prime_rl
from apportion.records.importing.trl import repeats
from apportion.records.importing.verl import with_groups
from apportion.records.importing.visits import read_visits
from apportion.records.rollout_log import RecordError
from apportion.records.run_record import RunRecord
from apportion.untrusted import shown


@dataclass(frozen=True)
class ImportSummary:
    """What was read, and what was left out.

    Args:
        format: what the format is called.
        files: files that were read.
        rows: rows in them, without repeated ones.
        groups: groups of the run.
        prompts: prompts of the run.
        rollouts: rollouts of the run.
        without_reward: rollouts without a reward.
        repeated: rows that were left out because TRL wrote them again at a later step.
        ignored: columns that nothing read.
        left: files of the folder that were not read.
    """

    format: str
    files: int
    rows: int
    groups: int
    prompts: int
    rollouts: int
    without_reward: int
    repeated: int
    ignored: tuple[str, ...]
    left: tuple[str, ...]


def import_run(
    paths: Sequence[Path],
    format: str | None = None,
    rewards: Sequence[str] = (),
    columns: Mapping[str, str] | None = None,
) -> tuple[RunRecord, ImportSummary]:
    """Return the run in the files or folders at ``paths``, and what was read.

    ``format`` is a key of ``NAMES`` and is detected if it is None. ``rewards`` are columns, each NAME or NAME=WEIGHT,
    whose weighted sum is the reward. ``columns`` are columns of another name, by what they say: ``{"reward":
    "score"}``.

    Raises RecordError, which names the file and the line, for what cannot be read.
    """
    if format is not None and format not in NAMES:
        raise RecordError(f"format must be one of {', '.join(NAMES)}, got {shown(format)}; correct it")
    if not paths:
        raise RecordError("a run must have a file, got none; name a file or a folder")
    renamed, weights = dict(columns or {}), weights_of(rewards)
    files, left = files_of(paths)
    name = paths[0].resolve().name.partition(".")[0] or "run"
    assembly, chosen, repeated = RunAssembly(weights), format, 0
    ignored: dict[str, None] = {}
    for place, path in enumerate(files):
        with reading(path):
            found, numeric = _columns(path)
            own = format or detect(path.name.lower(), found, renamed)
            if (own != chosen and place) or kind_of(path) != kind_of(files[0]):
                raise RecordError(
                    f"a run must have one format, got {own} in {path} and {chosen} in {files[0]}; import them apart"
                )
            chosen = own
            if own == "visits":
                if len(files) > 1:
                    raise RecordError(f"group counts per visit must be one file, got {len(files)}; give one")
                if weights or renamed:
                    raise RecordError("group counts have fixed columns, got --reward or --column; leave it out")
                record = read_visits(path, name)
                unread = [key for key in found if key not in ("id", "prompt") and not key.startswith("correct_of_")]
                return record, _summary(record, own, files, left, len(record.ids), 0, unread)
            if own == "trl" and place and repeats(path, files[place - 1]):
                repeated += _rows(path)
                continue
            _check_kind(own, path)
            layout = LAYOUT if own == "prime-rl" else layout_of(str(path), own, found, numeric, weights, renamed)
            if own == "prime-rl" and (weights or renamed):
                raise RecordError("prime-rl's rollouts have fixed columns, got --reward or --column; leave it out")
            if own != "prime-rl":
                ignored |= dict.fromkeys(layout.ignored(found))
            _read(path, layout, assembly)
    if not assembly.rows:
        raise RecordError(f"a run must have at least one row, got none in {files[0]}; check the file")
    rows = assembly.rows
    record = assembly.record(name, NAMES[chosen or ""])
    if np.isnan(record.reward).all() and len(record.reward):
        raise RecordError(f"a run must have rewards, got none in {rows:,} rows of {files[0]}; name the column")
    return record, _summary(record, chosen or "", files, left, rows, repeated, list(ignored))


def _columns(path: Path) -> tuple[list[str], list[str]]:
    """Return the columns of a file, and the numeric ones of them."""
    kind = kind_of(path)
    if not kind:
        raise RecordError(f"a run must end in {', '.join(SUFFIXES)}, got {shown(path.name)}; convert or rename it")
    if kind == ".parquet":
        schema = schema_of(path)
        return list(schema.names), numeric_columns(schema)
    return list(first_csv_row(path) if kind == ".csv" else first_row(path)), []


def _check_kind(format: str, path: Path) -> None:
    """Raise RecordError for a format in a kind of file that it never has."""
    kinds = {"trl": (".parquet",), "prime-rl": (".jsonl", ".ndjson")}
    if kind_of(path) not in kinds.get(format, SUFFIXES):
        raise RecordError(f"{NAMES[format]} must end in {kinds[format][0]}, got {shown(path.name)}; leave out --format")


def _read(path: Path, layout: Layout, assembly: RunAssembly) -> None:
    """Add the rows of a file."""
    kind = kind_of(path)
    if layout.format == "prime-rl":
        blocks = blocks_of_prime_rl(path)
    elif kind == ".parquet":
        blocks = blocks_of_parquet(path, layout)
    elif kind != ".csv":
        blocks = blocks_of_jsonl(path, layout)
    else:
        _read_csv(path, layout, assembly)
        return
    for block in blocks:
        assembly.add(with_groups(block) if layout.format == "verl" else block)


def _read_csv(path: Path, layout: Layout, assembly: RunAssembly) -> None:
    mark = assembly.mark()
    try:
        for block in blocks_of_csv(path, layout):
            assembly.add(block)
    except Doubt:
        assembly.forget(mark)
        for block in blocks_of_csv(path, layout, exact=True):
            assembly.add(block)


def _rows(path: Path) -> int:
    from pyarrow.parquet import read_metadata  # noqa: PLC0415 - an optional extra

    return int(read_metadata(path).num_rows)


def _summary(
    record: RunRecord,
    format: str,
    files: Sequence[Path],
    left: Sequence[Path],
    rows: int,
    repeated: int,
    ignored: Sequence[str],
) -> ImportSummary:
    return ImportSummary(
        format=NAMES[format],
        files=len(files),
        rows=rows,
        groups=len(record.step),
        prompts=len(record.ids),
        rollouts=len(record.reward),
        without_reward=int(np.isnan(record.reward).sum()),
        repeated=repeated,
        ignored=tuple(ignored),
        left=tuple(str(path) for path in left),
    )
