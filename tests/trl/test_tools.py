"""Tools and environments under allocators: TRL's own loop of tool calls in several rounds.

An untrained policy calls no tool, so a ``rollout_func`` writes its first words. The policy itself continues after the
reply of the tool.
"""

import functools
import json
import math
import random
from collections import defaultdict

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, PrinterCallback
from trl.chat_template_utils import qwen3_chat_template

from apportion import HORA
from apportion.engines.prompts import prompt_of
from apportion.predictors import MeanLengths
from apportion.records import read_log
from apportion.trl import AllocatedGRPOTrainer
from tests.trl import tiny
from tests.trl.tiny import Judge, Watch, assert_rows, configured, make_questions, whole_groups

TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
WORDS = ("name", "arguments", "guess", "number", "user", "assistant", "right", "wrong")
SPECIAL = ("<pad>", "<|im_end|>", "<unk>", "<|im_start|>")
VOCABULARY = (*SPECIAL, *TAGS, *WORDS, *"0123456789", *'{}":,\n +-')
EXPECTED = 20
"""Expected tokens of a completion before the first one."""


def make_tokenizer():
    """Return a tokenizer of words, digits and signs with the chat template of Qwen3."""
    model = models.WordLevel({word: i for i, word in enumerate(VOCABULARY)}, unk_token="<unk>")
    parts = Tokenizer(model)
    parts.pre_tokenizer = pre_tokenizers.Split(Regex(r"</?\w+>|[a-z]+|\W|\w"), "isolated")
    parts.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=parts, pad_token="<pad>", eos_token="<|im_end|>", unk_token="<unk>", padding_side="left"
    )
    tokenizer.add_tokens([AddedToken("<|im_start|>", special=True)], special_tokens=True)
    tokenizer.chat_template = qwen3_chat_template
    return tokenizer


TOKENIZER = make_tokenizer()


def make_policy():
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return tiny.make_policy(
        vocab_size=len(VOCABULARY), max_position_embeddings=2048, tie_word_embeddings=False, **sizes
    )


class Talk:
    """A rollout function: two times in three it calls ``guess`` with a random digit, else it says one word."""

    def __init__(self):
        self.random = random.Random(0)

    def __call__(self, prompts, trainer):
        tokenizer = trainer.processing_class
        return {
            "prompt_ids": [rendered(tokenizer, prompt, trainer.tools) for prompt in prompts],
            "completion_ids": [tokenizer(self.words())["input_ids"] for _ in prompts],
            "logprobs": None,
        }

    def words(self):
        if self.random.random() < 1 / 3:
            return "right<|im_end|>"
        call = json.dumps({"name": "guess", "arguments": {"number": self.random.randrange(10)}})
        return f"<tool_call>\n{call}\n</tool_call><|im_end|>"


def rendered(tokenizer, prompt, tools):
    return tokenizer.apply_chat_template(prompt, tools=tools, add_generation_prompt=True, return_dict=False)


def was_right(messages, k=None):
    """Return 1 if a tool said "right", else 0."""
    return float(any(message["role"] == "tool" and message["content"] == "right" for message in messages))


@pytest.fixture
def talk(tmp_path, monkeypatch):
    """Return a function that trains with a budget of tokens in two rounds, with ``reward_funcs`` after the judge."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")

    def ran(reward_funcs=(), config=None, **given):
        watch, lengths = Watch(Judge(was_right)), MeanLengths(EXPECTED)
        questions = make_questions(16).map(lambda row: {"prompt": [{"role": "user", "content": row["prompt"]}]})
        built = AllocatedGRPOTrainer(
            weighting="rollout",  # so that the loss sees the advantages as they are
            model=make_policy(),
            reward_funcs=[watch.judge, *reward_funcs],
            args=configured(
                tmp_path, AllocatedGRPOTrainer, max_completion_length=80, **{"max_steps": 2} | (config or {})
            ),
            train_dataset=questions,
            processing_class=make_tokenizer(),
            rollout_func=Talk(),
            allocator=HORA(pre_rollouts=3, tokens_per_prompt=8 * EXPECTED, lengths=lengths, high=16),
            rollout_log=tmp_path / "log",
            **given,
        )
        built.remove_callback(PrinterCallback)
        watch.on(built).train()
        return built, watch, read_log(tmp_path / "log").to_pylist()

    return ran


def groups_of(step):
    groups = defaultdict(list)
    for call in step.calls:
        groups[call.prompt[0]["content"]].append(call)
    return groups


def assert_groups(built, watch):
    """Every rollout is a row of the loss with its advantage in its group, and there was a second round."""
    for step in watch.steps:
        wanted = whole_groups(built, step, ids=lambda prompt: tuple(rendered(TOKENIZER, prompt[:1], built.tools)))
        assert_rows(step.rows, wanted)
    sizes = {len(calls) for step in watch.steps for calls in groups_of(step).values()}
    assert len(watch.steps) == 2 and max(len(step.rounds) for step in watch.steps) == 2 and len(sizes) > 1


def assert_masks(watch):
    """In every row of the loss the tool mask covers the tokens between a call and the words after its reply."""
    foreign = 0
    for chunk in (chunk for step in watch.steps for chunk in step.chunks):
        for i, own in enumerate(chunk["completion_mask"].bool()):
            ids, mask = tuple(chunk["completion_ids"][i][own].tolist()), chunk["tool_mask"][i][own].tolist()
            assert mask == expected_mask(ids)
            foreign += mask.count(0)
            assert set(chunk["tool_mask"][i][~own].tolist()) <= {0, 1}
    assert foreign


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


def own_tokens(calls):
    """Return the number of tokens of each call that the policy wrote."""
    return [sum(expected_mask(call.ids)) for call in calls]


def assert_charged(watch, log, first=lambda prompt: prompt):
    """A rollout is charged for the policy's tokens. ``first`` gives the prompt as in the data set."""
    charged = defaultdict(list)
    for row in log:
        charged[row["step"], row["prompt"]].append(row["tokens"])
    for number, step in enumerate(watch.steps):
        for prompt, calls in groups_of(step).items():
            assert charged[number, first(prompt)] == own_tokens(calls)
    assert sum(map(sum, charged.values())) < sum(len(call.ids) for step in watch.steps for call in step.calls)


def guess(number: int) -> str:
    """Says whether a number is right.

    Args:
        number: The number.

    Returns:
        What it is.
    """
    return "right" if number % 4 == 0 else "wrong"


def test_tools_of_all_rounds(talk):
    built, watch, log = talk(tools=[guess])
    assert_groups(built, watch)
    assert_masks(watch)
    assert_charged(watch, log)
    learnt = {prompt: own_tokens(calls) for step in watch.steps for prompt, calls in groups_of(step).items()}
    asked = [prompt_of({"prompt": [{"role": "user", "content": prompt}]}) for prompt in learnt]
    found = built.allocation.allocator.lengths.predict(asked)
    assert found.tolist() == [math.ceil(sum(tokens) / len(tokens)) for tokens in learnt.values()]


class Quiz:
    """An environment in which numbers below half of the row's k are right. TRL uses instances in several rounds."""

    made = 0

    def __init__(self):
        Quiz.made += 1

    def reset(self, k, **row):
        self.k, self.asked = k, []
        return f"+{k}"

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
        return float(any(number < self.k // 2 for number in self.asked))


def test_every_row_has_an_environment_of_its_own(talk):
    """It is reset to its row before the round and gives a reward after it."""
    seen = []

    def own(prompts, completions, k, environments, **columns):
        assert len({id(each) for each in environments}) == len(prompts)
        for prompt, messages, of_row, each in zip(prompts, completions, k, environments, strict=True):
            assert each.k == of_row and prompt[0]["content"].endswith(f"+{of_row}")
            calls = [call for message in messages for call in message.get("tool_calls") or ()]
            assert each.asked == [call["function"]["arguments"]["number"] for call in calls]
            assert was_right(messages) == each.get_reward()
        seen.append(len(prompts))
        return [0.0] * len(prompts)

    Quiz.made = 0
    weights = {"reward_weights": [0.0, 0.0]}  # the environment adds its own reward
    built, watch, log = talk([own], weights, environment_factory=Quiz, verdict="Quiz")
    assert_groups(built, watch)
    assert_masks(watch)
    assert_charged(watch, log, lambda prompt: prompt.rsplit("+", 1)[0])
    assert seen == [len(calls) for step in watch.steps for calls in step.rounds]
    assert Quiz.made == max(seen)


class Slow(Quiz):
    """A quiz that has no reward yet when it is asked for the first time, if its k is even."""

    def reset(self, k, **row):
        self.asks = 0
        return super().reset(k, **row)

    def get_reward(self):
        self.asks += 1
        return None if self.asks == 1 and self.k % 2 == 0 else super().get_reward()


def test_environments_without_a_reward_are_asked_again_with_their_own_rows(talk):
    seen = []

    def own(prompts, completions, k, environments, **columns):
        seen.append(len(prompts))
        assert [each.k for each in environments] == list(k) and len(completions) == len(prompts)
        return [0.0] * len(prompts)

    weights = {"reward_weights": [0.0, 0.0], "max_steps": 1}
    _, _, log = talk([own], weights, environment_factory=Slow, verdict="Slow", failed_rewards="retry")
    rows = [row for row in log if row["index"] is not None and row["reused_step"] is None]
    assert len(seen) > 1 and len(rows) == sum(row["asked"] for row in log if row["index"] == 0)
