import numpy as np
import pytest

from benchmarks.ridge import Ridge, fit_ridge
from tests.predictors.builders import embedder_of, make_batch, make_prompts


@pytest.mark.parametrize(("n", "d"), [(1, 3), (2, 50), (40, 5)])
@pytest.mark.parametrize("penalty", [0.01, 100.0])
def test_the_fit_equals_scikit_learn(n, d, penalty):
    reference = pytest.importorskip("sklearn.linear_model").Ridge(alpha=penalty)
    rng = np.random.default_rng(n * d)
    x, y = rng.normal(3, 2, size=(n, d)), rng.random(n)
    reference.fit(x, y)
    coefficients, intercept = fit_ridge(x, y, penalty)
    np.testing.assert_allclose(coefficients, reference.coef_, atol=1e-9)
    assert intercept == pytest.approx(reference.intercept_, abs=1e-8)


def test_predictions_are_those_of_a_fit_on_the_last_window_observations():
    prompts, x = make_prompts(20), np.random.default_rng(1).normal(size=(20, 6)).astype(np.float32)
    predictor, successes = Ridge(embedder_of(prompts, x), window=15, clip=0.02), [q % 8 for q in range(20)]
    for first in (0, 10):
        predictor.update(make_batch(prompts[first : first + 10], successes[first : first + 10], [7] * 10))
    w, c = fit_ridge(x[-15:].astype(np.float64), np.array(successes[-15:]) / 7, 1.0)
    np.testing.assert_allclose(predictor.predict(prompts).mean, np.clip(x @ w + c, 0.02, 0.98), rtol=1e-6)
