"""Tests of AR3PO's evidence: the exact counts along recorded groups, the accounting, and the rules of its verdicts."""

from itertools import combinations

import numpy as np
import pytest

from benchmarks.evidence.ar3po_counts import _expected, _mixed, _mixed_even
from benchmarks.evidence.ar3po_lab import GRPO, followed

SMALL = {**GRPO, "rollouts": 960, "evaluate_every": 480, "problems": 48, "held_out": 20, "prompts_per_step": 8}


def orders(right):
    """Yield every order of 8 outcomes with ``right`` correct ones."""
    for places in combinations(range(8), right):
        yield [place in places for place in range(8)]


def staged(outcomes, stages, each):
    """Return the outcomes that are seen by stages that end with the first correct one."""
    for stage in range(1, stages + 1):
        if any(outcomes[: each * stage]):
            break
    return outcomes[: each * stage]


@pytest.mark.parametrize("stages", [(2, 4), (4, 2), (8, 1), (1, 8)])
@pytest.mark.parametrize("right", range(9))
def test_counts_along_recorded_groups_are_those_of_every_order(stages, right):
    seen = [staged(outcomes, *stages) for outcomes in orders(right)]
    assert _expected(np.array(right), *stages) == pytest.approx(np.mean(list(map(len, seen))))
    mixed = np.mean([0 < sum(own) < len(own) for own in seen])
    assert _mixed(np.array(right), stages[1]) == pytest.approx(mixed)


@pytest.mark.parametrize("right", range(9))
def test_even_counts_along_recorded_groups_are_those_of_every_order(right):
    for n in range(2, 9):
        mixed = np.mean([0 < sum(own[:n]) < n for own in orders(right)])
        assert _mixed_even(np.array(right), n) == pytest.approx(mixed)


@pytest.mark.parametrize("rule", [{"name": "ar3po"}, {"name": "dapo", "rollouts_per_prompt": 8, "target": 4}])
def test_every_rollout_that_is_asked_for_is_accounted_for(rule, small_base_folder):
    found = followed(rule, 0, SMALL | {"base": small_base_folder})
    assert found["exact"] == 1
    assert (found["thrown_away"] > 0) == (rule["name"] == "dapo")
    assert (found["after"] < found["without"]) == (rule["name"] == "ar3po")
