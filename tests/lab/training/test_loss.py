from dataclasses import replace

import numpy as np
import pytest
import torch

from apportion import Uniform
from apportion.advantages import ESTIMATORS, needs
from apportion.lab.policy.network import completion_logprobs, new_policy
from apportion.lab.policy.sampler import MAX_NEW_TOKENS, LedgerSampler
from apportion.lab.training.loss import refresh_logprobs, surrogate_loss, training_rows
from apportion.lab.world.task import encode, training_problems
from apportion.scheduler import TrainerAllocation
from apportion.types import Group
from tests.lab.states import weights


@pytest.fixture
def groups(small_base):
    problems = training_problems(6, seed=1)
    rollouts = LedgerSampler(small_base, seed=3)([p.prompt() for p in problems], [4, 2, 8, 1, 4, 6])
    return [Group(p.prompt(), tuple(r), np.ones(len(r), bool)) for p, r in zip(problems, rollouts, strict=True)]


def gradient(policy, rows, **settings):
    policy.zero_grad()
    surrogate_loss(policy, rows, **settings).backward()
    return torch.cat([parameter.grad.flatten() for parameter in policy.parameters()]).clone()


def decisions(**changes):
    return TrainerAllocation(allocator=Uniform(2), **changes)


@pytest.mark.parametrize("name", sorted(name for name in ESTIMATORS if not needs(name)))
@pytest.mark.parametrize("weighting", ["prompt", "rollout"])
def test_on_policy_gradient_is_the_plain_policy_gradient(small_base, groups, name, weighting):
    """At ratio 1 the surrogate's gradient is that of -sum w A log pi / T, written out prompt by prompt."""
    ours = gradient(small_base, training_rows(groups, decisions(estimator=name, weighting=weighting)))
    small_base.zero_grad()
    total = sum(len(group.rollouts) for group in groups)
    for group in groups:
        prompt = [tuple(encode(group.prompt.text))] * len(group.rollouts)
        logprobs, _ = completion_logprobs(small_base, prompt, [r.completion.tokens for r in group.rollouts])
        advantages = torch.tensor(ESTIMATORS[name](group.rewards, [0] * len(group.rollouts)), dtype=torch.float32)
        share = 1 / (len(groups) * len(group.rollouts)) if weighting == "prompt" else 1 / total
        (-(advantages * logprobs.sum(1)).sum() * share / MAX_NEW_TOKENS).backward()
    theirs = torch.cat([parameter.grad.flatten() for parameter in small_base.parameters()])
    assert torch.allclose(ours, theirs, atol=1e-6)
    assert theirs.norm() > 1e-4


@pytest.mark.parametrize("weighting", ["prompt", "rollout"])
def test_weights_are_shared_among_the_rollouts_that_enter(groups, weighting):
    """Reinforce-Ada's down-sampled groups have the weight of whole ones."""
    thinned = [Group(g.prompt, g.rollouts, np.arange(len(g.rollouts)) < 2) for g in groups]
    alone = [Group(g.prompt, g.rollouts[:2]) for g in groups]
    ours, theirs = (
        [row.weight for row in training_rows(each, decisions(weighting=weighting))] for each in (thinned, alone)
    )
    assert ours == pytest.approx(theirs)
    assert sum(ours) == pytest.approx(1)


def test_clipping_stops_the_gradient_where_the_ratio_has_moved_too_far(small_base, groups):
    """Far from the behaviour policy, every token's ratio is outside the clip range."""
    rows = [row for row in training_rows(groups, decisions()) if row.advantage > 0]
    shifted = [
        type(row)(
            row.prompt,
            type(row.completion)(row.completion.tokens, row.completion.logprobs - 3.0, True),
            row.advantage,
            row.weight,
        )
        for row in rows
    ]
    assert gradient(small_base, shifted).abs().max() == 0
    assert gradient(small_base, rows).abs().max() > 0


def test_kl_is_zero_at_the_reference_and_pulls_back_from_elsewhere(small_base, groups):
    rows = training_rows(groups, decisions())
    plain = surrogate_loss(small_base, rows)
    assert surrogate_loss(small_base, rows, kl=0.5, reference=small_base).item() == pytest.approx(
        plain.item(), abs=1e-6
    )
    apart = gradient(small_base, rows, kl=0.5, reference=new_policy(5)) - gradient(small_base, rows)
    with torch.no_grad():
        before = surrogate_loss(small_base, rows, kl=0.5, reference=new_policy(5)) - plain
        torch.nn.utils.vector_to_parameters(weights(small_base) - 1e-3 * apart, small_base.parameters())
        plain = surrogate_loss(small_base, rows)
        assert 0 < surrogate_loss(small_base, rows, kl=0.5, reference=new_policy(5)) - plain < before
    assert training_rows([], decisions()) == []


def test_a_recomputed_response_has_the_probabilities_of_now_and_a_replayed_one_those_of_then(small_base, groups):
    marked = [replace(group, recompute=np.arange(len(group.rollouts)) == 1) for group in groups]
    rows, policy = training_rows(marked, decisions()), new_policy(5)
    fresh = refresh_logprobs(policy, rows, temperature=0.7)
    for before, row in zip(rows, fresh, strict=True):
        now, _ = completion_logprobs(policy, [row.prompt], [row.completion.tokens], 0.7)
        moved = np.allclose(row.completion.logprobs, now[0].detach().numpy(), atol=1e-5)
        assert row.recompute == moved == (row is not before)
    assert 0 < sum(row.recompute for row in rows) < len(rows)
