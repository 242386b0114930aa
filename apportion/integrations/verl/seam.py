"""Every name of verl and TransferQueue that is not documented and that this integration touches, in one place.

Seen with these meanings in verl 0.9.1 with TransferQueue 0.1.11. A test asks the installed versions for them.
"""

from __future__ import annotations

from importlib.metadata import version
from importlib.util import find_spec

from packaging.version import Version
from verl.utils.import_utils import is_trl_available

VERSIONS = ("0.9.1", "0.10")
"""The first version that will do, and the first that will not: 0.9.0 has no callback for checkpoints."""

CALLED: dict[str, tuple[str, ...]] = {
    "verl.experimental.agent_loop.AgentLoopOutput": (),
    "verl.trainer.main_ppo.TaskRunnerV1": (),
    "verl.trainer.main_ppo.run_ppo": ("config", "task_runner_class"),
    "verl.trainer.ppo.core_algos.AdvantageEstimator": (),
    "verl.trainer.ppo.core_algos.get_adv_estimator_fn": ("name_or_enum",),
    "verl.trainer.ppo.core_algos.register_adv_est": ("name_or_enum",),
    "verl.trainer.ppo.utils.create_rl_dataset": (
        "data_paths",
        "data_config",
        "tokenizer",
        "processor",
        "is_train",
        "max_samples",
    ),
    "verl.trainer.ppo.utils.need_critic": ("config",),
    "verl.trainer.ppo.utils.need_reference_policy": ("config",),
    "verl.trainer.ppo.v1.get_trainer_cls": ("name",),
    "verl.utils.checkpoint.checkpoint_manager.find_latest_ckpt_path": ("path",),
    "verl.utils.config.omega_conf_to_dataclass": ("config",),
    "verl.utils.config.validate_config": ("config", "use_reference_policy", "use_critic"),
    "verl.utils.device.auto_set_device": ("config",),
    "verl.utils.import_utils.is_trl_available": (),
    "verl.utils.import_utils.load_class_from_fqn": ("fqn", "description"),
    "verl.utils.tensordict_utils.list_of_dict_to_tensordict": ("list_of_dicts",),
    "transfer_queue.init": (),
    "transfer_queue.kv_batch_get": ("keys", "partition_id", "select_fields"),
    "transfer_queue.async_kv_batch_put": ("keys", "partition_id", "fields"),
    "transfer_queue.async_kv_clear": ("keys", "partition_id"),
    "transfer_queue.async_kv_put": ("key", "partition_id", "tag"),
}
"""Functions, and those of their parameters that are given; classes that are used as they are."""

EXTENDED: dict[str, dict[str, tuple[str, ...]]] = {
    "verl.trainer.ppo.v1.agent_loop_tq.AgentLoopManagerTQ": {
        "create": ("args", "kwargs"),
        "_init_agent_loop_workers": (),
        "generate_sequences": ("prompts",),
    },
    "verl.trainer.ppo.v1.agent_loop_tq.AgentLoopWorkerTQ": {
        "generate_sequences": ("batch",),
        "_run_prompt": ("prompt", "sampling_params", "trajectory", "trace"),
        "_run_agent_loop": ("sampling_params", "trajectory", "agent_name", "trace", "kwargs"),
        "_agent_loop_postprocess": ("output", "validate", "kwargs"),
        "_compute_score": ("outputs", "kwargs"),
    },
    "verl.trainer.ppo.checkpoint_callback.CheckpointCallback": {
        "on_save": ("trainer", "global_step", "checkpoint_dir", "async_save", "kwargs"),
    },
    "verl.trainer.ppo.v1.trainer_base.Tracking": {"log": ("data", "step", "backend")},
}
"""Classes that are extended: methods that are overridden, called or relied on, and all of their parameters.

The worker is a Ray actor; what is extended is its ``__ray_actor_class__``.
"""

REPLACED = ("Tracking", "upsample_batch_to_divisible_size")
"""Names of ``verl.trainer.ppo.v1.trainer_base`` in the trainer's process, which it looks up when it calls them."""

MANAGER_ATTRIBUTES = ("config", "agent_loop_workers", "agent_loop_workers_class")
WORKER_ATTRIBUTES = ("config", "tokenizer")
OUTPUT_FIELDS = ("response_ids", "response_mask", "reward_score", "extra_fields")
"""Attributes of the manager, of a worker, and of what an agent loop returns."""

DISPATCHED = ("uid", "raw_prompt", "data_source", "extra_info", "global_steps")
"""What is read of the rows that the trainer dispatches; rows of a validation have ``validate`` beside it."""

ROW_FIELDS = ("uid", "response_mask", "rm_scores")
"""Fields of a row in the TransferQueue that are overwritten, or that its estimator is given; ``uid`` is its group."""

STATUSES = ("running", "finished", "failure")
"""The ``status`` that a prompt is tagged with, while rows come and when the trainer may take them."""

SETTINGS = (
    "actor_rollout_ref.actor.loss_agg_mode",
    "actor_rollout_ref.actor.policy_loss.loss_mode",
    "actor_rollout_ref.actor.ppo_mini_batch_size",
    "actor_rollout_ref.model",
    "actor_rollout_ref.rollout.calculate_log_probs",
    "actor_rollout_ref.rollout.n",
    "algorithm.adv_estimator",
    "algorithm.filter_groups.enable",
    "algorithm.norm_adv_by_std_in_grpo",
    "algorithm.rollout_correction.bypass_mode",
    "algorithm.rollout_correction.rollout_is",
    "algorithm.use_kl_in_reward",
    "critic.enable",
    "critic.ppo_mini_batch_size",
    "data.seed",
    "data.train_batch_size",
    "data.train_files",
    "data.train_max_samples",
    "reward.reward_model.enable",
    "reward.reward_model.enable_resource_pool",
    "skip.rollout_tq.enable",
    "trainer.checkpoint_callback_class",
    "trainer.default_local_dir",
    "trainer.resume_from_path",
    "trainer.resume_mode",
    "trainer.save_freq",
    "trainer.use_v1",
    "trainer.v1.sampler.sync_refill_failed_groups",
    "trainer.v1.separate_async.parameter_sync_step",
    "trainer.v1.trainer_mode",
)
"""Keys of verl's configuration that are read."""

ADDED = "actor_rollout_ref.rollout.agent.agent_loop_manager_class"
"""A key that verl reads, and that its own configuration does not have."""


def check_installed() -> None:
    """Raises ValueError where verl is not of ``VERSIONS``, or stands beside a TRL that it fails with.

    verl 0.9 imports a class from TRL wherever TRL is installed, which TRL has since dropped.
    """
    installed = version("verl")
    if not Version(VERSIONS[0]) <= Version(installed) < Version(f"{VERSIONS[1]}.dev0"):
        raise ValueError(f"verl must be >={VERSIONS[0]},<{VERSIONS[1]}, got {installed}; install one of these")
    if is_trl_available() and find_spec("trl.experimental.ppo") is None:
        raise ValueError(
            f"verl {installed} fails beside TRL {version('trl')}, from which it imports what that no longer has; "
            "uninstall trl, or give verl an environment of its own"
        )
