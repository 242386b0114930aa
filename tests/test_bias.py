"""The machinery of the bias benchmark: exact against measured, the remedies, and what cannot be remedied."""

import numpy as np
import pytest

from apportion import AR3PO, Prompt, ReinforceAda, Uniform
from benchmarks.bias import RULES, batch_cosine, exact_ratios
from benchmarks.bias_exact import SUCCESS, exact, expected_rollouts, first_round_factors, leaves
from benchmarks.bias_measured import by_prompt, measure

PROMPT = [Prompt("p", data=0)]
OUTCOME_DEPENDENT = [
    AR3PO(reuse="none"),
    AR3PO(3, 2, "none"),
    ReinforceAda(rounds=3, down_sample=False),
    ReinforceAda(exit="positive", down_sample=False),
]


def test_ar3po_agrees_with_its_moments():
    """One stage gives p q; after four wrong ones, probability q^4, RLOO over eight: E[s (8 - s)] / 56, s in four."""
    p, q = SUCCESS, 1 - SUCCESS
    second = (8 * 4 * p - (4 * p * q + 16 * p**2)) / 56
    np.testing.assert_allclose(exact(leaves(AR3PO(reuse="none")), "rloo").ratio, 1 + q**4 * second / (p * q))
    np.testing.assert_allclose(expected_rollouts(leaves(AR3PO(reuse="none"))), 4 + 4 * q**4)


@pytest.mark.parametrize("rule", ["uniform", "ar3po", "dapo"])
def test_measured_agrees_with_exact(rule):
    found = measure(RULES[rule](), ["rloo", "grpo"], {"prompt": by_prompt}, prompts=44, batches=100, warm_up=0)
    for name in ("rloo", "grpo"):
        ratio, half = found.ratio(name, "prompt")
        assert (np.abs(ratio - exact_ratios(rule, name)) < 2 * half + 1e-9).all()


@pytest.mark.parametrize("allocator", OUTCOME_DEPENDENT, ids=repr)
def test_sums_with_baselines_from_before_are_unbiased_for_the_count_weighted_gradient(allocator):
    found = leaves(allocator)
    for name in ("sequential", "reinforce"):
        np.testing.assert_allclose(exact(found, name, "sum").ratio, 1)
    assert np.abs(exact(found, "rloo", "sum").ratio - 1).max() > 0.01
    assert exact(found, "sequential").ratio.max() > 1.1


@pytest.mark.parametrize("allocator", OUTCOME_DEPENDENT, ids=repr)
def test_the_first_rounds_factors_make_rloo_unbiased_and_less_noisy_than_the_first_round(allocator):
    found = leaves(allocator)
    mended = exact(found, "rloo", scale=first_round_factors(found))
    np.testing.assert_allclose(mended.ratio, 1)
    first = exact(leaves(Uniform(int(allocator.plan(allocator.start(PROMPT)).counts[0]))), "rloo")
    assert (mended.noise <= first.noise * (1 + 1e-12)).all()


def test_the_mean_score_of_successes_does_not_depend_on_what_stopped_a_group():
    np.testing.assert_allclose(exact(leaves(AR3PO(reuse="none")), "sft").ratio, exact(leaves(Uniform(8)), "sft").ratio)


def test_the_direction_of_a_batch_is_wrong_if_the_ratio_differs_between_prompts():
    assert batch_cosine(np.full(len(SUCCESS), 2.0)) == pytest.approx(1)
    assert batch_cosine(exact(leaves(ReinforceAda()), "rloo").ratio) < 0.9
