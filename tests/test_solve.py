import itertools

import numpy as np
import pytest

from apportion import allocate
from apportion.allocators.hora import hit_utility
from apportion.solve import solve
from apportion.types import Belief


def test_objectives_compare_with_an_even_split_under_the_same_bounds():
    result = solve([0.05, 0.5, 0.5, 0.95], 32, estimator="dr_grpo")
    assert result.uniform_counts.tolist() == [8, 8, 8, 8]
    assert result.measure == "gradient_variance"
    assert result.objective < result.uniform_objective
    hits = solve(None, 40, method="hora", successes=[0, 0, 2, 4], trials=[4, 4, 4, 4])
    assert hits.measure == "expected_hits"
    assert hits.objective > hits.uniform_objective


def test_rollouts_granted_by_low_diminish_what_later_ones_add():
    """A prompt that gets 10 rollouts by ``low`` anyway is worth less of the rest than a prompt without any grant."""
    result = solve(None, 60, method="hora", successes=[0, 0], trials=[0, 20], low=20)
    posterior = Belief.uniform(2).condition([0, 0], [0, 20])
    every = [np.array([20 + n, 40 - n]) for n in range(21)]
    best = max(hit_utility(posterior, counts - [0, 20]).sum() for counts in every)
    assert result.objective == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"success": [0.1, 0.5], "budget": -(10**5000)}, "budget must be an integer .*, got an integer of 16610 bits"),
        ({"success": [10**400], "budget": 3}, "success must be numbers, got .* bits"),
        ({"success": ["x" * 10**6], "budget": 3}, r"success must be numbers, got \['xxx"),
        ({"success": [0.5], "budget": 3, "method": "m" * 10**6}, "method must be one of"),
    ],
    ids=itertools.count(),
)
def test_numbers_beyond_all_use_are_refused_in_one_short_line(arguments, problem):
    with pytest.raises(ValueError, match=problem) as refused:
        solve(**arguments)
    assert len(str(refused.value)) < 500


def test_a_large_bound_costs_nothing_if_few_rollouts_are_spent():
    success = np.random.default_rng(0).random(100_000)
    large, small = (solve(success, 800_000, high=high) for high in (10**9, 2_000))
    assert np.array_equal(large.counts, small.counts)
    assert np.array_equal(solve(success, 10**9, method="uniform", high=10**9).counts, np.full(100_000, 10_000))


def test_horas_default_low_is_its_pre_rollouts():
    """The bound of 3 rollouts is VIP's; pre-rollouts of 1 and 2 need no more."""
    assert allocate(None, 5, method="hora", successes=[0, 2], trials=[1, 2]).sum() == 5
    assert allocate(None, 3, method="hora", successes=[0, 2], trials=[1, 2]).tolist() == [1, 2]


def test_an_even_split_does_not_need_three_rollouts_a_prompt():
    assert allocate([0.5, 0.5, 0.5], 4, method="uniform").tolist() == [2, 1, 1]
    assert allocate([0.5, 0.5], 8.0).tolist() == allocate([0.5, 0.5], 8).tolist()


def test_a_solution_of_many_prompts_is_shown_in_one_line_and_compares_by_value():
    solution = solve(np.full(10_000, 0.5), 80_000)
    assert solution == solve(np.full(10_000, 0.5), 80_000)
    assert len(repr(solution)) < 400 and "\n" not in repr(solution)
