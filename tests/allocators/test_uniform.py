import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from apportion import Batch, Belief, Even
from apportion.predictors import MeanLengths
from tests.builders import make_prompts


@given(st.lists(st.integers(1, 90), min_size=1, max_size=8), st.integers(90, 900))
def test_an_even_split_of_tokens_is_level_and_no_other_prompt_could_have_one_more(costs, tokens_per_prompt):
    allocator = Even(tokens_per_prompt=tokens_per_prompt, lengths=MeanLengths(initial=1), high=10_000)
    counts = allocator.plan(Batch.start(make_prompts(len(costs)), Belief.uniform(len(costs)), costs)).counts
    left = tokens_per_prompt * len(costs) - counts @ np.array(costs)
    level = tokens_per_prompt * len(costs) // sum(costs)
    assert set(counts.tolist()) <= {level, level + 1}
    assert left >= 0 and not any(n == level and cost <= left for n, cost in zip(counts, costs, strict=True))
