import numpy as np
import pytest

from apportion.predictors.score_norms import sampled_score_norm


def test_it_is_the_part_of_the_logit_norm_that_belongs_to_the_sampled_tokens():
    """The gradient of log pi(token) is one-hot - pi, and its entry at the token is 1 - pi."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(6, 9))
    pi = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    tokens = rng.integers(9, size=6)
    gradients = np.eye(9)[tokens] - pi
    own = gradients[np.arange(6), tokens]
    assert sampled_score_norm(np.log(pi[np.arange(6), tokens])) == pytest.approx((own**2).sum())
    assert (own**2).sum() <= (gradients**2).sum() <= 2 * (own**2).sum()


def test_a_token_that_is_nearly_certain_keeps_its_precision():
    assert sampled_score_norm([-1e-9]) == pytest.approx(1e-18, rel=1e-6)


def test_the_ends():
    assert sampled_score_norm([]) == sampled_score_norm([], "mean") == 0.0
    assert sampled_score_norm([-np.inf, 1e-7]) == 1.0


def test_a_loss_that_is_a_mean_over_tokens_divides_the_gradient_by_their_number():
    logprobs = np.log([0.2, 0.5, 0.9])
    assert sampled_score_norm(logprobs, "mean") == pytest.approx(sampled_score_norm(logprobs) / 9)
