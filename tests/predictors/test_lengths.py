"""``MeanLengths`` against means computed directly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion import Prompt, Rollout
from apportion.predictors import MeanLengths
from tests import builders
from tests.builders import make_prompts


def finished(tokens, prompts=None):
    """Return a batch whose prompt q has completions of these lengths; None is unknown."""
    rollouts = [[Rollout(True, tokens=t) for t in group] for group in tokens]
    return builders.finished(prompts or make_prompts(len(tokens)), rollouts)


lengths_of_one_prompt = st.lists(st.lists(st.integers(1, 9000), min_size=1, max_size=5), min_size=1, max_size=5)


@given(lengths_of_one_prompt, st.floats(0, 1))
def test_a_prompt_has_the_discounted_mean_of_its_completions(batches, discount):
    learner = MeanLengths(initial=5, discount=discount)
    for tokens in batches:
        learner.update(finished([tokens]))
    weights = [discount**age for age in range(len(batches))][::-1]
    total = sum(w * sum(tokens) for w, tokens in zip(weights, batches, strict=True))
    mean = total / sum(w * len(tokens) for w, tokens in zip(weights, batches, strict=True))
    predicted = learner.predict(make_prompts(1))[0]
    assert mean - 1e-5 <= predicted < mean + 1 + 1e-5


def test_a_new_prompt_has_the_mean_over_prompts_not_over_rollouts():
    learner = MeanLengths(initial=5)
    learner.update(finished([[100] * 9, [300]]))
    assert learner.predict([Prompt("new")]).tolist() == [200]


def test_failed_reused_and_unmeasured_rollouts_are_ignored():
    learner = MeanLengths(initial=50)
    rollouts = [[Rollout(tokens=8), Rollout(tokens=900, step=3), Rollout(True)], []]
    learner.update(builders.finished(make_prompts(2), rollouts, asked=[4, 2]))
    assert learner.predict(make_prompts(2)).tolist() == [8, 8]
    learner.update(finished([[None], []]))
    assert learner.predict(make_prompts(2)).tolist() == [8, 8]


@pytest.mark.parametrize("tokens", [7, 4096])
def test_constant_lengths_are_predicted_to_the_token_however_long(tokens):
    """Floating-point errors of a discounted mean must not be rounded up to a token."""
    learner = MeanLengths(initial=5, discount=0.9)
    for _ in range(100):
        learner.update(finished([[tokens] * 3]))
        assert learner.predict([*make_prompts(1), Prompt("new")]).tolist() == [tokens, tokens]


def test_a_state_under_other_settings_is_refused():
    with pytest.raises(ValueError, match=r"'discount': 0.9.*got .*'discount': 0.5"):
        MeanLengths(initial=5).load_state_dict(MeanLengths(initial=5, discount=0.5).state_dict())
