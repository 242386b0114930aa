"""The files of a run: which they are, the rows and documents in them, and which of TRL's repeat another."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apportion.records.importing.names import EVALUATION, STEP
from apportion.records.rollout_log import RecordError
from apportion.rows import SUFFIXES, Rows, TornError, kind_of, open_bytes, parquet_errors, table_rows
from apportion.untrusted import check_file, parse_json

if TYPE_CHECKING:
    from pyarrow import Array

DOCUMENTS = (".json", ".eval")
"""Files that are one JSON document, or an archive of them."""
DOCUMENT_BYTES = 2**30


PRIME = re.compile(r"^traces\.jsonl$|_rollouts\.jsonl$|_rollout_summaries\.jsonl$|eval_rollouts")
"""Names of the files of prime-rl and tinker-cookbook, among them those of their evaluations."""

PART = re.compile(
    r"(?:rank|part|shard|worker|proc|process|gpu|node|host|chunk|dp)[-_]?[0-9]+(?:[-_]?of[-_]?[0-9]+)?|^[0-9]+$"
)
"""Names of the files of parts of one run, such as those of its processes."""


def files_of(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return the files of a run at ``paths`` in numerical order, and the files that were left out.

    Of TRL's output folder the folder ``completions`` is read. Of prime-rl's and tinker-cookbook's, rollouts of
    evaluations are left out, and those that entered a batch if all rollouts are there too.
    """
    found, left = [], []
    for path in paths:
        if not path.exists():
            raise RecordError(f"a run must exist, got {path}; check the path")
        if not path.is_dir():
            found.append(path)
            continue
        inside = path / "completions"
        folder = inside if inside.is_dir() and list(inside.glob("completions_*.parquet")) else path
        prime = sorted(each for each in folder.rglob("*.jsonl") if PRIME.search(each.name))
        files = prime or [each for each in folder.iterdir() if each.is_file() and not each.name.startswith(".")]
        chosen = [each for each in files if kind_of(each) and (not prime or _is_wanted(each))]
        tables = [each for each in chosen if kind_of(each) not in DOCUMENTS]
        chosen = tables or [each for each in chosen if kind_of(each) == ".eval"] or _below(folder)
        if not chosen:
            raise RecordError(
                f"a folder must have files that end in {', '.join(SUFFIXES)}, got none in {path}; check the path, or "
                "log the next run: TRL by log_completions=True, verl by trainer.rollout_data_dir"
            )
        found += sorted(chosen, key=natural)
        left += [each for each in files if each not in set(chosen)]
    once: dict[Path, Path] = {}
    for each in found:
        if (before := once.setdefault(each.resolve(), each)) is not each:
            raise RecordError(f"a file must be given once, got {before} and {each}; give a folder or its files")
    return found, left


def parsed(text: str) -> Any:
    """Return the parsed JSON of a line. NaN is accepted, because tools write it in columns that are not read."""
    return parse_json(text, float)


def rows_of(path: Path, said: dict[str, None] | None = None) -> Rows:
    """Yield the rows of a table. Raise TableError, which names the line or the number.

    A last row that was not written whole is left out if that can be ``said``.
    """
    try:
        yield from table_rows(path, parse=parsed)
    except TornError as error:
        if said is None:
            raise
        said[
            f"the last row is not whole and left out, as if the run had been stopped: {str(error).rpartition(';')[0]}"
        ] = None


def document_of(path: Path) -> Any:
    """Return the JSON document in a file, or all samples in an archive of inspect_ai.

    Raise RecordError if it is damaged.
    """
    check_file(path, DOCUMENT_BYTES)
    try:
        if kind_of(path) == ".json":
            with open_bytes(path) as file:
                content = file.read(DOCUMENT_BYTES + 1)
            if len(content) > DOCUMENT_BYTES:
                raise RecordError(f"{path} must unpack to at most {DOCUMENT_BYTES:,} bytes; save it as JSON lines")
            return parsed(content.decode("utf-8-sig"))
        with zipfile.ZipFile(path) as archive:
            names = [each for each in archive.infolist() if each.filename.startswith("samples/")]
            if sum(each.file_size for each in names) > DOCUMENT_BYTES:
                raise RecordError(f"{path} must unpack to at most {DOCUMENT_BYTES:,} bytes; write a smaller log")
            samples = [parsed(archive.read(each).decode()) for each in sorted(names, key=lambda each: each.filename)]
            return {"eval": {}, "samples": samples}
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise RecordError(
            f"{path} must be a log of inspect_ai, got {error}; convert it by inspect log convert --to json"
        ) from error
    except ValueError as error:
        if isinstance(error, (RecordError, UnicodeDecodeError)):
            raise
        raise RecordError(f"{path} must be one JSON document, got {error}; name JSON lines .jsonl") from error


def repeats(path: Path, earlier: Path) -> int:
    """Return how many rows two tables of TRL have if they are the same, apart from the step, else 0.

    TRL keeps the last generated batch and writes it at each logged step. If ``steps_per_generation`` or
    ``num_iterations`` is above 1, several steps train on one batch, so several tables hold the same rollouts. Only the
    first is a generation. Raises TableError if one is damaged.
    """
    with parquet_errors(path):
        from pyarrow.parquet import ParquetFile  # noqa: PLC0415 - an optional extra

        with ParquetFile(path) as one, ParquetFile(earlier) as two:
            if one.schema_arrow.names != two.schema_arrow.names or one.metadata.num_rows != two.metadata.num_rows:
                return 0
            for columns in (["advantage"], [name for name in one.schema_arrow.names if name != "step"]):
                pairs = zip(one.iter_batches(columns=columns), two.iter_batches(columns=columns), strict=True)
                if not all(_bits(a) == _bits(b) for each in pairs for a, b in zip(*each, strict=True)):
                    return 0
            return int(one.metadata.num_rows)


def _bits(column: Array) -> Array:
    """Return a column whose NaN equals NaN."""
    return column.view("int64") if column.type == "double" else column


def said_by_names(files: Sequence[Path], renamed: Mapping[str, str]) -> dict[str, list[Any]]:
    """Return for each file the "step", the "run" and the "split" (for evaluations) that its path states.

    What is the same of all files is left out, and what the user named. Runs are, too, if the user reads evaluations.
    A name such as step_12 goes before a number alone, and the folder before its files, which may be its parts.
    """
    if len(files) < 2:
        return {}
    names = _names(files)
    matches = [[STEP.search(name) for name in each] for each in names]
    steps = [[int(match[kind]) for match in each if match and match[kind]] for kind in (1, 2) for each in matches]
    every: dict[str, list[list[Any]]] = {
        "step": [each for each in steps if len(each) == len(files)],
        "split": [[bool(EVALUATION.match(name.lower())) for name in each] for each in names],
        "run": [_runs(files)],
    }
    found = {role: differing[0] for role, ways in every.items() if (differing := [x for x in ways if len({*x}) > 1])}
    if "split" in renamed and "split" in found:
        found.pop("run", None)
    return {role: each for role, each in found.items() if role not in renamed}


def _runs(files: Sequence[Path]) -> list[str]:
    """Return the run of each file: its path without the numbers of steps and parts."""
    whole = [path.absolute() for path in files]
    shared = len(Path(os.path.commonpath([path.parent for path in whole])).parts)
    names = [[*path.parts[shared:-1], path.name.partition(".")[0]] for path in whole]
    return ["/".join(filter(None, (PART.sub("", STEP.sub("", part)) for part in parts))) for parts in names]


def _names(files: Sequence[Path]) -> tuple[list[str], list[str]]:
    """Return the names in the files' paths, from the folder of the step on if there is one."""
    folders = ([part for part in path.parts[:-1] if STEP.search(part)] or [path.parent.name] for path in files)
    return [each[-1] for each in folders], [path.name.partition(".")[0] for path in files]


def _below(folder: Path) -> list[Path]:
    """Return the tables in folders of ``folder`` that are named by steps. Raise RecordError if any other has tables."""
    tables = [
        each for each in folder.glob("*/*") if each.is_file() and kind_of(each) and kind_of(each) not in DOCUMENTS
    ]
    named = zip(*_names(tables), strict=True)
    if not all(STEP.search(folder) or STEP.search(name) for folder, name in named):
        found = ", ".join(sorted({each.parent.name for each in tables})[:6])
        raise RecordError(
            f"a folder must have the files of one run, got none in {folder}, but folders: {found}; name one"
        )
    return tables


def natural(path: Path) -> list[Any]:
    """Return a sort key for paths by the numbers in them: 9.jsonl comes before 10.jsonl."""
    return [
        (int(part), "") if part.isdigit() and part.isascii() else (-1, part)
        for part in re.split(r"([0-9]{1,18})", str(path))
    ]


def _is_wanted(path: Path) -> bool:
    """Return whether a file in a step's folder has training rollouts that no other file has."""
    if path.name != "traces.jsonl":
        return path.name in ("train_rollouts.jsonl", "train_rollout_summaries.jsonl")
    kept, kind = path.parent.name, path.parent.parent.name
    whole = path.parent.parent / "all" / path.name
    return kind != "eval" and kept != "eval" and not (kept == "effective" and whole.exists())
