from dataclasses import replace

import numpy as np
import pytest
import torch

from apportion.lab.policy import exact
from apportion.lab.policy.exact import effective_solutions, exact_success, solution_probabilities
from apportion.lab.policy.network import completion_logprobs, new_policy
from apportion.lab.policy.sampler import LedgerSampler
from apportion.lab.world.task import EOS, Problem, encode, problem_pool


def test_no_problems_have_no_success():
    assert exact_success(new_policy(0), []).shape == (0,)


def test_each_solution_has_its_teacher_forced_probability(small_base, monkeypatch):
    monkeypatch.setattr(exact, "MAX_PROBLEMS", 9)
    problems = [Problem(7, ("+3", "*7", "-4")), Problem(0, ("+1",), ("+2",))]
    problems += [*problem_pool(30, seed=4, task="forks"), *problem_pool(30, seed=4, task="notes")]
    found = solution_probabilities(small_base, problems)
    for problem, probabilities in zip(problems, found, strict=True):
        written = [[*encode(solution), EOS] for solution in problem.solutions]
        with torch.no_grad():
            logprobs, _ = completion_logprobs(small_base, [encode(problem.text)] * len(written), written)
        np.testing.assert_allclose(probabilities, logprobs.double().sum(1).exp().numpy(), rtol=1e-3)
    np.testing.assert_array_equal(exact_success(small_base, problems), [p.sum() for p in found])


def test_the_exact_success_is_the_share_of_right_samples_where_length_is_free(small_base):
    problems = [replace(problem, notes=True) for problem in problem_pool(60, seed=4) if len(problem.operations) < 3]
    drawn = LedgerSampler(small_base, seed=1)([problem.prompt() for problem in problems], [100] * len(problems))
    right, exactly = [rollout.correct for group in drawn for rollout in group], exact_success(small_base, problems)
    assert np.mean(right) == pytest.approx(exactly.mean(), abs=4 * np.sqrt(exactly.mean() / len(right)))
    assert 0.02 < exactly.mean() < 0.9


def test_effective_solutions_count_the_choice_and_not_the_success():
    found = effective_solutions([np.array([0.4, 0.4]), np.full(4, 1e-6), np.array([0.9, 0.0]), np.array([0.2])])
    np.testing.assert_allclose(found, [2, 4, 1, 1])
    assert 1 < effective_solutions([np.array([0.3, 0.1])])[0] < 2
