"""Tests of the faults that the default belief is put through."""

import numpy as np

from benchmarks import bad_batches
from benchmarks.bad_batches import GROUP, WithoutDrift, errors, means, pools, visits


def test_three_batches_have_the_fault_and_every_prompt_comes_once_a_visit():
    right = pools()["1.5B run"][:12]
    found = list(visits(right, 2, 0, "all 1"))
    bad = [all(r.correct for group in groups for r in group) for _, _, groups in found]
    assert [at for at, dead in enumerate(bad) if dead][-3:] == [24, 25, 26]
    assert sorted(q for visit, some, _ in found if visit == 9 for q in some) == list(range(12))


def test_one_bad_batch_of_two_prompts_harms_the_default_no_more_than_counts():
    right = pools()["7B, hard"][:40]
    for fault in bad_batches.FAULTS:
        found = means(right, right / GROUP, 2, fault=fault)
        assert found["default"].mean() < 1.1 * found["counts"].mean()


def test_the_control_does_not_follow_a_jump():
    right, p = bad_batches.jumped(0)
    still, moving = (
        errors(make(), visits(right, 32, 0), p).mean(0) for make in (WithoutDrift, bad_batches.EmpiricalBayes)
    )
    assert (moving[5:] < 0.3 * still[5:]).all() and np.isclose(moving[:3], still[:3], rtol=0.1).all()
