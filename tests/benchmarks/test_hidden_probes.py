"""The logistic probes: the step, what they learn, and what one batch can move."""

import numpy as np
import pytest

from apportion.types import Prompt
from benchmarks.hidden_probes import HiddenDual, HiddenOnline, HiddenStatic, ProbeData, descend, features_of
from tests.predictors.builders import embedder_of, make_batch, make_prompts

KINDS = (HiddenStatic, HiddenOnline, HiddenDual)
PROMPTS = make_prompts(128)
X = np.random.default_rng(0).normal(size=(128, 8))
RATES = 1 / (1 + np.exp(-3 * X[:, 0]))


def test_steps_are_those_of_torch():
    torch = pytest.importorskip("torch")
    features = features_of(np.array([[1.0, 2.0], [0.5, -1.0], [3.0, 0.1]]))
    data = ProbeData(features, np.array([0.25, 1.0, 0.0]), np.array([4.0, 8.0, 2.0]), np.array([2, 1, 0]))
    x, shares = (torch.tensor(each, dtype=torch.float64) for each in (data.features, data.shares))
    counts = torch.tensor(data.trials * 0.97**data.ages)
    weights = torch.tensor([0.4, -0.1, 0.2], dtype=torch.float64, requires_grad=True)
    base = np.array([0.3, -0.2, 0.1])
    adam = torch.optim.Adam([weights], lr=1e-3, weight_decay=1e-2)
    start = weights.detach().numpy().copy()
    for _ in range(5):
        adam.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            x @ (weights + torch.tensor(base)), shares, reduction="none"
        )
        ((counts * loss).sum() / counts.sum()).backward()
        adam.step()
    found = descend(data, start, 5, rate=1e-3, weight_decay=0.01, discount=0.97, base=base)
    np.testing.assert_allclose(found, weights.detach().numpy(), rtol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_known_rates_pretrain_it(kind):
    rated = [Prompt(each.text, rate=float(rate)) for each, rate in zip(PROMPTS, RATES, strict=True)]
    predictor = kind(embedder_of(PROMPTS, X))
    predictor.prepare(rated[:100])
    before = predictor.predict(PROMPTS[100:]).mean
    assert np.corrcoef(before, RATES[100:])[0, 1] > 0.8
    predictor.prepare(rated)
    right = np.random.default_rng(5).binomial(8, RATES)
    predictor.update(make_batch(PROMPTS, right.tolist(), [8] * 128))
    assert (predictor.predict(PROMPTS[100:]).mean == before).all() == (kind is HiddenStatic)
