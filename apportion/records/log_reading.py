"""Read a rollout log as a table, or as the rollouts of each prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from apportion.records.log_folder import files_of, path_of
from apportion.records.rollout_log import COLUMNS, LATER, MARK, VERSION, RecordError, schema
from apportion.types import Rollout

if TYPE_CHECKING:
    from pyarrow import Table

T = TypeVar("T")

ATTEMPTS = 5
"""How often the files are listed again if a step disappears during reading, because the run resumed from an earlier
one."""


def read_log(folder: str | Path) -> Table:
    """Return all steps of a log as one pyarrow Table, ordered by step and then as in the batch.

    Raises RecordError for a folder without steps, and for a file of another version or format.
    """
    schema()
    from pyarrow import concat_tables  # noqa: PLC0415 - an optional extra

    return read_whole(folder, lambda paths: concat_tables([read_file(path) for path in paths]))


def read_whole(folder: str | Path, read: Callable[[list[Path]], T]) -> T:
    """Return ``read`` of each file, in order. Raise RecordError if there are none.

    A run that resumes from an earlier step removes steps. If one is gone before it was read, all are read again.
    """
    for attempt in range(ATTEMPTS):
        files = files_of(folder)
        if not files:
            break
        try:
            return read([file.path for file in files])
        except FileNotFoundError as error:
            if attempt == ATTEMPTS - 1:
                raise RecordError(f"a log must keep its steps while it is read, got {error}; read it again") from error
    raise RecordError(f"a rollout log must have a step-NNNNNN.parquet, got none in {folder}; check the folder")


def read_file(path: Path, columns: Sequence[str] = tuple(COLUMNS), coded: Sequence[str] = ()) -> Table:
    """Return ``columns`` of the rows of one file. Those in ``coded`` are texts, and come dictionary-encoded.

    Raises RecordError, or FileNotFoundError if there is no such file.
    """
    kinds = schema()
    from pyarrow import ArrowException, nulls  # noqa: PLC0415 - an optional extra
    from pyarrow.parquet import ParquetFile  # noqa: PLC0415

    try:
        with ParquetFile(path, read_dictionary=list(coded), page_checksum_verification=True) as file:
            found = file.schema.to_arrow_schema()  # the schema without dictionary types
            version = (found.metadata or {}).get(MARK, b"").decode()
            own = kinds if LATER in found.names else kinds.remove(kinds.get_field_index(LATER))
            if version == str(VERSION) and found.equals(own):
                table = file.read(columns=list(columns), use_threads=False)
                _check_steps(path, table)
                if own is not kinds:
                    table = table.append_column(LATER, nulls(len(table), kinds.field(LATER).type))
                return table.select(list(columns))
    except FileNotFoundError:
        raise
    except (ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0]
        raise RecordError(f"{path} must be a step of a rollout log, got no Parquet ({reason}); remove it") from error
    if version in ("", str(VERSION)):
        raise RecordError(f"{path} must be a step of a rollout log, got other Parquet; remove it from the folder")
    raise RecordError(
        f"{path} must be of version {VERSION} of the rollout log, got {version}; "
        "read it with the apportion that wrote it"
    )


def _check_steps(path: Path, table: Table) -> None:
    """Raise RecordError unless the first and last row have the steps in the file's name."""
    if "step" in table.column_names and len(table):
        first, last = table["step"][0].as_py(), table["step"][-1].as_py()
        if path_of(path.parent, first, last).name != path.name:
            raise RecordError(f"{path} must have the steps of its name, got {first} to {last}; remove it, or rename it")


def read_streams(folder: str | Path) -> dict[str, list[Rollout]]:
    """Return the rollouts of each prompt, by its id, in the order in which they were drawn, for ``Recorded``.

    Completions are texts. A prompt without a rollout has an empty list. Failed rollouts are left out, so a replay gets
    the next ones in their place. Errors are as in ``read_log``.
    """
    values = ["correct", "answer", "reward", "completion", "tokens", "score_norm", "truncated"]
    rows = read_log(folder).select(["step", "prompt_id", "index", "round", "reused_step", *values]).to_pylist()
    streams: dict[str, list[Rollout]] = {row["prompt_id"]: [] for row in rows}
    drawn = [row for row in rows if row["index"] is not None and row["reused_step"] is None]
    for row in sorted(drawn, key=lambda row: (row["step"], row["round"] or 0)):
        streams[row["prompt_id"]].append(Rollout(**{name: row[name] for name in values}))
    return streams
