"""Shares of the ranks hold every row once, and equally many each."""

from collections import Counter

import numpy as np
import pytest
import torch

from apportion.trl.shares import LossRow, rows_per_rank, split_rows


@pytest.mark.parametrize("seed", range(50))
def test_shares_hold_every_row_once_and_are_equal(seed):
    """A rank has its own rows in order, then those of others in order, then earlier ones. None leaves one with room."""
    rng = np.random.default_rng(seed)
    ranks, chunks, each, earlier = rng.integers(1, 6, size=4).tolist()
    used = rng.permutation(ranks * each)[: rng.integers(0, ranks * each + 1)].tolist()
    entries = [LossRow(float(place), divmod(place, each)) for place in used]
    entries += [LossRow(-1.0 - i, None, {"row": torch.tensor([i])}) for i in range(earlier - 1)]
    shares = split_rows(entries, ranks)
    assert Counter(row.advantage for share in shares for row in share) == Counter(row.advantage for row in entries)
    for rank, share in enumerate(shares):
        moved = [(row.at is None, row.at is not None and row.at[0] != rank, row.at or ()) for row in share]
        assert moved == sorted(moved) and len(share) - len(entries) // ranks in (0, 1)
        assert sum(not any(own[:2]) for own in moved) == min(len(share), sum(place // each == rank for place in used))
        assert len(share) <= rows_per_rank(len(entries), ranks, chunks)
    assert rows_per_rank(len(entries), ranks, chunks) % chunks == 0
