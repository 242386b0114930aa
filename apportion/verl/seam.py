"""All undocumented names of verl and TransferQueue that this package uses.

They were verified with verl 0.9.1 and TransferQueue 0.1.11. A test checks the tables against the installed versions.
``AHEAD`` names proposed changes of verl that would break this package.
"""

import inspect
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from packaging.version import Version
from verl.utils.import_utils import is_trl_available

VERSIONS = ("0.9.1", "0.10")
"""The first supported version and the first unsupported one. 0.9.0 has no checkpoint callback."""

CALLED = """
    verl.experimental.agent_loop.AgentLoopOutput
    verl.trainer.main_ppo.run_ppo(config, task_runner_class)
    verl.trainer.ppo.core_algos.AdvantageEstimator
    verl.trainer.ppo.core_algos.get_adv_estimator_fn(name_or_enum)
    verl.trainer.ppo.core_algos.register_adv_est(name_or_enum)
    verl.trainer.ppo.utils.create_rl_dataset(data_paths, data_config, tokenizer, processor, is_train, max_samples)
    verl.trainer.ppo.utils.need_critic(config)
    verl.trainer.ppo.utils.need_reference_policy(config)
    verl.trainer.ppo.v1.get_trainer_cls(name)
    verl.utils.checkpoint.checkpoint_manager.find_latest_ckpt_path(path)
    verl.utils.config.omega_conf_to_dataclass(config)
    verl.utils.config.validate_config(config, use_reference_policy, use_critic)
    verl.utils.device.auto_set_device(config)
    verl.utils.import_utils.is_trl_available
    verl.utils.import_utils.load_class_from_fqn(fqn, description)
    verl.workers.rollout.llm_server.LLMServerClient
    verl.utils.tensordict_utils.list_of_dict_to_tensordict(list_of_dicts)
    transfer_queue.kv_batch_get(keys, partition_id, select_fields)
    transfer_queue.async_kv_batch_put(keys, partition_id, fields)
    transfer_queue.async_kv_list(partition_id)
    transfer_queue.async_kv_clear(keys, partition_id)
    transfer_queue.async_kv_put(key, partition_id, tag)
"""
"""Functions with the parameters that we pass, and classes that are used unchanged."""

EXTENDED = """
    verl.trainer.main_ppo.TaskRunnerV1 => run(config)
    verl.trainer.ppo.v1.agent_loop_tq.AgentLoopManagerTQ \
        => create(args, kwargs) => _init_agent_loop_workers() => generate_sequences(prompts)
    verl.trainer.ppo.v1.agent_loop_tq.AgentLoopWorkerTQ => generate_sequences(batch) \
        => _run_prompt(prompt, sampling_params, trajectory, trace) \
        => _run_agent_loop(sampling_params, trajectory, agent_name, trace, kwargs) \
        => _agent_loop_postprocess(output, validate, kwargs) => _compute_score(outputs, kwargs)
    verl.trainer.ppo.checkpoint_callback.CheckpointCallback \
        => on_save(trainer, global_step, checkpoint_dir, async_save, kwargs)
    verl.trainer.ppo.v1.trainer_base.Tracking => log(data, step, backend)
    verl.trainer.ppo.v1.replay_buffer.ReplayBufferAsync => sample(global_steps, partition_id, batch_size) \
        => _sync_metadata_from_transfer_queue() => _clear_groups(partition_id, uids) \
        => _materialize_batch(partition_id, selected_prompt_uids, partition_snapshot)
"""
"""Classes that we extend: the methods that we override, call or rely on, with all of their parameters.

The worker and the task runner are Ray actors, of which we extend the ``__ray_actor_class__``.
"""

REPLACED = """
    verl.trainer.ppo.v1.trainer_base => Tracking
    verl.trainer.ppo.v1.trainer_base => create_rl_sampler
    verl.trainer.ppo.v1.trainer_base => upsample_batch_to_divisible_size
    verl.trainer.ppo.v1.trainer_base.PPOTrainer => _save_checkpoint()
    verl.trainer.ppo.v1.replay_buffer.ReplayBuffer => _sync_metadata_from_transfer_queue()
    verl.experimental.reward_loop.RewardLoopManager => _init_reward_loop_workers()
    verl.workers.rollout.llm_server.LLMServerClient => _acquire_server(request_id, extra)
"""
"""What we replace or wrap: names of a module, which the trainer looks up when it calls them, and methods."""

SAYS = """
    PPOTrainer.__init__ => self.config = => self.checkpoint_callback = => self.trainer_mode =
    PPOTrainer.fit => self.agent_loop_manager = agent_loop_manager
    PPOTrainer.fit => self.global_steps
    PPOTrainer.fit => self.logger = Tracking( => self.logger.log(data=
    PPOTrainer.fit => self._save_checkpoint()
    PPOTrainer._balance_batch => batch = upsample_batch_to_divisible_size(batch,
    PPOTrainer._compute_advantage => "uid"
    PPOTrainer._compute_advantage => "response_mask"
    PPOTrainer._compute_advantage => "rm_scores"
    PPOTrainer._init_dataloader => sampler=create_rl_sampler(self.config.data, self.train_dataset)
    PPOTrainer._fetch_one_gen_batch => next(self.train_dataloader_it)
    PPOTrainer._fetch_one_gen_batch => uuid.uuid4()
    PPOTrainer._compute_metrics => "training/global_step": global_steps
    PPOTrainer._save_checkpoint => self.config.trainer.default_local_dir
    PPOTrainer._save_checkpoint => f"global_step_{self.global_steps}"
    PPOTrainer._save_checkpoint => latest_checkpointed_iteration.txt => self.checkpoint_callback.on_save(
    PPOTrainer._save_checkpoint => self.checkpoint_callback.on_save( => self.checkpoint_callback.on_save(
    PPOTrainer._save_checkpoint => trainer=self => global_step=self.global_steps => checkpoint_dir=
    PPOTrainer._build_replay_buffer => load_extern_type(custom_sampler.path, custom_sampler.name)
    PPOTrainer._build_replay_buffer => refill_fn=self._add_prompts_to_generate
    PPOTrainer._step_once => replay_buffer.sample( => _balance_batch( => _compute_advantage( => _update_actor(
    padding_utils.upsample_batch_to_divisible_size => pad_uid = f"pad
    TaskRunner.run => trainer_cls(config=config) => trainer.init() => self.init_agent_loop_manager() => trainer.fit(
    TaskRunner.run => self.trainer.fit(self.agent_loop_manager)
    TaskRunner.init_agent_loop_manager => .get("agent_loop_manager_class")
    Manager.__init__ => self.agent_loop_workers_class =
    AgentLoopManager.__init__ => self.config =
    AgentLoopManager.__init__ => self.llm_client =
    AgentLoopManager.__init__ => self.reward_loop_worker_handles =
    Manager._init_agent_loop_workers => self.agent_loop_workers = => self.agent_loop_workers_class.options(
    Manager.create => await instance._init_agent_loop_workers()
    AgentLoopWorker.__init__ => self.config =
    AgentLoopWorker.__init__ => self.tokenizer =
    AgentLoopWorker.__init__ => self.llm_client =
    Worker.generate_sequences => self._run_prompt(prompt, sampling_params, trajectory=
    Worker._run_agent_loop => self._agent_loop_postprocess(output, trajectory["validate"], **kwargs)
    Worker._run_agent_loop => server_manager=self.llm_client
    Worker._agent_loop_postprocess => await self._compute_score(outputs, kwargs=kwargs)
    Worker._agent_loop_postprocess => f"{uid}_{session_id}_{i}"
    AgentLoopOutput => response_ids: => response_mask: => response_logprobs: => reward_score: => extra_fields:
    Client.__init__ => self._load_balancer =
    Client.generate => server_id, server = await self._acquire_server( => await server.generate.remote(
    Client.generate => request_id=self._vllm_request_id(request_id)
    Client._vllm_request_id => return uuid4().hex
    LLMServerManager._init_global_load_balancer => zip(self.server_addresses, self.server_handles
    vllm_rollout => vllm_server_
    sglang_rollout => sglang_server_
    trtllm_rollout => trtllm_server_
    ReplayBuffer.__init__ => self.partitions
    ReplayBuffer.__init__ => self.finished_keys
    ReplayBuffer.__init__ => self.failure_keys
    ReplayBuffer.__init__ => self.refill_fn
    ReplayBuffer._sync_metadata_from_transfer_queue => tag.get("is_prompt", False)
    ReplayBuffer._sync_metadata_from_transfer_queue => case "running"
    ReplayBuffer._sync_metadata_from_transfer_queue => case "finished"
    ReplayBuffer._sync_metadata_from_transfer_queue => case "failure"
    ReplayBuffer.sample => while True: => self._sync_metadata_from_transfer_queue() => self._wait_for_next_poll(
    BufferAsync.wait_for_sampleable => while True: => self._sync_metadata_from_transfer_queue() \
        => self._wait_for_next_poll(
    BufferAsync.sample => self.wait_for_sampleable(
    RewardLoopManager.__init__ => self.reward_loop_workers_class = ray.remote( => self._init_reward_loop_workers()
    RewardLoopManager._init_reward_loop_workers => self.reward_loop_workers_class.options(
    RewardLoopManager._init_reward_loop_workers => name=f"reward_loop_worker_{i}"
"""
"""Functions, classes and packages of verl, and code that must be in them, in this order.

The trainer looks up names that we replace when it calls them, among them the sampler, which it makes before the manager
and asks after it. It computes advantages once a batch, with its padding and before mini-batches, so that a batch's
weights cover everything that verl updates on before it samples again. Padding rows are known by their uid: no row's
begins so, because it is hexadecimal. Each call of a client gets its server from the method that we replace, and passes
a new id on, except with full_determinism. SGLang's server is known by the address of its HTTP server. The callback is
called by keywords, and the wrapped method that saves runs before verl's tracker names the checkpoint. The look for
finished prompts is in every wait, so that the wrapped one ends it if the run cannot continue.
"""

LACKS = """
    PPOTrainer._validate => training/global_step
    PPOTrainer.__init__ => dataloader
    PPOTrainer._load_checkpoint => next(
    PPOTrainer._init_dataloader => next(
    trainer_base => config.data.sampler
    trainer_base.create_rl_sampler => data_config.sampler
"""
"""Code that must not be in them. verl reads no sampler of the data, so that a selection replaces the function."""

SETTINGS = """
    actor_rollout_ref.actor.loss_agg_mode
    actor_rollout_ref.actor.policy_loss.loss_mode
    actor_rollout_ref.actor.ppo_mini_batch_size
    actor_rollout_ref.model
    actor_rollout_ref.rollout.calculate_log_probs
    actor_rollout_ref.rollout.n
    algorithm.adv_estimator
    algorithm.filter_groups.enable
    algorithm.norm_adv_by_std_in_grpo
    algorithm.rollout_correction.bypass_mode
    algorithm.rollout_correction.rollout_is
    algorithm.use_kl_in_reward
    critic.enable
    critic.ppo_mini_batch_size
    data.dataloader_num_workers
    data.seed
    data.train_batch_size
    data.train_files
    data.train_max_samples
    reward.reward_model.enable
    reward.reward_model.enable_resource_pool
    skip.rollout_tq.enable
    trainer.checkpoint_callback_class
    trainer.default_local_dir
    trainer.resume_from_path
    trainer.resume_mode
    trainer.save_freq
    trainer.use_v1
    trainer.v1.sampler.custom_sampler.name
    trainer.v1.sampler.custom_sampler.path
    trainer.v1.sampler.max_off_policy_threshold
    trainer.v1.sampler.sync_refill_failed_groups
    trainer.v1.separate_async.hybrid_rollout.enable_switch
    trainer.v1.separate_async.parameter_sync_step
    trainer.v1.trainer_mode
"""
"""Keys of verl's configuration that we read."""

ADDED = "actor_rollout_ref.rollout.agent.agent_loop_manager_class"
"""A key that verl reads although its own configuration lacks it."""

AHEAD: dict[str, str] = {
    "verl-project/verl#7415": (
        "Open; its design is #7414. The V1 trainer would exchange rows through a facade with several data backends, "
        "Mooncake beside TransferQueue, which stays the default. We call TransferQueue itself (rows.py, worker.py). "
        "With another backend the trainer would find neither the columns of a group nor the status of a prompt."
    ),
    "verl-project/verl#7000": (
        "Open; #6999 is the same change, merged into a branch for #6988. It removes TransferQueue. The setting "
        "trainer.use_v1=True, which we require, would fail at the start, and no class of EXTENDED would be used."
    ),
    "verl-project/verl#6870": (
        "Open. With distillation and use_task_rewards=False the reward function would not be called. If _compute_score "
        "itself skips it, reward_score is None, which our worker cannot read: every rollout would fail. If verl only "
        "skips its own call of _compute_score, our worker still scores, because it calls that method too."
    ),
    "verl-project/verl#7579": (
        "Open, a design. A durable storage behind TransferQueue would restore rows that were sampled after the last "
        "checkpoint. The allocator's state is that of the checkpoint, so it would not have learned from these rows."
    ),
}
"""Proposed changes of verl, by their threads as of September 2026, and what each would break here."""


def replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replace verl's ``owner.name`` by what ``make`` returns for verl's original, even if it was replaced before."""
    own = inspect.unwrap(getattr(owner, name))
    made = make(own)
    made.__wrapped__ = own
    setattr(owner, name, made)


def call_before(owner: Any, name: str, act: Callable[..., None]) -> None:
    """Call ``act`` with the same arguments before verl's own ``owner.name``. It replaces an earlier ``act``."""

    def begun(own: Callable[..., Any]) -> Callable[..., Any]:
        def act_and_go_on(*args: Any, **settings: Any) -> Any:
            act(*args, **settings)
            return own(*args, **settings)

        return act_and_go_on

    replace(owner, name, begun)


def check_installed() -> None:
    """Raise ValueError for an unsupported verl, and for an installed TRL with which verl fails.

    verl 0.9 imports a class from TRL if TRL is installed, and newer versions of TRL have dropped that class.
    """
    installed = version("verl")
    if not Version(VERSIONS[0]) <= Version(installed) < Version(f"{VERSIONS[1]}.dev0"):
        raise ValueError(f"verl must be >={VERSIONS[0]},<{VERSIONS[1]}, got {installed}; install such a version")
    if is_trl_available() and find_spec("trl.experimental.ppo") is None:
        raise ValueError(
            f"verl {installed} fails beside TRL {version('trl')}, because it imports a class that this TRL lacks; "
            "uninstall trl, or give verl its own environment"
        )
