"""Modes of TRL under an allocator of two rounds: the loss must see all completions in the true groups of the prompts.

Tools and environments are in ``test_tools``, vLLM is in ``test_vllm``.
"""

import pytest
import torch
from peft import LoraConfig
from transformers import Qwen2Config, Qwen2ForSequenceClassification

from apportion import AR3PO
from tests.trl.tiny import (
    CHARACTERS,
    EOS,
    SIZES,
    SPECIAL,
    Judge,
    assert_rows,
    hora,
    ids_of,
    log_probabilities,
    make_questions,
    make_tokenizer,
    mark,
    whole_groups,
)


@pytest.fixture
def grouped(run):
    """Return a function that trains, and checks that every rollout is a row of the loss with its group's advantage.

    Some prompt must have had a second round, and the groups must have different sizes.
    """

    def trained(ids=ids_of, reward=lambda call: call.score, **given):
        config = {"max_steps": 2} | given.pop("config", {})
        built, watch, history = run(**{"allocator": hora(), "config": config} | given)
        sizes = set()
        for step in watch.steps:
            expected = whole_groups(built, step, reward, ids)
            assert_rows(step.rows, expected)
            prompts = [row.prompt for row in expected]
            sizes |= {prompts.count(prompt) for prompt in prompts}
        assert len(watch.steps) == built.args.max_steps and len(sizes) > 1
        assert max(len(step.rounds) for step in watch.steps) == 2
        return built, watch, history

    return trained


def test_conversations_use_the_chat_template(grouped):
    tokenizer = make_tokenizer()
    tokenizer.chat_template = (
        "{% for message in messages %}{{ message['content'] }}+{% endfor %}{% if add_generation_prompt %}={% endif %}"
    )
    system = {"role": "system", "content": "abc"}
    questions = make_questions().map(lambda row: {"prompt": [system, {"role": "user", "content": row["prompt"]}]})
    _, watch, _ = grouped(
        lambda prompt: ids_of(f"abc+{prompt[1]['content']}+="),
        judge=Judge(lambda completion, k: mark(completion[0]["content"], k)),
        questions=questions,
        processing_class=tokenizer,
    )
    assert all(call.text[0]["role"] == "assistant" for step in watch.steps for call in step.calls)


def test_adapters_are_trained_and_the_policy_is_not(grouped, make):
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    built, watch, _ = grouped(config={"beta": 0.04, "max_steps": 4}, peft_config=lora)
    before, after = watch.updates[0][0], built.model.state_dict()
    moved = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert moved and all("lora_" in name for name in moved)
    prompt, ids, found = watch.steps[-1].columns("ref_per_token_logps")[0]
    with torch.no_grad(), built.model.disable_adapter():
        assert torch.allclose(found, log_probabilities(built.model, prompt, ids), atol=1e-5)


@pytest.mark.slow
def test_continuous_batching(grouped):
    blocks = {"num_blocks": 16, "block_size": 32, "max_batch_tokens": 64}
    grouped(
        config={"use_transformers_continuous_batching": True, "transformers_continuous_batching_config": blocks},
        allocator=AR3PO(rollouts_per_stage=3, reuse="none"),
    )


def test_generation_by_a_rollout_function(grouped, monkeypatch):
    """Its log-probabilities and extra columns stay with their rows. It sees each prompt once per row."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    generator, said = torch.Generator().manual_seed(0), []

    def generated(prompts, trainer):
        drawn = torch.randint(len(CHARACTERS), (len(prompts), 3), generator=generator) + len(SPECIAL)
        ids = [[*row[: 1 + place % 3].tolist(), EOS] for place, row in enumerate(drawn)]
        numbers = list(range(len(said), len(said) + len(prompts)))
        logps = [[-1.0 - number / 1024] * len(row) for number, row in zip(numbers, ids, strict=True)]
        said.extend(zip(prompts, ids, logps, strict=True))
        found = {"completion_ids": ids, "logprobs": logps, "number": numbers}
        return found | {"prompt_ids": [list(ids_of(prompt)) for prompt in prompts]}

    def pairs(prompts, completion_ids, number, **columns):
        assert [said[i][:2] for i in number] == list(zip(prompts, completion_ids, strict=True))
        return [0.0] * len(prompts)

    given = {"config": {"reward_weights": [0.0, 1.0]}, "verdict": "judge"}
    _, watch, _ = grouped(others=[pairs], rollout_func=generated, **given)
    rows = [row for step in watch.steps for row in step.columns("sampling_per_token_logps")]
    found = sorted((list(ids), logps.tolist()) for _, ids, logps in rows)
    assert found == sorted((ids, logps) for _, ids, logps in said)


def test_a_model_that_scores(grouped):
    torch.manual_seed(0)
    scorer = Qwen2ForSequenceClassification(Qwen2Config(**SIZES, num_labels=1)).eval()
    scorer.config._name_or_path = "somebody/scorer"

    def score(call):
        with torch.no_grad():
            return scorer(torch.tensor([ids_of(call.prompt + call.text)])).logits.item()

    given = {"reward_processing_classes": [make_tokenizer(), None], "verdict": "scorer"}
    _, watch, _ = grouped(reward=score, config={"reward_weights": [1.0, 0.0]}, others=[scorer], **given)
    assert len({score(call) > 0 for call in watch.steps[0].calls}) == 2
