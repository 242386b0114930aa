import numpy as np
import pytest

from apportion.predictors import MovingAverage
from tests.predictors.builders import make_prompts, random_batch


def test_it_is_the_mean_over_the_last_window_observations_with_the_given_strength():
    rng, prompts, history = np.random.default_rng(0), make_prompts(12), []
    predictor = MovingAverage(window=25, strength=6.0)
    for _ in range(20):
        batch = random_batch(rng, prompts, 5)
        predictor.update(batch)
        history += [(p, s / n) for p, s, n in zip(batch.prompts, batch.successes, batch.trials, strict=True)]
        recent, belief = history[-25:], predictor.predict(prompts)
        for prompt, mean in zip(prompts, belief.mean, strict=True):
            own = [rate for seen, rate in recent if seen == prompt]
            assert mean == pytest.approx(np.mean(own or [rate for _, rate in recent]))
        np.testing.assert_allclose(belief.alpha + belief.beta, 6.0)
