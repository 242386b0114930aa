import numpy as np
import pytest
import torch

from apportion.lab.policy.sampler import LedgerSampler
from apportion.lab.training.critic import Critic, token_advantages, value_loss
from apportion.lab.world.task import encode, training_problems
from apportion.types import Group


@pytest.fixture
def groups(small_base):
    problems = training_problems(4, seed=2)
    rollouts = LedgerSampler(small_base, seed=3)([p.prompt() for p in problems], [3, 1, 2, 4])
    return [Group(p.prompt(), tuple(r)) for p, r in zip(problems, rollouts, strict=True)]


def rows(groups):
    pairs = [(encode(g.prompt.text), r.completion.tokens) for g in groups for r in g.rollouts]
    return [list(column) for column in zip(*pairs, strict=True)]


def test_a_new_critic_knows_nothing_and_masks_what_is_not_there(small_base, groups):
    prompts, completions = rows(groups)
    values, mask = Critic(small_base)(prompts, completions)
    assert values.shape == mask.shape == (10, max(map(len, completions)))
    assert mask.sum(1).tolist() == [len(tokens) for tokens in completions]
    assert not values.any()


def test_a_value_sees_the_tokens_before_it_and_none_after(small_base, groups):
    prompts, completions = rows(groups)
    critic = Critic(small_base)
    torch.nn.init.normal_(critic.head.weight)
    whole, _ = critic(prompts[:1], completions[:1])
    last = (*completions[0][:-1], 5)
    other, _ = critic(prompts[:1], [last])
    assert torch.allclose(whole, other, atol=1e-5)
    first = (9, *completions[0][1:])
    other, _ = critic(prompts[:1], [first])
    assert torch.isclose(whole[0, 0], other[0, 0], atol=1e-5) and not torch.allclose(whole[0, 1:], other[0, 1:])


def test_without_values_the_advantages_are_the_whitened_rewards(groups):
    lengths = [len(r.completion.tokens) for g in groups for r in g.rollouts]
    mask = np.arange(max(lengths)) < np.array(lengths)[:, None]
    advantages, returns = token_advantages(groups, np.zeros(mask.shape), mask, discount=1.0, trace=1.0)
    rewards = np.concatenate([group.rewards for group in groups])
    assert np.array_equal(returns[mask], np.repeat(rewards, lengths))
    spread = np.repeat(rewards, lengths)
    expected = (spread - spread.mean()) / np.sqrt(spread.var(ddof=1) + 1e-8)
    assert np.allclose(advantages[mask], expected, atol=1e-6)


def test_value_loss_is_half_the_squared_error_near_the_old_values():
    values, returns = torch.tensor([[0.1, 0.4, 9.0]]), torch.tensor([[1.0, 0.0, 0.0]])
    mask = torch.tensor([[True, True, False]])
    assert value_loss(values, values, returns, mask, 0.5).item() == pytest.approx(0.5 * (0.81 + 0.16) / 2)
    old = values - 2.0  # the clipped value is old + 0.5: the worse of both counts
    assert value_loss(values, old, returns, mask, 0.5).item() == pytest.approx(0.5 * (2.4**2 + 1.1**2) / 2)
