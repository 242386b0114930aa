"""``VerlAllocation``, and what ``allocation_of`` makes of a configuration."""

import math
from types import SimpleNamespace

import pytest
import yaml
from omegaconf import OmegaConf

from apportion.allocators import HORA, TTRL, VIP, Neyman, Uniform
from apportion.config import ConfigError
from apportion.predictors import DiscountedCounts
from apportion.verl.settings import VerlAllocation, allocation_of, norm_reduction
from apportion.verl.worker import AllocatedWorker
from tests.cases import check_refused, lines


def made(allocation, rollouts=8):
    return allocation_of(
        OmegaConf.create({"actor_rollout_ref": {"rollout": {"n": rollouts}}, "allocation": allocation})
    )


def test_a_name_alone_is_an_allocator():
    assert made("hora") == made({"allocator": "hora"}) == made({"allocator": {"name": "hora"}})
    assert made("hora") == VerlAllocation(allocator=HORA(rollouts_per_prompt=8))


def test_null_is_as_if_a_key_were_left_out_and_infinity_is_written_as_yaml_does():
    table = {"allocator": {"name": "vip", "high": None, "predictor": {"name": "counts", "discount": None}}}
    allocation = made({**table, "verdict": None, "retries": None})
    assert allocation.allocator == VIP(estimator="rloo", rollouts_per_prompt=8, predictor=DiscountedCounts())
    assert allocation.verdict is None and allocation.retries == 1
    assert made(OmegaConf.create("{allocator: vip, deadline_seconds: .inf}")).deadline_seconds == math.inf


@pytest.mark.parametrize(
    ("table", "allocator"),
    [
        ({"name": "uniform", "rollouts_per_prompt": 3}, Uniform(3)),
        ({"name": "vip", "rollouts_per_prompt": None}, VIP(estimator="rloo", rollouts_per_prompt=5)),
        ({"name": "vip", "budget": 512}, VIP(estimator="rloo", budget=512)),
        ({"name": "ttrl"}, TTRL()),
        (
            {"name": "vip", "high": "${actor_rollout_ref.rollout.n}"},
            VIP(estimator="rloo", rollouts_per_prompt=5, high=5),
        ),
    ],
)
def test_the_budget_is_that_of_verl_where_none_is_given(table, allocator):
    assert made({"allocator": table}, rollouts=5).allocator == allocator


WRONG = r"""
    null => must have allocation, got none; start with python -m apportion.verl, or
    {weighting: prompt} => ^allocation.allocator must be given, or a preset, which has one, got neither;
    vpi => allocation\.allocator \(allocator\) must have a known name, got 'vpi'; did you mean 'vip'
    {allocator: {name: vip, lwo: 4}} => allocation\.allocator \(vip\) has no key 'lwo'; did you mean 'low'
    {allocator: {name: vip, low: "4"}} => allocation\.allocator\.low must be an integer
    {allocator: vip, weihgting: prompt} => allocation \(VerlAllocation\) has no key 'weihgting'
    {allocator: vip, weighting: prompts} => allocation\.weighting must be one of 'prompt', 'rollout', 'token'
    {allocator: vip, extract: bxoed} => ^allocation\.extract must be one of auto
    {allocator: vip, equivalence: exactly} => ^allocation\.equivalence must be one of exact
    {allocator: vip, deadline_seconds: 0.0} => ^allocation\.deadline_seconds must be .*\.inf waits forever
    {allocator: vip, silent_seconds: 4.0} => ^allocation\.silent_seconds must be at least 5
    {allocator: vip, wait_seconds: 20.0} => ^allocation\.wait_seconds must be .*above the longest update
    {allocator: vip, wait_seconds: .inf} => ^allocation\.wait_seconds must be .*above the longest update
    {allocator: vip, retries: -1} => ^allocation\.retries must be .*0 never tries
    {allocator: ttrl, verdict: acc} => verdict must be left out without labels, .* got 'acc' with ttrl
    {allocator: ttrl, baseline: optimal} => baseline must be left out without labels, .* got 'optimal' with ttrl
    {allocator: {name: vip, low: "${lwo}"}} => ^allocation\.allocator\.low must have a value, got \"Interp
    {allocator: {name: vip, low: "???"}} => ^allocation\.allocator\.low must have a value, got 'Missing
"""


def test_a_wrong_key_or_value_is_named():
    check_refused(ConfigError, lambda text: made(yaml.safe_load(text)), lines(WRONG))


def test_a_budget_that_is_verls_says_so():
    with pytest.raises(ConfigError) as caught:
        made("vip", rollouts=1)
    message = str(caught.value)
    assert message.startswith("allocation.allocator.rollouts_per_prompt must be between 3 and 64, got 1; ")
    assert message.endswith("is actor_rollout_ref.rollout.n by default, 1)")


def reduction(allocation, estimator="apportion_rloo", loss="token-mean", mode="vanilla"):
    actor = {"loss_agg_mode": loss, "policy_loss": {"loss_mode": mode}}
    config = {"algorithm": {"adv_estimator": estimator}, "actor_rollout_ref": {"actor": actor}}
    return norm_reduction(OmegaConf.create(config), allocation)


def test_score_norms_follow_the_reduction_of_the_loss():
    neyman, by_token = (VerlAllocation(allocator=Neyman(), weighting=weighting) for weighting in (None, "token"))
    assert reduction(neyman, loss="seq-mean-token-mean") == reduction(neyman, mode="sapo") == "mean"
    assert reduction(neyman, loss="seq-mean-token-sum-norm") == "sum"
    assert reduction(by_token, loss="seq-mean-token-mean") == "sum"


def outputs(*rows):
    return [SimpleNamespace(response_logprobs=logprobs, response_mask=mask) for logprobs, mask in rows]


def test_a_rollout_s_norm_is_over_the_policy_s_own_tokens_of_all_its_outputs():
    half = math.log(0.5)
    given = outputs(([half, -3.0, half], [1, 0, 1]), ([half, 0.0], [1, 1]))
    of = {kind: AllocatedWorker._score_norm(SimpleNamespace(_norms=kind), given) for kind in (None, "sum", "mean")}
    assert of == {None: None, "sum": pytest.approx(0.75), "mean": pytest.approx(0.75 / 16)}


def test_an_agent_loop_without_log_probabilities_is_told_what_to_set():
    with pytest.raises(ValueError, match=r"must return response_logprobs, .* got None; set .*calculate_log_probs=True"):
        AllocatedWorker._score_norm(SimpleNamespace(_norms="sum"), outputs((None, [1])))
