"""Generation by vLLM under allocators, in server and colocate mode, with a scripted policy instead of vLLM.

vLLM needs a GPU, so ``vllm_server`` answers in its place, TRL is told that vLLM is installed, and sending weights only
counts calls. The rest is real: the trainers, ``VLLMGeneration``, ``VLLMClient`` with HTTP, and the correction for
importance sampling.
"""

import importlib.machinery
import inspect
import sys
import types
from collections import Counter
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
    Row,
    Watch,
    assert_rows,
    group_advantages,
    log_probabilities,
    made,
    make_questions,
)
from tests.trl.vllm_server import Engine, Reply, serve

ALLOCATORS = [HORA(pre_rollouts=3, rollouts_per_prompt=8), AR3PO(rollouts_per_stage=3, reuse="none")]
"""One with a fixed total and one without."""

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
        self.syncs = 0
        if self.mode == "server":
            self.vllm_client = vllm_client.VLLMClient(base_url=self.server_base_url)

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


@pytest.fixture(params=["server", "colocate"])
def start(request, policy, tmp_path, seeming_installed):
    """Return a function that makes a trainer in each mode, with its watch and the script of the policy."""
    servers = []

    def started(trainer, answer=None, *, config=None, questions=None, **given):
        context = serve(Parrot() if answer is None else answer)
        server = context.__enter__()
        servers.append(context)
        watch = Watch(Judge())
        settings = {
            "use_vllm": True,
            "vllm_mode": request.param,
            "vllm_server_base_url": server.url,
            "max_completion_length": 8,
            "learning_rate": 0.0,
        }
        settings |= {} if trainer is AllocatedRLOOTrainer else {"vllm_importance_sampling_mode": "token_truncate"}
        built = made(
            trainer,
            policy,
            tmp_path,
            config=settings | (config or {}),
            reward_funcs=[watch.judge],
            questions=questions,
            **given,
        )
        if request.param == "colocate":
            built.vllm_generation.llm = Engine(server.script)
        return watch.on(built), watch, server.script

    yield started
    for context in servers:
        context.__exit__(None, None, None)


def token_rows(step, name):
    """Return (prompt, ids, values of ``name``) of each unmasked row of the loss."""
    found = []
    for chunk in step.chunks:
        for i, own in enumerate(chunk["completion_mask"].bool()):
            if own.any():
                prompt = chunk["prompt_ids"][i][chunk["prompt_mask"][i].bool()]
                ids = chunk["completion_ids"][i][own]
                found.append((tuple(prompt.tolist()), tuple(ids.tolist()), tuple(chunk[name][i][own].tolist())))
    return found


def replies(script):
    return [(tuple(prompt), tuple(reply.ids), tuple(reply.logps)) for prompt, reply in script.replies]


@pytest.mark.parametrize("trainer", [AllocatedGRPOTrainer, AllocatedRLOOTrainer])
@pytest.mark.parametrize("allocator", ALLOCATORS, ids=lambda allocator: allocator.name)
def test_every_row_is_the_reply_to_its_prompt_and_groups_are_those_of_the_prompts(start, trainer, allocator):
    built, watch, script = start(trainer, allocator=allocator)
    built.train()
    assert all(request["n"] == 1 for request in script.requests)
    assert len(watch.steps) == 3 and {len(step.rounds) for step in watch.steps} <= {1, 2}
    assert [len(request["prompts"]) for request in script.requests] == [len(r) for s in watch.steps for r in s.rounds]
    said, sizes = iter(replies(script)), set()
    for step in watch.steps:
        assert all(row.ids[1:4] == row.prompt[:3] for row in step.rows)
        groups = {}
        for call in step.calls:
            prompt, ids, _ = next(said)
            assert call.ids == ids
            groups.setdefault(prompt, []).append((ids, call.score))
        assert len(groups) == 4
        expected = [
            Row(prompt, ids, advantage)
            for prompt, group in groups.items()
            for (ids, _), advantage in zip(group, group_advantages(built, [s for _, s in group]), strict=True)
        ]
        assert_rows(step.rows, expected)
        sizes.update(map(len, groups.values()))
    assert next(said, None) is None
    assert len(sizes) > 1


@pytest.mark.parametrize("allocator", ALLOCATORS, ids=lambda allocator: allocator.name)
def test_log_probabilities_of_the_sampler_and_ratios_to_it_stay_with_their_tokens(start, allocator):
    built, watch, script = start(AllocatedGRPOTrainer, allocator=allocator)
    built.train()
    rows = [row for step in watch.steps for row in token_rows(step, "sampling_per_token_logps")]
    assert Counter(rows) == Counter(replies(script))
    said = {(prompt, ids, logps[0]): logps for prompt, ids, logps in replies(script)}
    for step in watch.steps:
        sampled = token_rows(step, "sampling_per_token_logps")
        old, ratios = token_rows(step, "old_per_token_logps"), token_rows(step, "importance_sampling_ratio")
        for (prompt, ids, logps), (_, _, before), (_, _, ratio) in zip(sampled, old, ratios, strict=True):
            with torch.no_grad():
                own = log_probabilities(built.model, prompt, ids)
            expected = torch.exp(own - torch.tensor(said[prompt, ids, logps[0]])).clamp(max=CAP)
            assert torch.allclose(torch.tensor(before), own, atol=1e-5)
            assert torch.allclose(torch.tensor(ratio), expected, rtol=1e-4)
    ratios = [
        value for step in watch.steps for _, _, row in token_rows(step, "importance_sampling_ratio") for value in row
    ]
    assert min(ratios) < CAP


def test_weights_are_sent_once_a_step_in_any_number_of_rounds(start):
    built, watch, script = start(AllocatedGRPOTrainer, allocator=HORA(pre_rollouts=3, rollouts_per_prompt=8))
    built.train()
    assert len(script.requests) == sum(len(step.rounds) for step in watch.steps) == 6
    assert built.vllm_generation.syncs == built.state.global_step == 3


def test_evaluation_sends_the_requests_of_trl(start):
    config = {"num_generations_eval": 2, "per_device_eval_batch_size": 8, "max_steps": 1}
    built, _, script = start(
        AllocatedGRPOTrainer,
        config=config,
        allocator=HORA(pre_rollouts=3, rollouts_per_prompt=8),
        eval_dataset=make_questions(4, extra=100),
    )
    built.evaluate()
    on_a_server = built.vllm_generation.mode == "server"
    assert [(len(request["prompts"]), request["n"]) for request in script.requests] == [
        (4, 2) if on_a_server else (8, 1)
    ]


class Forgetful:
    """Every other of the first ``of_first`` replies is correct, and none after them."""

    def __init__(self, of_first):
        self.parrot, self.of_first = Parrot(), of_first

    def __call__(self, prompt):
        reply = self.parrot(prompt)
        right, wrong = len(SPECIAL), len(SPECIAL) + 23  # the first character of the alphabet, and its last
        knows = self.parrot.said <= self.of_first and self.parrot.said % 2
        return Reply([right if knows else wrong, *reply.ids[1:]], reply.logps)


@pytest.mark.parametrize("reuse", ["replay", "recompute"])
def test_a_reused_reply_has_the_probabilities_that_it_was_sampled_with_or_new_ones(start, reuse):
    allocator = AR3PO(reuse=reuse, entries_per_prompt=1)
    questions = make_questions(8).filter(lambda row: 0 < row["k"] < 20).select(range(4))
    config = {"learning_rate": 1e-2, "max_steps": 2, "max_completion_length": 8}
    built, watch, _ = start(
        AllocatedGRPOTrainer, Forgetful(4 * 4), config=config, questions=questions, allocator=allocator
    )
    built.train()
    first, second = watch.steps
    assert [len(step.rounds) for step in watch.steps] == [1, 2]
    names = ("sampling_per_token_logps", "old_per_token_logps", "importance_sampling_ratio")
    kept = {}
    for rows in zip(*(token_rows(first, name) for name in names), strict=True):
        kept[rows[0]] = [values for _, _, values in rows]
    built.model.load_state_dict(watch.updates[1][0])
    reused = 0
    for rows in zip(*(token_rows(second, name) for name in names), strict=True):
        if rows[0] not in kept:
            continue
        reused += 1
        (prompt, ids, sampled), (_, _, old), (_, _, ratio) = rows
        with torch.no_grad():
            built.model.load_state_dict(watch.updates[1][0])
            own = log_probabilities(built.model, prompt, ids)
        before = torch.tensor(kept[rows[0]][1])
        assert not torch.allclose(own, before, atol=1e-3)
        if reuse == "replay":
            assert [sampled, old, ratio] == kept[rows[0]]
        else:
            assert torch.allclose(torch.tensor(old), own, atol=1e-5)
            assert set(ratio) == {1.0}
    assert reused == 4
    assert sum(row.advantage > 0 for row in second.rows) == 4 and len(second.rows) == 32
