"""Under ``uniform`` a run is stock verl's: the same rollouts, groups, advantages, gradients and weights."""

import pytest
import torch

from tests.verl.runs import STOCK, trained


def content(rows, *fields):
    sampled = ("index", "responses", "response_mask", "rm_scores", "old_log_probs")
    return sorted(tuple(row[field] for field in (*sampled, *fields)) for row in trained(rows))


def validated(metrics):
    return {name: value for name, value in metrics.items() if name.startswith("val-")}


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_all_is_equal_to_the_last_bit_under_verls_estimator(train, ranks):
    """Rows, weights and validations of our command. All metrics of verl are logged, and ours beside them."""
    settings = ("allocation=uniform", "algorithm.adv_estimator=rloo", *STOCK[1:])
    ours, theirs = train(settings, main="apportion.verl", ranks=ranks), train(STOCK, ranks=ranks)
    for step in (1, 2):
        assert content(ours.rows(step), "advantages") == content(theirs.rows(step), "advantages")
        assert len({row["uid"] for row in ours.rows(step)}) == 4
        weights = [torch.load(done.weights(step)) for done in (ours, theirs)]
        assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[1])
    assert len(ours.metrics) == len(theirs.metrics) == 3
    for mine, stock in zip(ours.metrics, theirs.metrics, strict=True):
        assert validated(mine) == validated(stock) != {}
        added = mine.keys() - stock.keys()
        assert stock.keys() <= mine.keys() and all(name.startswith("allocation/") for name in added)
        assert bool(added) == bool(mine["step"])  # none in the validation before training
