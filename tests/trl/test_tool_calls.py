"""A policy that calls a tool by itself: what is trained, how many rollouts a prompt gets, and equality with TRL.

Here TRL makes every token, from the first turn on. The policy has learned the format of a call in a few updates.
"""

import copy
import json
import random
from collections import Counter

import pytest
import torch
from transformers import PrinterCallback
from trl import GRPOTrainer

from apportion import HORA, VIP, Uniform
from apportion.engines.prompts import prompt_of
from apportion.predictors import DiscountedCounts
from apportion.records import read_log
from apportion.trl import AllocatedGRPOTrainer
from tests.soak import case
from tests.trl.test_parity import assert_same
from tests.trl.test_tools import (
    TOKENIZER,
    expected_mask,
    groups_of,
    guess,
    make_policy,
    make_tokenizer,
    own_tokens,
    rendered,
    was_right,
)
from tests.trl.tiny import Judge, Watch, configured, gradient_of, log_probabilities, make_questions, trained

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("tool calls")]  # one worker process trains the caller
LENGTH = 80
QUESTIONS = 4


def questions(count=QUESTIONS):
    return make_questions(count).map(lambda row: {"prompt": [{"role": "user", "content": row["prompt"]}]})


@pytest.fixture(scope="module")
def caller():
    """A policy that calls ``guess`` with any digit, two times in three, and says one word after the reply."""
    policy, draw = make_policy(), random.Random(0)
    for weight in policy.parameters():  # random initial weights are too small to learn from quickly
        weight.data *= 5 if weight.dim() > 1 else 1
    optimizer = torch.optim.Adam(policy.parameters(), lr=2e-2)
    prompts = [rendered(TOKENIZER, prompt, [guess]) for prompt in questions()["prompt"]]
    for _ in range(80):
        rows = [(prompt, demonstration(draw)) for prompt in prompts]
        width = max(len(prompt) + len(words) for prompt, words in rows)
        ids = torch.tensor([[*p, *words, *[0] * (width - len(p) - len(words))] for p, words in rows])
        own = [[*[0] * len(p), *expected_mask(words), *[0] * (width - len(p) - len(words))] for p, words in rows]
        labels = torch.where(torch.tensor(own) == 1, ids, -100)
        optimizer.zero_grad()
        policy(ids, labels=labels).loss.backward()
        optimizer.step()
    return policy.eval()


def demonstration(draw):
    """Return the ids of a completion."""
    if draw.random() < 1 / 3:
        return tuple(TOKENIZER("right<|im_end|>")["input_ids"])
    number = draw.randrange(10)
    call = json.dumps({"name": "guess", "arguments": {"number": number}})
    turn = f"<|im_start|>user\n<tool_response>\n{guess(number)}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    text = f"<tool_call>\n{call}\n</tool_call><|im_end|>\n{turn}{draw.choice(('right', 'wrong'))}<|im_end|>"
    return tuple(TOKENIZER(text)["input_ids"])


def made(trainer, policy, folder, judge, config=None, count=QUESTIONS, **given):
    built = trainer(
        model=copy.deepcopy(policy),
        reward_funcs=[judge],
        args=configured(folder, trainer, max_completion_length=LENGTH, **(config or {})),
        train_dataset=questions(count),
        processing_class=make_tokenizer(),
        tools=[guess],
        **given,
    )
    built.remove_callback(PrinterCallback)
    return built


@pytest.mark.parametrize(
    "config",
    [
        case({"loss_type": "dr_grpo", "scale_rewards": "none", "steps_per_generation": 8}, suite=False),
        {"num_iterations": 2, "mask_truncated_completions": True, "max_tool_calling_iterations": 1},
    ],
)
def test_uniform_is_trl_to_the_last_bit_with_tools(caller, tmp_path, config):
    runs = []
    for trainer, given in ((GRPOTrainer, {}), (AllocatedGRPOTrainer, {"allocator": Uniform(8)})):
        built = made(trainer, caller, tmp_path / trainer.__name__, Judge(was_right), config, 8, **given)
        runs.append((trained(built), built.model.state_dict()))
    assert_same(*runs)
    called = [step["tools/call_frequency"] for step in runs[0][0] if "tools/call_frequency" in step]
    assert called and all(0.3 < each < 1.5 for each in called)


RULES = {
    "vip of dr_grpo": (lambda: VIP(estimator="dr_grpo", high=24, predictor=DiscountedCounts()), None),
    "vip of rloo": (lambda: VIP(high=24, predictor=DiscountedCounts()), "rloo"),
    "hora": (lambda: HORA(pre_rollouts=3, high=24), None),
}
"""Each rule with the estimator, by default Dr. GRPO's as TRL has it. TRL's RLOO trainer has no tools."""


@pytest.mark.parametrize("rule", [case(rule, suite=rule != "vip of dr_grpo") for rule in RULES])
def test_planned_rollouts_are_made_and_the_reply_of_a_tool_has_no_gradient(caller, tmp_path, rule, monkeypatch):
    make, estimator = RULES[rule]
    allocator, plans = make(), []
    plan = type(allocator).plan

    def watched(self, batch):
        found = plan(self, batch)
        plans.append({prompt.id: int(n) for prompt, n in zip(batch.prompts, found.counts, strict=True) if n})
        return found

    watch = Watch(Judge(was_right))
    config = {"loss_type": "dr_grpo", "scale_rewards": "none", "max_grad_norm": 0.0}
    given = {"allocator": allocator, "estimator": estimator, "rollout_log": tmp_path / "log"}
    built = made(AllocatedGRPOTrainer, caller, tmp_path / "run", watch.judge, config, **given)
    monkeypatch.setattr(type(allocator), "plan", watched)  # now, because stand-ins were planned for before
    watch.on(built).train()

    rounds = [
        Counter(prompt_of({"prompt": call.prompt[:1]}).id for call in own) for s in watch.steps for own in s.rounds
    ]
    assert rounds == [counts for counts in plans if counts]
    sizes = [[len(calls) for calls in groups_of(step).values()] for step in watch.steps]
    assert len(sizes) == 3 and all(sum(own) == 8 * QUESTIONS for own in sizes)
    assert any(len(set(own)) > 1 for own in sizes)
    assert_logged(built, watch, read_log(tmp_path / "log").to_pylist())
    assert_gradients(caller, watch)


def assert_logged(built, watch, log):
    """The log has every rollout of every prompt, with its reward and tokens, and the metrics count calls of tools."""
    for number, (step, metrics) in enumerate(zip(watch.steps, built.state.log_history, strict=False)):
        for prompt, calls in groups_of(step).items():
            rows = [row for row in log if row["step"] == number and row["prompt"] == prompt]
            assert [row["reward"] for row in rows] == [call.score for call in calls]
            assert [row["tokens"] for row in rows] == own_tokens(calls)
        replies = [message["content"] for call in step.calls for message in call.text if message["role"] == "tool"]
        failed = [reply for reply in replies if reply not in ("right", "wrong")]
        assert metrics["tools/call_frequency"] == pytest.approx(len(replies) / len(step.calls))
        assert metrics["tools/failure_frequency"] == pytest.approx(len(failed) / len(replies))


def assert_gradients(caller, watch):
    """Each update's gradient is that of the rows' own words, with the mean of prompts."""
    for step, (weights, gradient) in zip(watch.steps, watch.updates, strict=True):
        policy, loss = copy.deepcopy(caller), torch.zeros(())
        policy.load_state_dict(weights)
        foreign = 0
        for row in step.rows:
            mask = torch.tensor(expected_mask(row.ids))
            foreign += int((mask == 0).sum())
            loss = loss - row.advantage * (log_probabilities(policy, row.prompt, row.ids) * mask).sum()
        (loss / len(step.rows) / LENGTH).backward()
        expected = gradient_of(policy)
        assert foreign and expected.norm() > 1e-4
        assert (gradient - expected).norm() < 2e-4 * expected.norm()
