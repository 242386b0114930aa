"""TTRL: 64 votes on each prompt, the first 32 trained on."""

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
