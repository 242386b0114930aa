"""The simulation of four schedulers: nothing is lost where lengths are equal, and each pays its own way where not."""

import numpy as np
import pytest

from benchmarks.schedulers import KINDS, SIZE, InOrder, Lengths, PrimeRL, simulate


def lengths(tail, seed=0):
    """Return lengths of 100, of which one in forty is ``tail``: a quarter of the longest tenth."""
    rng = np.random.default_rng(3)
    return Lengths([np.where(rng.random(64) < 1 / 40, tail, 100.0) for _ in range(400)], 400, seed)


@pytest.mark.parametrize("name", KINDS)
def test_equal_lengths_cost_nothing(name):
    found = simulate(KINDS[name], lengths(100.0), 1, updates=20)
    assert (found.discarded, found.idle) == pytest.approx((0, 0), abs=1e-6)
    assert found.rate == pytest.approx(1, abs=0.02)


def test_a_bound_costs_tokens_or_time_and_no_bound_costs_age():
    found = {name: simulate(kind, lengths(800.0), 2, updates=24) for name, kind in KINDS.items()}
    for name in ("TRL", "prime-rl"):
        assert found[name].discarded > 0.1 and found[name].long < 0.05 and found[name].oldest == 2
    assert found["verl"].discarded == 0 and found["verl"].oldest > 2
    assert found["ours"].discarded == 0 and found["ours"].oldest == 2
    assert found["verl"].long == pytest.approx(found["ours"].long, abs=0.05)
    assert found["ours"].long == pytest.approx(0.25, abs=0.06)
    assert found["ours"].idle > found["verl"].idle


@pytest.mark.parametrize("kind", [InOrder, PrimeRL])
def test_every_sampled_token_is_trained_on_or_discarded_or_waits(kind):
    driver, running, ended, trained, late = kind(lengths(800.0), 1), [], [], 0.0, ()
    for turn in range(60):
        running += [(turn + 6 * (number % 40 == 0), each) for number, each in enumerate(driver.requests(64))]
        running = [(due, each) for due, each in running if each.group not in late]
        for _, each in [entry for entry in running if entry[0] == turn]:
            driver.end(each)
            ended.append(each.length)
        running = [entry for entry in running if entry[0] > turn]
        if (update := driver.update()) is not None:
            trained += sum(map(sum, update[1]))
            late = driver.trained()
    waiting = sum(sum(group.ended) for group in [*driver.open, *driver.finished])
    waiting += sum(sum(map(sum, batch[1])) for batch in getattr(driver, "made", ()))
    assert driver.dropped > 0 and SIZE == 8
    assert trained + waiting + driver.dropped == pytest.approx(sum(ended))
