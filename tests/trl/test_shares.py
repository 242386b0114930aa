"""Shares of the ranks hold every row once, and equally many each."""

from collections import Counter

import numpy as np
import pytest
import torch

from apportion.trl.shares import LossRow, rows_per_rank, split_rows


@pytest.mark.parametrize("seed", range(50))
def test_shares_hold_every_row_once_and_are_equal(seed):
    rng = np.random.default_rng(seed)
    ranks, chunks = (int(n) for n in rng.integers(1, 5, size=2))
    each = int(rng.integers(1, 6))
    used = rng.permutation(ranks * each)[: rng.integers(0, ranks * each + 1)].tolist()
    entries = [LossRow(float(place) + 1, divmod(place, each)) for place in used]
    entries += [LossRow(-float(i) - 1, None, {"row": torch.tensor([i])}) for i in range(rng.integers(0, 7))]
    shares = split_rows(entries, ranks, chunks)
    found = Counter()
    for rank, share in enumerate(shares):
        assert [row.at for row in share.rows] == [*share.places, *[None] * len(share.reused)]
        assert all(row in entries for row in share.rows)
        stays = [at for at in share.places if at[0] == rank]
        assert share.places[: len(stays)] == sorted(stays)
        kept = sum(row.at in stays for row in entries)
        sampled = sum(row.at is not None and row.at[0] == rank for row in entries)
        assert kept == min(sampled, len(share.rows))  # none leaves a rank that has room for it
        found.update(row.advantage for row in share.rows)
        assert len(share.rows) + share.padding == rows_per_rank(len(entries), ranks, chunks)
        assert len(share.rows) - len(entries) // ranks in (0, 1)
    assert found == Counter(entry.advantage for entry in entries)
    assert rows_per_rank(len(entries), ranks, chunks) % chunks == 0
