"""Under a uniform allocator a run equals one of the stock cookbook."""

import pytest
import torch
from tinker_cookbook.rl.rollout_limits import TerminationRewardPolicy

from apportion import Uniform
from apportion.tinker import allocated


def plain(datum):
    own = {name: value.tolist() for name, value in datum.loss_fn_inputs.items()}
    return datum.model_input.to_ints(), own, datum.loss_fn_input_spans


def without_time(log):
    return [{name: value for name, value in row.items() if not name.startswith("time/")} for row in log]


@pytest.mark.parametrize(
    ("problems", "settings"),
    [
        ({"graded": True, "envs": 3}, {"remove_constant_reward_groups": True, "num_substeps": 2}),
        ({"test": 2}, {"eval_every": 1, "max_steps": 2, "termination": TerminationRewardPolicy()}),
        ({"count": 8}, {"save_every": 2, "rolling_save_every": 1, "num_epochs": 2}),
    ],
    ids=["graded", "evaluation", "checkpoints"],
)
def test_uniform_equals_stock(configured, run, service, tmp_path, problems, settings):
    stock = run(configured(problems, log_path=str(tmp_path / "stock"), **settings))
    trained, weights, sampled = service.trained[:], service.weights(), service.sampled[:]
    service.trained.clear(), service.sampled.clear()
    log = run(allocated(configured(problems, **settings), Uniform(problems.get("envs", 4))))
    assert [[plain(datum) for datum in step] for step in trained] == [
        [plain(datum) for datum in step] for step in service.trained
    ]
    assert torch.equal(weights, service.weights())
    assert sampled == service.sampled
    for before, after in zip(without_time(stock), without_time(log), strict=True):
        assert before == {name: after[name] for name in before}
        assert all("/allocation/" in name for name in after.keys() - before.keys())
