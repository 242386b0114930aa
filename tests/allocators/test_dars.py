import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion import DARS, Plan, Rollout
from apportion.allocators.dars import extra_rollouts
from benchmarks.bias_exact import SUCCESS, exact, leaves
from tests.builders import finished, make_batch, make_prompts


def written_out(successes, trials, N, most):
    """The paper's formula, in fractions."""
    p = Fraction(successes, trials) if successes else Fraction(1, 2 * N)
    if p >= Fraction(1, 2):
        return 0
    signal = 2 * p * (1 - p)
    return min(math.ceil((Fraction(N, 2) - N * signal) / signal), most - N)


@given(st.integers(1, 40), st.integers(0, 60), st.data())
def test_the_second_round_is_the_papers_formula(N, room, data):
    trials = data.draw(st.integers(1, N))
    successes = data.draw(st.integers(0, trials))
    found = extra_rollouts(np.array([successes]), np.array([trials]), N, N + room)
    assert found.tolist() == [written_out(successes, trials, N, N + room)]


def test_p_is_the_share_of_those_that_arrived():
    """Of eight asked, four arrived: one right of them is p = 1/4, for which (4 - 3) / (3/8) rounds up to 3."""
    rollouts = [[Rollout(True), *[Rollout(False)] * 3], [], [Rollout(False)] * 8]
    assert DARS().plan(finished(make_prompts(3), rollouts, [8] * 3)) == Plan([3, 0, 24])
    assert DARS().plan(make_batch([[0] * 5, [1]])) == Plan([3, 7])  # an interrupted first round is completed first


def test_the_bias_is_as_documented():
    ratio = dict(zip(SUCCESS.tolist(), exact(leaves(DARS()), "rloo").ratio, strict=True))
    assert [ratio[p] for p in (0.1, 0.3, 0.9)] == pytest.approx([1.17, 1.08, 1.00], abs=0.006)
