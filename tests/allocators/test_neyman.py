import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion import Neyman
from apportion.allocators.neyman import LEAST_LOW
from apportion.types import Batch, Belief
from tests.builders import make_prompts, splits

FORMULA = {"rloo": lambda n: 1 / (n - 1), "dr_grpo": lambda n: (n - 1) / n**2, "reinforce": lambda n: 1 / n}


def start(variance):
    size = len(variance)
    return Batch.start(make_prompts(size), Belief(np.ones(size), np.ones(size), np.array(variance)))


@given(
    estimator=st.sampled_from(sorted(FORMULA)),
    variance=st.lists(st.floats(0, 10), min_size=2, max_size=3),
    extra=st.integers(0, 8),
)
def test_it_minimises_the_summed_variance(estimator, variance, extra):
    low, high = LEAST_LOW[estimator], LEAST_LOW[estimator] + 4
    budget = min(low * len(variance) + extra, high * len(variance))
    allocator = Neyman(estimator=estimator, low=low, high=high, budget=budget)
    counts = allocator.plan(start(variance)).counts

    def total(each):
        return sum(s * FORMULA[estimator](n) for s, n in zip(variance, each, strict=True))

    every = splits(budget, low, high, len(variance))
    assert total(counts) == pytest.approx(min(map(total, every)))
    assert counts.sum() == budget
