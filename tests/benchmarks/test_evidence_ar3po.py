"""Tests of AR3PO's evidence: the exact counts along recorded groups, the accounting, and the rules of its verdicts."""

from itertools import combinations

import numpy as np
import pytest

from apportion.lab.report.results import SeedInterval
from benchmarks.evidence.ar3po_counts import STAGES, _expected, _mixed, _mixed_even
from benchmarks.evidence.ar3po_judges import _anywhere, _best, _beyond, _efficient, _not_worse
from benchmarks.evidence.ar3po_lab import GRPO, followed
from benchmarks.evidence.claim import Verdict

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


@pytest.mark.parametrize("name", STAGES)
@pytest.mark.parametrize("right", range(9))
def test_counts_along_recorded_groups_are_those_of_every_order(name, right):
    seen = [staged(outcomes, *STAGES[name]) for outcomes in orders(right)]
    assert _expected(np.array(right), *STAGES[name]) == pytest.approx(np.mean(list(map(len, seen))))
    mixed = np.mean([0 < sum(own) < len(own) for own in seen])
    assert _mixed(np.array(right), STAGES[name][1]) == pytest.approx(mixed)


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


@pytest.mark.parametrize(
    ("mean", "half", "verdict"),
    [
        (0.0, 0.01, Verdict.HOLDS),
        (-0.05, 0.01, Verdict.FAILS),
        (0.0, 0.03, Verdict.OPEN),
        (0.1, None, Verdict.OPEN),
    ],
)
def test_comparable_means_that_the_whole_interval_is_above_the_margin(mean, half, verdict):
    assert _not_worse(SeedInterval(mean, half)) is verdict


def test_being_ahead_of_the_papers_baseline_alone_is_a_condition():
    assert _beyond(1, 1) is Verdict.HOLDS
    assert _beyond(1, 0) is _beyond(1, -1) is Verdict.CONDITIONS
    assert _beyond(0, 1) is Verdict.OPEN
    assert _beyond(-1, 1) is Verdict.FAILS


def test_stages_that_only_find_more_prompts_hold_under_conditions():
    assert _efficient(True, False, 0) is Verdict.CONDITIONS
    assert _efficient(True, True, 1) is Verdict.HOLDS
    assert _efficient(False, False, 0) is _efficient(True, True, -1) is Verdict.FAILS


def test_a_gain_in_one_of_several_settings_is_a_condition():
    assert _anywhere([1, 1]) is Verdict.HOLDS
    assert _anywhere([1, -1]) is _anywhere([0, 1]) is Verdict.CONDITIONS
    assert _anywhere([0, -1]) is Verdict.FAILS
    assert _anywhere([0, 0]) is Verdict.OPEN


def test_a_choice_is_best_if_all_others_are_behind():
    assert _best([-1, -1]) is Verdict.HOLDS
    assert _best([-1, 0]) is Verdict.CONDITIONS
    assert _best([1, -1]) is Verdict.FAILS
    assert _best([0, 0]) is Verdict.OPEN
