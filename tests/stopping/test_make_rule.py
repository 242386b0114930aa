"""``make_rule``: rules by name, and the errors for unknown names and wrong settings."""

import pytest

from apportion.stopping import RULES, BayesianSPRT, Curtailed, make_rule


@pytest.mark.parametrize("name", RULES)
def test_every_rule_can_be_made_without_settings_and_is_frozen(name):
    rule = make_rule(name)
    assert rule == RULES[name]() and rule.name == name and hash(rule) == hash(make_rule(name))
    rule.check(64)


def test_settings_are_passed_on_and_a_built_rule_is_returned_unchanged():
    assert make_rule("optpo", min_samples=32) == BayesianSPRT(min_samples=32)
    rule = Curtailed(BayesianSPRT())
    assert make_rule(rule) is rule
    with pytest.raises(ValueError, match="settings belong to a rule given by name, got alpha; set them on the"):
        make_rule(rule, alpha=0.1)
