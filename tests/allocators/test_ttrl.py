"""TTRL: 64 votes on each prompt, the first 32 trained on."""

import numpy as np

from apportion import TTRL
from tests.allocators.votes.builders import replayed


def test_it_takes_64_votes_in_one_wave_and_keeps_the_first_32():
    ttrl = TTRL()
    streams = [["a"] * 64, ["a"] * 31 + ["b"] * 33, [None] * 63 + ["a"]]
    batch = replayed(ttrl, streams)
    assert batch.asked.tolist() == [64] * 3 and batch.round == 1
    groups = ttrl.groups(batch)
    assert [len(group.rollouts) for group in groups] == [32] * 3
    assert [label.answer for label in ttrl.labels(batch)] == ["a", "b", "a"]
    assert [label.status for label in ttrl.labels(batch)] == ["exhausted"] * 3
    assert groups[1].rewards.tolist() == [0.0] * 31 + [1.0]


def test_the_label_is_the_majority_of_all_votes_not_of_those_kept():
    rng = np.random.default_rng(0)
    streams = [[str(c) for c in row] for row in rng.integers(0, 3, (50, 15))]
    ttrl = TTRL(max_samples=15, min_samples=3)
    for label, stream in zip(ttrl.labels(replayed(ttrl, streams)), streams, strict=True):
        counts = {answer: stream.count(answer) for answer in stream}
        leaders = [answer for answer, count in counts.items() if count == max(counts.values())]
        assert label.answer == (leaders[0] if len(leaders) == 1 else None)
