from __future__ import annotations

import numpy as np
import pytest

from apportion.predictors import MovingAverage
from tests.predictors.builders import make_batch, make_prompts, random_batch


def test_it_is_the_mean_over_the_last_window_observations():
    rng, prompts, history = np.random.default_rng(0), make_prompts(12), []
    predictor = MovingAverage(window=25)
    for _ in range(20):
        batch = random_batch(rng, prompts, 5)
        predictor.update(batch)
        history += [(p, s / n) for p, s, n in zip(batch.prompts, batch.successes, batch.trials, strict=True)]
        recent = history[-25:]
        for prompt, mean in zip(prompts, predictor.predict(prompts).mean, strict=True):
            own = [rate for seen, rate in recent if seen == prompt]
            assert mean == pytest.approx(np.mean(own or [rate for _, rate in recent]))


def test_the_belief_has_the_given_strength():
    predictor, prompts = MovingAverage(strength=6.0), make_prompts(2)
    predictor.update(make_batch(prompts, [1, 4], [4, 4]))
    belief = predictor.predict(prompts)
    assert (belief.alpha + belief.beta).tolist() == [6.0, 6.0]
    assert belief.mean.tolist() == [0.25, 1.0]
