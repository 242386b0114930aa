"""What trainers share of a run's decisions: a rule that has given every prompt the same is warned of, once."""

import numpy as np
import pytest

from apportion import DAPO, HORA, Plan, Rollout, Uniform
from apportion.scheduler.decisions import EQUAL_PROMPTS, RunDecisions
from tests.builders import make_prompts


def warnings(caplog, allocator, batches, size):
    """The warnings of a run of this many batches of ``size`` new prompts, whose rollouts are right in turn."""
    caplog.clear()
    decisions = RunDecisions(allocator=allocator)
    for number in range(batches):
        batch = allocator.start(make_prompts(size))
        while (plan := allocator.plan(batch)) and not plan.fresh:
            batch = batch.add(plan, [[Rollout((q + number) % 3 == 0)] * n for q, n in enumerate(plan.counts)])
        decisions.observe(batch)
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("size", [1, 50, EQUAL_PROMPTS])
def test_a_rule_that_gave_the_first_prompts_equal_counts_is_warned_of_once(caplog, size):
    assert warnings(caplog, HORA(rollouts_per_prompt=4), EQUAL_PROMPTS // size - 1, size) == []
    (said,) = warnings(caplog, HORA(rollouts_per_prompt=4), 2 * EQUAL_PROMPTS // size, size)
    assert said.startswith(f"hora gave each of the first {EQUAL_PROMPTS} prompts 4 rollouts; raise its budget, ")


def test_a_rule_whose_counts_differ_or_that_means_them_to_be_equal_is_not_warned_of(caplog):
    for allocator in (HORA(rollouts_per_prompt=8), Uniform(4), DAPO(rollouts_per_prompt=4, target=2)):
        assert warnings(caplog, allocator, 12, 50) == []


def test_batches_of_one_prompt_with_different_counts_are_not_equal(caplog):
    decisions, hora = RunDecisions(allocator=HORA()), HORA()
    for number in range(2 * EQUAL_PROMPTS):
        batch, each = hora.start(make_prompts(1)), 4 + (number == 3)
        decisions.observe(batch.add(Plan(np.array([each])), [[Rollout(True)] * each]))
    assert not caplog.records
