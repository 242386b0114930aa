"""vLLM's sleep mode under allocators, with TRL's real ``VLLMGeneration`` and a stand-in for vLLM's ``LLM``.

The stand-in loses and keeps weights as vLLM does, and refuses to generate with others than the policy's present ones.
"""

import inspect
from types import SimpleNamespace

import pytest
import torch
from trl.generation import vllm_client, vllm_generation

from apportion import HORA, Uniform
from apportion.trl import AllocatedGRPOTrainer, AllocatedRLOOTrainer
from apportion.trl.seam import VLLM_ATTRIBUTES
from tests.trl.test_vllm import Parrot
from tests.trl.tiny import Judge, Watch, made, mark
from tests.trl.vllm_server import Engine, Script

pytestmark = pytest.mark.skipif(
    "_llm_weights_sleeping" not in inspect.getsource(vllm_generation), reason="this TRL does not push before generating"
)
ROUNDS = {1: Uniform(8), 2: HORA(pre_rollouts=3, rollouts_per_prompt=8)}
"""An allocator by its number of rounds."""


class LLM:
    """vLLM's engine: its weights are on the device, or on the host after sleep of level 1, or lost after level 2.

    ``calls`` are the names of the calls, with one ``push`` for all weights. ``policy`` is what is trained.
    """

    policy: torch.nn.Module

    def __init__(self, **settings):
        self.engine = Engine(Script(Parrot()))
        self.device, self.host, self.awake, self.calls = {}, {}, {"weights", "kv_cache"}, []
        runner = SimpleNamespace(model=SimpleNamespace(load_weights=self.load_weights))
        executor = SimpleNamespace(driver_worker=SimpleNamespace(model_runner=runner))
        self.llm_engine = SimpleNamespace(model_executor=executor)

    def sleep(self, level):
        assert self.awake, "vLLM ignores a second sleep"
        self.calls.append(f"sleep {level}")
        self.host = self.device if level == 1 else {}
        self.device, self.awake = {}, set()

    def wake_up(self, tags):
        self.calls.append(f"wake {tags[0]}")
        if "weights" in tags and "weights" not in self.awake:
            self.device, self.host = self.host, {}
        self.awake |= set(tags)

    def load_weights(self, weights):
        assert "weights" in self.awake
        if self.calls[-1:] != ["push"]:  # TRL loads one parameter after the other
            self.calls.append("push")
        self.device |= {name: value.clone() for name, value in weights}

    def reset_prefix_cache(self):
        pass

    def generate(self, *args, **settings):
        assert self.awake == {"weights", "kv_cache"}
        for name, value in self.policy.named_parameters():
            assert torch.equal(self.device[name], value), f"{name} is not the policy's"
        self.calls.append("generate")
        return self.engine.generate(*args, **settings)

    def count(self, call):
        return sum(each.startswith(call) for each in self.calls)


@pytest.fixture
def start(policy, tmp_path, monkeypatch):
    """Return a function that makes a trainer with a colocated engine in sleep mode, and its watch."""
    for module in (vllm_client, vllm_generation):
        monkeypatch.setattr(module, "is_vllm_available", lambda *_, **__: True)
    monkeypatch.setattr(vllm_generation, "SamplingParams", lambda **given: SimpleNamespace(**given), raising=False)
    monkeypatch.setattr(vllm_generation, "LLM", LLM, raising=False)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "0")  # TRL overwrites them for vLLM
        monkeypatch.delenv(name)

    def started(trainer, allocator, judge=None, **config):
        settings = {"use_vllm": True, "vllm_mode": "colocate", "vllm_enable_sleep_mode": True} | config
        watch = Watch(Judge() if judge is None else judge)
        built = made(
            trainer,
            policy,
            tmp_path,
            config={"learning_rate": 1e-2, "max_completion_length": 8} | settings,
            reward_funcs=[watch.judge],
            allocator=allocator,
        )
        built.vllm_generation.llm.policy = built.model
        return watch.on(built), watch, built.vllm_generation.llm

    return started


@pytest.mark.parametrize(("trainer", "rounds"), [(AllocatedGRPOTrainer, 1), (AllocatedRLOOTrainer, 2)])
def test_sleep_mode_pushes_weights_once_a_step_in_any_number_of_rounds(start, trainer, rounds):
    built, watch, llm = start(trainer, ROUNDS[rounds])
    begun = len(llm.calls)
    built.train()
    assert [len(step.rounds) for step in watch.steps] == [rounds] * 3
    calls = llm.calls[begun:]
    assert calls.count("push") == built.state.global_step == 3
    assert calls.count("generate") == llm.count("wake kv_cache") == 3 * rounds
    assert calls.count("wake weights") == 3 * rounds
    assert not llm.awake  # so that training has the memory
    level = 2 if rounds == 1 else 1  # TRL's own, or that which keeps the weights
    assert [call for call in calls if call.startswith("sleep")] == [f"sleep {level}"] * 3 * rounds


def test_a_reward_function_that_is_interrupted_in_the_second_round_leaves_vllm_asleep(start):
    def interrupted(text, k):
        if judge.rounds:
            raise KeyboardInterrupt
        return mark(text, k)

    judge = Judge(interrupted)
    built, _, llm = start(AllocatedGRPOTrainer, ROUNDS[2], judge)
    with pytest.raises(KeyboardInterrupt):
        built.train()
    assert llm.count("generate") == 2 and not llm.awake
    assert "sync_weights" not in vars(built.vllm_generation) and "sleep" not in vars(llm)


def test_an_evaluation_between_two_steps_pushes_as_trl_does(start):
    built, _, llm = start(AllocatedGRPOTrainer, ROUNDS[2], per_device_eval_batch_size=8, num_generations_eval=2)
    built.train()
    before = len(llm.calls)
    built.evaluate(built.train_dataset.select(range(4)))
    assert llm.calls[before:] == ["wake weights", "push", "wake kv_cache", "generate", "sleep 2"]


def test_an_engine_that_is_no_sleeper_is_left_alone(start):
    built, _, llm = start(AllocatedGRPOTrainer, ROUNDS[2], vllm_enable_sleep_mode=False)
    built.train()
    assert (llm.count("push"), llm.count("sleep"), llm.count("wake")) == (3, 0, 0)
    assert all(hasattr(built.vllm_generation, name) for name in VLLM_ATTRIBUTES)
