"""Allocators in the cookbook's own asynchronous loop."""

from collections import Counter

import numpy as np
import pytest
import torch
from tinker_cookbook.rl.train import AsyncConfig

from apportion import HORA, VIP, Uniform
from apportion.engines.saved_state import load_state
from apportion.selection import Mixed
from apportion.tinker import allocated
from apportion.tinker.checkpoints import KIND
from apportion.tinker.rewards import EarlierEpisode
from tests.tinker.runs import BELOW, rows, trained
from tests.tinker.test_checkpoints import files
from tests.tinker.test_parity import plain


def asynchronous(ahead=1, groups=4):
    return AsyncConfig(max_steps_off_policy=ahead, groups_per_batch=groups, loss_fn="importance_sampling")


def test_uniform_trains_as_the_stock_loop_does(configured, run, service, tmp_path):
    runs = []
    for name in ("stock", "ours"):
        service.trained.clear()
        config = configured(async_config=asynchronous(0), log_path=str(tmp_path / name))
        run(config if name == "stock" else allocated(config, Uniform(4)))
        runs.append([sorted(map(str, map(plain, datums))) for datums in service.trained])
    assert runs[0] == runs[1] and len(runs[0]) == 3


@pytest.mark.parametrize(
    ("make", "ahead"),
    [
        (lambda: VIP(rollouts_per_prompt=4, high=12), 0),
        (lambda: HORA(pre_rollouts=2, rollouts_per_prompt=6, high=12), 2),
    ],
    ids=["vip", "hora"],
)
def test_each_group_is_planned_alone_and_its_weight_is_that_of_a_prompt(configured, run, service, make, ahead):
    rule = make()
    log = run(allocated(configured({"count": 16}, num_epochs=2, async_config=asynchronous(ahead)), rule))
    assert len(service.trained) == 8 and all("env/all/allocation/rollouts" in row for row in log[:7])
    sizes = Counter()
    for step in range(8):
        for group in trained(service, step).values():
            n, rewards = len(group), np.array([float(row.ids[0] < BELOW[row.question]) for row in group])
            sizes[n] += 1
            factor = rule.rollouts_per_prompt / n * (n / (n - 1) if rule.needs.estimator == "rloo" else 1)
            expected = factor * (rewards - rewards.mean())
            np.testing.assert_allclose([row.advantage for row in group], expected, rtol=1e-5, atol=1e-6)
    spent = sum(n * count for n, count in sizes.items())
    assert len(sizes) > 1 and abs(spent / 32 - rule.rollouts_per_prompt) < 1


def test_a_killed_run_goes_on_from_its_checkpoint_with_what_it_had_learnt(configured, run, service, tmp_path):
    def config():
        made = configured({"count": 12}, num_epochs=2, async_config=asynchronous(), save_every=2)
        return allocated(made, VIP(rollouts_per_prompt=4), selection=Mixed())

    service.failing = 4
    with pytest.raises(ConnectionError):
        run(config())
    assert files(tmp_path / "run")[:2] == [2, 4]
    service.failing, before = None, len(service.trained)
    run(config())
    assert len(service.trained) == before + 2
    assert torch.isfinite(service.weights()).all()
    assert all(len(rows(datums)) > 0 for datums in service.trained)
    state = load_state(tmp_path / "run/apportion/000006.state", KIND, remedy="", records=(EarlierEpisode,))
    assert state["price"]["reads"] == 6, "the price is read anew after each update"
    assert state["selection"]["steps"] == 24 and len(state["allocator"]["sums"]) == 12, "4 groups of each of 6 batches"
