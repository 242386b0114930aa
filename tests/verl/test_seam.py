"""The undocumented names of verl and TransferQueue, checked in the installed versions."""

import ast
import inspect
import re
from functools import reduce
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from verl.experimental.agent_loop import AgentLoopManager, AgentLoopOutput, AgentLoopWorker
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
OURS = (
    AllocatedTaskRunner,
    AllocatedAgentLoopManager,
    AllocatedWorker,
    SavedAllocation,
    AllocationTracking,
    StreamedReplayBuffer,
)
"""Our classes in the order of ``seam.EXTENDED``."""


def table(text):
    return lines(text.replace("\\\n", ""))


def called(text):
    """Return the name and the parameters in a text such as "f(a, b)"."""
    name, _, given = text.partition("(")
    return name, tuple(re.findall(r"\w+", given))


CALLED = dict(called(name) for (name,) in table(seam.CALLED))
EXTENDED = {name: dict(map(called, methods)) for name, *methods in table(seam.EXTENDED)}
REPLACED = [(owner, *called(name)) for owner, name in table(seam.REPLACED)]


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
    replaced = {f"{owner}.{name}" if owner == TRAINER else owner for owner, name, _ in REPLACED}
    assert used == {*CALLED, *EXTENDED, TRAINER, *replaced}


def test_what_is_called_takes_what_it_is_given():
    for name, given in CALLED.items():
        assert set(given) <= set(parameters(found(name))) if given else callable(found(name)), name


@pytest.mark.parametrize(("name", "ours"), zip(EXTENDED, OURS, strict=True))
def test_methods_are_there_with_these_parameters_and_those_that_are_overridden_are_listed(name, ours):
    base = found(name)
    for method, wanted in EXTENDED[name].items():
        assert parameters(getattr(base, method)) == wanted
        if method in vars(ours):  # overridden: it must take all that its callers give
            assert len(parameters(getattr(ours, method))) == len(wanted)
    own = {each for each, value in vars(ours).items() if inspect.isfunction(value) and not each.startswith("__")}
    assert issubclass(ours, base) and {each for each in own if hasattr(base, each)} <= set(EXTENDED[name])


def test_what_is_replaced_is_one_for_all_classes_and_takes_no_other_parameters():
    """So that the wrapped one is called in every trainer, and ends every wait."""
    for owner, name, given in REPLACED:
        kind = import_module(owner) if owner == TRAINER else found(owner)
        assert hasattr(kind, name)
        if owner != TRAINER:
            assert parameters(inspect.unwrap(getattr(kind, name))) == given
            assert given or not any(name in vars(other) for other in kind.__subclasses__())


def source(function):
    return inspect.getsource(function)


NAMED = {
    **{each.__name__.rpartition(".")[2]: each for each in (PPOTrainer, trainer_base, padding_utils, LLMServerManager)},
    **{each.__name__: each for each in (ReplayBuffer, RewardLoopManager)},
    **{each.__name__: each for each in (AgentLoopManager, AgentLoopWorker, AgentLoopOutput)},
    "TaskRunner": TaskRunnerV1.__ray_actor_class__,
    "Manager": AgentLoopManagerTQ,
    "Worker": AgentLoopWorkerTQ.__ray_actor_class__,
    "Client": LLMServerClient,
    "BufferAsync": ReplayBufferAsync,
}


ROLLOUT = Path(find_spec("verl.workers.rollout").submodule_search_locations[0])


def text_of(name):
    """Return the source of a function by its name here, without the decorators that wrap it, or of a package."""
    if (folder := ROLLOUT / name).is_dir():
        return "".join(path.read_text() for path in folder.glob("*.py"))
    first, *rest = name.split(".")
    found = reduce(getattr, rest, NAMED[first])
    return source(inspect.unwrap(found) if callable(found) else found)


def test_verl_says_what_is_relied_on():
    def says(name, *pieces):
        text = text_of(name)
        for piece in pieces:
            _, there, text = text.partition(piece)
            assert there, piece

    check_all(says, table(seam.SAYS))
    for name, piece in lines(seam.LACKS):
        assert piece not in text_of(name), (name, piece)
    assert source(PPOTrainer._step_once).count("_compute_advantage(") == 1
    assert (STEP, PADDING, REWARDER) == ("training/global_step", "pad", "reward_loop")
    assert all(SERVER in name for name in ("vllm_server_", "sglang_server_", "trtllm_server_"))


def test_a_buffer_of_ours_is_made_from_two_settings():
    assert load_extern_object(BUFFER["path"], BUFFER["name"]) is StreamedReplayBuffer


def test_the_loop_over_steps_is_that_of_all_trainers():
    """So that the line at which the trainer waits is found."""
    assert PPOTrainer.__module__.startswith(TRAINERS)
    assert all(LOOP not in vars(kind) for kind in PPOTrainer.__subclasses__()) and LOOP in vars(PPOTrainer)


def test_settings_are_in_verls_configuration_but_for_the_key_of_the_managers_class():
    config = stock()
    for key in (*seam.SETTINGS.split(), seam.ADDED):
        section, _, last = key.rpartition(".")
        assert (last in OmegaConf.select(config, section)) == (key != seam.ADDED), key


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
