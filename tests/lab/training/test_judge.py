import copy

import numpy as np
import pytest
import torch

from apportion.allocators import Voting
from apportion.lab.policy.exact import exact_success
from apportion.lab.policy.sampler import sample
from apportion.lab.training.judge import ROLLOUTS, Judge
from apportion.lab.training.pool import Pool
from apportion.lab.world.task import encode, held_out_problems, problem_pool, verify
from apportion.types import Plan, Rollout

PROBLEMS = problem_pool(60, seed=21)
HELD_OUT = held_out_problems(60)


def pool(problems=PROBLEMS, held_out=HELD_OUT):
    return Pool(problems, held_out, {problem.prompt().id: frozenset([problem.answer]) for problem in problems})


def judge(reference, known=None, seed=0, temperature=1.0):
    return Judge(known or pool(), reference, seed, temperature, max_new_tokens=14)


def moved(policy, size=0.03, seed=0):
    """Return a policy near ``policy``."""
    other, generator = copy.deepcopy(policy), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(size * torch.randn(parameter.shape, generator=generator))
    return other


def next_token(policy, prefix):
    """Return the log-probabilities [V] of the token after ``prefix``, by a separate forward pass."""
    with torch.no_grad():
        return policy(torch.tensor([prefix])).logits[0, -1].double().log_softmax(-1).numpy()


def test_labels_are_counted_by_hand(small_base):
    """The labels are right, confidently wrong, wrong without a majority, tied, unanswered, and without gold."""
    prompts = [problem.prompt() for problem in PROBLEMS[:6]]
    known = Pool(PROBLEMS, HELD_OUT, {prompt.id: frozenset(["1", "2"]) for prompt in prompts[:5]})
    streams = ["1111", "3331", "1332", "1133", [None] * 4, "3333"]
    voting = Voting(max_samples=5, min_samples=4)
    batch = voting.start(prompts)
    batch = batch.add(Plan([4] * 6), [[Rollout(answer=answer) for answer in stream] for stream in streams])
    assert judge(small_base, known).labels(prompts, voting.labels(batch)) == {
        "labels": 3,
        "labels_right": 1,
        "false_consensus": 1,
    }
    assert [label.status for label in voting.labels(batch)][2:5] == ["exhausted", "tied", "unanswered"]


def test_mean_16_is_the_exact_success_within_noise(small_base):
    p = exact_success(small_base, PROBLEMS)
    scores = [judge(small_base, seed=seed).scores(small_base, step=0) for seed in range(3)]
    deviation = np.sqrt((p * (1 - p)).sum() / (3 * ROLLOUTS)) / len(p)
    assert np.mean([each["mean_16"] for each in scores]) == pytest.approx(p.mean(), abs=4 * deviation)
    assert np.mean([each["pass_16"] for each in scores]) == pytest.approx((1 - (1 - p) ** 16).mean(), abs=0.06)
    for each in scores:
        assert each["mean_16"] <= each["pass_16"] and each["maj_16"] <= each["pass_16"]


def test_maj_16_is_of_the_votes_and_pass_1_of_the_greedy_answers(small_base):
    """At low temperature samples agree more, and the majority becomes the greedy answer."""
    greedy = sample(small_base, [encode(problem.text) for problem in PROBLEMS], [1] * 60, temperature=0)
    right = [verify(problem, written.tokens)[1] for problem, [written] in zip(PROBLEMS, greedy, strict=True)]
    cold, warm = (judge(small_base, temperature=t).scores(small_base, step=0) for t in (0.01, 1.0))
    assert cold["mean_16"] == pytest.approx(cold["pass_1"], abs=0.02)
    assert cold["maj_16"] == pytest.approx(cold["pass_1"], abs=0.02)
    assert warm["mean_16"] < warm["maj_16"]
    assert cold["pass_1"] == warm["pass_1"] == np.mean(right)


def test_only_prompts_with_known_gold_are_scored(small_base):
    some = Pool(PROBLEMS, HELD_OUT, dict(list(pool().gold.items())[:7]))
    wrong = Pool(PROBLEMS, HELD_OUT, dict.fromkeys(some.gold, frozenset(["none"])))
    nothing = Pool(PROBLEMS, HELD_OUT, {})
    assert len(judge(small_base, some).known) == 7
    assert judge(small_base, some).scores(small_base, 0) != judge(small_base).scores(small_base, 0)
    assert set(judge(small_base, wrong).scores(small_base, 0).values()) == {0.0}
    assert judge(small_base, nothing).scores(small_base, 0) == {}


def test_a_judge_repeats_itself_and_draws_anew_each_step(small_base):
    few = pool(PROBLEMS[:20], HELD_OUT[:20])
    one, again, other = judge(small_base, few), judge(small_base, few), judge(small_base, few, seed=1)
    first = one.scores(small_base, 5)
    assert first == again.scores(small_base, 5) == one.scores(small_base, 5)
    assert first != one.scores(small_base, 6) and first != other.scores(small_base, 5)
    policy = moved(small_base)
    assert one.drift(policy, 5) == again.drift(policy, 5) != other.drift(policy, 5)


def test_drift_is_the_divergence_of_every_next_token_along_what_was_written(small_base):
    """The expected value takes one unpadded forward pass of each policy per token, in double precision."""
    policy, referee = moved(small_base), judge(small_base, pool(held_out=HELD_OUT[:12]))
    written = referee._sampler(policy, 3, 1.0)([problem.prompt() for problem in HELD_OUT[:12]], [1] * 12)
    total = 0.0
    for problem, [rollout] in zip(HELD_OUT, written, strict=False):
        tokens = rollout.completion.tokens
        for size in range(len(tokens)):
            prefix = [*encode(problem.text), *tokens[:size]]
            mine, theirs = next_token(policy, prefix), next_token(small_base, prefix)
            total += (np.exp(mine) * (mine - theirs)).sum()
    assert total > 0.1
    assert referee.drift(policy, step=3) == pytest.approx(total / 12, rel=1e-4)
