"""Write a whole run in memory as a rollout log, column by column."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from apportion.checks import encodable
from apportion.records.keys import places_of
from apportion.records.log_folder import path_of, start_log
from apportion.records.rollout_log import RecordError, schema
from apportion.records.run_record import RunRecord
from apportion.runs.whole_files import is_file, write_whole
from apportion.types import Floats
from apportion.untrusted import CONFIG_BYTES, check_file, parse_json

if TYPE_CHECKING:
    from pyarrow import Array, ChunkedArray

ABOUT = "run.json"
"""The file that describes a run that was not logged while it trained."""


SMALL_BYTES = 2**18
"""Largest size, in bytes in memory, of a table that is compressed fast rather than small."""


@dataclass(frozen=True)
class About:
    """What the steps of a log do not say about a run: the fields of ``RunRecord`` of the same names, and its size.

    ``steps`` and ``rollouts`` tell a log that is whole from one that is not.
    """

    name: str
    source: str = "rollout log"
    ordered: bool = True
    visits: bool = False
    steps: int = 0
    rollouts: int = 0
    doubts: tuple[str, ...] = ()

    @classmethod
    def read(cls, folder: str | Path) -> About | None:
        """Return what ``folder`` says about its run; None if there is no ``run.json``. Raises RecordError."""
        path = Path(folder, ABOUT)
        try:
            if not is_file(path):
                return None
            check_file(path, CONFIG_BYTES)
            found = parse_json(path.read_bytes())
        except (OSError, ValueError) as error:
            raise RecordError(f"{path} must describe a rollout log, got no JSON ({error}); import the run again") from (
                error
            )
        found = found if isinstance(found, dict) else {}
        if found.pop("digest", None) != _digest(found) or not found.keys() <= cls.__dataclass_fields__.keys():
            raise RecordError(f"{path} must be as it was written, got something else; import the run again")
        return cls(**found | {"doubts": tuple(found.get("doubts", ()))})

    def write(self, folder: str | Path) -> None:
        """Write ``run.json``, which ``read`` reads, with a hash by which damage is found."""
        plain = {name: value for name, value in asdict(self).items() if name != "doubts" or value}
        write_whole(Path(folder, ABOUT), json.dumps(plain | {"digest": _digest(plain)}) + "\n")


def _digest(values: dict[str, Any]) -> str:
    return blake2b(json.dumps(values).encode(), digest_size=16).hexdigest()


def write_record(record: RunRecord, folder: str | Path) -> None:
    """Write ``record`` to ``folder`` as a rollout log, which ``record_of_log`` reads as the same run.

    Answers get other numbers, equal ones for equal answers. Prompts without a group are left out. Raises RecordError if
    a log cannot be written there, or if the folder has the steps of a run, and ValueError for tokens with a fraction.
    """
    known = record.tokens[~np.isnan(record.tokens)]
    if (known != np.floor(known)).any():
        raise ValueError(f"tokens must be whole numbers, got {known[known != np.floor(known)][0]:g}; count tokens")
    if not len(record.step):
        raise RecordError("a rollout log must have a step, got a run without groups; write no log")
    bounds = np.flatnonzero(np.r_[True, np.diff(record.step) != 0, True])
    path_of(folder, int(record.step[0]), int(record.step[0]))
    start_log(folder)
    About(
        name=encodable(record.name),
        source=encodable(record.source),
        ordered=record.ordered,
        visits=record.visits,
        steps=len(bounds) - 1,
        rollouts=len(record.reward),
        doubts=tuple(map(encodable, record.doubts)),
    ).write(folder)
    ids, texts = _texts(record.ids), _texts(record.texts)
    for begin, end in itertools.pairwise(bounds):
        part = record.of_groups(np.arange(begin, end))
        write_rows(_columns(part, ids, texts, record.binary), path_of(folder, *2 * (int(part.step[0]),)))


def write_rows(columns: Mapping[str, Array | ChunkedArray], path: Path) -> None:
    """Write ``columns`` of the rows of a file of the log, and null in the others, with checksums.

    zstd takes long to start, so a small file is written with lz4.
    """
    kinds = schema()
    from pyarrow import BufferOutputStream, Table, nulls  # noqa: PLC0415 - an optional extra
    from pyarrow.parquet import write_table  # noqa: PLC0415

    rows = len(columns["step"])
    table = Table.from_arrays([columns.get(each.name, nulls(rows, each.type)) for each in kinds], schema=kinds)
    sink = BufferOutputStream()
    compression = "zstd" if table.nbytes > SMALL_BYTES else "lz4"
    write_table(table, sink, compression=compression, write_page_checksum=True, write_statistics=False)
    write_whole(path, memoryview(sink.getvalue()))


def _columns(part: RunRecord, ids: Array, texts: Array, binary: bool) -> dict[str, Array]:
    """Return the columns of the log for the groups of one step. A group without a rollout has a row, too."""
    from pyarrow import array  # noqa: PLC0415 - an optional extra

    sizes = np.diff(part.first)
    at = np.repeat(np.arange(len(sizes)), np.maximum(sizes, 1))
    empty = (sizes == 0)[at]
    rollout = np.where(empty, -1, np.cumsum(~empty) - 1)
    measured = (part.reward, part.tokens, part.score_norm, part.truncated)
    reward, tokens, norms, cut = (np.r_[values, np.nan][rollout] for values in measured)
    answer = np.r_[part.answer, -1][rollout]
    prompt = array(part.prompt[at])
    columns = {
        "step": array(part.step[at]),
        "place": array(at),
        "prompt_id": ids.take(prompt),
        "prompt": texts.take(prompt),
        "predicted": with_nulls(part.predicted[at]),
        "asked": array(part.asked[at]),
        "index": array(places_of(at), mask=empty),
        "reward": with_nulls(reward),
        "tokens": with_nulls(tokens).cast("int64"),
        "score_norm": with_nulls(norms),
        "truncated": array(cut == 1, mask=np.isnan(cut)),
        "answer": array(answer, mask=answer < 0).cast("string"),
        "kept": array(np.r_[part.kept, False][rollout]),
        "written": with_nulls(part.written[at]),
    }
    may_be = [*part.components.values(), *[part.reward] * binary]
    for verdicts in [each for each in may_be if np.isin(each[~np.isnan(each)], (0, 1)).all()][:1]:
        own = np.r_[verdicts, np.nan][rollout]
        columns["correct"] = array(own == 1, mask=np.isnan(own))
    return columns


def with_nulls(values: Floats) -> Array:
    """Return ``values`` with null in place of NaN."""
    from pyarrow import array  # noqa: PLC0415 - an optional extra

    return array(values, mask=np.isnan(values))


def _texts(texts: Any) -> Array:
    from pyarrow import array  # noqa: PLC0415 - an optional extra

    return array([None if text is None else encodable(text) for text in texts], type="string")
