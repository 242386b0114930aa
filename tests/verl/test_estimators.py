"""Our estimators as verl calls them: against the library's core, and by the gradient of its loss.

``tests/advantages/test_parity`` compares the core with verl's own.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from verl.protocol import DataProto
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

from apportion import Group, Prompt, Rollout
from apportion.advantages import ESTIMATORS, advantages_of, needs
from apportion.verl.coordinator.settings import PREFIX
from apportion.verl.estimators import LOSSES, NAMES, GroupEstimator, register

WIDTH = 12
BASELINE = np.linspace(0.1, 0.7, 12)
"""Baselines of groups, from history."""
WEIGHTS = np.array([1.0, 0.5, 2.0, 1.5, 3.0, 0.25, 0.75, 1.25])
"""Weights of prompts, which undo a selection: they multiply the advantages."""


@dataclass(frozen=True)
class Sampled:
    """A rollout: its reward, the lengths of its rows (none where it is outside the loss), its round and its tokens."""

    reward: float
    lengths: tuple = (4,)
    round: int = 0
    outside: int = 5

    @property
    def tokens(self):
        return sum(self.lengths) or self.outside

    @property
    def score_norm(self):
        return self.tokens / (1 + self.reward)


@dataclass(frozen=True)
class Rows:
    """A training batch as verl hands it over: rows of ``groups``, by key, then padding rows."""

    groups: tuple
    padding: int = 0

    @property
    def places(self):
        """(group, rollout, output) of all real rows."""
        return [
            (q, i, o)
            for q, group in enumerate(self.groups)
            for i, rollout in enumerate(group)
            for o in range(len(rollout.lengths))
        ]

    @property
    def index(self):
        keys = [f"b{q}-f_{i}_{o}" for q, i, o in self.places]
        return np.array(keys + ["pad0c4e"] * self.padding, dtype=object)

    @property
    def mask(self):
        lengths = torch.tensor([self.groups[q][i].lengths[o] for q, i, o in self.places] + [0] * self.padding)
        return (torch.arange(WIDTH) < lengths[:, None]).long()

    @property
    def rewards(self):
        """verl writes a rollout's reward into all of its rows, at the last token."""
        found = torch.zeros(self.mask.shape, dtype=torch.float64)
        for row, (q, i, o) in enumerate(self.places):
            found[row, self.groups[q][i].lengths[o] - 1] = self.groups[q][i].reward
        return found

    def columns(self, keys):
        found = []
        for key in keys:
            uid, place, _ = key.split("_")
            group = self.groups[int(uid[1:-2])]
            found.append(
                {
                    "group": uid,
                    "position": int(place),
                    "rewards": [rollout.reward for rollout in group],
                    "tokens": [rollout.tokens for rollout in group],
                    "rounds": [rollout.round for rollout in group],
                    "score_norms": [rollout.score_norm for rollout in group],
                    "baseline": [BASELINE[int(uid[1:-2])]] * len(group),
                    "weight": WEIGHTS[int(uid[1:-2])],
                }
            )
        return found

    def estimated(self, name, weighting="rollout", loss="token-mean", **given):
        return GroupEstimator(name.removeprefix(PREFIX), weighting, loss, columns=self.columns, **given)

    def in_the_core(self, name):
        """[N], by the library itself."""
        groups = [
            Group(
                Prompt(f"prompt {q}"),
                tuple(Rollout(reward=r.reward, tokens=r.tokens, round=r.round, score_norm=r.score_norm) for r in group),
                keep=np.array([bool(r.lengths) for r in group]),
            )
            for q, group in enumerate(self.groups)
        ]
        own = name.removeprefix(PREFIX)
        baseline = BASELINE[: len(groups)] if "baseline" in needs(own) else None
        flat = advantages_of(groups, own, baseline=baseline)
        starts = np.cumsum([0, *map(len, self.groups)])
        return np.array([WEIGHTS[q] * flat[starts[q] + i] for q, i, _ in self.places] + [0.0] * self.padding)


RAGGED = Rows(
    (
        (Sampled(1.0, (3,)), Sampled(0.0, (7,)), Sampled(0.0, (2,), round=1), Sampled(1.0, (), round=1)),
        (Sampled(2.0, (5,)), Sampled(0.5, ()), Sampled(0.0, (9,), round=2)),
        (Sampled(1.0, (4,)), Sampled(1.0, (6,))),
        (Sampled(1.0, (11,)),),
        (Sampled(0.0, (1,)), *(Sampled(float(i == 4), ()) for i in range(7))),
    ),
)
"""Groups of 1 to 8, of 1 to 3 rollouts in the loss."""

CUT = Rows(
    (
        (Sampled(1.0, (3, 2, 4)), Sampled(0.0, (7,)), Sampled(0.0, (2, 2))),
        (Sampled(1.0, (5,)), Sampled(0.0, ()), Sampled(0.0, (1, 8))),
    ),
)
"""Rollouts of several outputs."""

MIXED = replace(CUT, groups=CUT.groups + RAGGED.groups, padding=2)


@pytest.mark.parametrize("name", NAMES)
def test_verl_itself_finds_and_calls_them(monkeypatch, name):
    """By the path of its trainer, which splits keys, and chooses what it hands to estimators of others.

    Outputs of a session share its advantage, and count once in the group. verl sorts rows by length before it asks, and
    puts padding anywhere.
    """
    monkeypatch.setitem(core_algos.ADV_ESTIMATOR_REGISTRY, name, MIXED.estimated(name))
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(MIXED.index))
        tensors = {"token_level_rewards": MIXED.rewards[order], "response_mask": MIXED.mask[order]}
        index = MIXED.index[order]
        data = DataProto(batch=TensorDict(tensors, batch_size=len(index)), non_tensor_batch={"uid": index})
        found = compute_advantage_for_multi_trajectories(
            data, batch_keys=list(index), adv_estimator=name, config=AlgoConfig()
        )
        expected = MIXED.in_the_core(name)[:, None] * MIXED.mask.numpy()
        np.testing.assert_allclose(found.batch["advantages"], expected[order], atol=1e-12)


def test_with_kl_in_the_reward_alone_what_verl_takes_off_counts_in_the_group():
    """Of a rollout of two outputs, that of both; a rollout outside the loss has its reward as it was scored."""
    rows = Rows(((Sampled(1.0, (3, 2)), Sampled(0.0, (4,)), Sampled(3.0, ())),))
    kl = torch.tensor([0.1, 0.2, 0.5])
    rewards = rows.rewards - (kl / rows.mask.sum(1))[:, None] * rows.mask
    found, _ = rows.estimated("rloo", kl_in_reward=True)(rewards, rows.mask, rows.index)
    first, second = 1.0 - 0.1 - 0.2, 0.0 - 0.5
    expected = [first - (second + 3) / 2] * 2 + [second - (first + 3) / 2]
    np.testing.assert_allclose(found[:, 0], expected, atol=1e-6)
    # without it what is taken off does not, so that rewards which the allocator gave are those of the group
    found, _ = rows.estimated("rloo")(rewards - 5.0, rows.mask, rows.index)
    np.testing.assert_allclose(found[:, 0], [-0.5, -0.5, -2.0])


def test_advantages_have_the_type_of_the_rewards_and_no_row_is_looked_up_where_there_are_none():
    for dtype in (torch.float32, torch.bfloat16):
        found, _ = RAGGED.estimated("rloo")(RAGGED.rewards.to(dtype), RAGGED.mask, RAGGED.index)
        assert found.dtype == dtype
        expected = RAGGED.in_the_core("rloo")[:, None] * RAGGED.mask.numpy()
        np.testing.assert_allclose(found.double(), expected, rtol=0.01, atol=0.01)
    for padding in (0, 2):
        estimated = replace(RAGGED.estimated("rloo"), columns=None)
        found, _ = estimated(torch.zeros(padding, WIDTH), torch.zeros(padding, WIDTH), Rows((), padding).index)
        assert found.shape == (padding, WIDTH) and not found.any()


def gradient(rows, weighting, loss, size=None, order=None, mask=None):
    """The mean over mini-batches of ``size`` rows of what verl's loss makes of -advantage x log-probability [N, T]."""
    mask = rows.mask if mask is None else mask
    advantages, _ = rows.estimated("rloo", weighting, loss)(rows.rewards, mask, rows.index)
    terms = torch.zeros(mask.shape, dtype=torch.float64, requires_grad=True)
    order = torch.arange(len(mask)) if order is None else torch.as_tensor(order)
    parts = order.split(size or len(mask))
    for part in parts:
        tokens = int(mask[part].sum())
        loss_of = core_algos.agg_loss(
            -advantages[part] * terms[part],
            mask[part],
            loss,
            batch_num_tokens=tokens or 1,
            global_batch_size=len(part),
            loss_scale_factor=WIDTH,
        )
        (loss_of / len(parts)).backward()
    return terms.grad


def defined(rows, weighting, loss):
    """The same by definition: the mean over prompts, rollouts or tokens of -advantage x the rollout's sum or mean."""
    trained = [[(i, r) for i, r in enumerate(group) if r.lengths] for group in rows.groups]
    rollouts, tokens = sum(map(len, trained)), sum(r.tokens for group in trained for _, r in group)
    found = torch.zeros(rows.mask.shape, dtype=torch.float64)
    for row, (q, i, _) in enumerate(rows.places):
        group, own = rows.groups[q], rows.groups[q][i]
        others = [r.reward for j, r in enumerate(group) if j != i]
        advantage = own.reward - sum(others) / len(others) if others else 0.0
        share = 1 / len(rows.groups) / len(trained[q]) if weighting == "prompt" else 1 / rollouts
        if weighting == "token" and loss == "seq-mean-token-mean":
            share = own.tokens / tokens
        term = {
            "token-mean": rollouts / tokens,
            "token-sum": rollouts,
            "seq-mean-token-sum": 1,
            "seq-mean-token-sum-norm": 1 / WIDTH,
            "seq-mean-token-mean": 1 / own.tokens,
        }[loss]
        found[row] = -advantage * WEIGHTS[q] * share * term * rows.mask[row]
    return found


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("weighting", ["prompt", "rollout", "token"])
def test_the_gradient_is_the_mean_that_the_weighting_names(weighting, loss):
    """By a loss that divides by rows also in mini-batches of any of them."""
    expected = defined(MIXED, weighting, loss)
    orders = [np.random.default_rng(seed).permutation(len(MIXED.index)) for seed in range(5 if LOSSES[loss][1] else 0)]
    for size, order in ((None, None), *((5, order) for order in orders)):
        found = gradient(MIXED, weighting, loss, size=size, order=order)
        torch.testing.assert_close(found, expected)
    assert expected.any()


@pytest.mark.parametrize("weighting", ["prompt", "rollout", "token"])
def test_tokens_that_verl_took_out_of_the_loss_do_not_count(weighting):
    """Its rejection sampling masks tokens before it asks for advantages, all of a row's at times."""
    left = Rows(((Sampled(1.0, (2,)), Sampled(0.0, (7,))), (Sampled(1.0, (5,)), Sampled(0.0, (9,)))))
    full = Rows(((Sampled(1.0, (6,)), Sampled(0.0, (7,))), (Sampled(1.0, (5,)), Sampled(0.0, (9,)))))
    found = gradient(full, weighting, "seq-mean-token-mean", mask=left.mask)
    torch.testing.assert_close(found, gradient(left, weighting, "seq-mean-token-mean"))
    none = torch.zeros_like(full.mask)
    assert not gradient(full, weighting, "seq-mean-token-mean", mask=none).any()


@pytest.fixture
def registry(monkeypatch):
    """verl's, without ours."""
    registry = {name: fn for name, fn in core_algos.ADV_ESTIMATOR_REGISTRY.items() if not name.startswith(PREFIX)}
    monkeypatch.setattr(core_algos, "ADV_ESTIMATOR_REGISTRY", registry)
    return registry


def test_all_are_registered_and_again_for_another_trainer_of_the_process(registry):
    before = set(registry)
    register("prompt", "token-mean")
    register("prompt", "token-mean")
    assert set(registry) - before == set(NAMES) == {PREFIX + name for name in ESTIMATORS}
    assert {name: core_algos.get_adv_estimator_fn(name).name for name in NAMES} == {
        name: name.removeprefix(PREFIX) for name in NAMES
    }
    assert registry["apportion_rloo"] == GroupEstimator("rloo", "prompt", "token-mean")
