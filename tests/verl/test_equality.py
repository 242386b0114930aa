"""Under ``uniform`` a run is stock verl's: the same rollouts, groups, advantages, gradients and weights."""

import numpy as np
import pytest
import torch

from tests.verl.runs import STOCK, allocated, trained

UNIFORM = "{name: uniform, rollouts_per_prompt: 4}"
SAMPLED = ("index", "responses", "response_mask", "rm_scores", "old_log_probs")


def pair(train, ours, theirs, **settings):
    """Return a run of ours with the estimator ``ours``, and one of stock verl with ``theirs``."""
    runs = (
        train(allocated(UNIFORM, *STOCK[1:], estimator=ours), **settings),
        train((f"algorithm.adv_estimator={theirs}", *STOCK[1:]), **settings),
    )
    for done in runs:
        assert done.status == 0, done.output[-5000:]
    return runs


def content(rows, *fields):
    return sorted(tuple(row[field] for field in (*SAMPLED, *fields)) for row in trained(rows))


def advantages(rows):
    return np.concatenate([each[-1] for each in content(rows, "advantages")])


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_all_is_equal_to_the_last_bit_under_verls_estimator(train, ranks):
    ours, theirs = pair(train, "rloo", "rloo", ranks=ranks)
    for step in (1, 2):
        assert content(ours.rows(step), "advantages") == content(theirs.rows(step), "advantages")
        assert len({row["uid"] for row in ours.rows(step)}) == 4
        weights = [torch.load(done.weights(step)) for done in (ours, theirs)]
        assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[1])


@pytest.mark.parametrize(("name", "epsilon"), [("rloo", 2e-7), pytest.param("grpo", 2e-4, marks=pytest.mark.soak)])
def test_our_estimators_give_verls_advantages(train, name, epsilon):
    """verl computes in single precision; and in a deviation the two have different epsilons."""
    ours, theirs = pair(train, f"apportion_{name}", name)
    assert content(ours.rows(1)) == content(theirs.rows(1))
    assert np.abs(advantages(ours.rows(1)) - advantages(theirs.rows(1))).max() < epsilon
    assert len({row["uid"] for row in ours.rows(1)}) == 16


def test_validation_is_untouched(train):
    ours, theirs = pair(train, "rloo", "rloo")
    validated = [
        [
            (each["step"], {name: value for name, value in each.items() if name.startswith("val-")})
            for each in done.metrics
        ]
        for done in (ours, theirs)
    ]
    assert validated[0] == validated[1] and all(found for _, found in validated[0])
    assert not any(name.startswith("allocation/") for name in ours.metrics[0])


def test_every_metric_of_verl_is_still_there(train):
    ours, theirs = pair(train, "rloo", "rloo")
    for mine, stock in zip(ours.metrics[1:], theirs.metrics[1:], strict=True):
        added = {name for name in mine if name not in stock}
        assert set(stock) <= set(mine)
        assert added and all(name.startswith("allocation/") for name in added)
