"""Tests of the rules by which VIP's claims are judged, and of the closed form behind graded rewards."""

from itertools import product

import numpy as np
import pytest

from benchmarks.evidence.claim import Verdict
from benchmarks.evidence.vip_allocation_measured import allocations
from benchmarks.evidence.vip_assumptions import holm, never, rejected
from benchmarks.evidence.vip_graded_measured import unbiased_variance
from benchmarks.evidence.vip_prediction import consistently, lower_than_all


def each_with(*p_values):
    return {"tests": {str(i): {"by shuffles": p} for i, p in enumerate(p_values)}}


def test_a_setting_is_rejected_if_all_its_own_tests_reject_after_the_correction():
    settings = [
        ("first", each_with(0.5, 0.001)),
        ("second", each_with(0.001, 0.001)),
        ("third", each_with(0.03, 0.001)),
    ]
    assert rejected(settings) == {"first": False, "second": True, "third": False}


def test_holm_keeps_the_order_and_never_exceeds_1():
    assert holm([0.6, 0.001, 0.02]) == pytest.approx([0.6, 0.003, 0.04])
    assert holm([0.9, 0.8]) == [1.0, 1.0]


@pytest.mark.parametrize(
    ("found", "verdict"),
    [((False, False), Verdict.HOLDS), ((True, False), Verdict.CONDITIONS), ((True, True), Verdict.FAILS)],
)
def test_an_assumption_holds_if_nothing_is_rejected(found, verdict):
    assert never(dict(enumerate(found))) is verdict


def test_the_gaussian_process_must_be_lower_than_every_rival_in_every_phase():
    phases = ("1 to 10", "11 to 30", "31 to 55")
    signs = {("lab", rival, phase): -1 for rival in ("ridge", "mean") for phase in phases}
    assert consistently(lower_than_all(signs, ("ridge", "mean"))) is Verdict.HOLDS
    signs["lab", "ridge", "1 to 10"] = 0
    assert consistently(lower_than_all(signs, ("ridge", "mean"))) is Verdict.CONDITIONS
    assert consistently(lower_than_all(dict.fromkeys(signs, 0), ("ridge", "mean"))) is Verdict.FAILS


@pytest.mark.parametrize("n", [2, 3, 4])
def test_the_variance_of_graded_rewards_is_that_over_all_draws(n):
    rng = np.random.default_rng(0)
    rewards, gradients = rng.random(4), rng.normal(size=(4, 3))
    draws = np.array(list(product(range(4), repeat=n)))
    advantages = (rewards[draws] - rewards[draws].mean(1, keepdims=True)) * n / (n - 1)
    found = (advantages[:, :, None] * gradients[draws]).mean(1)
    assert unbiased_variance(gradients @ gradients.T, rewards, np.array([n])) == pytest.approx(found.var(0).sum())


def test_all_allocations_are_listed_once():
    every = allocations(3, 12, 3, 5)
    assert len(np.unique(every, axis=0)) == len(every) == 7
    assert (every.sum(1) == 12).all() and every.min() == 3 and every.max() == 5
