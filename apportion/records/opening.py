"""Open a recorded run, whatever wrote it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from apportion.records.importing import import_run
from apportion.records.log_folder import files_of
from apportion.records.reading import record_of_log
from apportion.records.rollout_log import ROLLOUTS, RecordError
from apportion.records.run_record import RunRecord
from apportion.records.scalars import ScalarsOnlyError, scalars_at
from apportion.rows import kind_of


def open_run(
    path: str | Path,
    rewards: Sequence[str] = (),
    columns: Mapping[str, str] | None = None,
    outcome: str | None = None,
) -> RunRecord:
    """Return the run at ``path``: a rollout log, the folder of a run that has one, or what ``import_run`` reads.

    ``outcome`` is the column that says whether a rollout is right, if there are several rewards. The other arguments
    are those of ``import_run``. Raises ScalarsOnlyError for what has means of steps and no rollouts, and RecordError if
    it is none of these, or damaged, or has no such column.
    """
    weightless = (
        [f"{outcome}=0"] if rewards and outcome not in (None, *(each.partition("=")[0] for each in rewards)) else []
    )
    record = _open(path, [*rewards, *weightless], columns)
    if outcome not in (None, *record.components):
        known = ", ".join(record.components) or "none beside the reward"
        raise RecordError(f"outcome must be one of the further rewards of the log, {known}, got {outcome!r}; name one")
    return replace(record, outcome=outcome)


def _open(path: str | Path, rewards: Sequence[str], columns: Mapping[str, str] | None) -> RunRecord:
    path = Path(path)
    log = next(filter(files_of, (path, path / ROLLOUTS)), None)
    if log is not None:
        if columns or len(rewards) > 1:
            raise RecordError(
                f"a rollout log has fixed columns, got --column or several rewards for {log}; leave them out, or give "
                "them to apportion import with the run's own files"
            )
        return record_of_log(log, *rewards)
    try:
        return import_run([path], rewards, columns)[0]
    except RecordError as error:
        scalars = None
        if not (rewards or columns):
            try:
                scalars = scalars_at(path)
            except RecordError as other:  # if the file can be a run, the first error says more
                raise (error if kind_of(path) else other) from None
        if scalars is not None:
            raise ScalarsOnlyError(path, scalars) from None
        raise
