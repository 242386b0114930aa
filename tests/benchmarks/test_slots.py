"""The simulator of slots: it counts time and ages right, and shows what a stream gains."""

from dataclasses import replace

import numpy as np
import pytest

from apportion import Uniform
from apportion.predictors import MeanLengths
from apportion.scheduler import Rows, Scheduler, Selected
from benchmarks.slots import InOrder, Slots, simulate_slots

ENGINE = Slots(slots=16, prompts=64, seed=2)


def streams(rule=lambda: Uniform(4), kind=Rows, size=64, age_bound=1, lengths=None, **settings):
    return lambda prompts: Scheduler(rule(), prompts, kind(size, age_bound), Selected(lengths=lengths), **settings)


def test_lengths_are_cut_and_their_mean_is_known():
    rng = np.random.default_rng(0)
    assert Slots(slots=1, prompts=1, sigma=0.0).mean_length == pytest.approx(1)
    for sigma, longest in ((1.0, 0.99), (0.5, 0.9)):
        cut = np.exp(np.minimum(rng.normal(0, sigma, 400_000), sigma * {0.99: 2.3263, 0.9: 1.2816}[longest]))
        engine = Slots(slots=1, prompts=1, sigma=sigma, longest=longest)
        assert engine.mean_length == pytest.approx(cut.mean(), rel=0.01)


def test_a_barrier_of_equal_lengths_wastes_nothing_and_an_update_that_takes_time_does():
    even = replace(ENGINE, sigma=0.0)
    assert simulate_slots(even, streams(age_bound=0), 8).utilisation == pytest.approx(1.0)
    half = simulate_slots(replace(even, update=1.0), streams(age_bound=0), 8)
    assert half.utilisation == pytest.approx(0.5, abs=0.02)
    assert simulate_slots(replace(even, update=0.9), streams(age_bound=2), 12).utilisation > 0.97


def test_a_stream_beats_order_and_barrier_and_keeps_its_bound():
    barrier = simulate_slots(ENGINE, streams(age_bound=0), 12)
    order = simulate_slots(ENGINE, streams(kind=InOrder, age_bound=2), 12)
    bound = simulate_slots(ENGINE, streams(age_bound=2), 12)
    assert barrier.largest_age == 0 and order.largest_age <= 2 and bound.largest_age <= 2
    assert barrier.utilisation < order.utilisation <= bound.utilisation
    assert bound.age < order.age
    assert bound.budget == pytest.approx(4, abs=0.02)  # the last groups are not asked for whole yet


def test_longest_first_leaves_fewer_slots_idle_at_bound_one():
    engine = replace(ENGINE, update=0.9, prompts=128, slots=32)
    any_first, longest_first = (
        simulate_slots(engine, streams(lengths=lengths), 40) for lengths in (None, MeanLengths(initial=1500))
    )
    assert any_first.utilisation + 0.005 < longest_first.utilisation
    assert any_first.largest_age == longest_first.largest_age == 1


@pytest.mark.parametrize("lengths", [None, MeanLengths(initial=1500)])
def test_no_length_is_preferred_even_if_most_prompts_are_in_flight(lengths):
    engine, settings = replace(ENGINE, prompts=64), {"age_bound": 2, "lengths": lengths}
    shares = [simulate_slots(replace(engine, seed=seed), streams(**settings), 24).long_share for seed in range(4)]
    assert np.mean(shares) == pytest.approx(1.0, abs=0.06)  # 0.8 if the turns of prompts in flight were lost
