import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from apportion.lab.policy import (
    completion_distributions,
    completion_logprobs,
    effective_solutions,
    exact_success,
    new_policy,
    solution_probabilities,
)
from apportion.lab.sampler import LedgerSampler
from apportion.lab.task import EOS, Problem, encode, problem_pool

PROMPTS = [encode("7 a+3 ="), encode("1 a+3 b*7 c-4 ="), encode("0 a*9 b-2 =")]
COMPLETIONS = [[*encode("a0"), EOS], [*encode("a4b8c4"), EOS], encode("a0")]


def one_at_a_time(policy, prompt, completion, temperature=1.0):
    """Log-probabilities of one completion by one unpadded forward pass a token."""
    logprobs = []
    for step, token in enumerate(completion):
        logits = policy(torch.tensor([[*prompt, *completion[:step]]])).logits[0, -1]
        logprobs.append(torch.log_softmax(logits / temperature, -1)[token])
    return torch.stack(logprobs)


def test_the_policy_has_200640_parameters():
    assert sum(parameter.numel() for parameter in new_policy(0).parameters()) == 200_640


def test_a_seed_fixes_the_policy_and_leaves_the_global_generator_alone():
    before = torch.random.get_rng_state()
    first, second, other = (torch.cat([p.flatten() for p in new_policy(seed).parameters()]) for seed in (3, 3, 4))
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(first, second) and not torch.equal(first, other)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("max_rows", [1024, 2])
def test_ragged_rows_equal_one_pass_a_token(small_base, temperature, max_rows):
    logprobs, mask = completion_logprobs(small_base, PROMPTS, COMPLETIONS, temperature, max_rows)
    assert logprobs.shape == mask.shape == (3, 7)
    assert mask.sum(1).tolist() == [3, 7, 2]
    assert (logprobs[~mask] == 0).all()
    for row, (prompt, completion) in enumerate(zip(PROMPTS, COMPLETIONS, strict=True)):
        expected = one_at_a_time(small_base, prompt, completion, temperature)
        torch.testing.assert_close(logprobs[row, : len(completion)], expected, atol=1e-5, rtol=0)


def test_distributions_of_ragged_rows_hold_the_logprobs_of_what_was_written(small_base):
    distributions, mask = completion_distributions(small_base, PROMPTS, COMPLETIONS)
    logprobs, written = completion_logprobs(small_base, PROMPTS, COMPLETIONS)
    assert distributions.shape == (3, 7, 47) and torch.equal(mask, written)
    torch.testing.assert_close(distributions.exp().sum(-1), torch.ones(3, 7))
    tokens = pad_sequence([torch.tensor(completion) for completion in COMPLETIONS], batch_first=True)
    torch.testing.assert_close(distributions.gather(-1, tokens[..., None])[..., 0][mask], logprobs[mask])


def test_each_distribution_is_that_of_one_pass_over_its_prefix(small_base):
    distributions, _ = completion_distributions(small_base, PROMPTS, COMPLETIONS)
    for row, (prompt, completion) in enumerate(zip(PROMPTS, COMPLETIONS, strict=True)):
        for step in range(len(completion)):
            logits = small_base(torch.tensor([[*prompt, *completion[:step]]])).logits[0, -1]
            torch.testing.assert_close(distributions[row, step], logits.log_softmax(-1), atol=1e-4, rtol=1e-4)


def test_the_gradient_is_that_of_one_pass_a_token(small_base):
    weights = torch.tensor([1.0, -0.5, 2.0])
    (completion_logprobs(small_base, PROMPTS, COMPLETIONS)[0].sum(1) @ weights).backward()
    found = [parameter.grad.clone() for parameter in small_base.parameters()]
    small_base.zero_grad()
    for weight, prompt, completion in zip(weights, PROMPTS, COMPLETIONS, strict=True):
        (weight * one_at_a_time(small_base, prompt, completion).sum()).backward()
    for gradient, parameter in zip(found, small_base.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad, atol=1e-4, rtol=1e-4)
    small_base.zero_grad()


def test_no_rows_and_empty_completions_are_empty():
    policy = new_policy(0)
    for rows in (0, 2):
        logprobs, mask = completion_logprobs(policy, PROMPTS[:rows], [[]] * rows)
        assert logprobs.shape == mask.shape == (rows, 0)
    logprobs, mask = completion_logprobs(policy, PROMPTS[:2], [[], [EOS]])
    assert mask.tolist() == [[False], [True]] and logprobs[0, 0] == 0
    assert exact_success(policy, []).shape == (0,)


def test_rows_are_checked():
    policy = new_policy(0)
    with pytest.raises(ValueError, match="got 1 for 2"):
        completion_logprobs(policy, PROMPTS[:2], [[EOS]])
    with pytest.raises(ValueError, match="at least one token"):
        completion_logprobs(policy, [[]], [[EOS]])
    with pytest.raises(ValueError, match="temperature must be positive, got 0"):
        completion_logprobs(policy, PROMPTS[:1], [[EOS]], temperature=0)


def test_exact_success_is_the_product_of_next_token_probabilities(small_base):
    problems = [Problem(7, ("+3", "*7", "-4")), Problem(0, ("+1",)), Problem(2, ("*9", "-9"))]
    found = exact_success(small_base, problems)
    assert found.dtype == np.float64
    for problem, p in zip(problems, found, strict=True):
        tokens = [*encode(problem.completion), EOS]
        expected = one_at_a_time(small_base, encode(problem.text), tokens).sum().exp().item()
        assert p == pytest.approx(expected, rel=1e-4)


def test_each_solution_has_its_teacher_forced_probability(small_base):
    problems = [Problem(7, ("+3", "*7", "-4")), Problem(0, ("+1",), ("+2",)), *problem_pool(30, seed=4, task="forks")]
    found = solution_probabilities(small_base, problems, max_rows=9)
    for problem, probabilities in zip(problems, found, strict=True):
        written = [[*encode(solution), EOS] for solution in problem.solutions]
        with torch.no_grad():
            logprobs, _ = completion_logprobs(small_base, [encode(problem.text)] * len(written), written)
        np.testing.assert_allclose(probabilities, logprobs.double().sum(1).exp().numpy(), rtol=1e-3)
    np.testing.assert_array_equal(exact_success(small_base, problems, max_rows=9), [p.sum() for p in found])


def test_the_success_of_forked_problems_agrees_with_sampling(small_base):
    problems = [
        Problem(start, (f"+{a}", "-1"), (f"-{b}", "")) for start, a, b in [(1, 2, 3), (2, 5, 1), (4, 1, 8), (9, 3, 3)]
    ]
    p = exact_success(small_base, problems)
    groups = LedgerSampler(small_base, seed=1)([q.prompt() for q in problems], [2000] * len(problems))
    successes = np.array([sum(rollout.correct for rollout in group) for group in groups])
    assert (np.abs(successes - 2000 * p) < 4.5 * np.sqrt(2000 * p * (1 - p)) + 1).all()
    assert p.sum() > 0.05


def test_effective_solutions_count_the_choice_and_not_the_success():
    found = effective_solutions([np.array([0.4, 0.4]), np.full(4, 1e-6), np.array([0.9, 0.0]), np.array([0.2])])
    np.testing.assert_allclose(found, [2, 4, 1, 1])
    assert 1 < effective_solutions([np.array([0.3, 0.1])])[0] < 2


def test_exact_success_does_not_depend_on_blocks_or_order(small_base):
    problems = problem_pool(50, seed=8)
    whole = exact_success(small_base, problems)
    np.testing.assert_allclose(exact_success(small_base, problems, max_rows=7), whole, rtol=1e-4)
    np.testing.assert_allclose(exact_success(small_base, problems[::-1])[::-1], whole, rtol=1e-4)


def test_exact_success_agrees_with_sampling(small_base):
    """Chi-square of the successes of 200 rollouts a prompt, over prompts whose success is neither rare nor certain."""
    problems = [problem for problem in problem_pool(300, seed=9) if len(problem.operations) <= 2]
    p = exact_success(small_base, problems)
    problems, p = [q for q, x in zip(problems, p, strict=True) if 0.05 < x < 0.95], p[(p > 0.05) & (p < 0.95)]
    assert len(problems) >= 30
    groups = LedgerSampler(small_base, seed=1)([q.prompt() for q in problems], [200] * len(problems))
    successes = np.array([sum(rollout.correct for rollout in group) for group in groups])
    score = ((successes - 200 * p) ** 2 / (200 * p * (1 - p))).sum()
    assert abs(score - len(p)) < 4.5 * np.sqrt(2 * len(p))
