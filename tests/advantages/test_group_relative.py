import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.advantages import dr_grpo, grpo, rloo
from tests.advantages.bernoulli import until_correct

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


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
@pytest.mark.parametrize("n", [2, 5])
def test_at_a_fixed_count_rloo_is_unbiased_and_dr_grpo_short_by_one_rollout(p, n):
    fixed = until_correct(p, [n])
    for estimator, ratio in ((rloo, 1), (dr_grpo, (n - 1) / n)):
        advantages = estimator(fixed.rewards, fixed.group_ids)
        assert fixed.expect(advantages, "prompt") == pytest.approx(ratio * fixed.slope, rel=1e-12)


@pytest.mark.parametrize(
    ("stages", "p", "ratio"),
    [
        ([4, 4], 0.1, 1.349),
        ([4, 4], 0.7, 1.009),
        ([4, 4, 4, 4], 0.1, 1.581),
    ],
)
def test_rloo_is_biased_where_sampling_stops_at_the_first_success(stages, p, ratio):
    """Estimate over truth under AR3PO's stages, every prompt weighing the same: the harder the prompt, the larger."""
    stopped = until_correct(p, stages)
    estimate = stopped.expect(rloo(stopped.rewards, stopped.group_ids), "prompt")
    assert estimate / stopped.slope == pytest.approx(ratio, abs=5e-4)
