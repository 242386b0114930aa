"""A selection chooses the prompts of each batch in the cookbook's loop."""

import pytest

from apportion import Uniform
from apportion.selection import Mixed, SPOWeights
from apportion.tinker import allocated
from tests.rules import small
from tests.tinker.runs import sampled, trained


def test_a_selection_chooses_the_prompts_of_a_batch_and_those_that_are_drawn_in_it(configured, run, service):
    selection = Mixed()
    log = run(allocated(configured({"count": 24, "size": 2}, max_steps=2), small("dapo", 4), selection=selection))
    assert selection.steps > 2 and log[0]["env/all/selection/never_chosen"] < 1
    assert all(set(trained(service, step)) <= set(sampled(service, step)) for step in range(2))


def test_importance_weights_of_the_selection(configured, run, service):
    selection = SPOWeights(importance_weights=True)
    weights = []
    inner = selection.weights

    def seen(prompts):
        weights.append(inner(prompts))
        return weights[-1]

    selection.weights = seen
    run(allocated(configured({"count": 12}, max_steps=2), Uniform(4), selection=selection))
    for step, own in enumerate(weights):
        rewards = sampled(service, step)
        for (question, group), weight in zip(trained(service, step).items(), own, strict=True):
            mean = sum(rewards[question]) / 4
            for row, reward in zip(group, rewards[question], strict=True):
                assert row.advantage == pytest.approx(weight * (reward - mean), abs=1e-6)


def test_a_batch_larger_than_the_data_set_is_refused(configured, run, service):
    with pytest.raises(ValueError, match="distinct prompts"):
        run(allocated(configured({"count": 4}), small("dapo", 4, target=5), selection=Mixed()))
