from collections import Counter
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from apportion.lab.policy import sampler
from apportion.lab.policy.network import completion_logprobs, new_policy
from apportion.lab.policy.sampler import LedgerSampler, leading_share, sample
from apportion.lab.world.task import EOS, Problem, Reward, encode, problem_pool
from apportion.lab.world.tokenizer import ledger_tokenizer
from apportion.types import Prompt

PROBLEMS = problem_pool(40, seed=11)
PROMPTS = [encode(problem.text) for problem in PROBLEMS]
REWARDS = (*Reward.__args__, None)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def tokens(groups):
    return [[completion.tokens for completion in group] for group in groups]


def greedy_by_generate(policy, texts, max_new_tokens):
    batch = ledger_tokenizer()(texts, padding=True, return_tensors="pt")
    written = policy.generate(**batch, max_new_tokens=max_new_tokens, do_sample=False)
    rows = written[:, batch["input_ids"].shape[1] :].tolist()
    return [tuple(row[: row.index(EOS) + 1] if EOS in row else row) for row in rows]


def test_greedy_equals_generate_with_grouped_query_attention_and_an_untied_head():
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=47,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=False,
        initializer_range=0.3,
        eos_token_id=EOS,
        pad_token_id=0,
    )
    policy = Qwen2ForCausalLM(config).eval()
    found = sample(policy, PROMPTS, [1] * 40, temperature=0)
    assert [group[0].tokens for group in found] == greedy_by_generate(policy, [q.text for q in PROBLEMS], 14)


@pytest.mark.parametrize("temperature", [0.0, 0.6])
def test_logprobs_equal_teacher_forcing(small_base, temperature):
    counts = np.arange(40) % 9
    groups = sample(small_base, PROMPTS, counts, seeded(), temperature)
    assert [len(group) for group in groups] == counts.tolist()
    rows = [(prompt, completion) for prompt, group in zip(PROMPTS, groups, strict=True) for completion in group]
    with torch.no_grad():
        forced, _ = completion_logprobs(small_base, [p for p, _ in rows], [c.tokens for _, c in rows], temperature or 1)
    for values, (_, completion) in zip(forced.numpy(), rows, strict=True):
        assert completion.logprobs.shape == (len(completion.tokens),)
        np.testing.assert_allclose(completion.logprobs, values[: len(completion.tokens)], atol=1e-4)


def test_whole_completions_follow_the_exact_distribution(small_base):
    """After rows split, each completion still has its own probability."""
    prompt, rollouts = encode("7 a+3 b*7 ="), 8_000
    [group] = sample(small_base, [prompt], [rollouts], seeded(4))
    seen = Counter(completion.tokens for completion in group).most_common(60)
    with torch.no_grad():
        exact, _ = completion_logprobs(small_base, [prompt] * len(seen), [written for written, _ in seen])
    expected = rollouts * exact.double().sum(1).exp().numpy()
    observed = np.array([count for _, count in seen])
    common = expected >= 20
    score = ((observed - expected) ** 2 / expected)[common].sum()
    assert common.sum() >= 10
    assert score < common.sum() + 4.5 * np.sqrt(2 * common.sum())


def test_a_seed_fixes_the_samples_whatever_the_chunks(small_base, monkeypatch):
    counts = np.arange(40) % 7
    whole = sample(small_base, PROMPTS, counts, seeded(6))
    assert tokens(sample(small_base, PROMPTS, counts, seeded(7))) != tokens(whole)
    monkeypatch.setattr(sampler, "MAX_ROWS", 13)
    assert tokens(sample(small_base, PROMPTS, counts, seeded(6))) == tokens(whole)


def test_completions_end_with_the_end_token_or_are_cut_off(small_base):
    for group in sample(small_base, PROMPTS, [3] * 40, seeded(), max_new_tokens=4):
        for completion in group:
            assert completion.finished == (completion.tokens[-1] == EOS)
            assert EOS not in completion.tokens[:-1]
            assert completion.finished or len(completion.tokens) == 4


def test_nothing_asked_is_nothing_sampled(small_base):
    assert sample(small_base, [], [], seeded()) == []
    assert sample(small_base, PROMPTS[:2], [0, 0], seeded()) == [[], []]


def test_the_ledger_sampler_verifies_and_counts(small_base):
    draw = LedgerSampler(small_base, seed=1)
    groups = draw([problem.prompt() for problem in PROBLEMS], [4] * 40)
    for problem, group in zip(PROBLEMS, groups, strict=True):
        for rollout in group:
            right = (*encode(problem.completion), EOS)
            assert rollout.correct == (rollout.completion.tokens == right)
            assert rollout.reward == float(rollout.correct)
            assert rollout.correct == (rollout.answer == problem.answer)
            assert rollout.tokens == len(rollout.completion.tokens)
            assert rollout.score_norm == rollout.completion.score_norm > 0
    assert any(rollout.correct for group in groups for rollout in group)
    assert draw.rollouts == 160
    assert draw.tokens == sum(len(rollout.completion.tokens) for group in groups for rollout in group)


def test_a_prompt_without_a_problem_is_parsed(small_base):
    problem = Problem(7, ("+3",))
    [[plain]] = LedgerSampler(small_base, seed=2)([Prompt(problem.text)], [1])
    [[carried]] = LedgerSampler(small_base, seed=2)([problem.prompt()], [1])
    assert plain == carried
    assert LedgerSampler(small_base)([], []) == []
    with pytest.raises(ValueError, match="a problem reads like"):
        LedgerSampler(small_base)([Prompt("what is 1 + 1?")], [1])


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_the_score_norm_is_that_of_the_gradient_in_the_logits(small_base, temperature):
    """The expected norm is autograd's, of each completion's log-probability by the logits over the temperature."""
    for policy in (small_base, new_policy(3)):
        groups = sample(policy, PROMPTS[:6], [3] * 6, seeded(8), temperature, max_new_tokens=10)
        for prompt, completion in ((p, c) for p, group in zip(PROMPTS, groups, strict=False) for c in group):
            written = torch.tensor(completion.tokens)
            with torch.no_grad():
                logits = policy(torch.tensor([[*prompt, *completion.tokens]])).logits[0, len(prompt) - 1 : -1].double()
            scaled = (logits / (temperature or 1.0)).requires_grad_()
            scaled.log_softmax(-1).gather(1, written[:, None]).sum().backward()
            assert completion.score_norm == pytest.approx(float(scaled.grad.square().sum()), rel=1e-3, abs=1e-4)


def test_a_certain_completion_has_no_score_norm_below_0():
    """At a temperature near 0 every token is certain, so the norm is 0 up to rounding."""
    norms = [c.score_norm for [c] in sample(new_policy(3), PROMPTS, [1] * 40, seeded(9), temperature=1e-6)]
    assert min(norms) >= 0 and np.median(norms) < 1e-5


def test_a_graded_reward_is_the_share_of_leading_digits_and_without_one_nothing_is_verified(small_base):
    prompts, shares = [problem.prompt() for problem in PROBLEMS], set()
    exact, graded, none = (LedgerSampler(small_base, seed=4, reward=reward)(prompts, [6] * 40) for reward in REWARDS)
    for problem, *groups in zip(PROBLEMS, exact, graded, none, strict=True):
        for verified, shared, plain in zip(*groups, strict=True):
            share = leading_share(problem, verified.answer)
            assert (share == 1) == verified.correct and 0 <= share <= 1
            assert shared == replace(verified, correct=None, reward=share)
            assert plain == replace(verified, correct=None, reward=None)
            assert verified.completion.tokens == shared.completion.tokens == plain.completion.tokens
            shares.add(share)
    assert len(shares) > 4


def test_of_several_solutions_the_nearest_gives_the_share():
    forked = Problem(7, ("+3", "*7", "-4"), ("", "-2", ""))  # 006 or 084
    shares = [leading_share(forked, answer) for answer in ("006", "084", "086", "004", "906", "0")]
    assert shares == [1, 1, 2 / 3, 2 / 3, 0, 1 / 3]


def test_a_shaped_reward_adds_length_and_format_and_keeps_the_verdict(small_base):
    noted = [replace(problem, notes=True) for problem in PROBLEMS if len(problem.operations) > 1]
    problems = [*PROBLEMS, *noted]
    prompts, counts = [problem.prompt() for problem in problems], [6] * len(problems)
    plain = LedgerSampler(small_base, seed=4)(prompts, counts)
    shaped = LedgerSampler(small_base, seed=4, length_weight=-0.3, format_weight=0.25)(prompts, counts)
    parts = set()
    for before, after in zip(chain(*plain), chain(*shaped), strict=True):
        reward = before.correct - 0.3 * before.tokens / 14 + 0.25 * (before.answer is not None)
        assert after.reward == pytest.approx(reward) and replace(after, reward=before.reward) == before
        parts.add((before.correct, before.answer is None, before.tokens))
    assert len(parts) > 6
