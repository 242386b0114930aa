"""Rows in verl's TransferQueue: write the columns of a group, clear the rows of no group, and read the columns."""

from collections.abc import Collection
from contextlib import suppress
from typing import Any

import torch
import transfer_queue as tq
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from apportion.verl.coordinator.messages import CommitTask, TrainedGroup, TrainedRow

PARTITION = "train"
COLUMNS = "apportion"
"""The field that holds the columns [G] of a row's group, and the row's ``position`` in it."""


async def commit_rows(commit: CommitTask, cleared: Collection[str], *, by_row: bool, rewarded: bool) -> None:
    """Write the columns of the groups, clear the rows of no group, then tell the trainer that the uid is done.

    With ``by_row`` every row gets its key as uid, because our estimators read groups from ``COLUMNS``. Otherwise the
    rows of a group share a uid, as verl's estimators expect. If they are ``rewarded``, by the allocator, the rewards of
    the groups replace the scores of the rows.
    """
    rows: dict[str, dict[str, Any]] = {}
    for group in commit.groups:
        for row in group.rows:
            rows |= _fields(commit.uid, group, row, by_row, rewarded)
    if rows:
        fields = list_of_dict_to_tensordict(list(rows.values()))
        await tq.async_kv_batch_put(keys=list(rows), partition_id=PARTITION, fields=fields)
    if cleared:
        await tq.async_kv_clear(keys=list(cleared), partition_id=PARTITION)
    await tq.async_kv_put(key=commit.uid, partition_id=PARTITION, tag={"status": commit.status})


def columns_of(keys: list[str]) -> list[dict[str, Any]]:
    """Return the columns of the groups of the rows with ``keys``, in their order.

    Raises RuntimeError if a row has none, because TransferQueue would omit it silently.
    """
    found: list[dict[str, Any]] = []
    with suppress(KeyError, ValueError):  # raised if no row has any
        data = tq.kv_batch_get(keys=keys, partition_id=PARTITION, select_fields=[COLUMNS])
        found = data.pop(COLUMNS).tolist()
    if len(found) != len(keys):
        raise RuntimeError(
            f"every row must have the columns of its group, got {len(found)} of {len(keys)}; allocation failed for the "
            "others, see the log of the coordinator"
        )
    return found


def _fields(uid: str, group: TrainedGroup, row: TrainedRow, by_row: bool, rewarded: bool) -> dict[str, dict[str, Any]]:
    """Return the fields of a rollout's rows, by their keys."""
    columns = {"position": row.position, **group.columns}
    found: dict[str, dict[str, Any]] = {}
    for key, length in zip(row.keys(uid), row.written.lengths, strict=True):
        found[key] = {"uid": key if by_row else columns["group"], COLUMNS: columns}
        if rewarded:
            found[key]["rm_scores"] = torch.zeros(length, dtype=torch.float32)
            found[key]["rm_scores"][-1] = columns["rewards"][row.position]
    return found
