"""Rows in verl's TransferQueue: what a group's rows must hold for the trainer, and taking out those of no group."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
import transfer_queue as tq
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from apportion.integrations.verl.messages import Publication, Row, TrainedGroup, row_keys

PARTITION = "train"
COLUMNS = "apportion"
"""The field that holds the columns [G] of a row's group, and its ``place`` there."""


async def publish(publication: Publication, *, by_row: bool) -> None:
    """Gives the rows their group, takes out those of no group, then tells the trainer that the host is done.

    ``by_row`` gives every row a uid of its own, its key: our estimators read groups from ``COLUMNS``. Else rows of a
    group share a uid, as verl's estimators expect.
    """
    keys, fields = [], []
    for group in publication.groups:
        for row in group.rows:
            for key, found in _fields(publication.host, group, row, by_row):
                keys.append(key)
                fields.append(found)
    if keys:
        await tq.async_kv_batch_put(keys=keys, partition_id=PARTITION, fields=list_of_dict_to_tensordict(fields))
    if publication.cleared:
        await tq.async_kv_clear(keys=list(publication.cleared), partition_id=PARTITION)
    await tq.async_kv_put(key=publication.host, partition_id=PARTITION, tag={"status": publication.status})


def columns_of(keys: list[str]) -> list[dict[str, Any]]:
    """The columns of the groups of the rows with ``keys``, in their order.

    Raises RuntimeError where a row has none, over which TransferQueue passes in silence.
    """
    found: list[dict[str, Any]] = []
    with suppress(KeyError, ValueError):  # where no row has any
        data = tq.kv_batch_get(keys=keys, partition_id=PARTITION, select_fields=[COLUMNS])
        found = data.pop(COLUMNS).tolist()
    if len(found) != len(keys):
        raise RuntimeError(
            f"every row must have the columns of its group, got {len(found)} of {len(keys)}; allocation failed for the "
            "others, and the log of the coordinator says why"
        )
    return found


def _fields(host: str, group: TrainedGroup, row: Row, by_row: bool) -> list[tuple[str, dict[str, Any]]]:
    written = row.written
    session = written.session if row.session is None else row.session
    whole = {"group": group.name, "rewards": group.rewards, "tokens": group.tokens, "rounds": group.rounds}
    found = []
    for key, length in zip(row_keys(host, session, len(written.lengths)), written.lengths, strict=True):
        fields: dict[str, Any] = {"uid": key if by_row else group.name, COLUMNS: {"place": row.place} | whole}
        if group.rewarded:
            scores = torch.zeros(length, dtype=torch.float32)
            scores[-1] = group.rewards[row.place]
            fields["rm_scores"] = scores
        found.append((key, fields))
    return found
