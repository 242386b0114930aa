"""A fixed number of samples."""

import pytest

from apportion.stopping import Fixed, decide


def test_it_takes_its_samples_whatever_the_answers():
    stream = ["a", "b", None] * 10
    for samples in (1, 7, 30):
        decision = decide(stream, rule="fixed", max_samples=30, samples=samples)
        assert decision.samples == samples and decision.answer == "a"


def test_without_a_setting_it_takes_the_maximum():
    assert decide(["a"] * 100, rule="fixed").samples == 64
    assert decide(["a"] * 10, rule="fixed").samples == 10


def test_later_samples_do_not_count():
    stream = ["a", "b", "b"] + ["c"] * 5
    assert decide(stream, rule="fixed", samples=3).answer == "b"
    assert decide(stream, rule="fixed").answer == "c"


def test_a_free_wave_takes_them_all_at_once():
    assert decide(["a", "b"] * 32, rule="fixed", samples=40, wave="free").waves == 1


def test_impossible_numbers_are_refused():
    with pytest.raises(ValueError, match="samples must be at least 1, got 0"):
        Fixed(0)
    with pytest.raises(ValueError, match="samples must be at most max_samples, got 32 and 16; raise max_samples"):
        decide(["a"] * 64, rule="fixed", max_samples=16, samples=32)
