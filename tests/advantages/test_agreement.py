import logging

import numpy as np
import pytest

from apportion import AR3PO, HORA, VIP, Uniform
from apportion.advantages import check_agreement, default_weighting
from apportion.allocators import Neyman
from apportion.allocators.vip import gradient_variance, minimise_variance
from apportion.predictors import UniformPrior


def variance(p, counts, weighting):
    """The variance of the batch's gradient under RLOO, in units of sigma_Z^2, from VIP's formula."""
    weights = np.full(len(p), 1 / len(p)) if weighting == "prompt" else counts / counts.sum()
    return (weights**2 * gradient_variance(p, counts)).sum()


def test_equal_weights_of_rollouts_undo_what_vip_minimises():
    p = np.random.default_rng(0).uniform(size=64)
    even, vip = np.full(64, 8), minimise_variance(p, 512, "rloo", low=3, high=64)
    assert variance(p, even, "prompt") == pytest.approx(variance(p, even, "rollout"))
    assert variance(p, vip, "prompt") < 0.95 * variance(p, even, "prompt")
    assert variance(p, vip, "rollout") > 1.05 * variance(p, even, "rollout")


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
