"""Generation by vLLM's server under allocators, with a scripted policy instead of vLLM.

vLLM needs a GPU, so ``vllm_server`` answers in its place, TRL is told that vLLM is installed, and sending weights only
counts calls. The rest is real: the trainers, ``VLLMGeneration``, ``VLLMClient`` with HTTP, and the correction for
importance sampling.
"""

import importlib.machinery
import inspect
import sys
import types
from collections import Counter
from contextlib import ExitStack
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from trl.generation import vllm_client, vllm_generation
from trl.trainer import grpo_trainer, rloo_trainer

from apportion import AR3PO, HORA
from apportion.trl import AllocatedGRPOTrainer, AllocatedRLOOTrainer
from tests.trl.tiny import (
    EOS,
    SPECIAL,
    Judge,
    Watch,
    assert_rows,
    ids_of,
    log_probabilities,
    made,
    whole_groups,
)
from tests.trl.vllm import PAGE, with_result
from tests.trl.vllm_server import Reply, Script, serve

FIXED = HORA(pre_rollouts=3, rollouts_per_prompt=8)
CAP = 3.0
"""TRL's default bound on importance sampling ratios."""


class Parrot:
    """Says a random character and then the number of the question, so that swapped replies are noticed.

    All log-probabilities are distinct floats.
    """

    def __init__(self):
        self.random, self.said = np.random.default_rng(0), 0

    def __call__(self, prompt):
        self.said += 1
        first = len(SPECIAL) + int(self.random.integers(24))
        ids = [first, *prompt[:3], *[first] * (self.said % 3), EOS]
        return Reply(ids, [-3.0 - (self.said * 8 + place) / 2**13 for place in range(len(ids))])


class Generation(vllm_generation.VLLMGeneration):
    """TRL's class without starting vLLM and without sending weights."""

    def _init_vllm(self):
        self.syncs, self.vllm_client = 0, vllm_client.VLLMClient(base_url=self.server_base_url)

    def sync_weights(self):
        self.syncs += 1


@pytest.fixture
def seeming_installed(monkeypatch):
    """Make TRL believe that vLLM is installed."""
    monkeypatch.setattr(vllm_client, "is_vllm_available", lambda *_, **__: True)
    monkeypatch.setattr(vllm_generation, "SamplingParams", lambda **given: SimpleNamespace(**given), raising=False)
    for module in (grpo_trainer, rloo_trainer):
        monkeypatch.setattr(module, "VLLMGeneration", Generation)
    if "import vllm" in inspect.getsource(vllm_generation.VLLMGeneration.generate):  # TRL 1.0 asks for its version
        for name, holds in {"vllm": {"__version__": "0.12.0"}, "vllm.sampling_params": {}}.items():
            module = types.ModuleType(name)
            module.__spec__ = importlib.machinery.ModuleSpec(name, None)
            vars(module).update(holds, StructuredOutputsParams=None)
            monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture
def start(policy, tmp_path, seeming_installed):
    """Return a function that makes a trainer, with its watch and the script of the policy."""

    def started(trainer=AllocatedGRPOTrainer, answer=None, *, config=None, **given):
        script, watch = Script(Parrot() if answer is None else answer), Watch(Judge())
        url = servers.enter_context(serve(script))
        settings = {"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": url}
        settings |= {"max_completion_length": 8, "learning_rate": 0.0} | (config or {})
        if trainer is AllocatedGRPOTrainer:
            settings["vllm_importance_sampling_mode"] = "token_truncate"
        given = {"reward_funcs": [watch.judge], "allocator": FIXED} | given
        built = made(trainer, policy, tmp_path, config=settings, **given)
        return watch.on(built), watch, script

    with ExitStack() as servers:
        yield started


@pytest.mark.parametrize("trainer", [AllocatedGRPOTrainer, AllocatedRLOOTrainer])
def test_every_row_is_the_reply_to_its_prompt_and_weights_are_sent_once_a_step(start, trainer):
    built, watch, script = start(trainer)
    built.train()
    assert all(request["n"] == 1 for request in script.requests)
    assert [len(request["prompts"]) for request in script.requests] == [len(r) for s in watch.steps for r in s.rounds]
    calls = [call for step in watch.steps for call in step.calls]
    replies = [(tuple(prompt), tuple(reply.ids)) for prompt, reply in script.replies]
    assert [(ids_of(call.prompt), call.ids) for call in calls] == replies
    for step in watch.steps:
        assert len(step.rounds) == 2 and all(row.ids[1:4] == row.prompt[:3] for row in step.rows)
        assert_rows(step.rows, whole_groups(built, step))
        assert len({len(own) for own in step.by_prompt.values()}) > 1 and len(step.by_prompt) == 4
    assert built.vllm_generation.syncs == built.state.global_step == 3


COLUMNS = ("sampling_per_token_logps", "old_per_token_logps", "importance_sampling_ratio")


def test_log_probabilities_of_the_sampler_and_ratios_to_it_stay_with_their_tokens(start):
    built, watch, script = start(allocator=AR3PO(rollouts_per_stage=3, reuse="none"))
    built.train()
    rows = [row for step in watch.steps for row in step.columns(*COLUMNS)]
    said = Counter((tuple(prompt), tuple(reply.ids), tuple(reply.logps)) for prompt, reply in script.replies)
    assert Counter((prompt, ids, tuple(sampled.tolist())) for prompt, ids, sampled, *_ in rows) == said
    for prompt, ids, sampled, before, ratio in rows:
        with torch.no_grad():
            own = log_probabilities(built.model, prompt, ids)
        assert torch.allclose(before, own, atol=1e-5)
        assert torch.allclose(ratio, torch.exp(own - sampled).clamp(max=CAP), rtol=1e-4)
    assert min(float(ratio.min()) for *_, ratio in rows) < CAP


def test_make_vllm_writes_its_result_into_its_line():
    line = "Latest run of `make vllm`: "
    assert with_result(f"before\n{line}not run yet\nafter\n", "20 passed") == f"before\n{line}20 passed\nafter\n"
    assert f"\n{line}" in PAGE.read_text()
    with pytest.raises(ValueError, match="must have one line"):
        with_result("before\n", "20 passed")
