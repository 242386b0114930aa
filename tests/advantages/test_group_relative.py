import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from apportion.advantages import dr_grpo, grpo, rloo

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
