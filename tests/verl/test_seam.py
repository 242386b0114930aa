"""The undocumented names of verl and TransferQueue, checked in the installed versions."""

import ast
import inspect
from functools import reduce
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from verl.experimental.agent_loop import AgentLoopOutput
from verl.experimental.reward_loop import RewardLoopManager
from verl.trainer.main_ppo import TaskRunnerV1
from verl.trainer.ppo import padding_utils
from verl.trainer.ppo.v1 import trainer_base
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils.import_utils import load_extern_object
from verl.workers.rollout.llm_server import LLMServerClient, LLMServerManager

import apportion
from apportion.verl import AllocatedAgentLoopManager, SavedAllocation, seam
from apportion.verl.actor_watch import REWARDER, SERVER
from apportion.verl.estimators import PADDING
from apportion.verl.phases import LOOP, TRAINERS
from apportion.verl.runner import AllocatedTaskRunner
from apportion.verl.streaming import BUFFER, StreamedReplayBuffer
from apportion.verl.tracking import STEP, AllocationTracking
from apportion.verl.worker import AllocatedWorker
from tests.cases import check_all, lines
from tests.verl.composed import stock

PACKAGE = Path(apportion.__file__).parent
TRAINER = "verl.trainer.ppo.v1.trainer_base"
EXTENDING = (AllocatedTaskRunner, AllocatedAgentLoopManager, AllocatedWorker, SavedAllocation, AllocationTracking)
OURS = dict(zip(seam.EXTENDED, (*EXTENDING, StreamedReplayBuffer), strict=True))


def found(name):
    """Return the object with a dotted name; of a Ray actor its class."""
    module, _, last = name.rpartition(".")
    value = getattr(import_module(module), last)
    return getattr(value, "__ray_actor_class__", value)


def parameters(function):
    """Return the parameters without self, and without the one that Ray adds to methods of actors."""
    added = ("self", "cls", "_ray_trace_ctx")
    return tuple(name for name in inspect.signature(function).parameters if name not in added)


def named(tree):
    """Yield all names of verl in a module, with the attributes of ``trainer_base`` and ``tq``."""
    aliases = {"tq": "transfer_queue", "trainer_base": TRAINER}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "verl":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in aliases:
            yield f"{aliases[node.value.id]}.{node.attr}"
        if isinstance(node, ast.Call) and [getattr(each, "id", None) for each in node.args[:1]] == ["trainer_base"]:
            yield from (f"{TRAINER}.{each.value}" for each in node.args if isinstance(each, ast.Constant))


def test_every_name_that_is_used_is_listed_and_every_name_listed_is_used():
    paths = [*(PACKAGE / "verl").glob("**/*.py")]
    used = {name for path in paths for name in named(ast.parse(path.read_text()))}
    assert used == {
        *seam.CALLED,
        *seam.EXTENDED,
        TRAINER,
        *(f"{TRAINER}.{name}" for name in seam.REPLACED),
        *seam.WRAPPED,
    }


def test_what_is_called_takes_what_it_is_given():
    for name, given in seam.CALLED.items():
        assert set(given) <= set(parameters(found(name))) if given else callable(found(name)), name


@pytest.mark.parametrize("name", seam.EXTENDED)
def test_methods_are_there_with_these_parameters_and_those_that_are_overridden_are_listed(name):
    base, ours = found(name), OURS[name]
    for method, wanted in seam.EXTENDED[name].items():
        assert parameters(getattr(base, method)) == wanted
        if method in vars(ours):  # overridden: it must take all that its callers give
            assert len(parameters(getattr(ours, method))) == len(wanted)
    own = {each for each, value in vars(ours).items() if inspect.isfunction(value) and not each.startswith("__")}
    assert issubclass(ours, base) and {each for each in own if hasattr(base, each)} <= set(seam.EXTENDED[name])


def source(function):
    return inspect.getsource(function)


SAYS = """
    PPOTrainer.fit => self.agent_loop_manager = agent_loop_manager
    PPOTrainer.fit => self.logger = Tracking( => self.logger.log(data=
    PPOTrainer._balance_batch => batch = upsample_batch_to_divisible_size(batch,
    PPOTrainer._init_dataloader => sampler=create_rl_sampler(self.config.data, self.train_dataset)
    PPOTrainer._fetch_one_gen_batch => next(self.train_dataloader_it)
    PPOTrainer._fetch_one_gen_batch => uuid.uuid4()
    PPOTrainer._compute_metrics => "training/global_step": global_steps
    PPOTrainer._save_checkpoint => self.checkpoint_callback.on_save( => self.checkpoint_callback.on_save(
    PPOTrainer._save_checkpoint => trainer=self => global_step=self.global_steps => checkpoint_dir=
    PPOTrainer._build_replay_buffer => load_extern_type(custom_sampler.path, custom_sampler.name)
    PPOTrainer._build_replay_buffer => refill_fn=self._add_prompts_to_generate
    PPOTrainer._step_once => replay_buffer.sample( => _balance_batch( => _compute_advantage( => _update_actor(
    padding_utils.upsample_batch_to_divisible_size => pad_uid = f"pad
    TaskRunner.run => trainer_cls(config=config) => trainer.init() => self.init_agent_loop_manager() => trainer.fit(
    TaskRunner.run => self.trainer.fit(self.agent_loop_manager)
    TaskRunner.init_agent_loop_manager => .get("agent_loop_manager_class")
    Manager._init_agent_loop_workers => self.agent_loop_workers_class.options(
    Manager.create => await instance._init_agent_loop_workers()
    Worker.generate_sequences => self._run_prompt(prompt, sampling_params, trajectory=
    Worker._run_agent_loop => self._agent_loop_postprocess(output, trajectory["validate"], **kwargs)
    Worker._run_agent_loop => server_manager=self.llm_client
    Worker._agent_loop_postprocess => await self._compute_score(outputs, kwargs=kwargs)
    Worker._agent_loop_postprocess => f"{uid}_{session_id}_{i}"
    Client.generate => server_id, server = await self._acquire_server( => await server.generate.remote(
    Client.generate => request_id=self._vllm_request_id(request_id)
    Client._vllm_request_id => return uuid4().hex
    LLMServerManager._init_global_load_balancer => zip(self.server_addresses, self.server_handles
    ReplayBuffer._sync_metadata_from_transfer_queue => tag.get("is_prompt", False)
    ReplayBuffer.sample => while True: => self._sync_metadata_from_transfer_queue() => self._wait_for_next_poll(
    BufferAsync.wait_for_sampleable => while True: => self._sync_metadata_from_transfer_queue() \
        => self._wait_for_next_poll(
    BufferAsync.sample => self.wait_for_sampleable(
    RewardLoopManager.__init__ => self.reward_loop_workers_class = ray.remote( => self._init_reward_loop_workers()
    RewardLoopManager._init_reward_loop_workers => self.reward_loop_workers_class.options(
    RewardLoopManager._init_reward_loop_workers => name=f"reward_loop_worker_{i}"
"""
"""Functions of verl, and what stands in them in this order.

The trainer looks up names that we replace when it calls them, among them the sampler, which it makes before the manager
and asks after it. It computes advantages once a batch, with its padding and before mini-batches, so that a batch's
weights cover everything that verl updates on before it samples again. Padding rows are known by their uid: no row's
begins so, because it is hexadecimal. Each call of a client gets its server from the method that we replace, and passes
a new id on, except with full_determinism. SGLang's server is known by the address of its HTTP server. The callback is
called by keywords. The look for finished prompts is in every wait, so that the wrapped one ends it if the run cannot
continue.
"""

LACKS = """
    PPOTrainer._validate => training/global_step
    PPOTrainer.__init__ => dataloader
    PPOTrainer._load_checkpoint => next(
    PPOTrainer._init_dataloader => next(
    trainer_base => config.data.sampler
    trainer_base.create_rl_sampler => data_config.sampler
"""
"""What does not stand in them. verl reads no sampler of the data, so that a selection replaces the function."""

NAMED = {
    **{each.__name__.rpartition(".")[2]: each for each in (PPOTrainer, trainer_base, padding_utils, LLMServerManager)},
    **{each.__name__: each for each in (ReplayBuffer, RewardLoopManager)},
    "TaskRunner": TaskRunnerV1.__ray_actor_class__,
    "Manager": AgentLoopManagerTQ,
    "Worker": AgentLoopWorkerTQ.__ray_actor_class__,
    "Client": LLMServerClient,
    "BufferAsync": ReplayBufferAsync,
}


def text_of(name):
    """Return the source of a function by its name here, without the decorators that wrap it."""
    first, *rest = name.split(".")
    found = reduce(getattr, rest, NAMED[first])
    return source(inspect.unwrap(found) if callable(found) else found)


def test_verl_says_what_is_relied_on():
    def says(name, *pieces):
        text = text_of(name)
        for piece in pieces:
            _, there, text = text.partition(piece)
            assert there, piece

    check_all(says, lines(SAYS))
    for name, piece in lines(LACKS):
        assert piece not in text_of(name), (name, piece)


def test_the_managers_attributes_are_made_where_we_look_for_them():
    made = source(AgentLoopManagerTQ.__init__) + source(AgentLoopManagerTQ._init_agent_loop_workers)
    made += source(AgentLoopManagerTQ.__mro__[1].__init__)
    assert all(f"self.{name} = " in made for name in seam.MANAGER_ATTRIBUTES)


def test_the_workers_attributes_are_made_where_we_look_for_them():
    worker = AgentLoopWorkerTQ.__ray_actor_class__
    made = source(worker.__mro__[1].__init__)
    assert all(f"self.{name} = " in made for name in seam.WORKER_ATTRIBUTES)
    assert all(name in AgentLoopOutput.model_fields for name in seam.OUTPUT_FIELDS)
    for name, wanted in seam.CLIENT_METHODS.items():
        assert parameters(getattr(LLMServerClient, name)) == wanted


def test_statuses_are_those_that_the_trainer_waits_for():
    synchronised = source(ReplayBuffer._sync_metadata_from_transfer_queue)
    assert all(f'case "{status}"' in synchronised for status in seam.STATUSES)


def test_names_and_fields_that_are_read_are_there():
    assert all(hasattr(trainer_base, name) for name in seam.REPLACED)
    assert source(PPOTrainer._step_once).count("_compute_advantage(") == 1
    assert all(f'"{field}"' in source(PPOTrainer._compute_advantage) for field in seam.ROW_FIELDS)
    assert (STEP, PADDING, REWARDER) == ("training/global_step", "pad", "reward_loop")


def test_the_method_that_saves_is_one_for_all_trainers_and_is_called_in_training():
    """So that the wrapped one writes our file before verl's tracker names the checkpoint."""
    save = seam.WRAPPED[f"{TRAINER}.PPOTrainer"]
    assert all(save not in vars(kind) for kind in PPOTrainer.__subclasses__())
    assert f"self.{save}()" in source(PPOTrainer.fit)
    saved, made = source(inspect.unwrap(getattr(PPOTrainer, save))), source(PPOTrainer.__init__)
    assert parameters(getattr(PPOTrainer, save)) == ()
    assert saved.index("latest_checkpointed_iteration.txt") < saved.rindex("self.checkpoint_callback.on_save(")
    assert 'f"global_step_{self.global_steps}"' in saved and "self.config.trainer.default_local_dir" in saved
    every = made + source(PPOTrainer.fit)
    assert all(f"self.{name} = " in every for name in ("config", "trainer_mode", "checkpoint_callback"))
    assert all(f"self.{name}" in every for name in seam.TRAINER_ATTRIBUTES)


def test_the_method_that_looks_for_finished_prompts_is_called_in_every_wait_of_the_trainer():
    """So that the wrapped one ends the wait if the run cannot continue."""
    look = seam.WRAPPED["verl.trainer.ppo.v1.replay_buffer.ReplayBuffer"]
    seam.call_before(ReplayBuffer, look, lambda buffer: None)
    assert vars(ReplayBuffer)[look] is not inspect.unwrap(vars(ReplayBuffer)[look])
    assert not any(look in vars(kind) for kind in ReplayBuffer.__subclasses__())


def test_a_buffer_of_ours_is_made_from_two_settings_and_fills_itself():
    made = source(ReplayBuffer.__init__)
    assert load_extern_object(BUFFER["path"], BUFFER["name"]) is StreamedReplayBuffer
    assert all(f"self.{name}: " in made or f"self.{name} = " in made for name in seam.BUFFER_ATTRIBUTES)


def test_what_is_watched_is_found_by_its_name_and_restarted_by_its_class():
    rollout = Path(find_spec("verl.workers.rollout").submodule_search_locations[0])
    for name in seam.SERVERS:
        assert SERVER in name
        assert any(name in path.read_text() for path in rollout.glob(f"{name.split('_')[0]}_rollout/*.py"))
    made, start = source(LLMServerClient.__init__), seam.WRAPPED["verl.experimental.reward_loop.RewardLoopManager"]
    assert all(f"self.{name} = " in made for name in seam.CLIENT_ATTRIBUTES)
    assert parameters(getattr(RewardLoopManager, start)) == ()


def test_the_loop_over_steps_is_that_of_all_trainers():
    """So that the line at which the trainer waits is found."""
    assert PPOTrainer.__module__.startswith(TRAINERS)
    assert all(LOOP not in vars(kind) for kind in PPOTrainer.__subclasses__()) and LOOP in vars(PPOTrainer)


def test_settings_are_in_verls_configuration_but_for_the_key_of_the_managers_class():
    config = stock()
    for key in (*seam.SETTINGS, seam.ADDED):
        table, _, last = key.rpartition(".")
        assert (last in OmegaConf.select(config, table)) == (key != seam.ADDED), key


def test_unsupported_versions_are_refused(monkeypatch):
    monkeypatch.setattr(seam, "is_trl_available", lambda: False)
    seam.check_installed()
    for installed in ("0.9.1", "0.9.12", "0.9.2.dev0", "0.8.0", "0.9.0", "0.10.0.dev0", "0.10.0", "1.0"):
        monkeypatch.setattr(seam, "version", lambda name, installed=installed: installed)
        if installed.startswith("0.9.") and installed != "0.9.0":
            seam.check_installed()
            continue
        with pytest.raises(ValueError, match=rf"verl must be >=0\.9\.1,<0\.10, got {installed}"):
            seam.check_installed()


def test_a_trl_that_lacks_verls_import_is_refused(monkeypatch):
    monkeypatch.setattr(seam, "is_trl_available", lambda: True)
    monkeypatch.setattr(seam, "version", {"verl": "0.9.1", "trl": "1.16.0"}.get)
    monkeypatch.setattr(seam, "find_spec", lambda name: object())
    seam.check_installed()
    monkeypatch.setattr(seam, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"verl 0\.9\.1 fails beside TRL 1\.16\.0"):
        seam.check_installed()
