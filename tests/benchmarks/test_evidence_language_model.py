"""Tests of the claims on a real language model, without its weights: shared examples, statistics and verdicts."""

import numpy as np
import pytest
import torch

from benchmarks.baselines_rules import Samples
from benchmarks.evidence.language_model_norms import (
    allocations,
    assumption_tests,
    best_counts,
    second_moment,
    variance_ratios,
)
from benchmarks.evidence.language_model_policy import LARGEST, SUMS, questions, right, share_examples
from benchmarks.evidence.language_model_runs import RATE, SEEDS, TUNED, TUNING_SEED, at_seconds, swept
from benchmarks.evidence.page import committed
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


def test_shared_examples_can_be_replaced_and_generate_as_the_whole_text_does():
    plain, shared = make_llama(), make_llama()
    share_examples(shared, [7, 7])
    share_examples(shared, EXAMPLES)
    settings = {"do_sample": False, "max_new_tokens": 5, "pad_token_id": 0, "eos_token_id": None}
    padded, mask = torch.tensor([ROWS[0], [0, 0, *ROWS[1]]]), torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])
    found = shared.generate(padded, attention_mask=mask, **settings)[:, 4:]
    for row, own in zip(ROWS, found, strict=True):
        whole = torch.tensor([EXAMPLES + row])
        wanted = plain.generate(whole, attention_mask=torch.ones_like(whole), **settings)[0, whole.shape[1] :]
        assert own.tolist() == wanted.tolist()


def test_training_and_held_out_sums_are_different_and_none_is_an_example():
    training, held_out = questions()
    every = training + held_out
    assert len({question for question, _ in every}) == len(every)
    assert not any(example.startswith(question) for question, _ in every for example in SUMS.examples)
    for question, answer in every:
        a, b = map(int, question.removesuffix(" =").split(" + "))
        assert a + b == int(answer)
        assert 1 <= min(a, b) <= max(a, b) <= LARGEST


def test_only_the_first_line_counts():
    assert right([" 7\n", "7", " 7\n12", " 71\n", "", "\n7"], ["7"] * 6) == [1, 1, 1, 0, 0, 0]


def sampled(correlated, prompts=200, n=16):
    """Return rewards and norms. Correlated ones are 4 times as large for wrong completions."""
    rng = np.random.default_rng(0)
    rewards = (rng.random((prompts, n)) < rng.uniform(0.2, 0.8, (prompts, 1))).astype(float)
    z = 1 + rng.random((prompts, n))
    return rewards, z * np.where(rewards, 1.0, 4.0) if correlated else z


def test_vips_formula_is_met_by_uncorrelated_norms_and_not_by_correlated_ones():
    # a prompt's 16 samples are correlated by chance, which averages out over 200 prompts
    assert variance_ratios(*sampled(correlated=False))["all"][0] == pytest.approx(1.0, abs=0.1)
    found = variance_ratios(*sampled(correlated=True))
    assert found["below half"][2] < 1
    assert found["apart"][0] == pytest.approx(1.0, abs=0.05)


def test_the_assumption_is_rejected_for_correlated_norms_alone():
    assert assumption_tests(*sampled(correlated=False))["fisher"] > 0.01
    found = assumption_tests(*sampled(correlated=True))
    assert found["fisher"] < 1e-6
    assert found["correlation"][2] < -0.5


def test_allocation_by_measured_moments_gains_if_norms_differ_between_prompts():
    rng = np.random.default_rng(0)
    rewards, _ = sampled(correlated=False, prompts=24)
    norms = np.tile(np.repeat([1.0, 25.0], 12)[:, None], (1, 16)) * (1 + 0.1 * rng.random(rewards.shape))
    samples = Samples(rewards, {"parameters": norms, "squared": norms})
    found = allocations(samples)
    assert found["best"][0] < 0.9
    assert found["best"][0] <= found["VIP"][0]
    assert found["VIP"][0] == pytest.approx(found["VIP, shuffled"][0], abs=0.1)  # p says nothing about these norms


def test_best_counts_are_those_of_all_splits():
    v = np.array([1.0, 5.0, 0.2])
    every = [(a, b, 14 - a - b) for a in range(3, 9) for b in range(3, 9) if 14 - a - b >= 3]
    best = min(every, key=lambda counts: (v / counts).sum())
    assert best_counts(v, 14).tolist() == list(best)


def test_second_moment_leaves_the_own_reward_out():
    samples = Samples(np.array([[1.0, 0.0, 0.0]]), {"parameters": np.array([[2.0, 1.0, 1.0]])})
    assert second_moment(samples)[0] == pytest.approx((2 * 1 + 0.25 + 0.25) / 3)


def test_each_rule_trains_at_the_rate_that_was_best_on_the_seed_of_the_sweep():
    measured = {name: each["values"] for name, each in committed("language_model").items()}
    for leader in TUNED:
        areas = swept(measured, leader)
        assert RATE[leader] == max(areas, key=areas.get)
    assert TUNING_SEED not in SEEDS


def test_success_at_equal_seconds_is_read_from_the_line_between_evaluations():
    values = {"cpu_seconds": [0, 10, 20], "success": [0.2, 0.4, 0.6]}
    assert [at_seconds(values, seconds) for seconds in (0, 15, 20)] == pytest.approx([0.2, 0.5, 0.6])
