"""The level of fresh prompts follows batches that differ by more than chance, and nothing else."""

from dataclasses import replace

import numpy as np
import pytest

from apportion.predictors import EmpiricalBayes
from apportion.predictors.statistics.level import Level
from tests.predictors.builders import graded_batch, make_prompts


def followed(batches, noise=0.15):
    level = Level()
    for means in batches:
        level.observe(np.asarray(means, float), noise)
    return level


@pytest.mark.parametrize("size", [1, 128])
def test_batches_that_differ_by_chance_show_no_step(size):
    """Few of 100 seeds look as if they moved after 100 batches, with one prompt a batch, too."""
    moving = []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        level = followed(rng.normal(0.4, 0.15**0.5, (100, size)))
        moving.append(level.moves > 0)
    assert np.mean(moving) < 0.06


def test_a_sorted_data_set_is_followed_to_its_latest_batch():
    rng = np.random.default_rng(0)
    levels = np.linspace(0.1, 0.9, 12)
    level = followed(np.clip(rng.normal(mean, 0.2, 64), 0, 1) for mean in levels)
    assert abs(level.at(0.5) - 0.9) < 0.1


def test_few_batches_draw_the_mean_of_all_to_one_half():
    assert Level().at(0.2) == 0.5
    assert [round(Level(seen=n).at(0.0), 3) for n in (1, 2, 9)] == [0.25, 0.1, 0.006]


def sorted_run(rated=()):
    """Return a predictor that has seen ten batches of fresh prompts of means from .1 to .55, in graded rewards."""
    rng, predictor = np.random.default_rng(5), EmpiricalBayes()
    prompts = [replace(p, rate=0.9 if q in rated else None) for q, p in enumerate(make_prompts(680))]
    for first in range(0, 640, 64):
        own = prompts[first : first + 64]
        rewards = np.clip(0.1 + first / 1280 + 0.1 * rng.normal(size=(64, 8)), 0, 1)
        rewards[0, 0] = 1.0
        predictor.update(graded_batch(own, rewards))
    return predictor, prompts[640:]


def test_the_level_is_put_into_the_units_of_a_range_that_grows():
    predictor, fresh = sorted_run()
    assert predictor._level.mean == pytest.approx(0.55, abs=0.06)
    predictor.update(graded_batch(fresh[:1], [[0.5, 2.0]]))
    assert predictor._range == (0.0, 2.0) and predictor._level.mean == pytest.approx(0.275, abs=0.05)


def test_a_known_rate_decides_about_a_fresh_prompt_and_the_level_about_others():
    predictor, fresh = sorted_run(rated=range(640, 660))
    known, others = predictor.predict(fresh).mean[:20], predictor.predict(fresh).mean[20:]
    alone = EmpiricalBayes().predict(fresh[:20]).mean
    assert np.abs(known - alone).max() < 0.01 and np.abs(others - 0.55).max() < 0.06


def test_the_level_moves_with_the_population():
    predictor, _ = sorted_run()
    before = predictor._level.mean
    rng, seen = np.random.default_rng(6), make_prompts(640)
    for _ in range(3):  # all that come again do much better than before
        rewards = np.clip(0.9 + 0.05 * rng.normal(size=(640, 8)), 0, 1)
        predictor.update(graded_batch(seen, rewards))
    assert predictor._level.mean > before + 0.2
