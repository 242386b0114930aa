"""Settings that are refused, or cause a warning, before anything starts."""

import logging
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf, open_dict
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY, get_policy_loss_fn
from verl.workers.config import ActorConfig, PolicyLossConfig

from apportion import Prompt
from apportion.verl import checkpoints, seam
from apportion.verl.advice import row_multiple
from apportion.verl.checkpoints import SavedAllocation
from apportion.verl.checks import AGGREGATED, check
from apportion.verl.estimators import LOSSES, OWN_AGGREGATION
from apportion.verl.settings import allocation_of
from apportion.verl.streaming import BUFFER, stream_of, with_buffer
from tests.verl.composed import command

FIT = {
    "actor_rollout_ref.rollout.n": 8,
    "data.train_batch_size": 64,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 32,
    "trainer.resume_mode": "disable",
}
FILTER = {"algorithm.filter_groups.enable": True}
REPLAY = {"name": "ar3po", "reuse": "replay"}
RECOMPUTE = {"name": "ar3po", "reuse": "recompute"}
BYPASS = {"algorithm.rollout_correction.bypass_mode": True}
PROBABILITIES = {"actor_rollout_ref.rollout.calculate_log_probs": True}


class SavedMore(SavedAllocation):
    """A user's own."""


@pytest.fixture(autouse=True)
def environment_of_its_own(monkeypatch):
    """Hide TRL, which is installed for other tests."""
    monkeypatch.setattr(seam, "is_trl_available", lambda: False)


def configured(allocator="vip", settings=None, **allocation):
    """Return the command's configuration with ``settings`` by their dotted names."""
    config, _ = command()
    with open_dict(config):
        for name, value in {**FIT, **(settings or {})}.items():
            OmegaConf.update(config, name, value)
        config.allocation = {"allocator": allocator, **allocation}
    return config


def refused(message, allocator="vip", settings=None, **allocation):
    config = configured(allocator, settings, **allocation)
    with pytest.raises(ValueError, match=message):
        check(config, allocation_of(config))


def configured_with(settings):
    config = configured("vip", settings)
    return config, allocation_of(config)


def warned(caplog, allocator="vip", settings=None, **allocation):
    """Return what is logged, but for the line that all rules have that split by beliefs alone."""
    config = configured(allocator, settings, **allocation)
    with caplog.at_level(logging.WARNING, logger="apportion.verl"):
        check(config, allocation_of(config))
    lines = [record.getMessage() for record in caplog.records]
    return [line for line in lines if "until prompts come again" not in line]


def test_the_commands_own_configuration_fits(caplog):
    assert warned(caplog) == []


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("trainer.use_v1", False, "trainer.use_v1 must be True"),
        ("trainer.v1.trainer_mode", "asynchronous", "Unknown trainer 'asynchronous'.*colocate_async"),
        ("actor_rollout_ref.rollout.agent.agent_loop_manager_class", None, "must be .*AllocatedAgentLoopManager"),
        ("reward.reward_model.enable", True, "enable_resource_pool must be True"),
        ("skip.rollout_tq.enable", True, "skip.rollout_tq.enable must be False"),
        ("algorithm.adv_estimator", "remax", "must not be remax"),
        ("algorithm.adv_estimator", "gdpo", "must not be gdpo"),
        ("algorithm.adv_estimator", "apportion_rlo", "got apportion_rlo; did you mean 'apportion_rloo'"),
        ("algorithm.adv_estimator", "gpro", "got gpro; did you mean 'grpo'"),
        ("actor_rollout_ref.actor.loss_agg_mode", "mean", "loss_agg_mode must be one of token-mean"),
        ("actor_rollout_ref.actor.policy_loss.loss_mode", "geo_mean", "with apportion_rloo, got geo_mean"),
        ("actor_rollout_ref.actor.policy_loss.loss_mode", "sapo", "must be seq-mean-token-mean with .*sapo, got token"),
    ],
)
def test_a_setting_of_verl_that_cannot_work_is_refused(setting, value, message):
    refused(message, settings={setting: value})


STREAMED = {f"trainer.v1.sampler.custom_sampler.{name}": value for name, value in BUFFER.items()} | {
    "trainer.v1.trainer_mode": "colocate_async"
}


def test_a_stream_fits_an_asynchronous_trainer_and_its_age_is_verls_threshold(caplog):
    settings = STREAMED | {
        "trainer.v1.separate_async.parameter_sync_step": 4,
        "trainer.v1.trainer_mode": "separate_async",
    }
    assert warned(caplog, settings=settings, stream=True, slots=64) == []
    config = configured("vip", settings, stream=True)
    stream = stream_of(config, allocation_of(config), [Prompt("a")])
    assert stream.age_bound == config.trainer.v1.sampler.max_off_policy_threshold * 4 - 1
    assert stream.rows_an_update == config.data.train_batch_size // 4
    with_buffer(config)
    assert dict(config.trainer.v1.sampler.custom_sampler) == BUFFER


@pytest.mark.parametrize(
    ("allocator", "settings", "message"),
    [
        ("vip", {"trainer.v1.trainer_mode": "sync"}, "must be separate_async or colocate_async.*got sync"),
        ("vip", {"trainer.v1.sampler.custom_sampler.name": "Other"}, "must be StreamedReplayBuffer.*got Other"),
        ("vip", {"algorithm.filter_groups.enable": True}, "filter_groups.enable must be False"),
        ("dapo", {}, "plans each prompt alone, or splits.* got dapo: batch must say"),
        ("pilot_commit", {}, "got pilot_commit: batch must say"),
    ],
)
def test_what_a_stream_cannot_serve_is_refused(allocator, settings, message):
    refused(message, allocator, STREAMED | settings, stream=True)


def test_a_reward_model_in_a_pool_of_its_own_fits(caplog):
    assert (
        warned(caplog, settings={"reward.reward_model.enable": True, "reward.reward_model.enable_resource_pool": True})
        == []
    )


def test_an_estimator_that_normalizes_is_not_told_otherwise():
    settings = {"algorithm.adv_estimator": "apportion_grpo", "algorithm.norm_adv_by_std_in_grpo": False}
    refused("must be True with apportion_grpo, got False; apportion_dr_grpo does not normalize", settings=settings)


ALONE = {"data.dataloader_num_workers": 0}


def test_selection_fits_a_loader_without_workers(caplog):
    assert warned(caplog, settings=ALONE, selection="mixed") == []


def test_selection_does_not_fit_a_loader_that_reads_ahead():
    refused("data.dataloader_num_workers must be 0 with allocation.selection, got 8; .* set it to 0", selection="mixed")


def test_selection_that_learns_needs_labels():
    refused("selection must be shuffled without labels, .* got mixed", "ttrl", ALONE, selection="mixed")
    config = configured("ttrl", ALONE, selection="shuffled")
    check(config, allocation_of(config))


@pytest.mark.parametrize(
    ("allocator", "given", "taken"),
    [
        ("vip", {}, True),
        ("uniform", {}, False),
        ({"name": "vip", "predictor": "counts"}, {"selection": "mixed"}, False),
        ("uniform", {"selection": "mixed"}, True),
        ("uniform", {"selection": "shuffled"}, False),
    ],
)
def test_known_rates_that_no_predictor_takes_are_said(caplog, allocator, given, taken):
    said = warned(caplog, allocator, ALONE, rate_key="pass_rate", **given)
    assert said == ([] if taken else [said[0]]) and all("rate_key=pass_rate has no effect" in line for line in said)


def test_weights_of_a_selection_need_an_estimator_that_weighs_prompts():
    weighted = {"name": "spo", "importance_weights": True}
    stock = ALONE | {"algorithm.adv_estimator": "rloo"}
    message = r"adv_estimator must be one of apportion_grpo.* with allocation.selection.importance_weights, got rloo"
    refused(message, "uniform", stock, selection=weighted)
    config = configured("uniform", stock, selection="spo")
    check(config, allocation_of(config))


@pytest.mark.parametrize(
    ("allocator", "estimator", "given"),
    [
        ("neyman", "rloo", {}),
        ({"name": "vip", "predictor": "score_moments"}, "rloo", {}),
        ("uniform", "group_optimal", {}),
        ("uniform", "reinforce", {"baseline": "optimal"}),
        ("uniform", "rloo", {"selection": {"name": "mixed", "predictor": "score_moments"}}),
    ],
    ids=["allocator", "predictor", "estimator", "baseline", "selection"],
)
def test_score_norms_need_the_log_probabilities_of_sampling(caplog, allocator, estimator, given):
    settings = ALONE | {"algorithm.adv_estimator": f"apportion_{estimator}"}
    refused(
        f"calculate_log_probs must be True with .* and apportion_{estimator}, got False; .* set it to True",
        allocator,
        settings | {"actor_rollout_ref.rollout.calculate_log_probs": False},
        **given,
    )
    assert warned(caplog, allocator, settings, **given) == []  # verl's default is True


def test_a_baseline_goes_with_an_estimator_that_subtracts_it():
    reinforce = {"algorithm.adv_estimator": "apportion_reinforce"}
    refused(r"^allocation\.baseline must be given with apportion_reinforce and .*, got none with", settings=reinforce)
    refused("got zero with algorithm.adv_estimator=apportion_rloo; set both, or neither", baseline="zero")
    verls = {"algorithm.adv_estimator": "grpo"}
    refused("baseline needs apportion_reinforce or apportion_spo, got zero with grpo", settings=verls, baseline="zero")


def test_the_batch_must_be_one_that_the_allocator_can_spend_on():
    refused("budget must be between 192 and 4096 for 64 prompts, got 9999", allocator={"name": "vip", "budget": 9999})


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("trainer.v1.trainer_mode", "colocate_async"),
        ("trainer.v1.sampler.sync_refill_failed_groups", True),
        ("algorithm.filter_groups.enable", True),
    ],
)
def test_a_budget_for_a_batch_does_not_go_with_prompts_that_are_replaced(caplog, setting, value):
    budget = {"name": "vip", "budget": 512}
    assert warned(caplog, allocator=budget) == []
    refused(f"with {setting}={value}.* give rollouts_per_prompt", allocator=budget, settings={setting: value})
    assert warned(caplog, settings={setting: value}) == []


@pytest.mark.parametrize("allocator", ["dapo", "ttrl"])
def test_verls_filter_reads_rows_of_every_prompt(allocator):
    refused("filter_groups.enable must be False", allocator=allocator, settings=FILTER)


def test_a_weighting_that_verl_would_not_know_of_is_refused(caplog):
    refused(
        "allocation.weighting needs an apportion_ estimator, got rollout with grpo",
        weighting="rollout",
        settings={"algorithm.adv_estimator": "grpo"},
    )
    assert warned(caplog, allocator="hora", settings={"algorithm.adv_estimator": "gae"}) == []
    (message,) = warned(caplog, allocator="hora", settings={"algorithm.adv_estimator": "grpo"})
    assert message.startswith("algorithm.adv_estimator=grpo weighs prompts by their numbers of rollouts")


@pytest.mark.parametrize(
    ("name", "normalised", "trained"),
    [("apportion_dr_grpo", True, "dr_grpo"), ("grpo", False, "dr_grpo"), ("apportion_grpo", True, None)],
)
def test_vip_must_minimise_the_variance_of_the_estimator_that_trains(name, normalised, trained, caplog):
    settings = {"algorithm.adv_estimator": name, "algorithm.norm_adv_by_std_in_grpo": normalised}
    config, allocation = configured_with(settings)
    check(config, allocation)
    assert allocation.allocator.needs.estimator == (trained or "rloo")
    if trained is None:
        assert f"the run trains {name.removeprefix('apportion_')}, for which it has no formula" in caplog.text
    else:
        refused(
            rf"^allocation\.allocator\.estimator must be {trained}, the estimator that trains, got rloo",
            {"name": "vip", "estimator": "rloo"},
            settings=settings,
        )


@pytest.mark.parametrize(
    ("allocator", "fits"),
    [
        ("ar3po", {"name": "ar3po", "reuse": "none"}),
        ("reinforce_ada", {"name": "reinforce_ada", "down_sample": False}),
    ],
)
@pytest.mark.parametrize("estimator", ["grpo", "gae"])
def test_a_comparison_with_rollouts_outside_the_loss_needs_our_estimators(allocator, fits, estimator):
    settings = {"algorithm.adv_estimator": estimator}
    refused(f"got {estimator}; its baselines use rollouts that are not trained on", allocator, settings)
    for config in (configured(fits, settings), configured(allocator)):
        check(config, allocation_of(config))


def test_reused_rows_need_the_probabilities_that_they_are_to_have():
    refused("bypass_mode must be False if ar3po recomputes", RECOMPUTE, BYPASS)
    refused("set actor_rollout_ref.rollout.calculate_log_probs=True", REPLAY)
    refused("set actor_rollout_ref.rollout.calculate_log_probs=True", REPLAY, PROBABILITIES)
    for config in (configured(RECOMPUTE), configured(REPLAY, BYPASS | PROBABILITIES)):
        check(config, allocation_of(config))


@pytest.mark.parametrize("callback", [None, "verl.trainer.ppo.checkpoint_callback.CheckpointCallback"])
def test_checkpoints_must_hold_what_was_learnt(callback):
    settings = {"trainer.checkpoint_callback_class": callback}
    check(configured(settings=settings), allocation_of(configured()))
    refused(f"got {callback}; without it checkpoints lack", settings=settings | {"trainer.save_freq": 1})


def test_a_callback_may_be_the_users_own(caplog):
    settings = {"trainer.save_freq": 1, "trainer.checkpoint_callback_class": f"{__name__}.SavedMore"}
    assert warned(caplog, settings=settings) == []
    refused(
        "must be importable, got no.such.Callback",
        settings=settings | {"trainer.checkpoint_callback_class": "no.such.Callback"},
    )


def test_a_checkpoint_without_what_was_learnt_is_not_resumed_by_a_strict_run(tmp_path, caplog):
    (tmp_path / "global_step_4").mkdir()
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("4")
    auto = {"trainer.resume_mode": "auto", "trainer.default_local_dir": str(tmp_path)}
    named = {"trainer.resume_mode": "resume_path", "trainer.resume_from_path": str(tmp_path / "global_step_4")}
    for settings in (auto, named):
        refused("a checkpoint must hold the allocator's state", settings=settings, resume="strict")
        assert warned(caplog, settings=settings) == []
    (tmp_path / "global_step_4" / checkpoints.FILE).touch()
    for settings in (auto, named):
        assert warned(caplog, settings=settings, resume="strict") == []


def test_a_checkpoint_elsewhere_is_left_to_where_it_is(tmp_path, caplog):
    settings = {"trainer.resume_mode": "resume_path", "trainer.resume_from_path": str(tmp_path / "global_step_4")}
    assert warned(caplog, settings=settings) == []


def test_padding_that_could_be_avoided_is_said(caplog):
    (message,) = warned(caplog, {"name": "vip", "rollouts_per_prompt": 6})
    assert "trains on 384 rows of 64 prompts, and verl pads them to a multiple of 256" in message


@pytest.mark.parametrize(("mini", "pads"), [(32, True), (8, True), (1, False)])
def test_padding_of_a_rule_whose_rows_depend_on_outcomes_is_said(caplog, mini, pads):
    settings = {"actor_rollout_ref.actor.ppo_mini_batch_size": mini}
    said = warned(caplog, {"name": "ar3po", "stages": 2, "rollouts_per_stage": 1}, settings)
    (text,) = said or [""]
    assert bool(text) == pads
    assert not pads or ("at least 64 of 64 prompts" in text and f"up to {8 * mini - 1} masked rows in a step" in text)


def test_the_critics_mini_batches_are_filled_too():
    config = configured(settings={"critic.ppo_mini_batch_size": 48})
    assert row_multiple(config) == 32 * 8
    config.algorithm.adv_estimator = "gae"
    assert row_multiple(config) == 96 * 8
    config.critic.enable = False
    assert row_multiple(config) == 32 * 8


def test_parts_of_a_batch_have_no_fixed_number_of_rows(caplog):
    settings = {"trainer.v1.trainer_mode": "separate_async"}
    (message,) = warned(caplog, settings=settings)
    assert message.startswith("vip gives prompts unequal numbers of rows, and verl pads each of 4 updates")
    caplog.clear()
    assert warned(caplog, "uniform", settings) == []


LENGTHS = (1, 2, 4, 0)
"""Tokens of three rows and of padding: a micro-batch."""

ROWS, TOKENS = 8, 14
"""Those of the mini-batch that it is half of."""


def slopes(mode, aggregation):
    """The gradient [N, T] of a loss of verl's where the policy is that which sampled, with advantages of 1, 2, 3, 0.

    There all of them have the slope of the policy gradient, so that what is left is how they weigh rows.
    """
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        policy_loss=PolicyLossConfig(loss_mode=mode, dro_beta=1.0),
    )
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    config.global_batch_info.update(dp_size=1, batch_num_tokens=TOKENS, global_batch_size=ROWS)
    advantages = torch.tensor([1.0, 2.0, 3.0, 0.0])[:, None] * mask
    sampled = torch.linspace(-2.0, -0.5, mask.numel()).reshape(mask.shape)
    policy = sampled.clone().requires_grad_()
    loss, _ = get_policy_loss_fn(mode)(sampled, policy, advantages, mask, loss_agg_mode=aggregation, config=config)
    loss.backward()
    return policy.grad


def by_hand(aggregation):
    """The same by the definition of ``loss_agg_mode``."""
    weights = []
    for length in LENGTHS:
        own = {"token-mean": TOKENS, "token-sum": 1, "seq-mean-token-sum": ROWS}
        own |= {"seq-mean-token-sum-norm": ROWS * max(LENGTHS), "seq-mean-token-mean": ROWS * length}
        weights.append([1 / own[aggregation] if t < length else 0.0 for t in range(max(LENGTHS))])
    return -torch.tensor(weights) * torch.tensor([1.0, 2.0, 3.0, 0.0])[:, None]


@pytest.mark.parametrize("aggregation", LOSSES)
@pytest.mark.parametrize("mode", AGGREGATED)
def test_losses_weigh_rows_by_the_mode_that_is_set(mode, aggregation):
    assert torch.allclose(slopes(mode, aggregation), by_hand(aggregation), atol=1e-6)


@pytest.mark.parametrize("mode", OWN_AGGREGATION)
def test_some_take_one_mode_for_any_other(mode):
    for aggregation in LOSSES:
        assert torch.allclose(slopes(mode, aggregation), by_hand(OWN_AGGREGATION[mode]), atol=1e-6)


def test_one_does_not_know_of_mini_batches():
    assert not any(torch.allclose(slopes("geo_mean", each), by_hand(each), atol=1e-3) for each in LOSSES)


def test_every_loss_of_verl_has_been_looked_at():
    assert set(POLICY_LOSS_REGISTRY) == {*AGGREGATED, *OWN_AGGREGATION, "geo_mean"}


def test_a_rule_that_cannot_differ_from_uniform_is_said_once(caplog):
    said = [line for line in warned(caplog, {"name": "hora", "pre_rollouts": 8}) if "gives every prompt" in line]
    assert said == [
        "hora gives every prompt 8 rollouts, whatever their outcomes; raise its budget or change its bounds, or use "
        "uniform"
    ]


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "taken").write_text("", encoding="utf-8")
    for path in (tmp_path / "taken", tmp_path / "taken" / "below", Path("/proc/run"), tmp_path / ("x" * 300)):
        refused(
            rf"^trainer\.default_local_dir must be .*, got {path}: ", settings={"trainer.default_local_dir": str(path)}
        )


def test_a_folder_that_can_be_written_is_left_as_it_was(tmp_path):
    for path in (tmp_path, tmp_path / "runs" / "new"):
        check(*configured_with({"trainer.default_local_dir": str(path)}))
    assert list(tmp_path.iterdir()) == []
