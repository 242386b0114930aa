"""Shares of the ranks hold every row once, and equally many each."""

from collections import Counter

import numpy as np
import pytest
import torch

from apportion.trl.generation import Reused
from apportion.trl.shares import LossRow, row_locations, rows_per_rank, split_rows


@pytest.mark.parametrize("seed", range(50))
def test_shares_hold_every_row_once_and_are_equal(seed):
    rng = np.random.default_rng(seed)
    ranks, chunks = (int(n) for n in rng.integers(1, 5, size=2))
    rounds = [int(n) * ranks for n in rng.integers(1, 6, size=rng.integers(1, 4))]
    locations = row_locations(rounds, ranks)
    assert len(set(locations)) == sum(rounds)
    used = rng.permutation(sum(rounds))[: rng.integers(0, sum(rounds) + 1)]
    reused = [Reused({"row": torch.tensor([i])}, bool(i % 2)) for i in range(rng.integers(0, 7))]
    entries = [LossRow(float(place) + 1, int(place)) for place in used]
    entries += [LossRow(-float(i) - 1, each) for i, each in enumerate(reused)]
    shares = split_rows(entries, rounds, ranks, chunks)
    given = [(rank, index) for rank, share in enumerate(shares) for index in share.sends]
    found = Counter()
    for rank, share in enumerate(shares):
        sources = [locations.index((rank, index)) for index in share.own]
        sources += [locations.index(given[i]) for i in share.receives]
        rows = [float(place) + 1 for place in sources] + [-float(each.row["row"][0]) - 1 for each in share.reused]
        assert rows == list(share.advantages) and share.own == sorted(share.own)
        found.update(rows)
        assert len(rows) + share.padding == rows_per_rank(len(entries), ranks, chunks)
        assert not (share.sends and (share.receives or share.reused))
        assert len(rows) - len(entries) // ranks in (0, 1)
    assert found == Counter(entry.advantage for entry in entries)
    assert rows_per_rank(len(entries), ranks, chunks) % chunks == 0
