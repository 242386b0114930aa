"""Replay of selection rules: the numbers of the benchmark, and logs with steps and ragged visits."""

import numpy as np
import pytest

from apportion.replay import choose_along, replay
from apportion.selection import SELECTORS, Mixed, ShuffledEpochs
from tests.replay.runs import made_run, visits_of


@pytest.mark.parametrize("name", SELECTORS)
def test_every_rule_chooses_along_a_log_with_steps(name):
    record = made_run(steps=12, size=8)
    found = choose_along(SELECTORS[name](), record)
    assert found.chosen.shape == (12, 8) and (found.shown >= 0).all()
    np.testing.assert_array_equal(np.unique(record.prompt)[found.chosen], record.prompt[found.shown])
    assert found.most.mean() >= found.expected.mean() - 1e-9


def test_the_visit_of_that_time_is_shown():
    record = made_run(steps=6, batch=8, prompts=8, size=4)
    found = choose_along(ShuffledEpochs(), record, outcome="same")
    np.testing.assert_array_equal(record.step[found.shown], np.repeat(np.arange(6)[:, None], 8, axis=1))


def test_prompts_with_few_visits_show_their_last_one():
    record = visits_of([[0] * 8, [4] * 8, [8, 2], [1]])
    found = choose_along(ShuffledEpochs(), record, outcome="same", batch=2)
    assert len(found.chosen) == 9
    last = [group for row in found.shown for group in row if record.ids[record.prompt[group]] == "3"]
    assert len(last) > 1 and len(set(last)) == 1


def test_a_selection_is_compared_with_shuffled_epochs():
    record = visits_of(np.random.default_rng(0).choice([0, 0, 4, 8], (64, 1)).repeat(12, 1))
    found = replay(record, {"mixed": Mixed()}, batch=8, seeds=(0, 1))
    shuffled, mixed = found.selectors
    assert (shuffled.name, mixed.name) == ("shuffled", "mixed")
    assert mixed.above_shuffled.low > 0 and shuffled.above_shuffled.value == 0
    assert mixed.mixed.shape == mixed.dead.shape == (2, 96)
    assert mixed.above_shuffled.value == pytest.approx(mixed.mixed.mean() - shuffled.mixed.mean())


def test_a_batch_larger_than_the_run_is_refused():
    with pytest.raises(ValueError, match="at most the 2 prompts"):
        choose_along(Mixed(), visits_of([[1], [2]]))
