"""Settings that are refused, or cause a warning, before anything starts."""

import logging
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf, open_dict
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY, get_policy_loss_fn
from verl.workers.config import ActorConfig, PolicyLossConfig

from apportion import Prompt
from apportion.verl import AllocatedAgentLoopManager, checkpoints, seam
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
ALONE = {"data.dataloader_num_workers": 0}
FILTER = {"algorithm.filter_groups.enable": True}
REPLAY = {"name": "ar3po", "reuse": "replay"}
RECOMPUTE = {"name": "ar3po", "reuse": "recompute"}
BYPASS = {"algorithm.rollout_correction.bypass_mode": True}
ROLLOUT, MODEL, CALLBACK = "actor_rollout_ref.rollout", "reward.reward_model", "trainer.checkpoint_callback_class"
BUDGET, SPO = {"name": "vip", "budget": 512}, {"name": "spo", "importance_weights": True}
STREAMED = {f"trainer.v1.sampler.custom_sampler.{name}": value for name, value in BUFFER.items()} | {
    "trainer.v1.trainer_mode": "colocate_async"
}
MODE, LOSS_MODE = "trainer.v1.trainer_mode", "actor_rollout_ref.actor.policy_loss.loss_mode"
REPLACED = {MODE: "colocate_async", "trainer.v1.sampler.sync_refill_failed_groups": True, **FILTER}
"""Settings with each of which verl replaces prompts."""


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


def trains(estimator, **settings):
    return {"algorithm.adv_estimator": estimator, **settings}


def warned(caplog, allocator="vip", settings=None, **allocation):
    """Return what is logged, but for the line that all rules have that split by beliefs alone."""
    config = configured(allocator, settings, **allocation)
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="apportion.verl"):
        check(config, allocation_of(config))
    lines = [record.getMessage() for record in caplog.records]
    return [line for line in lines if "until prompts come again" not in line]


ONE = {"name": "uniform", "rollouts_per_prompt": 1}
REFUSED = [
    ("trainer.use_v1 must be True", "vip", {"trainer.use_v1": False}, {}),
    ("Unknown trainer 'asynchronous'.*colocate_async", "vip", {MODE: "asynchronous"}, {}),
    ("must be .*AllocatedAgentLoopManager", "vip", {f"{ROLLOUT}.agent.agent_loop_manager_class": None}, {}),
    ("enable_resource_pool must be True", "vip", {f"{MODEL}.enable": True}, {}),
    ("skip.rollout_tq.enable must be False", "vip", {"skip.rollout_tq.enable": True}, {}),
    ("must not be remax", "vip", trains("remax"), {}),
    ("must not be gdpo", "vip", trains("gdpo"), {}),
    ("must not be grpo_passk", "hora", trains("grpo_passk"), {}),  # it raises in the step for a group of one row
    ("for rloo, which compares them, got 1 by uniform", ONE, trains("apportion_rloo"), {}),
    ("got apportion_rlo; did you mean 'apportion_rloo'", "vip", trains("apportion_rlo"), {}),
    ("got gpro; did you mean 'grpo'", "vip", trains("gpro"), {}),
    ("loss_agg_mode must be one of token-mean", "vip", {"actor_rollout_ref.actor.loss_agg_mode": "mean"}, {}),
    ("with apportion_rloo, got geo_mean", "vip", {LOSS_MODE: "geo_mean"}, {}),
    ("must be seq-mean-token-mean with .*sapo, got token", "vip", {LOSS_MODE: "sapo"}, {}),
    # streams
    ("must be separate_async or colocate_async.*got sync", "vip", STREAMED | {MODE: "sync"}, {"stream": True}),
    (
        "must be StreamedReplayBuffer.*got Other",
        "vip",
        STREAMED | {"trainer.v1.sampler.custom_sampler.name": "Other"},
        {"stream": True},
    ),
    ("filter_groups.enable must be False", "vip", STREAMED | FILTER, {"stream": True}),
    ("plans each prompt alone, or splits.* got dapo: batch must say", "dapo", STREAMED, {"stream": True}),
    ("got pilot_commit: batch must say", "pilot_commit", STREAMED, {"stream": True}),
    # estimators, baselines and weights
    (
        "must be True with apportion_grpo, got False; apportion_dr_grpo does not normalize",
        "vip",
        trains("apportion_grpo", **{"algorithm.norm_adv_by_std_in_grpo": False}),
        {},
    ),
    (
        r"^allocation\.baseline must be given with apportion_reinforce and .*, got none with",
        "vip",
        trains("apportion_reinforce"),
        {},
    ),
    ("got zero with algorithm.adv_estimator=apportion_rloo; set both, or neither", "vip", {}, {"baseline": "zero"}),
    (
        "baseline needs apportion_reinforce or apportion_spo, got zero with grpo",
        "vip",
        trains("grpo"),
        {"baseline": "zero"},
    ),
    (
        "allocation.weighting needs an apportion_ estimator, got rollout with grpo",
        "vip",
        trains("grpo"),
        {"weighting": "rollout"},
    ),
    (
        r"adv_estimator must be one of apportion_grpo.* with allocation.selection.importance_weights, got rloo",
        "uniform",
        ALONE | trains("rloo"),
        {"selection": SPO},
    ),
    ("got grpo; its baselines use rollouts that are not trained on", "ar3po", trains("grpo"), {}),
    ("got gae; its baselines use rollouts that are not trained on", "reinforce_ada", trains("gae"), {}),
    # selections, budgets and reused rows
    ("num_workers must be 0 with allocation.selection, got 8; .* set it to 0", "vip", {}, {"selection": "mixed"}),
    ("selection must be shuffled without labels, .* got mixed", "ttrl", ALONE, {"selection": "mixed"}),
    ("budget must be between 192 and 4096 for 64 prompts, got 9999", BUDGET | {"budget": 9999}, {}, {}),
    *(
        (f"with {name}={value}.* give rollouts_per_prompt", BUDGET, {name: value}, {})
        for name, value in REPLACED.items()
    ),
    ("filter_groups.enable must be False", "dapo", FILTER, {}),
    ("filter_groups.enable must be False", "ttrl", FILTER, {}),
    ("bypass_mode must be False if ar3po recomputes", RECOMPUTE, BYPASS, {}),
    (f"set {ROLLOUT}.calculate_log_probs=True", REPLAY, {}, {}),
    (f"set {ROLLOUT}.calculate_log_probs=True", REPLAY, {f"{ROLLOUT}.calculate_log_probs": True}, {}),
    # checkpoints
    ("got None; without it checkpoints lack", "vip", {CALLBACK: None, "trainer.save_freq": 1}, {}),
    (
        "got .*CheckpointCallback; without it checkpoints lack",
        "vip",
        {CALLBACK: "verl.trainer.ppo.checkpoint_callback.CheckpointCallback", "trainer.save_freq": 1},
        {},
    ),
    (
        "must be importable, got no.such.Callback",
        "vip",
        {CALLBACK: "no.such.Callback", "trainer.save_freq": 1},
        {},
    ),
]
"""Messages, allocators, settings of verl and of the allocation."""

FIT_TOO = [
    ("vip", {}, {}),
    ("vip", {f"{MODEL}.enable": True, f"{MODEL}.enable_resource_pool": True}, {}),
    ("vip", ALONE, {"selection": "mixed"}),
    ("ttrl", ALONE, {"selection": "shuffled"}),
    ("uniform", ALONE | trains("rloo"), {"selection": "spo"}),
    (BUDGET, {}, {}),
    *(("vip", {name: value}, {}) for name, value in REPLACED.items()),
    ("hora", trains("gae"), {}),
    ({"name": "ar3po", "reuse": "none"}, trains("gae"), {}),
    ({"name": "reinforce_ada", "down_sample": False}, trains("gae"), {}),
    ("reinforce_ada", {}, {}),
    (RECOMPUTE, {}, {}),
    (REPLAY, BYPASS | {f"{ROLLOUT}.calculate_log_probs": True}, {}),
    (ONE, trains("apportion_batch_optimal"), {}),
    (ONE, trains("gae"), {}),
    ("vip", {CALLBACK: None}, {}),
    ("vip", {"trainer.save_freq": 1, CALLBACK: f"{__name__}.SavedMore"}, {}),
    ("vip", {"trainer.resume_mode": "resume_path", "trainer.resume_from_path": "/no/such/global_step_4"}, {}),
]


def refused(message, allocator="vip", settings=None, **allocation):
    config = configured(allocator, settings, **allocation)
    with pytest.raises(ValueError, match=message):
        check(config, allocation_of(config))


def test_what_cannot_work_is_refused_and_what_can_is_not(caplog):
    for message, allocator, settings, allocation in REFUSED:
        refused(message, allocator, settings, **allocation)
    for allocator, settings, allocation in FIT_TOO:
        lines = warned(caplog, allocator, settings, **allocation)
        assert not [line for line in lines if "pads" not in line and "weighs prompts" not in line], (
            allocator,
            settings,
            lines,
        )


def test_a_selection_needs_our_command_because_another_loader_has_verls_sampler():
    with pytest.raises(ValueError, match=r"allocation\.selection needs the command python -m apportion\.verl"):
        AllocatedAgentLoopManager(configured("uniform", ALONE, selection="mixed"))


def test_a_stream_fits_an_asynchronous_trainer_and_its_age_is_verls_threshold(caplog):
    settings = STREAMED | {"trainer.v1.separate_async.parameter_sync_step": 4, MODE: "separate_async"}
    assert warned(caplog, settings=settings, stream=True, slots=64) == []
    config = configured("vip", settings, stream=True)
    stream = stream_of(config, allocation_of(config), [Prompt("a")])
    assert stream.age_bound == config.trainer.v1.sampler.max_off_policy_threshold * 4 - 1
    assert stream.rows_an_update == config.data.train_batch_size // 4
    with_buffer(config)
    assert dict(config.trainer.v1.sampler.custom_sampler) == BUFFER


def test_known_rates_that_no_predictor_takes_are_said(caplog):
    for allocator, given, taken in (
        ("vip", {}, True),
        ("uniform", {}, False),
        ({"name": "vip", "predictor": "counts"}, {"selection": "mixed"}, False),
        ("uniform", {"selection": "mixed"}, True),
        ("uniform", {"selection": "shuffled"}, False),
    ):
        said = warned(caplog, allocator, ALONE, rate_key="pass_rate", **given)
        assert len(said) == (not taken) and all("rate_key=pass_rate has no effect" in line for line in said)


def test_score_norms_need_the_log_probabilities_of_sampling(caplog):
    for allocator, estimator, given in (
        ("neyman", "rloo", {}),
        ({"name": "vip", "predictor": "score_moments"}, "rloo", {}),
        ("uniform", "group_optimal", {}),
        ("uniform", "reinforce", {"baseline": "optimal"}),
        ("uniform", "rloo", {"selection": {"name": "mixed", "predictor": "score_moments"}}),
    ):
        settings = ALONE | trains(f"apportion_{estimator}")
        message = f"calculate_log_probs must be True with .* and apportion_{estimator}, got False; .* set it to True"
        refused(message, allocator, settings | {f"{ROLLOUT}.calculate_log_probs": False}, **given)
        assert warned(caplog, allocator, settings, **given) == []  # verl's default is True


def test_vip_must_minimise_the_variance_of_the_estimator_that_trains(caplog):
    for name, normalised, trained in (
        ("apportion_dr_grpo", True, "dr_grpo"),
        ("grpo", False, "dr_grpo"),
        ("apportion_grpo", True, "rloo"),
    ):
        settings = trains(name, **{"algorithm.norm_adv_by_std_in_grpo": normalised})
        config = configured("vip", settings)
        allocation = allocation_of(config)
        caplog.clear()
        check(config, allocation)
        assert allocation.allocator.needs.estimator == trained
        assert ("the run trains grpo, for which it has no formula" in caplog.text) == (trained == "rloo")
        if trained != "rloo":
            message = rf"^allocation\.allocator\.estimator must be {trained}, the estimator that trains, got rloo"
            refused(message, {"name": "vip", "estimator": "rloo"}, settings)


def test_a_checkpoint_without_what_was_learnt_is_not_resumed_by_a_strict_run(tmp_path, caplog):
    (tmp_path / "global_step_4").mkdir()
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("4")
    settings = {"trainer.resume_mode": "auto", "trainer.default_local_dir": str(tmp_path)}
    refused("a checkpoint must hold the allocator's state", settings=settings, resume="strict")
    assert warned(caplog, settings=settings) == []
    (tmp_path / "global_step_4" / checkpoints.FILE).touch()
    assert warned(caplog, settings=settings, resume="strict") == []


def test_padding_and_rules_without_an_effect_are_said(caplog):
    (said,) = warned(caplog, {"name": "vip", "rollouts_per_prompt": 6})
    assert "trains on 384 rows of 64 prompts, and verl pads them to a multiple of 256" in said
    for mini in (32, 8, 1):
        settings = {"actor_rollout_ref.actor.ppo_mini_batch_size": mini}
        said = warned(caplog, {"name": "ar3po", "stages": 2, "rollouts_per_stage": 1}, settings)
        assert len(said) == (mini > 1)
        assert all("at least 64 of 64 prompts" in line for line in said)
        assert all(f"up to {8 * mini - 1} masked rows in a step" in line for line in said)
    (said,) = warned(caplog, settings={MODE: "separate_async"})
    assert said.startswith("vip gives prompts unequal numbers of rows, and verl pads each of 4 updates")
    assert warned(caplog, "uniform", {MODE: "separate_async"}) == []
    (said,) = warned(caplog, "hora", trains("grpo"))
    assert said.startswith("algorithm.adv_estimator=grpo weighs prompts by their numbers of rollouts")
    said = [line for line in warned(caplog, {"name": "hora", "pre_rollouts": 8}) if "gives every prompt" in line]
    assert said == [
        "hora gives every prompt 8 rollouts, whatever their outcomes; raise its budget or change its bounds, or use "
        "uniform"
    ]


def test_the_critics_mini_batches_are_filled_too():
    config = configured(settings={"critic.ppo_mini_batch_size": 48})
    assert row_multiple(config) == 32 * 8
    config.algorithm.adv_estimator = "gae"
    assert row_multiple(config) == 96 * 8
    config.critic.enable = False
    assert row_multiple(config) == 32 * 8


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


def test_losses_weigh_rows_by_the_mode_that_is_set_or_one_of_their_own():
    """Every loss of verl's is one of these, or "geo_mean", which does not know of mini-batches."""
    for loss in LOSSES:
        for mode in AGGREGATED:
            assert torch.allclose(slopes(mode, loss), by_hand(loss), atol=1e-6), (mode, loss)
        for mode, own in OWN_AGGREGATION.items():
            assert torch.allclose(slopes(mode, loss), by_hand(own), atol=1e-6), (mode, loss)
        assert not torch.allclose(slopes("geo_mean", loss), by_hand(loss), atol=1e-3)
    assert set(POLICY_LOSS_REGISTRY) == {*AGGREGATED, *OWN_AGGREGATION, "geo_mean"}


def test_a_folder_must_be_one_that_can_be_written_and_is_left_as_it_was(tmp_path):
    for path in (tmp_path, tmp_path / "runs" / "new"):
        config = configured(settings={"trainer.default_local_dir": str(path)})
        check(config, allocation_of(config))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "taken").write_text("", encoding="utf-8")
    for path in (tmp_path / "taken", tmp_path / "taken" / "below", Path("/proc/run"), tmp_path / ("x" * 300)):
        refused(
            rf"^trainer\.default_local_dir must be .*, got {path}: ", settings={"trainer.default_local_dir": str(path)}
        )
