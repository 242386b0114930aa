import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.predictors import DiscountedCounts
from tests.predictors.builders import make_batch, make_prompts


@given(
    outcomes=st.lists(st.integers(0, 8).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), max_size=8),
    discount=st.floats(0, 1),
)
def test_counts_are_the_discounted_sum(outcomes, discount):
    predictor, prompts = DiscountedCounts(discount, 0.5, 2.0), make_prompts(1)
    for successes, trials in outcomes:
        predictor.update(make_batch(prompts, [successes], [trials]))
    seen = np.array([(s, n) for s, n in outcomes if n]).reshape(-1, 2)
    right, trials = discount ** np.arange(len(seen), dtype=float)[::-1] @ seen
    belief = predictor.predict(prompts)
    assert (belief.alpha[0], belief.beta[0]) == pytest.approx((0.5 + right, 2.0 + trials - right))
