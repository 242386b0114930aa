"""Tests of the claims on a real language model, without its weights: shared examples, statistics and verdicts."""

import numpy as np
import torch

from benchmarks.evidence.language_model_norms import (
    assumption_tests,
)
from benchmarks.evidence.language_model_policy import share_examples
from tests.benchmarks.llama import make_llama

EXAMPLES, ROWS = [3, 1, 4, 1, 5], [[9, 2, 6, 5], [3, 5]]


def test_shared_examples_give_the_outputs_and_gradients_of_the_whole_texts():
    plain, shared = make_llama(), make_llama()
    share_examples(shared, EXAMPLES)
    padded = torch.tensor([ROWS[0], [0, 0, *ROWS[1]]])
    mask = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])
    found = shared(input_ids=padded, attention_mask=mask).logits
    wanted = [plain(input_ids=torch.tensor([EXAMPLES + row])).logits[0, len(EXAMPLES) :] for row in ROWS]
    torch.testing.assert_close(found[0], wanted[0])
    torch.testing.assert_close(found[1, 2:], wanted[1])
    (found[0].logsumexp(-1).sum() + found[1, 2:].square().sum()).backward()
    (wanted[0].logsumexp(-1).sum() + wanted[1].square().sum()).backward()
    for mine, theirs in zip(shared.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, atol=1e-4, rtol=1e-4)


def sampled(correlated, prompts=200, n=16):
    """Return rewards and norms. Correlated ones are 4 times as large for wrong completions."""
    rng = np.random.default_rng(0)
    rewards = (rng.random((prompts, n)) < rng.uniform(0.2, 0.8, (prompts, 1))).astype(float)
    z = 1 + rng.random((prompts, n))
    return rewards, z * np.where(rewards, 1.0, 4.0) if correlated else z


def test_the_assumption_is_rejected_for_correlated_norms_alone():
    assert assumption_tests(*sampled(correlated=False))["fisher"] > 0.01
    found = assumption_tests(*sampled(correlated=True))
    assert found["fisher"] < 1e-6
    assert found["correlation"][2] < -0.5
