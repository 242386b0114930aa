"""The rows that each rank trains on: equal numbers, each a multiple of the rank's micro-batches.

Rows stay on the rank that sampled them if possible. A rank with more than its quota sends its last rows away. A rank
with fewer receives these, and then rows of earlier steps. Masked rows fill up what is missing on every rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from apportion.trl.rounds import Rounds
from apportion.trl.rows import Table, concatenate, loss_mask, masked_rows, select, to_device
from apportion.trl.unsloth import KEY, windowed

SCALES = ("row_scale", "batch_scale")
"""Keys of a micro-batch with factors for coefficients of the loss, see ``TrainingBatch``."""
PROBABILITY_KEYS = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
"""The columns that log-probabilities of completions are computed from."""


@dataclass(frozen=True)
class LossRow:
    """A row for the loss and its advantage.

    ``at`` is the rank of a row of this step and the index on this rank. Otherwise it is the ``earlier`` row. With
    ``recompute`` that gets log-probabilities under the current policy.
    """

    advantage: float
    at: tuple[int, int] | None = None
    earlier: Table | None = None
    recompute: bool = False


@dataclass(frozen=True)
class TrainingBatch:
    """The finished batch: what each rank trains on, and what all ranks log.

    ``shares`` are the rows of each rank: its own, those of other ranks, then earlier ones. Masked rows fill them up to
    ``each``. ``columns`` hold one value for each sampled row. ``row_scale`` is all rows / unmasked rows if the loss is
    a mean over rows, else 1. ``batch_scale`` is all micro-batches / micro-batches with an unmasked row.
    """

    shares: Sequence[Sequence[LossRow]]
    each: int
    metrics: dict[str, float]
    columns: dict[str, list[float]]
    row_scale: float = 1.0
    batch_scale: float = 1.0


def rows_per_rank(rows: int, ranks: int, chunks: int) -> int:
    """Return the number of rows of each rank, at least one in each of its ``chunks`` micro-batches.

    >>> rows_per_rank(20, ranks=2, chunks=4), rows_per_rank(0, ranks=2, chunks=4)
    (12, 4)
    """
    return chunks * max(1, -(-rows // (ranks * chunks)))


def split_rows(rows: Sequence[LossRow], ranks: int) -> list[list[LossRow]]:
    """Return the share of every rank. Rows that stay on their rank keep their order."""
    quotas = [len(rows) // ranks + (rank < len(rows) % ranks) for rank in range(ranks)]
    shares, spare = [list[LossRow]() for _ in quotas], list[LossRow]()
    for row in sorted(rows, key=lambda row: row.at or (ranks, 0)):
        stays = row.at is not None and len(shares[row.at[0]]) < quotas[row.at[0]]
        (shares[row.at[0]] if row.at is not None and stays else spare).append(row)
    rest = iter(spare)
    for share, quota in zip(shares, quotas, strict=True):
        share += islice(rest, quota - len(share))
    return shares


def training_rows(rounds: Rounds, batch: TrainingBatch) -> dict[str, Any]:
    """Return the rows of ``batch`` that this rank trains on, in the format of TRL's method."""
    accelerator, pad_token = rounds.trainer.accelerator, rounds.pad_token
    rank, device = rounds.ranks.rank, accelerator.device
    table, share = concatenate(rounds.tables, pad_token), batch.shares[rank]
    moved = [row.at for other, each in enumerate(batch.shares) for row in each if row.at and other != row.at[0] == rank]
    sent = dict(rounds.ranks.all_gather([(at, to_device(select(table, [at[1]]), "cpu")) for at in moved]))
    own = [row.at[1] for row in share if row.at and row.at not in sent]
    parts = [select(table, own)] if own else []
    parts += [to_device(sent[row.at], device) for row in share if row.at in sent]
    parts += _reused(rounds, batch, table)
    if padding := batch.each - len(share):
        parts.append(masked_rows(table, padding))
    whole = concatenate(parts, pad_token)
    tokens = accelerator.gather(loss_mask(whole).sum()).sum()
    if KEY in whole:
        whole = windowed(whole, pad_token)
    advantages = [row.advantage for row in share] + [0.0] * padding
    return {
        **whole,
        "advantages": torch.tensor(advantages, dtype=torch.float32, device=device),
        "num_items_in_batch": tokens.clamp(min=1),  # some versions of TRL divide by it unguarded
        **{key: torch.tensor(scale, device=device) for key in SCALES if (scale := getattr(batch, key)) != 1.0},
    }


def _reused(rounds: Rounds, batch: TrainingBatch, table: Table) -> list[Table]:
    """Return this rank's rows of earlier steps, with the keys of this step's ``table``.

    If any rank must recompute log-probabilities, all ranks run the model on equally many rows, because a sharded model
    needs all of them.
    """
    reused = [row for row in batch.shares[rounds.ranks.rank] if row.at is None]
    rows = [dict(row.earlier or {}) for row in reused]
    stale = [row for row, each in zip(rows, reused, strict=True) if each.recompute]
    most = max(sum(row.recompute for row in share) for share in batch.shares)
    if most and not {"old_per_token_logps", "old_logps"}.isdisjoint(table):
        filling = [masked_rows(table, most - len(stale))] if len(stale) < most else []
        inputs = [{key: part[key].to(table[key]) for key in PROBABILITY_KEYS} for part in [*stale, *filling]]
        found = rounds.log_probabilities(concatenate(inputs, rounds.pad_token))
        for row, logps in zip(stale, found, strict=False):
            logps = logps[None, : row["completion_ids"].size(1)]
            row["old_per_token_logps"], row["old_logps"] = logps, (logps * row["completion_mask"].to(logps)).sum(1)
            if "importance_sampling_ratio" in row:
                row["importance_sampling_ratio"] = torch.ones_like(row["importance_sampling_ratio"])
    return [like(table, row) for row in rows]


def like(table: Table, row: Table) -> Table:
    """Return a row of an earlier step with the keys of ``table`` and their types. Raises ValueError if it lacks one."""
    missing = sorted(table.keys() - row.keys())
    if missing:
        raise ValueError(
            f"rows of earlier steps must have all columns of this step's loss, got one without {missing[0]}; resume "
            "with the beta, num_iterations, steps_per_generation and vLLM settings that the run began with"
        )
    return {key: row[key].to(value) for key, value in table.items()}
