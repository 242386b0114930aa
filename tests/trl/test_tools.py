"""Tools and environments under allocators: a policy that was taught to call a tool, in TRL's own loop of calls.

``test_modes`` has a ``rollout_func``.
"""

import copy
import functools
import json
import random
from collections import defaultdict

import pytest
import torch
from tokenizers import AddedToken, Regex
from trl import GRPOTrainer
from trl.chat_template_utils import qwen3_chat_template

from apportion import HORA, Uniform
from apportion.records import read_log
from apportion.trl import AllocatedGRPOTrainer
from tests.trl import tiny
from tests.trl.test_parity import assert_same
from tests.trl.tiny import Judge, Watch, assert_rows, gradient_of, log_probabilities, make_questions, whole_groups

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("tool calls")]  # one worker process trains the caller
TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
WORDS = ("name", "arguments", "guess", "number", "user", "assistant", "right", "wrong")
SPECIAL = ("<pad>", "<|im_end|>", "<unk>", "<|im_start|>")
VOCABULARY = (*SPECIAL, *TAGS, *WORDS, *"0123456789", *'{}":,\n +-')
LENGTH = 80
QUESTIONS = 4


def make_tokenizer():
    """Return a tokenizer of words, digits and signs with the chat template of Qwen3."""
    words = Regex(r"</?\w+>|[a-z]+|\W|\w")
    tokenizer = tiny.tokenizer_of(VOCABULARY, words, pad_token="<pad>", eos_token="<|im_end|>")
    tokenizer.add_tokens([AddedToken("<|im_start|>", special=True)], special_tokens=True)
    tokenizer.chat_template = qwen3_chat_template
    return tokenizer


TOKENIZER = make_tokenizer()


def make_policy():
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return tiny.make_policy(
        vocab_size=len(VOCABULARY), max_position_embeddings=2048, tie_word_embeddings=False, **sizes
    )


def rendered(prompt, tools):
    return tuple(TOKENIZER.apply_chat_template(prompt, tools=tools, add_generation_prompt=True, return_dict=False))


def was_right(messages, k=None):
    """Return 1 if a tool said "right", else 0."""
    return float(any(message["role"] == "tool" and message["content"] == "right" for message in messages))


def groups_of(step):
    groups = defaultdict(list)
    for call in step.calls:
        groups[call.prompt[0]["content"]].append(call)
    return groups


@functools.cache
def expected_mask(ids):
    """Return the mask: 0 from the end of a call's turn to the start of the assistant's next one, ``tail``, else 1."""
    end, opens = TOKENIZER.eos_token_id, TOKENIZER.convert_tokens_to_ids("<tool_response>")
    if opens not in ids or end not in ids or ids.index(end) > ids.index(opens):
        return [1] * len(ids)
    first = ids.index(end) + 1
    tail = tuple(TOKENIZER("<|im_start|>assistant\n")["input_ids"])
    last = next(i for i in range(first, len(ids)) if ids[i : i + len(tail)] == tail) + len(tail)
    return [1] * first + [0] * (last - first) + [1] * (len(ids) - last)


def guess(number: int) -> str:
    """Says whether a number is right.

    Args:
        number: The number.

    Returns:
        What it is.
    """
    return "right" if number % 4 == 0 else "wrong"


def questions(count=QUESTIONS, end=None):
    """Return questions in messages, the ``end`` of which is cut off."""
    return make_questions(count).map(lambda row: {"prompt": [{"role": "user", "content": row["prompt"][:end]}]})


@pytest.fixture(scope="module")
def caller():
    """A policy that calls ``guess`` with any digit, two times in three, and says one word after the reply."""
    policy, draw = make_policy(), random.Random(0)
    for weight in policy.parameters():  # random initial weights are too small to learn from quickly
        weight.data *= 5 if weight.dim() > 1 else 1
    optimizer = torch.optim.Adam(policy.parameters(), lr=2e-2)
    prompts = [rendered(prompt, [guess]) for prompt in questions()["prompt"]]
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
    config = {"max_completion_length": LENGTH} | (config or {})
    given = {"questions": questions(count), "reward_funcs": [judge], "tools": [guess]} | given
    return tiny.made(trainer, copy.deepcopy(policy), folder, config=config, processing_class=make_tokenizer(), **given)


def test_uniform_is_trl_to_the_last_bit_with_tools(caller, tmp_path):
    config = {"num_iterations": 2, "mask_truncated_completions": True, "max_tool_calling_iterations": 1}
    runs = []
    for trainer, given in ((GRPOTrainer, {}), (AllocatedGRPOTrainer, {"allocator": Uniform(8)})):
        built = made(trainer, caller, tmp_path / trainer.__name__, Judge(was_right), config, 8, **given)
        runs.append((tiny.trained(built), built.model.state_dict()))
    assert_same(*runs)
    called = [step["tools/call_frequency"] for step in runs[0][0] if "tools/call_frequency" in step]
    assert called and all(0.3 < each < 1.5 for each in called)


def test_the_reply_of_a_tool_has_no_gradient_and_is_not_charged(caller, tmp_path):
    watch = Watch(Judge(was_right))
    config = {"loss_type": "dr_grpo", "scale_rewards": "none", "max_grad_norm": 0.0}
    given = {"allocator": HORA(pre_rollouts=3, high=24), "rollout_log": tmp_path / "log"}
    built = made(AllocatedGRPOTrainer, caller, tmp_path / "run", watch.judge, config, **given)
    watch.on(built).train()
    sizes = [[len(calls) for calls in groups_of(step).values()] for step in watch.steps]
    assert len(sizes) == 3 and all(sum(own) == 8 * QUESTIONS for own in sizes)
    assert any(len(set(own)) > 1 for own in sizes)
    assert_logged(built, watch, read_log(tmp_path / "log").to_pylist())
    assert_gradients(caller, watch)


def assert_logged(built, watch, log):
    """The log has every rollout with its reward and the tokens of the policy, and the metrics count calls of tools."""
    for number, (step, metrics) in enumerate(zip(watch.steps, built.state.log_history, strict=False)):
        for prompt, calls in groups_of(step).items():
            rows = [row for row in log if row["step"] == number and row["prompt"] == prompt]
            assert [row["reward"] for row in rows] == [call.score for call in calls]
            assert [row["tokens"] for row in rows] == [sum(expected_mask(call.ids)) for call in calls]
        replies = [message["content"] for call in step.calls for message in call.text if message["role"] == "tool"]
        failed = [reply for reply in replies if reply not in ("right", "wrong")]
        assert metrics["tools/call_frequency"] == pytest.approx(len(replies) / len(step.calls))
        assert metrics["tools/failure_frequency"] == pytest.approx(len(failed) / len(replies))


def assert_gradients(caller, watch):
    """Each update's gradient is that of the rows' own words."""
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


class Quiz:
    """An environment in which numbers below half of the row's k are right. TRL uses instances in several rounds.

    If ``slow``, it has no reward yet when it is asked for the first time, for an even k.
    """

    made, slow, late = 0, False, 0

    def __init__(self):
        Quiz.made += 1

    def reset(self, k, **row):
        self.k, self.asked, self.asks = k, [], 0
        return ":"  # which ends the prompt

    def guess(self, number: int) -> str:
        """Says whether a number is right.

        Args:
            number: The number.

        Returns:
            What it is.
        """
        self.asked.append(number)
        return "right" if number < self.k // 2 else "wrong"

    def get_reward(self):
        self.asks += 1
        early = self.slow and self.asks == 1 and self.k % 2 == 0
        Quiz.late += early
        return None if early else float(any(number < self.k // 2 for number in self.asked))


@pytest.mark.parametrize("slow", [False, True])
def test_every_row_has_an_environment_of_its_own(caller, tmp_path, monkeypatch, slow):
    """It is reset to its row before the round and gives a reward after it, or when it is asked again."""
    seen, watch, asked = [], Watch(Judge(was_right)), make_questions(QUESTIONS)["prompt"]
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    monkeypatch.setattr(Quiz, "slow", slow)
    monkeypatch.setattr(Quiz, "made", 0)

    def own(prompts, completions, k, environments, **columns):
        rows = []
        for prompt, messages, of_row, each in zip(prompts, completions, k, environments, strict=True):
            calls = [call for message in messages for call in message.get("tool_calls") or ()]
            told = [call["function"]["arguments"].get("number") for call in calls]
            rows.append((id(each), each.k == of_row, each.asked == [number for number in told if number is not None]))
            rows[-1] += (prompt[0]["content"] in asked,)
        seen.append(rows)
        return [0.0] * len(prompts)

    given = {"reward_funcs": [watch.judge, own], "environment_factory": Quiz, "tools": None, "verdict": "Quiz"}
    given["questions"] = questions(end=-1)
    given |= {"allocator": HORA(pre_rollouts=3, high=16), "failed_rewards": "retry"}
    config = {"reward_weights": [0.0, 0.0], "max_steps": 2 - slow}  # the environment adds its own reward
    built = made(AllocatedGRPOTrainer, caller, tmp_path, watch.judge, config, **given)
    watch.on(built).train()
    assert all(len({own for own, *_ in rows}) == len(rows) and all(all(row) for row in rows) for rows in seen)
    sizes = list(map(len, seen))
    if slow:
        assert built.state.log_history[0]["allocation/failed"] == 0 and Quiz.late > 0
        return
    assert sizes == [len(calls) for step in watch.steps for calls in step.rounds] and Quiz.made == max(sizes)
    for step in watch.steps:
        assert_rows(step.rows, whole_groups(built, step, ids=lambda prompt: rendered(prompt[:1], built.tools)))
    assert len({len(calls) for step in watch.steps for calls in groups_of(step).values()}) > 1
