import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.advantages import ESTIMATORS, dr_grpo, grpo, prompt_weights, rloo

groups = st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=6), min_size=1, max_size=6)


def flat(rows):
    return np.concatenate(rows), np.repeat(np.arange(len(rows)), [len(row) for row in rows])


@given(groups)
def test_estimators_equal_their_definitions_group_by_group(rows):
    rewards, ids = flat(rows)
    for q, row in enumerate(map(np.array, rows)):
        mine = ids == q
        if len(row) == 1:
            continue
        others = [np.delete(row, i).mean() for i in range(len(row))]
        np.testing.assert_allclose(dr_grpo(rewards, ids)[mine], row - row.mean(), atol=1e-9)
        np.testing.assert_allclose(rloo(rewards, ids)[mine], row - others, atol=1e-9)
        np.testing.assert_allclose(grpo(rewards, ids)[mine], (row - row.mean()) / (row.std(ddof=1) + 1e-4), atol=1e-6)


@pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=list(ESTIMATORS))
def test_a_group_of_one_has_advantage_zero(estimator):
    assert estimator([0.7, 1.0, 0.0], [5, 3, 3])[0] == 0.0


@pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=list(ESTIMATORS))
@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 1 / 3])
def test_equal_rewards_have_advantage_exactly_zero(estimator, reward):
    assert (estimator([reward] * 7, [0] * 7) == 0).all()


@pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=list(ESTIMATORS))
@given(rows=groups, seed=st.integers(0, 99))
def test_order_of_rollouts_does_not_matter(estimator, rows, seed):
    rewards, ids = flat(rows)
    order = np.random.default_rng(seed).permutation(len(rewards))
    np.testing.assert_allclose(estimator(rewards, ids)[order], estimator(rewards[order], ids[order]), atol=1e-7)


@given(groups)
def test_prompt_weights_give_every_prompt_the_same_share(rows):
    _, ids = flat(rows)
    weights = prompt_weights(ids)
    assert weights.mean() == pytest.approx(1)
    np.testing.assert_allclose(np.bincount(ids, weights), len(ids) / len(rows))


def test_unequal_lengths_are_refused():
    with pytest.raises(ValueError, match=r"must be \[N\] each"):
        rloo([1.0, 0.0], [0])
