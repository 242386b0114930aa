"""Settings that are refused, or cause a warning, before anything starts."""

import logging
from pathlib import Path

import pyarrow as pa
import pytest
import torch
import yaml
from omegaconf import OmegaConf
from pyarrow.parquet import write_table
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY, get_policy_loss_fn
from verl.workers.config import ActorConfig, PolicyLossConfig

from apportion import Prompt
from apportion.verl import AllocatedAgentLoopManager, checkpoints, seam
from apportion.verl.advice import row_multiple
from apportion.verl.checkpoints import SavedAllocation
from apportion.verl.checks import AGGREGATED, REQUIRED, check, check_given
from apportion.verl.estimators import LOSSES, OWN_AGGREGATION
from apportion.verl.settings import allocation_of
from apportion.verl.streaming import BUFFER, stream_of, with_buffer
from tests.cases import check_all, lines, refuse_lines
from tests.verl.composed import command

FIT = """
    actor_rollout_ref.rollout.n=8; data.train_batch_size=64; actor_rollout_ref.actor.ppo_mini_batch_size=32;
    trainer.resume_mode=disable
"""
STREAMED = """
    trainer.v1.sampler.custom_sampler.path=pkg://apportion.verl.streaming;
    trainer.v1.sampler.custom_sampler.name=StreamedReplayBuffer; trainer.v1.trainer_mode=colocate_async;
    allocation.stream=True
"""
REPLACED = (
    "trainer.v1.trainer_mode=colocate_async",
    "trainer.v1.sampler.sync_refill_failed_groups=True",
    "algorithm.filter_groups.enable=True",
)
"""Settings with each of which verl replaces prompts."""


class SavedMore(SavedAllocation):
    """A user's own."""


@pytest.fixture(autouse=True)
def environment_of_its_own(monkeypatch):
    """Hide TRL, which is installed for other tests."""
    monkeypatch.setattr(seam, "is_trl_available", lambda: False)


def configured(text="vip"):
    """Return the command's configuration with an allocator in YAML, and after it settings by their dotted names.

    "(streamed)" stands for those of a stream. A setting that verl's configuration lacks raises.
    """
    config, _ = command("allocation=vip")
    allocator, _, rest = text.replace("(streamed)", STREAMED).partition(";")
    config.allocation = {}
    OmegaConf.set_struct(config.allocation, False)
    for setting in (*FIT.split(";"), f"allocation.allocator={allocator}", *filter(None, rest.split(";"))):
        name, _, value = setting.strip().partition("=")
        OmegaConf.update(config, name, yaml.safe_load(value))
    return config


def checked(text="vip"):
    config = configured(text)
    allocation = allocation_of(config)
    check(config, allocation)
    return allocation


def warned(caplog, text="vip"):
    """Return what is logged, but for the line that all rules have that split by beliefs alone."""
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="apportion.verl"):
        checked(text)
    said = [record.getMessage() for record in caplog.records]
    return [line for line in said if "until prompts come again" not in line]


REFUSED = r"""
    vip; trainer.use_v1=False => trainer.use_v1 must be True
    vip; trainer.v1.trainer_mode=asynchronous => Unknown trainer 'asynchronous'.*colocate_async
    vip; actor_rollout_ref.rollout.agent.agent_loop_manager_class=null => must be .*AllocatedAgentLoopManager
    vip; reward.reward_model.enable=True => enable_resource_pool must be True
    vip; skip.rollout_tq.enable=True => skip.rollout_tq.enable must be False
    vip; algorithm.adv_estimator=remax => must not be remax
    vip; algorithm.adv_estimator=gdpo => must not be gdpo
    hora; algorithm.adv_estimator=grpo_passk => must not be grpo_passk
    {name: uniform, rollouts_per_prompt: 1} => for rloo, which compares them, got 1 by uniform
    vip; algorithm.adv_estimator=apportion_rlo => got apportion_rlo; did you mean 'apportion_rloo'
    vip; algorithm.adv_estimator=gpro => got gpro; did you mean 'grpo'
    vip; actor_rollout_ref.actor.loss_agg_mode=mean => loss_agg_mode must be one of token-mean
    neyman; algorithm.adv_estimator=grpo; actor_rollout_ref.actor.loss_agg_mode=mean => mode must be one of token-mean
    vip; actor_rollout_ref.actor.policy_loss.loss_mode=geo_mean => with apportion_rloo, got geo_mean
    vip; actor_rollout_ref.actor.policy_loss.loss_mode=sapo => must be seq-mean-token-mean with .*sapo, got token
    vip; (streamed); trainer.v1.trainer_mode=sync => must be separate_async or colocate_async.*got sync
    vip; (streamed); trainer.v1.sampler.custom_sampler.name=Other => must be StreamedReplayBuffer.*got Other
    vip; (streamed); algorithm.filter_groups.enable=True => filter_groups.enable must be False
    vip; (streamed); trainer.v1.separate_async.hybrid_rollout.enable_switch=True => enable_switch must be False
    dapo; (streamed) => stream must fit .* got dapo: batch must say.*plans each prompt alone, or splits
    vip; (streamed); trainer.v1.sampler.max_off_policy_threshold=0 => got vip: age_bound must be .* got -1
    vip; algorithm.adv_estimator=apportion_grpo; algorithm.norm_adv_by_std_in_grpo=False \
        => must be True with apportion_grpo, got False; apportion_dr_grpo does not normalize
    vip; algorithm.adv_estimator=apportion_reinforce \
        => ^allocation must fit algorithm.adv_estimator=apportion_reinforce: a baseline goes .*, got None with
    vip; allocation.baseline=zero => adv_estimator=apportion_rloo: a baseline goes .*, got Zero.* with 'rloo'; set both
    vip; algorithm.adv_estimator=grpo; allocation.baseline=zero \
        => adv_estimator=grpo: a baseline goes with .*, got Zero.* with 'grpo'; set both, or neither
    vip; algorithm.adv_estimator=grpo; allocation.weighting=rollout \
        => allocation.weighting needs an apportion_ estimator, got rollout with grpo
    uniform; data.dataloader_num_workers=0; algorithm.adv_estimator=rloo; \
        allocation.selection={name: spo, importance_weights: true} \
        => adv_estimator must be one of apportion_grpo.* with allocation.selection.importance_weights, got rloo
    ar3po; algorithm.adv_estimator=grpo => got grpo; its baselines use rollouts that are not trained on
    reinforce_ada; algorithm.adv_estimator=gae => got gae; its baselines use rollouts that are not trained on
    vip; allocation.selection=mixed => num_workers must be 0 with allocation.selection, got 8; .* set it to 0
    ttrl; data.dataloader_num_workers=0; allocation.selection=mixed \
        => selection must be shuffled without labels, .* got mixed
    neyman; algorithm.adv_estimator=rloo; actor_rollout_ref.rollout.calculate_log_probs=False \
        => calculate_log_probs must be True with neyman and rloo, got False
    {name: vip, budget: 9999} => budget must be between 192 and 4096 for 64 prompts, got 9999
    dapo; algorithm.filter_groups.enable=True => filter_groups.enable must be False
    ttrl; algorithm.filter_groups.enable=True => filter_groups.enable must be False
    {name: ar3po, reuse: recompute}; algorithm.rollout_correction.bypass_mode=True \
        => bypass_mode must be False if ar3po recomputes
    {name: ar3po, reuse: replay} => set actor_rollout_ref.rollout.calculate_log_probs=True
    {name: ar3po, reuse: replay}; actor_rollout_ref.rollout.calculate_log_probs=True \
        => set actor_rollout_ref.rollout.calculate_log_probs=True
    vip; trainer.checkpoint_callback_class=null; trainer.save_freq=1 => got None; without it checkpoints lack
    vip; trainer.checkpoint_callback_class=verl.trainer.ppo.checkpoint_callback.CheckpointCallback; \
        trainer.save_freq=1 => got .*CheckpointCallback; without it checkpoints lack
    vip; trainer.checkpoint_callback_class=no.such.Callback; trainer.save_freq=1 \
        => must be importable, got no.such.Callback
"""

FIT_TOO = """
    vip
    uniform; actor_rollout_ref.rollout.calculate_log_probs=False
    uniform; actor_rollout_ref.rollout.calculate_log_probs=False; algorithm.adv_estimator=apportion_opo
    vip; reward.reward_model.enable=True; reward.reward_model.enable_resource_pool=True
    vip; data.dataloader_num_workers=0; allocation.selection=mixed
    ttrl; data.dataloader_num_workers=0; allocation.selection=shuffled
    uniform; data.dataloader_num_workers=0; algorithm.adv_estimator=rloo; allocation.selection=spo
    {name: vip, budget: 512}
    hora; algorithm.adv_estimator=gae
    {name: ar3po, reuse: none}; algorithm.adv_estimator=gae
    {name: reinforce_ada, down_sample: False}; algorithm.adv_estimator=gae
    reinforce_ada
    {name: ar3po, reuse: recompute}
    {name: ar3po, reuse: replay}; algorithm.rollout_correction.bypass_mode=True; \
        actor_rollout_ref.rollout.calculate_log_probs=True
    {name: uniform, rollouts_per_prompt: 1}; algorithm.adv_estimator=apportion_batch_optimal
    {name: uniform, rollouts_per_prompt: 1}; algorithm.adv_estimator=gae
    vip; trainer.checkpoint_callback_class=null
    vip; trainer.save_freq=1; trainer.checkpoint_callback_class=tests.verl.test_checks.SavedMore
    vip; trainer.resume_mode=resume_path; trainer.resume_from_path=/no/such/global_step_4
"""


def test_what_cannot_work_is_refused_and_what_can_is_not(caplog):
    refuse_lines(checked, REFUSED.replace("\\\n", ""))
    for setting in REPLACED:
        refuse_lines(checked, f"{{name: vip, budget: 512}}; {setting} => with {setting}.* give rollouts_per_prompt")

    def fits(text):
        said = [line for line in warned(caplog, text) if "pads" not in line and "weighs prompts" not in line]
        assert not said, said

    check_all(fits, [*lines(FIT_TOO), *((f"vip; {setting}",) for setting in REPLACED)])


def test_a_selection_needs_our_command_because_another_loader_has_verls_sampler():
    with pytest.raises(ValueError, match=r"allocation\.selection needs the command python -m apportion\.verl"):
        AllocatedAgentLoopManager(configured("uniform; data.dataloader_num_workers=0; allocation.selection=mixed"))


def test_a_stream_fits_an_asynchronous_trainer_and_its_age_is_verls_threshold(caplog):
    text = "vip; (streamed); trainer.v1.trainer_mode=separate_async; trainer.v1.separate_async.parameter_sync_step=4"
    assert warned(caplog, f"{text}; allocation.slots=64") == []
    config = configured(text)
    stream = stream_of(config, allocation_of(config), [Prompt("a")])
    assert stream.due.age_bound == config.trainer.v1.sampler.max_off_policy_threshold * 4 - 1
    assert stream.due.size == config.data.train_batch_size // 4
    with_buffer(config)
    assert dict(config.trainer.v1.sampler.custom_sampler) == BUFFER


def test_known_rates_that_no_predictor_takes_are_said(caplog):
    for text, taken in (
        ("vip", True),
        ("uniform", False),
        ("{name: vip, predictor: counts}; allocation.selection=mixed", False),
        ("uniform; allocation.selection=mixed", True),
        ("uniform; allocation.selection=shuffled", False),
    ):
        said = warned(caplog, f"{text}; data.dataloader_num_workers=0; allocation.rate_key=pass_rate")
        assert len(said) == (not taken) and all("rate_key=pass_rate has no effect" in line for line in said)
    (said,) = warned(caplog, "uniform; allocation.equivalence=math")
    assert "allocation.equivalence has no effect, because uniform does not learn from votes" in said


def test_score_norms_need_the_log_probabilities_of_sampling(caplog):
    for text in (
        "neyman; algorithm.adv_estimator=apportion_rloo",
        "{name: vip, predictor: score_moments}; algorithm.adv_estimator=apportion_rloo",
        "uniform; algorithm.adv_estimator=apportion_group_optimal",
        "uniform; algorithm.adv_estimator=apportion_reinforce; allocation.baseline=optimal",
        "uniform; data.dataloader_num_workers=0; allocation.selection={name: mixed, predictor: score_moments}",
    ):
        message = "calculate_log_probs must be True with .* and apportion_.*, got False; .* set it to True"
        refuse_lines(checked, f"{text}; actor_rollout_ref.rollout.calculate_log_probs=False => {message}")
        assert warned(caplog, text) == []  # verl's default is True


def test_vip_minimises_the_variance_of_the_estimator_that_trains(caplog):
    """``tests/engines/test_faults.py`` has one that minimises another."""
    for name, normalised, trained in (
        ("apportion_dr_grpo", True, "dr_grpo"),
        ("grpo", False, "dr_grpo"),
        ("apportion_grpo", True, "rloo"),
    ):
        caplog.clear()
        found = checked(f"vip; algorithm.adv_estimator={name}; algorithm.norm_adv_by_std_in_grpo={normalised}")
        assert found.allocator.needs.estimator == trained
        assert ("the run trains grpo, for which it has no formula" in caplog.text) == (trained == "rloo")


def test_a_checkpoint_without_what_was_learnt_is_not_resumed_by_a_strict_run(tmp_path, caplog):
    (tmp_path / "global_step_4").mkdir()
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("4")
    settings = f"vip; trainer.resume_mode=auto; trainer.default_local_dir={tmp_path}"
    refuse_lines(checked, f"{settings}; allocation.resume=strict => a checkpoint must hold the allocator's state")
    assert warned(caplog, settings) == []
    (tmp_path / "global_step_4" / checkpoints.FILE).touch()
    assert warned(caplog, f"{settings}; allocation.resume=strict") == []


def test_padding_and_rules_without_an_effect_are_said(caplog):
    (said,) = warned(caplog, "{name: vip, rollouts_per_prompt: 6}")
    assert "trains on 384 rows of 64 prompts, and verl pads them to a multiple of 256" in said
    for mini in (32, 8, 1):
        ar3po = "{name: ar3po, stages: 2, rollouts_per_stage: 1}"
        said = warned(caplog, f"{ar3po}; actor_rollout_ref.actor.ppo_mini_batch_size={mini}")
        assert len(said) == (mini > 1)
        assert all("at least 64 of 64 prompts" in line for line in said)
        assert all(f"up to {8 * mini - 1} masked rows in a step" in line for line in said)
    (said,) = warned(caplog, "vip; trainer.v1.trainer_mode=separate_async")
    assert said.startswith("vip gives prompts unequal numbers of rows, and verl pads each of 4 updates")
    assert warned(caplog, "uniform; trainer.v1.trainer_mode=separate_async") == []
    (said,) = warned(caplog, "hora; algorithm.adv_estimator=grpo")
    assert said.startswith("algorithm.adv_estimator=grpo weighs prompts by their numbers of rollouts")


def test_the_critics_mini_batches_are_filled_too():
    config = configured("vip; critic.ppo_mini_batch_size=48")
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


def test_a_setting_that_verl_needs_and_that_is_null_is_named():
    for name in REQUIRED:
        config = configured("vip")
        OmegaConf.update(config, name, None)
        with pytest.raises(ValueError, match=f"^{name} must have a value, got null; leave it out"):
            check_given(config)
    check_given(configured("vip"))


def test_too_few_rows_for_a_batch_or_its_further_prompts_are_refused(tmp_path):
    for name, rows in (("few", 63), ("some", 64), ("many", 10_000)):
        write_table(pa.table({"prompt": ["a"] * rows}), tmp_path / f"{name}.parquet")
    (tmp_path / "torn.parquet").write_bytes(b"PAR1")
    (tmp_path / "some.jsonl").write_text("{}\n", encoding="utf-8")
    refuse_lines(
        checked,
        f"""
        vip; data.train_files={tmp_path}/few.parquet => train_batch_size must be at most the 63 rows .*, got 64; verl
        vip; data.train_files={tmp_path}/many.parquet; data.train_max_samples=8 => at most the 8 rows
        dapo; data.train_files={tmp_path}/some.parquet => must have .* distinct prompts, the 64 .*got 64; give more
        """,
    )
    for files in ("some.parquet", "torn.parquet", "some.jsonl", "absent.parquet"):
        checked(f"vip; data.train_files={tmp_path}/{files}")
    checked(f"dapo; data.train_files=[{tmp_path}/few.parquet, {tmp_path}/many.parquet]")


def test_a_folder_must_be_one_that_can_be_written_and_is_left_as_it_was(tmp_path):
    for path in (tmp_path, tmp_path / "runs" / "new"):
        checked(f"vip; trainer.default_local_dir={path}")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "taken").write_text("", encoding="utf-8")
    for path in (tmp_path / "taken", tmp_path / "taken" / "below", Path("/proc/run"), tmp_path / ("x" * 300)):
        message = rf"^trainer\.default_local_dir must be .*, got {path}: "
        refuse_lines(checked, f"vip; trainer.default_local_dir={path} => {message}")
