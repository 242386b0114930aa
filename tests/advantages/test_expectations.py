"""Expected sums and means of advantage times score over all outcomes of a Bernoulli policy, over the gradient."""

import numpy as np
import pytest

from apportion.advantages import dr_grpo, reinforce, rloo, sequential
from tests.advantages.bernoulli import until_correct


@pytest.mark.parametrize("p", [0.1, 0.3, 0.7])
@pytest.mark.parametrize(
    ("estimator", "stages", "weighting", "expected"),
    [
        *((rloo, [n], "prompt", lambda p, count: 1) for n in (2, 5)),
        *((dr_grpo, [n], "prompt", lambda p, count: (count - 1) / count) for n in (2, 5)),
        *((reinforce, stages, "rollout", lambda p, count: count) for stages in ([1], [5], [4, 4], [1, 1, 3])),
        *((sequential, stages, "rollout", lambda p, count: count) for stages in ([4, 4], [2, 6], [2, 1, 1, 4], [8])),
        # a first rollout alone in its round does not count
        *((sequential, stages, "rollout", lambda p, count: count - 1) for stages in ([1, 3, 4], [1] * 6)),
        # the first stage alone gives the gradient; the second, where the first has failed, half as much on top
        (sequential, [4, 4], "prompt", lambda p, count: 1 + (1 - p) ** 4 / 2),
    ],
)
def test_estimators_have_the_expectation_that_they_say_where_a_success_stops_sampling(
    estimator, stages, weighting, expected, p
):
    outcomes = until_correct(p, stages)
    columns = {reinforce: {"baseline": np.full(len(outcomes.rewards), 0.3)}, sequential: {"rounds": outcomes.rounds}}
    advantages = estimator(outcomes.rewards, outcomes.group_ids, **columns.get(estimator, {}))
    found = outcomes.expect(advantages, weighting) / outcomes.slope
    assert found == pytest.approx(expected(p, outcomes.expected_count), rel=1e-11, abs=1e-12)
