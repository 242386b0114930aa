"""Write a whole run in memory as a rollout log, column by column."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from apportion.checks import encodable
from apportion.records.log_folder import path_of, start_log
from apportion.records.rollout_log import RecordError, schema
from apportion.records.run_record import RunRecord
from apportion.runs.whole_files import is_file, write_whole
from apportion.types import Floats
from apportion.untrusted import CONFIG_BYTES, check_file, parse_json

if TYPE_CHECKING:
    from pyarrow import Array, Table

ABOUT = "run.json"
"""The file that describes a run that was not logged while it trained."""


SMALL_BYTES = 2**18
"""The most bytes in memory of a table that is compressed quickly and not well."""


@dataclass(frozen=True)
class About:
    """What the steps of a log do not say about a run: the fields of ``RunRecord`` of the same names, and its size.

    ``steps`` and ``rollouts`` tell a log that is whole from one that is not. Version 0.2.0 kept no ``doubts``.
    """

    name: str
    source: str = "rollout log"
    ordered: bool = True
    visits: bool = False
    steps: int = 0
    rollouts: int = 0
    doubts: tuple[str, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> About | None:
        """Return what ``folder`` says about its run; None if there is no ``run.json``. Raises RecordError."""
        path = folder / ABOUT
        try:
            if not is_file(path):
                return None
            check_file(path, CONFIG_BYTES)
            found = parse_json(path.read_bytes())
        except (OSError, ValueError) as error:
            raise RecordError(f"{path} must describe a rollout log, got no JSON ({error}); import the run again") from (
                error
            )
        kinds = {"name": str, "source": str, "ordered": bool, "visits": bool, "steps": int, "rollouts": int}
        found = found if isinstance(found, dict) else {}
        digest, doubts = found.pop("digest", None), found.pop("doubts", [])
        whole = {name: type(value) for name, value in found.items()} == kinds and isinstance(doubts, list)
        if not whole or not all(isinstance(doubt, str) for doubt in doubts):
            raise RecordError(f"{path} must have the keys {', '.join(kinds)}, got others; import the run again")
        about = cls(**found, doubts=tuple(doubts))
        if digest != about.digest:
            raise RecordError(f"{path} must be as it was written, got something else; import the run again")
        return about

    @property
    def digest(self) -> str:
        """A hash of all values, by which damage is found."""
        return blake2b(json.dumps(self._plain()).encode(), digest_size=16).hexdigest()

    def _plain(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "doubts" or value}

    def write(self, folder: Path) -> None:
        """Write ``run.json``, which ``read`` reads."""
        write_whole(folder / ABOUT, json.dumps(self._plain() | {"digest": self.digest}) + "\n")


def write_record(record: RunRecord, folder: Path) -> None:
    """Write ``record`` to ``folder`` as a rollout log, which ``record_of_log`` reads as the same run.

    Answers get other numbers, equal ones for equal answers. Prompts without a group are left out. Raises RecordError if
    a log cannot be written there, or if the folder has the steps of a run, and ValueError for tokens with a fraction.
    """
    known = record.tokens[~np.isnan(record.tokens)]
    if (known != np.floor(known)).any():
        raise ValueError(f"tokens must be whole numbers, got {known[known != np.floor(known)][0]:g}; count tokens")
    bounds = np.flatnonzero(np.r_[True, np.diff(record.step) != 0, True]) if len(record.step) else np.zeros(1, int)
    if not len(bounds[1:]):
        raise RecordError("a rollout log must have a step, got a run without groups; write no log")
    path_of(folder, int(record.step[0]), int(record.step[0]))
    start_log(folder)
    size = {"steps": len(bounds) - 1, "rollouts": len(record.reward)}
    doubts = tuple(map(encodable, record.doubts))
    about = About(
        encodable(record.name), encodable(record.source), record.ordered, record.visits, doubts=doubts, **size
    )
    about.write(folder)
    texts = _texts(record.ids), _texts(record.texts)
    for begin, end in itertools.pairwise(bounds):
        write_rows(_step(record, int(begin), int(end), *texts), path_of(folder, *2 * (int(record.step[begin]),)))


def write_rows(table: Table, path: Path) -> None:
    """Write the rows of a file of the log, with checksums.

    zstd takes long to start, so a small file is written with lz4.
    """
    from pyarrow import BufferOutputStream  # noqa: PLC0415 - an optional extra
    from pyarrow.parquet import write_table  # noqa: PLC0415

    sink = BufferOutputStream()
    compression = "zstd" if table.nbytes > SMALL_BYTES else "lz4"
    write_table(table, sink, compression=compression, write_page_checksum=True, write_statistics=False)
    write_whole(path, memoryview(sink.getvalue()))


def _step(record: RunRecord, begin: int, end: int, ids: Array, texts: Array) -> Table:
    """Return the rows of the groups from ``begin`` to ``end``, which are those of one step."""
    from pyarrow import Table, array, nulls  # noqa: PLC0415 - an optional extra

    sizes = np.diff(record.first[begin : end + 1])
    at = np.repeat(np.arange(end - begin), np.maximum(sizes, 1))
    groups = begin + at
    empty = (sizes == 0)[at]
    starts = np.r_[0, np.cumsum(np.maximum(sizes, 1))][:-1]
    rollouts = slice(record.first[begin], record.first[end])

    def per_rollout(values: Any, missing: Any = None) -> Array:
        spread = np.zeros(len(at), values.dtype)
        absent = np.ones(len(at), bool)
        spread[~empty] = values
        absent[~empty] = False if missing is None else missing
        return array(spread, mask=absent)

    rewards, tokens = record.reward[rollouts], record.tokens[rollouts]
    norms, answers = record.score_norm[rollouts], record.answer[rollouts]
    columns: dict[str, Array] = {
        "step": array(record.step[groups]),
        "place": array(at),
        "prompt_id": ids.take(array(record.prompt[groups])),
        "prompt": texts.take(array(record.prompt[groups])),
        "predicted": _known(record.predicted[groups]),
        "asked": array(record.asked[groups]),
        "index": array(np.arange(len(at)) - starts[at], mask=empty),
        "reward": per_rollout(rewards, np.isnan(rewards)),
        "tokens": per_rollout(np.nan_to_num(tokens).astype(np.int64), np.isnan(tokens)),
        "score_norm": per_rollout(norms, np.isnan(norms)),
        "answer": per_rollout(answers, answers < 0).cast("string"),
        "kept": per_rollout(record.kept[rollouts]).fill_null(False),
        "written": _known(record.written[groups]),
    }
    if record.binary:
        columns["correct"] = per_rollout(rewards == 1, np.isnan(rewards))
    kinds = schema()
    return Table.from_arrays(
        [columns[name] if name in columns else nulls(len(at), kinds.field(name).type) for name in kinds.names],
        schema=kinds,
    )


def _known(values: Floats) -> Array:
    """Return ``values`` with null for nan."""
    from pyarrow import array  # noqa: PLC0415 - an optional extra

    return array(values, mask=np.isnan(values))


def _texts(texts: Any) -> Array:
    from pyarrow import array  # noqa: PLC0415 - an optional extra

    return array([None if text is None else encodable(text) for text in texts], type="string")
