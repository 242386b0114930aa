"""Tests of AR3PO's evidence: the exact counts along recorded groups, the accounting, and the rules of its verdicts."""

import pytest

from benchmarks.evidence.ar3po_lab import GRPO, followed

SMALL = {**GRPO, "rollouts": 960, "evaluate_every": 480, "problems": 48, "held_out": 20, "prompts_per_step": 8}


@pytest.mark.parametrize("rule", [{"name": "ar3po"}, {"name": "dapo", "rollouts_per_prompt": 8, "target": 4}])
def test_every_rollout_that_is_asked_for_is_accounted_for(rule, small_base_folder):
    found = followed(rule, 0, SMALL | {"base": small_base_folder})
    assert found["exact"] == 1
    assert (found["thrown_away"] > 0) == (rule["name"] == "dapo")
    assert (found["after"] < found["without"]) == (rule["name"] == "ar3po")
