"""A fixed number of samples."""

import pytest

from apportion.stopping import Fixed, decide


def test_it_takes_its_samples_and_counts_no_later_one():
    stream = ["a", "b", "b"] + ["c"] * 97
    for samples, answer in ((1, "a"), (3, "b"), (30, "c")):
        decision = decide(stream, rule="fixed", max_samples=30, samples=samples, wave="free")
        assert (decision.samples, decision.answer, decision.waves) == (samples, answer, 1)
    assert decide(stream, rule="fixed").samples == 64
    assert decide(stream[:10], rule="fixed").samples == 10


def test_what_it_cannot_take_is_refused():
    with pytest.raises(ValueError, match="samples must be at least 1, got 0"):
        Fixed(0)
    with pytest.raises(ValueError, match="samples must be at most max_samples, got 32 and 16; lower samples or raise"):
        decide(["a"] * 64, rule="fixed", max_samples=16, samples=32)
