"""The rollout log: every rollout of every step with its reward and its use in training. One Parquet file a step.

A log is a folder of files such as ``step-000012.parquet``. Each file is written whole: if the process is killed, the
finished steps remain, and a step that is run again replaces its file. ``COLUMNS`` lists the columns. The rows are:

- one for every rollout drawn in the step. A failed rollout has no row; ``asked`` counts it.
- one for every reused rollout of an earlier step, with ``reused_step`` and its ``index`` in the group. The rollout that
  it replaced has its own row, which was not kept.
- one without ``index`` for every prompt without a rollout, so that no prompt of the batch is missing.

A file ``run.txt`` holds the id of the run that the steps are of, so that two runs are never mixed in one folder.

It needs pyarrow, which is in the extra ``report``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from numpy.typing import ArrayLike

from apportion.checks import encodable, number_array
from apportion.runs.whole_files import write_whole
from apportion.types import Batch, Group, Rollout

if TYPE_CHECKING:
    from pyarrow import Schema, Table

VERSION = 1
"""The version of the columns and their meaning. A log of another version is refused."""

COLUMNS = {
    "step": "int64",  # of training
    "place": "int64",  # of the prompt in its batch, from 0; tells repeated prompts apart
    "prompt_id": "string",
    "prompt": "string",
    "predicted": "double",  # mean of the belief about its success before the step
    "asked": "int64",  # rollouts of the prompt asked for in the step
    "index": "int64",  # of the rollout among those of its prompt, from 0
    "round": "int64",
    "correct": "bool",  # as verified
    "answer": "string",
    "reward": "double",  # as measured; without labels, training takes rewards from the answers
    "tokens": "int64",
    "score_norm": "double",
    "completion": "string",
    "kept": "bool",  # whether it entered the loss
    "advantage": "double",  # before weights, of every rollout of a group, kept or not
    "weight": "double",
    "reused_step": "int64",  # in which it was sampled, if that was an earlier one
}
"""Columns and their Parquet types. Columns that are not in ``ALWAYS`` may be null."""

ALWAYS = frozenset({"step", "place", "prompt_id", "prompt", "predicted", "asked", "kept"})
"""Columns that are never null."""

RUN = "run.txt"
"""The file with the id of the run."""

LONGEST_ID = 100

_MARK = b"apportion.rollouts"
_NAME = re.compile(r"step-(\d{6,})\.parquet")


class RecordError(ValueError):
    """The error for a rollout log that cannot be written or read: problem, location and remedy in one line."""


def prepare_log(folder: Path) -> None:
    """Make the folder of a log before anything is sampled. Raise RecordError if a log cannot be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecordError(
            f"a rollout log needs a folder, got {folder} ({error.strerror or error}); change the path"
        ) from error
    _schema()


def start_log(folder: Path) -> str:
    """Begin the log of a new run in ``folder``, and return an id of the run, which ``resume_log`` takes.

    Raises RecordError if a log cannot be written there, or if the folder has the steps of a run.
    """
    prepare_log(folder)
    if steps := _steps(folder):
        raise RecordError(
            f"a new run needs a rollout log without steps, got {folder} with {len(steps)} of another run; choose "
            "another folder, remove that one, or resume the run that wrote it from a checkpoint"
        )
    return _write_run(folder, uuid4().hex)


def resume_log(folder: Path, run: str | None, step: int) -> str:
    """Continue the log of ``run`` after ``step``, whose later steps are removed. Return the id of the run.

    ``run`` is None if the run began without a log, or with an earlier version, which wrote no id. Raises RecordError if
    the folder has the steps of another run.
    """
    prepare_log(folder)
    steps, written = _steps(folder), _read_run(folder)
    if steps and written != run:
        raise RecordError(
            f"a resumed run needs its own rollout log, got {folder} with {len(steps)} steps of another run; give it "
            "the folder that it began with, or a new one"
        )
    remove_steps_after(folder, step)
    return _write_run(folder, run or uuid4().hex)


def write_step(
    folder: Path,
    step: int,
    batch: Batch,
    groups: Sequence[Group],
    advantages: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    text: Callable[[Any], str] = str,
) -> Path:
    """Write the finished ``batch`` of a step to its file, which replaces an older one, and return the path.

    ``groups`` are those of ``Allocator.groups``. ``advantages`` [N], as ``advantages_of`` returns them, and ``weights``
    [N] are those of all their rollouts in order. ``text`` turns a completion that is not None into text.

    Rollout i of a group must be rollout i of its prompt, with any reward, or a reused one in its place. Rollouts are
    matched by position, because their values may be equal. Groups come in the order of the prompts; a prompt may have
    no group. Raises ValueError for groups of another batch or in another order.
    """
    if step < 0:
        raise ValueError(f"a step must be at least 0, got {step}; count from 0 or 1")
    schema = _schema()
    from pyarrow import BufferOutputStream, Table  # noqa: PLC0415 - an optional extra
    from pyarrow.parquet import write_table  # noqa: PLC0415

    uses = _uses(batch, groups, _as_list("advantages", advantages, groups), _as_list("weights", weights, groups))
    sink = BufferOutputStream()
    rows = Table.from_pylist(list(_rows(step, batch, uses, text)), schema)
    write_table(rows, sink, compression="zstd", write_page_checksum=True)
    path = folder / f"step-{step:06d}.parquet"
    write_whole(path, memoryview(sink.getvalue()))
    return path


def read_log(folder: Path) -> Table:
    """Return all steps of a log as one pyarrow Table, ordered by step and then as in the batch.

    Raises RecordError for a folder without steps, and for a file of another version or format.
    """
    _schema()
    from pyarrow import concat_tables  # noqa: PLC0415 - an optional extra

    steps = _steps(folder)
    if not steps:
        raise RecordError(f"a rollout log must have a step-NNNNNN.parquet, got none in {folder}; check the folder")
    return concat_tables([_read(path) for _, path in steps])


def read_streams(folder: Path) -> dict[str, list[Rollout]]:
    """Return the rollouts of each prompt, by its id, in the order in which they were drawn, for ``Recorded``.

    Completions are texts. A prompt without a rollout has an empty list. Failed rollouts are left out, so a replay gets
    the next ones in their place. Errors are as in ``read_log``.
    """
    values = ["correct", "answer", "reward", "completion", "tokens", "score_norm"]
    rows = read_log(folder).select(["step", "prompt_id", "index", "round", "reused_step", *values]).to_pylist()
    streams: dict[str, list[Rollout]] = {row["prompt_id"]: [] for row in rows}
    drawn = [row for row in rows if row["index"] is not None and row["reused_step"] is None]
    for row in sorted(drawn, key=lambda row: (row["step"], row["round"])):
        streams[row["prompt_id"]].append(Rollout(**{name: row[name] for name in values}))
    return streams


def remove_steps_after(folder: Path, step: int) -> None:
    """Remove the steps after ``step``, before a run resumes from the checkpoint of that step."""
    for number, path in reversed(_steps(folder)):  # the last first, so that a kill leaves no gap
        if number > step:
            path.unlink()


@dataclass(frozen=True, slots=True)
class _Use:
    """How a rollout of a group was used in training."""

    rollout: Rollout
    kept: bool
    advantage: float | None
    weight: float | None

    def stands_for(self, drawn: Rollout | None) -> bool:
        """Return whether this is a reused rollout, in the place of ``drawn`` or after all drawn ones."""
        return self.rollout.step is not None and (drawn is None or drawn.step is None)

    def is_of(self, drawn: Rollout | None) -> bool:
        """Return whether this is ``drawn`` itself; its verdict and reward may differ."""
        if drawn is None or self.rollout.completion is not drawn.completion:
            return False
        return replace(self.rollout, correct=drawn.correct, reward=drawn.reward) == drawn


def _uses(
    batch: Batch, groups: Sequence[Group], advantages: Sequence[float | None], weights: Sequence[float | None]
) -> list[list[_Use]]:
    """Return the uses of each prompt's rollouts; none for a prompt without a group."""
    found: list[list[_Use]] = [[] for _ in batch.prompts]
    numbers, place = zip(advantages, weights, strict=True), 0
    for g, group in enumerate(groups):
        pairs = zip(group.rollouts, group.keep, strict=True)
        uses = [_Use(rollout, bool(kept), *next(numbers)) for rollout, kept in pairs]
        while place < len(found) and not (batch.prompts[place] == group.prompt and _match(uses, batch.rollouts[place])):
            place += 1
        if place == len(found):
            raise ValueError(
                f"groups must hold the first rollouts of the batch's prompts, in its order, got others in group {g} of "
                f"prompt {group.prompt.text!r}; pass Allocator.groups(batch), and leave rollouts out of the loss with "
                "Group.keep"
            )
        found[place] = uses
        place += 1
    return found


def _match(uses: Sequence[_Use], rollouts: Sequence[Rollout]) -> bool:
    """Return whether ``uses`` are those of the first ``rollouts``."""
    return all(use.stands_for(drawn) or use.is_of(drawn) for use, drawn in zip_longest(uses, rollouts[: len(uses)]))


def _rows(
    step: int, batch: Batch, uses: Sequence[Sequence[_Use]], text: Callable[[Any], str]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a step. Columns that a row leaves out are null."""
    predicted = batch.belief.mean
    for place, prompt in enumerate(batch.prompts):
        shared = {
            "step": step,
            "place": place,
            "prompt_id": prompt.id,
            "prompt": encodable(prompt.text),
            "predicted": predicted[place],
            "asked": batch.asked[place],
            "kept": False,
        }
        if not batch.rollouts[place] and not uses[place]:
            yield shared
        for index, (drawn, use) in enumerate(zip_longest(batch.rollouts[place], uses[place])):
            reused = use if use is not None and use.stands_for(drawn) else None
            if drawn is not None:
                yield shared | _cells(index, drawn, None if reused else use, text)
            if reused is not None:
                yield shared | _cells(index, reused.rollout, reused, text)


def _cells(index: int, rollout: Rollout, use: _Use | None, text: Callable[[Any], str]) -> dict[str, Any]:
    """Return the cells of one rollout, without those that its prompt shares."""
    cells = {name: getattr(rollout, name) for name in ("round", "correct", "reward", "tokens", "score_norm")}
    cells |= {
        "index": index,
        "answer": None if rollout.answer is None else encodable(rollout.answer),
        "reused_step": rollout.step,
    }
    cells["completion"] = None if rollout.completion is None else encodable(text(rollout.completion))
    return cells if use is None else cells | {"kept": use.kept, "advantage": use.advantage, "weight": use.weight}


def _as_list(name: str, values: ArrayLike | None, groups: Sequence[Group]) -> list[float | None]:
    """Return ``values`` as a list, one for each rollout of the groups; a list of None without ``values``."""
    size = sum(len(group.rollouts) for group in groups)
    if values is None:
        return [None] * size
    array = number_array(name, values)
    if array.shape != (size,):
        raise ValueError(
            f"{name} must be [{size}], one for each rollout of the groups, got {array.shape}; "
            "include rollouts outside keep"
        )
    return array.tolist()


def _schema() -> Schema:
    """Return the schema of a log. Raise RecordError if pyarrow is missing."""
    try:
        import pyarrow  # noqa: PLC0415 - an optional extra
    except ImportError as error:
        raise RecordError(
            "a rollout log needs pyarrow, which cannot be imported; pip install 'apportion[report]', or log none"
        ) from error
    kinds = {name: pyarrow.type_for_alias(kind) for name, kind in COLUMNS.items()}
    fields = [pyarrow.field(name, kind, nullable=name not in ALWAYS) for name, kind in kinds.items()]
    return pyarrow.schema(fields, metadata={_MARK: str(VERSION)})


def _read(path: Path) -> Table:
    """Return the rows of one step."""
    from pyarrow import ArrowException  # noqa: PLC0415 - an optional extra
    from pyarrow.parquet import ParquetFile  # noqa: PLC0415

    try:
        with ParquetFile(path, page_checksum_verification=True) as file:
            version = (file.schema_arrow.metadata or {}).get(_MARK, b"").decode()
            if version == str(VERSION) and file.schema_arrow.equals(_schema()):
                return file.read()
    except (ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0]
        raise RecordError(f"{path} must be a step of a rollout log, got no Parquet ({reason}); remove it") from error
    if not version or version == str(VERSION):
        raise RecordError(f"{path} must be a step of a rollout log, got other Parquet; remove it from the folder")
    raise RecordError(
        f"{path} must be of version {VERSION} of the rollout log, got {version}; "
        "read it with the apportion that wrote it"
    )


def _read_run(folder: Path) -> str | None:
    """Return the id of the run that the log is of; None if it has none."""
    path = folder / RUN
    if not path.is_file():
        return None
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(LONGEST_ID).strip()


def _write_run(folder: Path, run: str) -> str:
    write_whole(folder / RUN, f"{run}\n".encode())
    return run


def _steps(folder: Path) -> list[tuple[int, Path]]:
    """Return the steps of a log and their files, in order; none if there is no folder."""
    if not folder.is_dir():
        return []
    named = ((_NAME.fullmatch(path.name), path) for path in folder.iterdir())
    return sorted((int(match[1]), path) for match, path in named if match)
