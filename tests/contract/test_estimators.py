"""Every estimator of the registry, on groups of every shape."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.advantages import ESTIMATORS, advantages_of, needs
from tests.builders import GROUP_RELATIVE

NAMES = sorted(ESTIMATORS)
SHIFT_INVARIANT = sorted(GROUP_RELATIVE - {"maxrl"} | {"reinforce_plus_plus", "spo", "batch_optimal"})
COLUMNS = {"baseline", "tokens", "rounds", "score_norms"}
batches = st.lists(st.lists(st.floats(0, 5), min_size=1, max_size=6), min_size=1, max_size=6)


def estimate(name, rewards, ids, seed=0, named=None):
    """Return a function from an order to advantages, with random further columns and one baseline per group.

    ``named`` (groups) are other names of the groups.
    """
    rng = np.random.default_rng(seed)
    tokens, rounds, levels = rng.integers(1, 9, len(ids)), rng.integers(3, size=len(ids)), rng.random(1 + max(ids))
    columns = {"tokens": tokens, "rounds": rounds, "baseline": levels[ids], "score_norms": rng.random(len(ids))}
    return lambda order: ESTIMATORS[name](
        np.asarray(rewards)[order],
        (ids if named is None else named[ids])[order],
        **{key: columns[key][order] for key in needs(name)},
    )


def flat(rows):
    return np.concatenate(rows), np.repeat(np.arange(len(rows)), [len(row) for row in rows])


@pytest.mark.parametrize("name", NAMES)
@given(rows=batches, seed=st.integers(0, 99))
def test_order_of_rollouts_and_names_of_groups_do_not_matter(name, rows, seed):
    rewards, ids = flat(rows)
    order, everything = np.random.default_rng(seed).permutation(len(rewards)), np.arange(len(ids))
    advantages = estimate(name, rewards, ids, seed)
    np.testing.assert_allclose(advantages(everything)[order], advantages(order), atol=1e-7, rtol=1e-7)
    named = np.array([f"group {i}" for i in range(len(rows))])[::-1]
    np.testing.assert_array_equal(advantages(everything), estimate(name, rewards, ids, seed, named)(everything))


@pytest.mark.parametrize("name", SHIFT_INVARIANT)
@given(rows=batches, shift=st.floats(0, 3), seed=st.integers(0, 99))
def test_a_number_added_to_every_reward_does_not_matter(name, rows, shift, seed):
    rewards, ids = flat([np.round(row, 3) for row in rows])
    everything = np.arange(len(ids))
    moved = estimate(name, rewards + shift, ids, seed)(everything)
    np.testing.assert_allclose(moved, estimate(name, rewards, ids, seed)(everything), atol=1e-7)


@pytest.mark.parametrize("name", NAMES)
def test_group_relative_ones_alone_give_exactly_0_to_single_rollouts_and_equal_rewards(name):
    for reward in (1.0, 0.1, 1 / 3):
        rewards, ids = np.array([reward, 1, 0, 1, *[reward] * 7]), np.array([0, 1, 1, 1, *[2] * 7])
        advantages = estimate(name, rewards, ids, seed=3)(np.arange(11))
        alone = advantages[ids != 1]
        assert (alone == 0).all() if name in GROUP_RELATIVE else (alone != 0).all()
        assert advantages[ids == 1].any()


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(SHIFT_INVARIANT)))
def test_the_other_estimators_are_not_shift_invariant(name):
    rewards, ids = np.array([1.0, 0, 0, 1]), np.array([0, 0, 1, 1])
    assert not np.allclose(*(estimate(name, rewards + shift, ids)(np.arange(4)) for shift in (0, 1)))


@pytest.mark.parametrize("name", NAMES)
def test_an_estimator_takes_failures_and_nothing_and_documents_itself(name):
    assert set(needs(name)) <= COLUMNS
    assert np.isfinite(estimate(name, np.zeros(5), np.array([0, 0, 1, 1, 2]))(np.arange(5))).all()
    assert ESTIMATORS[name]([], [], **{key: [] for key in needs(name)}).shape == (0,)
    assert advantages_of([], name, baseline=[] if "baseline" in needs(name) else None).shape == (0,)
    with pytest.raises(ValueError, match=r"must be \[N\] each"):
        ESTIMATORS[name]([1.0, 0.0], [0], **{key: [1, 1] for key in needs(name)})
    for key in needs(name):
        for wrong in ([1.0], [[1.0, 1.0]], [1.0, np.nan]):
            with pytest.raises(ValueError, match=rf"{key} must be \[2\] and finite"):
                ESTIMATORS[name]([1.0, 0.0], [0, 0], **{key: [1, 1] for key in needs(name)} | {key: wrong})
    assert ESTIMATORS[name].__name__ == name and ">>>" in (ESTIMATORS[name].__doc__ or "")
