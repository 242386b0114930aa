"""The same numbers as verl's and TRL's own estimators; runs where those are installed."""

import inspect
import warnings

import numpy as np
import pytest

from apportion.advantages import (
    dr_grpo,
    gae,
    grpo,
    opo,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    rloo,
    rollout_weights,
    whiten,
)

pytestmark = pytest.mark.slow

PROMPTS, GROUP, WIDTH = 5, 4, 9


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


@pytest.fixture(scope="module")
def verl():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("verl.trainer.ppo.core_algos")


@pytest.fixture(scope="module")
def trl():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("trl")


@pytest.fixture(params=["binary", "graded"])
def batch(request, torch):
    """Rewards, groups, lengths, and the same as verl has them: at the last token of each row, with a mask."""
    rng = np.random.default_rng(7)
    size = PROMPTS * GROUP
    rewards = rng.integers(2, size=size) * 1.0 if request.param == "binary" else rng.normal(size=size)
    rewards[:GROUP] = 1.0
    tokens = rng.integers(1, WIDTH + 1, size=size)
    mask = np.arange(WIDTH) < tokens[:, None]
    at_end = np.zeros(mask.shape)
    at_end[np.arange(size), tokens - 1] = rewards
    ids = np.repeat([f"uid {q}" for q in range(PROMPTS)], GROUP)
    return rewards, ids, tokens, torch.tensor(at_end), torch.tensor(mask, dtype=torch.float64)


def agree(ours, theirs, mask, tolerance=1e-6):
    np.testing.assert_allclose(
        np.broadcast_to(ours[:, None], mask.shape) * mask.numpy(), theirs.numpy(), atol=tolerance
    )


def test_estimators_are_as_in_verl(verl, batch):
    rewards, ids, tokens, at_end, mask = batch
    told = at_end, mask, ids
    agree(grpo(rewards, ids, epsilon=1e-6), verl.compute_grpo_outcome_advantage(*told)[0], mask)
    theirs, _ = verl.compute_grpo_outcome_advantage(*told, norm_adv_by_std_in_grpo=False)
    agree(dr_grpo(rewards, ids), theirs, mask)
    agree(rloo(rewards, ids), verl.compute_rloo_outcome_advantage(*told)[0], mask)
    agree(opo(rewards, ids, tokens=tokens), verl.compute_opo_outcome_advantage(*told)[0], mask)


def test_reinforce_plus_plus_as_in_verl(verl, batch):
    from verl.trainer.config import AlgoConfig  # noqa: PLC0415 - installed in some environments only

    rewards, ids, tokens, at_end, mask = batch
    config = AlgoConfig(gamma=1.0)
    theirs, _ = verl.compute_reinforce_plus_plus_outcome_advantage(at_end, mask, config=config)
    agree(reinforce_plus_plus(rewards, ids, tokens=tokens), theirs, mask)


def test_reinforce_plus_plus_baseline_is_verls_less_one_number_which_is_0_for_equal_lengths(verl, batch, torch):
    rewards, ids, tokens, at_end, mask = batch
    for own, lengths in ((mask, tokens), (torch.ones_like(mask), np.full_like(tokens, WIDTH))):
        theirs, _ = verl.compute_reinforce_plus_plus_baseline_outcome_advantage(at_end, own, ids)
        difference = reinforce_plus_plus_baseline(rewards, ids, tokens=lengths) - theirs[:, 0].numpy()
        assert (abs(difference[0]) > 1e-3) == (own is mask)
        np.testing.assert_allclose(difference, difference[0] if own is mask else 0.0, atol=1e-6)


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.99, 0.95)])
def test_gae_whitened_as_in_verl_around_the_tokens_of_others(verl, batch, torch, gamma, lam):
    _, _, _, _, mask = batch
    rng = np.random.default_rng(8)
    rewards, values = rng.normal(size=mask.shape), rng.normal(size=mask.shape)
    own = mask.numpy().astype(bool) & (rng.random(mask.shape) < 0.7)
    advantages, returns = gae(rewards, values, own, gamma, lam)
    theirs = verl.compute_gae_advantage_return(
        torch.tensor(rewards), torch.tensor(values), torch.tensor(own, dtype=torch.float64), gamma, lam
    )
    np.testing.assert_allclose(whiten(advantages, own)[own], theirs[0].numpy()[own], atol=1e-6)
    np.testing.assert_allclose(returns[own], theirs[1].numpy()[own], atol=1e-6)


@pytest.mark.parametrize(
    ("mode", "reduction"), [("seq-mean-token-mean", "mean"), ("token-mean", "sum"), ("seq-mean-token-sum-norm", "sum")]
)
def test_token_weights_under_verls_losses_let_every_token_count_the_same(verl, batch, torch, mode, reduction):
    _, ids, tokens, _, mask = batch
    weights = torch.tensor(rollout_weights(ids, "token", tokens, reduction=reduction))
    terms = mask.clone().requires_grad_()
    verl.agg_loss(terms * weights[:, None], mask, mode).backward()
    shares = terms.grad[mask.bool()]
    assert shares.max().item() == pytest.approx(shares.min().item(), rel=1e-6)
    assert shares.max() > 0


def test_grpo_and_rloo_as_in_trl(trl, torch):
    """TRL computes them inside one long method; the lines are repeated here, and looked for in its source."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from trl.trainer.utils import nanstd  # noqa: PLC0415 - installed in some environments only

        scoring = {
            each: inspect.getsource(each._generate_and_score_completions) for each in (trl.GRPOTrainer, trl.RLOOTrainer)
        }
    rng = np.random.default_rng(9)
    rewards = torch.tensor(rng.normal(size=PROMPTS * GROUP))
    ids, rows = np.repeat(np.arange(PROMPTS), GROUP), rewards.view(-1, GROUP)

    deviation = nanstd(rows, dim=1).repeat_interleave(GROUP)
    theirs = (rewards - rows.nanmean(dim=1).repeat_interleave(GROUP)) / (deviation + 1e-4)
    assert "advantages = advantages / (std_rewards + 1e-4)" in scoring[trl.GRPOTrainer]
    np.testing.assert_allclose(grpo(rewards.numpy(), ids), theirs.numpy(), atol=1e-6)

    others = ((rows.nansum(dim=1, keepdim=True) - rows) / (GROUP - 1)).view(-1)
    assert "baselines = (grouped_sum - grouped_rewards) / (scorable_counts - 1)" in scoring[trl.RLOOTrainer]
    np.testing.assert_allclose(rloo(rewards.numpy(), ids), (rewards - others).numpy(), atol=1e-6)
