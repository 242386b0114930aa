"""A run that was killed continues as if it had not been: the allocator's state lies beside the checkpoints."""

import pytest
import torch

from apportion import AR3PO, HORA, VIP, Uniform
from apportion.baselines import SPO
from apportion.engines.saved_state import SavedStateError
from apportion.selection import Mixed
from apportion.tinker import allocated
from tests.tinker.test_parity import plain

RULES = {
    "vip": lambda: (VIP(rollouts_per_prompt=6), {}),
    "selection": lambda: (Uniform(2), {"estimator": "reinforce", "baseline": SPO(), "selection": Mixed()}),
    "responses": lambda: (AR3PO(stages=1, rollouts_per_stage=3), {}),
}


def steps(service):
    return [[plain(datum) for datum in datums] for datums in service.trained]


def files(folder):
    return sorted(int(path.stem) for path in (folder / "apportion").glob("*.state"))


@pytest.mark.parametrize(
    ("rule", "saving"),
    [("vip", {"save_every": 2}), ("selection", {"rolling_save_every": 1}), ("responses", {"save_every": 2})],
)
def test_a_killed_run_continues_the_same(configured, run, service, tmp_path, rule, saving):
    def config(name):
        allocator, settings = RULES[rule]()
        made = configured({"count": 8}, num_epochs=2, log_path=str(tmp_path / name), **saving)
        return allocated(made, allocator, **settings)

    run(config("whole"))
    whole, weights = steps(service), service.weights()
    service.trained.clear()
    service.failing = 3
    with pytest.raises(ConnectionError):
        run(config("killed"))
    killed = steps(service)
    assert killed == whole[:4]
    service.failing = None
    service.trained.clear()
    log = run(config("killed"))
    assert steps(service) == whole[2 if "save_every" in saving else 3 :]
    assert torch.equal(service.weights(), weights)
    assert [row["step"] for row in log[:4]] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("settings", "left"), [({"save_every": 4, "rolling_save_every": 1, "num_epochs": 2}, [4, 5, 6]), ({}, [3])]
)
def test_a_state_is_where_a_checkpoint_is(configured, run, tmp_path, settings, left):
    run(allocated(configured(**settings), Uniform(2)))
    assert files(tmp_path / "run") == left


def test_the_state_of_another_allocation_is_refused(configured, run):
    run(allocated(configured(max_steps=1), Uniform(2), estimator="rloo"))
    for allocator, own, problem in (
        (HORA(), {}, "allocator must be 'uniform', as in the run that wrote the checkpoint, got 'hora'"),
        (Uniform(2), {}, "estimator must be 'rloo', as in"),
        (Uniform(2), {"estimator": "rloo", "weighting": "rollout"}, "weighting must be 'prompt'"),
    ):
        with pytest.raises(SavedStateError, match=problem):
            run(allocated(configured(), allocator, **own))


def test_a_run_that_was_begun_without_an_allocator_is_refused(configured, run, tmp_path):
    run(configured(max_steps=1))
    with pytest.raises(
        SavedStateError, match=r"000001.state: a checkpoint must hold the state of its run, got no such file"
    ):
        run(allocated(configured(), Uniform(2)))
