"""``make_rule``: rules by name, and the errors for unknown names and wrong settings."""

from dataclasses import FrozenInstanceError, fields

import numpy as np
import pytest

from apportion.stopping import RULES, BayesianSPRT, Curtailed, make_rule

NAMES = [
    "fixed",
    "optpo",
    "adaptive_consistency_beta",
    "adaptive_consistency_dirichlet",
    "esc",
    "sprt",
    "p_value",
    "curtailment",
    "posterior_predictive",
]


@pytest.mark.parametrize("name", NAMES)
def test_every_rule_can_be_made_without_settings(name):
    rule = make_rule(name)
    assert rule == RULES[name]() and rule.name == name
    rule.check(64)


@pytest.mark.parametrize("name", RULES)
def test_rules_are_frozen_settings(name):
    rule = make_rule(name)
    assert rule == make_rule(name) and hash(rule) == hash(make_rule(name))
    for field in fields(rule):
        with pytest.raises(FrozenInstanceError):
            setattr(rule, field.name, None)


def test_settings_are_passed_on_and_checked():
    assert make_rule("optpo", min_samples=32) == BayesianSPRT(min_samples=32)
    with pytest.raises(ValueError, match="min_samples and exceedances must be at least 1, got 0 and 5"):
        make_rule("optpo", min_samples=0)


def test_a_built_rule_is_returned_unchanged():
    rule = Curtailed(BayesianSPRT())
    assert make_rule(rule) is rule


def test_the_error_for_an_unknown_name_lists_the_known_names():
    with pytest.raises(ValueError, match=r"rule must be one of fixed, optpo, .*, got 'OptPO'"):
        make_rule("OptPO")
    with pytest.raises(ValueError, match="got 'curtailed'"):
        make_rule("curtailed")


def test_the_error_for_an_unknown_setting_lists_the_known_settings():
    with pytest.raises(ValueError, match="fixed has no setting 'eps'; it has samples"):
        make_rule("fixed", eps=0.1)
    with pytest.raises(ValueError, match="curtailment has no setting 'eps'; it has none"):
        make_rule("curtailment", eps=0.1)


def test_settings_beside_a_built_rule_are_refused():
    with pytest.raises(ValueError, match="settings belong to a rule given by name, got alpha, beta; set them on the"):
        make_rule(BayesianSPRT(), alpha=0.1, beta=0.1)


@pytest.mark.parametrize(
    ("rule", "settings", "problem"),
    [
        ("optpo", {"min_samples": 16.5}, "min_samples must be an integer, got 16.5"),
        ("optpo", {"min_samples": "16"}, "min_samples must be an integer, got '16'"),
        ("optpo", {"alpha": "0.05"}, "alpha must be a number, got '0.05'"),
        ("optpo", {"exceedances": True}, "exceedances must be an integer, got True"),
        ("esc", {"window": 2.5}, "window must be an integer, got 2.5"),
        ("fixed", {"samples": 2.5}, "samples must be an integer, got 2.5"),
        ("posterior_predictive", {"eps": None}, "eps must be a number, got None"),
    ],
)
def test_a_setting_of_the_wrong_type_is_refused(rule, settings, problem):
    with pytest.raises(ValueError, match=problem):
        make_rule(rule, **settings)


def test_numpy_numbers_and_none_for_an_optional_setting_are_accepted():
    assert make_rule("optpo", min_samples=np.int64(8), choices=None, alpha=np.float64(0.1)).min_samples == 8
    assert make_rule("posterior_predictive", eps=np.float32(0.5)).eps == 0.5
