"""A coordinator that chooses the trainer's prompts: requests, checkpoints and weights."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest

from apportion import DAPO, VIP, Prompt, Uniform
from apportion.predictors import DiscountedCounts
from apportion.selection import Mixed, ShuffledEpochs, SPOWeights
from apportion.verl.coordinator.selection import PromptSelection
from tests.verl.coordinator.worker_pool import (
    Table,
    WorkerPool,
    allocation,
    make_coordinator,
    open_rounds,
    request_of,
    texts,
    watched,
    work,
)

ROWS, BATCH = 12, 4
PROMPTS = [Prompt(text) for text in texts(*range(ROWS))]


def selection_of(selector, prompts=PROMPTS, batch_size=BATCH, predictor=None):
    return PromptSelection(
        selector, prompts, lambda row: replace(prompts[row], data={"text": prompts[row].text}), batch_size, 3, predictor
    )


def choosing(selector, allocator=None, **settings):
    """Return a coordinator with 4 rollouts a prompt that chooses 4 of 12 prompts."""
    allocator = Uniform(rollouts_per_prompt=4) if allocator is None else allocator
    selection = selection_of(selector, predictor=getattr(allocator, "predictor", None))
    return make_coordinator(allocation(allocator, **settings), WorkerPool(), selection)


def train_step(coordinator, step):
    """Choose a batch and run its round. Return the rows."""
    rows = coordinator.choose(ROWS)
    coordinator.pool.table = Table(seed=step)
    open_rounds(coordinator, request_of(texts(*rows), step))
    work(coordinator, np.random.default_rng(step))
    return rows


def test_rows_weights_and_coverage_are_those_of_a_selector_that_learns_from_the_same_batches():
    """Without importance weights all groups weigh the same."""
    for make, weighted in ((SPOWeights, True), (Mixed, False)):
        given = {"importance_weights": True} if weighted else {}
        rule, alone, found = watched(Uniform(rollouts_per_prompt=4)), make(predictor=DiscountedCounts(), **given), []
        coordinator = choosing(make(predictor=DiscountedCounts(), **given), allocator=rule)
        alone.prepare(PROMPTS, seed=3)
        for step in range(1, 7):
            coordinator.pool.committed.clear()
            rows = train_step(coordinator, step)
            assert rows == alone.choose(BATCH)
            expected = alone.weights([PROMPTS[row] for row in rows]) if weighted else np.ones(BATCH)
            groups = {commit.uid: commit.groups[0].columns["weight"] for commit in coordinator.pool.committed}
            assert groups == {f"h{step}-{i}": weight for i, weight in enumerate(expected)}
            alone.observe(rule.learned[-1])
            metrics = coordinator.metrics()
            assert metrics["rollouts"] == 16
            assert metrics.items() >= {f"selection/{name}": value for name, value in alone.metrics().items()}.items()
            found.append((sorted(rows), *groups.values()))
        assert found[0] != found[-1]


def test_a_trainer_with_other_data_or_too_few_prompts_or_no_selection_is_refused():
    coordinator = choosing(ShuffledEpochs())
    with pytest.raises(ValueError, match=r"prompts must be in the data set.*got 'prompt 99'"):
        coordinator.open(request_of(texts(0, 99)))
    with pytest.raises(RuntimeError, match="of 12 rows, got 11 rows; set"):
        coordinator.choose(ROWS - 1)
    with pytest.raises(ValueError, match="rows are only chosen with a selection"):
        make_coordinator(allocation(Uniform()), WorkerPool()).choose(ROWS)
    with pytest.raises(ValueError, match=r"a batch needs 4 distinct prompts, the data set holds 2; lower"):
        selection_of(ShuffledEpochs(), [PROMPTS[0], PROMPTS[1], PROMPTS[0], PROMPTS[1]]).choose(4)


@pytest.mark.parametrize("shared", [False, True], ids=["own predictor", "allocators predictor"])
def test_a_resumed_run_chooses_what_the_unbroken_one_does(shared):
    def made():
        return choosing(Mixed(), VIP(rollouts_per_prompt=4, high=8) if shared else None)

    whole, resumed = made(), made()
    for step in (1, 2, 3):
        train_step(whole, step)
        whole.metrics()
    state = whole.state()
    taken = copy.deepcopy(state)
    resumed.load(pickle.loads(pickle.dumps(state)))
    for step in (4, 5, 6):
        assert train_step(resumed, step) == train_step(whole, step)
        assert resumed.metrics() == whole.metrics()
    np.testing.assert_equal(resumed.state(), whole.state())
    np.testing.assert_equal(state, taken)  # it does not change while choosing goes on


def test_a_selector_that_fails_ends_the_run():
    class Failing(ShuffledEpochs):
        def _choose(self, allowed, count, generator):
            raise RuntimeError("no belief")

    coordinator = choosing(Failing())
    for _ in range(2):
        with pytest.raises(RuntimeError, match="the choice of prompts failed after step 0: no belief"):
            coordinator.choose(ROWS)


def test_extra_prompts_are_chosen_by_the_selector_too():
    coordinator = choosing(ShuffledEpochs(), allocator=DAPO(rollouts_per_prompt=2, draw=2, max_draws=4))
    rows = coordinator.choose(ROWS)
    coordinator.pool.table = Table(success=(0.0, 1.0))  # no group differs, so it draws until it may not
    open_rounds(coordinator, request_of(texts(*rows)))
    work(coordinator)
    assert coordinator.error is None
    assert coordinator.extra_prompts.drawn == 0
    assert coordinator.selection.selector.steps > 1
    assert coordinator.choose(ROWS) != rows
