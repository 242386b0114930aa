"""Tests of the low-rank regression against dense O(Q^2) references."""

import numpy as np
import pytest

from apportion.predictors.kernels import regression
from apportion.predictors.kernels.regression import LinearFit, NystromFeatures


def dense_kernel(a, b, h):
    return np.exp(-((a[:, None] - b[None]) ** 2).sum(axis=2) / (2 * h * h))


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 4))
    return x, np.sin(x[:, 0]) + 0.1 * rng.normal(size=50), rng.uniform(0.05, 0.5, 50)


def test_equal_landmarks_are_one(data):
    x, _, _ = data
    features = NystromFeatures.of(np.repeat(x[:5], 3, axis=0), 1.5)(x[:5])
    assert features.shape[1] == 5
    np.testing.assert_allclose(features @ features.T, dense_kernel(x[:5], x[:5], 1.5), atol=1e-8)


def test_the_regression_is_that_of_the_dense_kernel(data):
    x, y, noise = data
    new = np.random.default_rng(1).normal(size=(7, 4))
    features = NystromFeatures.of(x, 1.5)
    fit = LinearFit.of(features(x), y, noise, np.full(features.projection.shape[1], 0.7))
    gram = 0.7 * dense_kernel(x, x, 1.5) + np.diag(noise)
    expected = 0.7 * dense_kernel(new, x, 1.5) @ np.linalg.solve(gram, y)
    np.testing.assert_allclose(features(new) @ fit.weights, expected, atol=1e-4)
    unseen = fit.leave_one_out(features(new), np.zeros(7), np.full(7, np.inf))
    np.testing.assert_allclose(unseen, expected, atol=1e-4)


def test_the_evidence_is_the_log_density_up_to_a_constant(data):
    x, y, noise = data
    features = NystromFeatures.of(x, 1.5)
    values = []
    for amplitude in (0.1, 0.7):
        gram = amplitude * dense_kernel(x, x, 1.5) + np.diag(noise)
        density = -0.5 * (y @ np.linalg.solve(gram, y) + np.linalg.slogdet(gram)[1])
        fit = LinearFit.of(features(x), y, noise, np.full(features.projection.shape[1], amplitude))
        values.append(fit.evidence - density)
    assert values[0] == pytest.approx(values[1], abs=1e-3)


def test_leave_one_out_leaves_out(data):
    x, y, noise = data
    features = NystromFeatures.of(x, 1.5)(x)
    prior = np.full(features.shape[1], 0.7)
    found = LinearFit.of(features, y, noise, prior).leave_one_out(features, y, noise)
    for q in range(0, 50, 7):
        others = np.arange(50) != q
        refitted = LinearFit.of(features[others], y[others], noise[others], prior)
        assert found[q] == pytest.approx(features[q] @ refitted.weights, abs=1e-9)


def test_blocks_do_not_change_the_fit(data, monkeypatch):
    x, y, noise = data
    prior = np.full(4, 1.0)
    whole = LinearFit.of(x, y, noise, prior)
    monkeypatch.setattr("apportion.predictors.kernels.regression.BLOCK", 7)
    parts = LinearFit.of(x, y, noise, prior)
    np.testing.assert_allclose(parts.weights, whole.weights)
    assert parts.evidence == pytest.approx(whole.evidence)


def test_predictions_of_many_rows_are_those_of_few(monkeypatch):
    generator = np.random.default_rng(0)
    features, y = generator.standard_normal((300, 6)).astype(np.float32), generator.random(300)
    noise = np.where(np.arange(300) % 3 == 0, 0.2, np.inf)  # most rows were never seen
    fitted = noise < np.inf
    fit = LinearFit.of(features[fitted], y[fitted], noise[fitted], np.ones(6))
    whole = fit.leave_one_out(features, y, noise)
    monkeypatch.setattr(regression, "MANY_ROWS", 64)
    assert np.allclose(fit.leave_one_out(features, y, noise), whole, rtol=0, atol=1e-14)
