import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.advantages import prompt_weights, rollout_weights

sizes = st.lists(st.integers(1, 6), min_size=1, max_size=6)


@given(sizes)
def test_prompt_weights_give_every_prompt_the_same_share(sizes):
    ids = np.repeat(np.arange(len(sizes)), sizes)
    weights = prompt_weights(ids)
    assert weights.mean() == pytest.approx(1)
    np.testing.assert_allclose(np.bincount(ids, weights), len(ids) / len(sizes))
    np.testing.assert_array_equal(rollout_weights(ids, "prompt"), weights)


def shares(weights, lengths, reduction):
    """What each token counts for, [N, T], in a mean over rollouts of the sum, or mean, of its token terms."""
    mask = np.arange(max(lengths)) < np.array(lengths)[:, None]
    per_token = weights if reduction == "sum" else weights / np.array(lengths)
    return (per_token[:, None] * mask)[mask]


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_token_weights_let_every_token_count_the_same(reduction, lengths):
    weights = rollout_weights([0] * len(lengths), "token", lengths, reduction=reduction)
    assert weights.sum() == pytest.approx(len(lengths))
    np.testing.assert_allclose(np.ptp(shares(weights, lengths, reduction)), 0, atol=1e-12)
