"""The targets of a vote: each has a registered rule that can be built by name and in full."""

import pytest

from apportion.stopping import RULES, TARGETS, decide, make_rule


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_gives_a_registered_rule(target):
    found = TARGETS[target]
    assert RULES[found.name] is found.rule
    assert found.make() == make_rule(found.name, **dict(found.settings))
    assert str(found).startswith(found.name)
    assert decide(["a"] * 8, found.make(), 8).answer == "a"


def test_accuracy_costs_less_than_agreement():
    stream = [*"aabaacaa", *"ab" * 28]
    costs = [decide(stream, TARGETS[target].make()).samples for target in ("accuracy", "agreement")]
    assert costs[0] < costs[1]
