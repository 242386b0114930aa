"""Modes of TRL under allocators: the loss must see all completions in the true groups of the prompts.

One allocator has a fixed total in two rounds, and the total of the other varies. Tools and environments are in
``test_tools``, vLLM is in ``test_vllm``.
"""

from collections import defaultdict

import pytest
import torch
from peft import LoraConfig
from transformers import PrinterCallback, Qwen2Config, Qwen2ForSequenceClassification
from trl import GRPOTrainer

from apportion import AR3PO, DAPO, HORA
from apportion.trl import AllocatedGRPOTrainer
from tests.trl.tiny import (
    CHARACTERS,
    EOS,
    PAD,
    SPECIAL,
    Judge,
    Row,
    Watch,
    assert_rows,
    configured,
    group_advantages,
    log_probabilities,
    make_questions,
    make_tokenizer,
    mark,
    untimed,
)

TOKENIZER = make_tokenizer()
ALLOCATORS = {
    "hora": lambda: HORA(pre_rollouts=3, rollouts_per_prompt=8, high=16),
    "ar3po": lambda: AR3PO(rollouts_per_stage=3, reuse="none"),
}


@pytest.fixture(params=ALLOCATORS)
def allocator(request):
    return ALLOCATORS[request.param]()


@pytest.fixture
def build(policy, tmp_path, monkeypatch):
    """Return a function that makes a trainer and its watch; ``reward_funcs`` come before the judge.

    It weighs rollouts equally, so that the loss sees the advantages as they are.
    """

    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")  # it warns about rollout functions

    def built(trainer=AllocatedGRPOTrainer, *, config=None, judge=None, reward_funcs=(), folder="run", **given):
        watch = Watch(Judge() if judge is None else judge)
        equal = {"weighting": "rollout"} if "allocator" in given else {}
        made = trainer(
            model=policy,
            reward_funcs=[*reward_funcs, watch.judge],
            args=configured(tmp_path / folder, trainer, **(config or {})),
            **{"train_dataset": make_questions(), "processing_class": make_tokenizer()} | equal | given,
        )
        made.remove_callback(PrinterCallback)
        return watch.on(made), watch

    return built


def ids_of(prompt):
    return tuple(TOKENIZER(prompt)["input_ids"])


def groups_of(step, ids=ids_of):
    """Return the calls of a step by the token ids of the prompt."""
    groups = defaultdict(list)
    for call in step.calls:
        groups[tuple(ids(call.prompt))].append(call)
    return groups


def assert_groups(built, watch, ids=ids_of, reward=lambda call: call.score):
    """Every rollout is a row of the loss, and its advantage is that of TRL's formula in the group of its prompt.

    Some prompt must have had a second round, and the groups must have different sizes.
    """
    sizes = set()
    for step in watch.steps:
        groups = groups_of(step, ids)
        expected = [
            Row(prompt, call.ids, advantage)
            for prompt, calls in groups.items()
            for call, advantage in zip(calls, group_advantages(built, [reward(call) for call in calls]), strict=True)
        ]
        assert_rows(step.rows, expected)
        sizes |= {len(calls) for calls in groups.values()}
    assert len(watch.steps) == built.args.max_steps
    assert max(len(step.rounds) for step in watch.steps) == 2
    assert len(sizes) > 1


def test_conversations_use_the_chat_template(build, allocator):
    tokenizer = make_tokenizer()
    tokenizer.chat_template = (
        "{% for message in messages %}{{ message['content'] }}+{% endfor %}{% if add_generation_prompt %}={% endif %}"
    )
    system = {"role": "system", "content": "abc"}
    questions = make_questions().map(lambda row: {"prompt": [system, {"role": "user", "content": row["prompt"]}]})
    built, watch = build(
        judge=Judge(lambda completion, k: mark(completion[0]["content"], k)),
        train_dataset=questions,
        processing_class=tokenizer,
        allocator=allocator,
    )
    built.train()
    assert_groups(built, watch, lambda prompt: ids_of(f"abc+{prompt[1]['content']}+="))
    assert all(call.text[0]["role"] == "assistant" for step in watch.steps for call in step.calls)


def test_adapters_are_trained_and_the_policy_is_not(build, allocator):
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    built, watch = build(config={"beta": 0.04, "max_steps": 4}, peft_config=lora, allocator=allocator)
    built.remove_callback(watch)  # it reads gradients, which frozen weights do not have
    before = {name: value.clone() for name, value in built.model.state_dict().items()}
    built.train()
    assert_groups(built, watch)
    moved = {name for name, value in built.model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved and all("lora_" in name for name in moved)
    chunk = watch.steps[-1].chunks[0]
    own = chunk["completion_mask"][0].bool()
    with torch.no_grad(), built.model.disable_adapter():
        prompt = chunk["prompt_ids"][0][chunk["prompt_mask"][0].bool()]
        reference = log_probabilities(built.model, prompt.tolist(), chunk["completion_ids"][0][own].tolist())
    assert torch.allclose(chunk["ref_per_token_logps"][0][own], reference, atol=1e-5)


def test_gradient_checkpointing_changes_no_update(build, allocator):
    weights = []
    for checkpointing in (False, True):
        config = {"gradient_checkpointing": checkpointing}
        built, watch = build(config=config, folder=str(checkpointing), allocator=ALLOCATORS[allocator.name]())
        built.train()
        assert_groups(built, watch)
        weights.append(built.model.state_dict())
    assert all(torch.allclose(value, weights[1][name], atol=1e-6) for name, value in weights[0].items())


@pytest.mark.slow
def test_continuous_batching(build, allocator):
    config = {
        "use_transformers_continuous_batching": True,
        "transformers_continuous_batching_config": {"num_blocks": 16, "block_size": 32, "max_batch_tokens": 64},
    }
    built, watch = build(config=config, allocator=allocator)
    built.train()
    assert_groups(built, watch)


def test_generation_by_a_rollout_function(build, allocator):
    """Its log-probabilities and extra columns stay with their rows. It sees each prompt once per row."""
    generator = torch.Generator().manual_seed(0)
    said = []

    def generated(prompts, trainer):
        drawn = torch.randint(len(CHARACTERS), (len(prompts), 3), generator=generator) + len(SPECIAL)
        ids = [[*row[: 1 + place % 3].tolist(), EOS] for place, row in enumerate(drawn)]
        numbers = list(range(len(said), len(said) + len(prompts)))
        logps = [[-1.0 - number / 1024] * len(row) for number, row in zip(numbers, ids, strict=True)]
        said.extend(zip(prompts, ids, logps, strict=True))
        return {
            "prompt_ids": [list(ids_of(prompt)) for prompt in prompts],
            "completion_ids": ids,
            "logprobs": logps,
            "number": numbers,
        }

    def pairs(prompts, completion_ids, number, **columns):
        assert [(prompt, ids) for prompt, ids, _ in (said[i] for i in number)] == list(
            zip(prompts, completion_ids, strict=True)
        )
        return [0.0] * len(prompts)

    built, watch = build(
        config={"reward_weights": [0.0, 1.0]},
        reward_funcs=[pairs],
        rollout_func=generated,
        verdict="judge",
        allocator=allocator,
    )
    built.train()
    assert_groups(built, watch)
    rows = []
    for chunk in (chunk for step in watch.steps for chunk in step.chunks):
        for i, own in enumerate(chunk["completion_mask"].bool()):
            if own.any():
                rows.append(
                    (chunk["completion_ids"][i][own].tolist(), chunk["sampling_per_token_logps"][i][own].tolist())
                )
    assert sorted(rows) == sorted((ids, logps) for _, ids, logps in said)


def test_several_rewards_of_which_one_is_the_verdict(build, allocator):
    """One is always positive, one is a coroutine, one gives None at times. Only the verdict decides the allocation."""

    def longer(text):
        return 1.0 + len(text)

    def letters(text):
        return sum(character.isalpha() for character in text) / 4

    def digits(text):
        return None if text[:1].isalpha() else sum(character.isdigit() for character in text) / 4

    def length(completions, **columns):
        return [longer(text) for text in completions]

    async def of_letters(completions, **columns):
        return [letters(text) for text in completions]

    def of_digits(completions, **columns):
        return [digits(text) for text in completions]

    built, watch = build(
        config={"reward_weights": [0.1, 0.5, 2.0, 1.0]},
        reward_funcs=[length, of_letters, of_digits],
        verdict="judge",
        allocator=allocator,
    )
    built.train()
    assert_groups(
        built,
        watch,
        reward=lambda call: (
            0.1 * longer(call.text) + 0.5 * letters(call.text) + 2 * (digits(call.text) or 0.0) + call.score
        ),
    )
    for step, logged in zip(watch.steps, built.state.log_history, strict=False):
        scores = torch.tensor([call.score for call in step.calls])
        assert logged["rewards/judge/mean"] == pytest.approx(scores.mean().item())
        assert logged["rewards/of_letters/mean"] == pytest.approx(
            sum(letters(call.text) for call in step.calls) / len(step.calls)
        )
        if allocator.name == "ar3po":
            first = defaultdict(list)
            for call in step.rounds[0]:
                first[call.prompt].append(call.score)
            without = {prompt for prompt, scores in first.items() if not any(scores)}
            assert {call.prompt for calls in step.rounds[1:] for call in calls} == without


def test_a_model_that_scores(build, allocator):
    torch.manual_seed(0)
    scorer = Qwen2ForSequenceClassification(
        Qwen2Config(
            vocab_size=len(SPECIAL) + len(CHARACTERS),
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            pad_token_id=PAD,
            num_labels=1,
        )
    ).eval()
    scorer.config._name_or_path = "somebody/scorer"

    def score(call):
        with torch.no_grad():
            return scorer(torch.tensor([ids_of(call.prompt + call.text)])).logits.item()

    built, watch = build(
        config={"reward_weights": [1.0, 0.0]},
        reward_funcs=[scorer],
        reward_processing_classes=[make_tokenizer(), None],
        verdict="scorer",
        allocator=allocator,
    )
    built.train()
    assert_groups(built, watch, reward=score)
    assert len({score(call) > 0 for call in watch.steps[0].calls}) == 2


def test_a_stream_of_prompts(build, allocator):
    built, watch = build(train_dataset=make_questions().to_iterable_dataset(), allocator=allocator)
    built.train()
    assert_groups(built, watch)


def test_fresh_prompts_come_from_a_stream_too(build):
    questions = make_questions(16)
    built, watch = build(
        train_dataset=questions.to_iterable_dataset(), allocator=DAPO(rollouts_per_prompt=8, max_draws=4)
    )
    built.train()
    assert max(len(step.rounds) for step in watch.steps) > 1
    for step in watch.steps:
        groups = groups_of(step)
        assert all(len(calls) == 8 for calls in groups.values())
        mixed = [ids for ids, calls in groups.items() if len({call.score for call in calls}) == 2]
        assert {row.prompt for row in step.rows} == set(mixed[:4]) and len(step.rows) == 8 * min(4, len(mixed))


def test_evaluation_is_that_of_trl(build, allocator):
    config = {"num_generations_eval": 2, "per_device_eval_batch_size": 4}
    given = {"config": config, "eval_dataset": make_questions(6, extra=100)}
    theirs = build(GRPOTrainer, folder="theirs", **given)[0].evaluate()
    ours, watch = build(**given, allocator=allocator)
    assert untimed([ours.evaluate()]) == untimed([theirs])
    assert sum(len(step.calls) for step in watch.steps) == 12
    watch.steps.clear()
    ours.train()
    assert_groups(ours, watch)
    assert not any("allocation" in name for name in ours.evaluate())
