import logging

import pytest

from apportion import AR3PO, HORA, VIP, Uniform
from apportion.advantages import check_agreement, default_weighting
from apportion.allocators import Neyman
from apportion.predictors import UniformPrior


@pytest.mark.parametrize("allocator", [VIP(), Neyman(), VIP(predictor=UniformPrior())])
def test_another_estimator_than_the_one_whose_variance_is_minimised_is_refused(allocator):
    with pytest.raises(ValueError, match='the estimator that trains, dr_grpo, got rloo; give it estimator="dr_grpo"'):
        check_agreement(allocator, "dr_grpo", "prompt")


def test_an_estimator_without_a_formula_is_said_loudly(caplog):
    check_agreement(VIP(), "grpo", "prompt")
    assert "vip minimises the variance of rloo, and the run trains grpo" in caplog.text


def test_weights_that_undo_the_minimum_are_said_loudly(caplog):
    check_agreement(VIP(), "rloo", "rollout")
    assert "weighs every rollout equally, which can raise the variance above that of uniform counts" in caplog.text


@pytest.mark.parametrize(
    ("allocator", "estimator", "weighting"),
    [(VIP(), "rloo", "prompt"), (VIP(estimator="dr_grpo"), "dr_grpo", "prompt"), (HORA(), "grpo", "token")]
    + [(rule, "dr_grpo", "rollout") for rule in (Uniform(8), AR3PO())]
    + [(Neyman(estimator="reinforce", low=1), "reinforce", "prompt")],
)
def test_what_agrees_passes_in_silence(allocator, estimator, weighting, caplog):
    caplog.set_level(logging.DEBUG)
    check_agreement(allocator, estimator, weighting)
    assert not caplog.records


def test_engines_have_the_same_default_weighting():
    assert {default_weighting(name) for name in ("rloo", "grpo", "reinforce", None)} == {"prompt"}
    assert default_weighting("sequential") == "rollout"
