"""A price where prompts come in the order of the data set, sorted by difficulty, and in other orders."""

import numpy as np
import pytest

from apportion import VIP, Prompt
from apportion.allocators.spending.price import Price
from apportion.allocators.vip import gradient_variance
from apportion.predictors import EmpiricalBayes

RATES = np.repeat([0.01, 0.5, 0.99], 400)
PROMPTS = [Prompt(f"prompt {q}", rate=rate) for q, rate in enumerate(RATES)]
SORTED = range(len(PROMPTS))
MIXED = np.random.default_rng(0).permutation(len(PROMPTS))


def priced(data_set, order=SORTED, stops=()):
    """Return the counts [Q] of prompts taken in ``order``, by a price that is saved and restored at ``stops``."""
    price = Price(rule := VIP(rollouts_per_prompt=8, low=3, high=32, predictor=EmpiricalBayes()), data_set)
    batch, counts = rule.start(PROMPTS), np.zeros(len(PROMPTS), int)
    for taken, place in enumerate(order):
        if taken in stops:
            state = price.state_dict()
            (price := Price(rule, data_set)).load_state_dict(state)
        counts[place] = price.take(batch.part([place]))
        assert abs(price.carry) <= price.slack
    return counts


def test_data_sorted_by_difficulty_get_less_variance_where_their_order_is_known():
    unknown = priced([PROMPTS[place] for place in MIXED])
    found = [gradient_variance(RATES, counts).sum() for counts in (priced(PROMPTS), unknown)]
    assert found[0] < 0.96 * found[1]
    assert priced(PROMPTS, MIXED).tolist() == priced(PROMPTS[::-1], MIXED).tolist()  # no order is followed


@pytest.mark.parametrize("stop", [20, 333])
def test_a_restored_price_looks_as_far_ahead(stop):
    assert priced(PROMPTS, stops=[stop]).tolist() == priced(PROMPTS).tolist()
