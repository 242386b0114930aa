"""The Gaussian process against Algorithm 1 of arXiv 2602.01601 as printed, with its Q x Q kernel."""

import tracemalloc

import numpy as np
import pytest
from scipy.spatial.distance import cdist, pdist

from apportion.predictors import GaussianProcess
from apportion.predictors.gp import BLOCK_CELLS, rbf_blocks
from tests.predictors.builders import LatentReference, embedder_of, embeddings, make_batch, make_prompts, random_batch
from tests.soak import case


class AlgorithmOne(LatentReference):
    """Lines 1 to 13, literally: rewards in {-1, 1}, clipped log-odds."""

    def __init__(self, x, clip=0.05, **settings):
        super().__init__(x, **settings)
        self.clip = clip

    def step(self, batch, where):
        observed = []
        for rollouts in batch.rollouts:
            mean_reward = np.mean([1 if rollout.correct else -1 for rollout in rollouts])
            p = np.clip((mean_reward + 1) / 2, self.clip, 1 - self.clip)
            observed.append(np.log(p / (1 - p)))
        self.condition([where[prompt] for prompt in batch.prompts], observed)

    @property
    def p(self):
        return 1 / (1 + np.exp(-self.m))


def where(prompts):
    return {prompt: row for row, prompt in enumerate(prompts)}


@pytest.mark.parametrize(
    ("count", "dimensions", "size", "noise"),
    [(1, 2, 1, 1e-6), (40, 3, 5, 1e-10), (50, 20, 50, 1e-6), case(2500, 24, 32, 1e-10, suite=False)],
)
def test_it_is_algorithm_1(count, dimensions, size, noise):
    x, prompts, rng = embeddings(count, dimensions), make_prompts(count), np.random.default_rng(1)
    sampled = 2.5 if count > 2048 or count == 1 else None
    reference = AlgorithmOne(x, bandwidth=sampled, noise=noise if noise > 1e-8 else 0.0)
    predictor = GaussianProcess(embedder_of(prompts, x), bandwidth=sampled, noise=noise)
    predictor.prepare(prompts)
    for _ in range(6):
        batch = random_batch(rng, prompts, size)
        predictor.update(batch)
        reference.step(batch, where(prompts))
        np.testing.assert_allclose(predictor.predict(prompts).mean, reference.p, atol=1e-8)


def test_clip_and_strength_are_applied():
    x, prompts = embeddings(20, 4), make_prompts(20)
    reference, predictor = (
        AlgorithmOne(x, clip=0.2, noise=1e-6),
        GaussianProcess(embedder_of(prompts, x), clip=0.2, strength=5),
    )
    predictor.prepare(prompts)
    batch = make_batch(prompts[:3], [0, 4, 2], [4, 4, 4])
    predictor.update(batch)
    reference.step(batch, where(prompts))
    belief = predictor.predict(prompts)
    np.testing.assert_allclose(belief.mean, reference.p, atol=1e-8)
    np.testing.assert_allclose(belief.mean[:3], [0.2, 0.8, 0.5])
    np.testing.assert_allclose(belief.alpha + belief.beta, 5)


def test_predictions_are_never_exactly_0_or_1():
    prompts = make_prompts(2)
    predictor = GaussianProcess(embedder_of(prompts, np.array([[0.0], [9.0]])))
    predictor.prepare(prompts)
    predictor.load_state_dict(predictor.state_dict() | {"mean": np.array([-800.0, 800.0])})
    low, high = predictor.predict(prompts).mean
    assert 0 < low < 1e-15 and 1 - 1e-15 < high < 1


def test_a_late_prompt_has_that_mean_in_an_ill_conditioned_space_too():
    x, prompts, rng = np.linspace(0, 1, 400, dtype=np.float32)[:, None], make_prompts(400), np.random.default_rng(3)
    early, late = (GaussianProcess(embedder_of(prompts, x), bandwidth=0.3) for _ in range(2))
    early.prepare(prompts)
    for _ in range(5):
        batch = random_batch(rng, prompts[::2], 64)
        early.update(batch)
        late.update(batch)
    np.testing.assert_allclose(late.predict(prompts).mean, early.predict(prompts).mean, atol=1e-6)


def test_equal_embeddings_share_one_latent_and_pool_their_rollouts():
    prompts = make_prompts(4)
    twice = GaussianProcess(embedder_of(prompts, [[0.0], [0.0], [1.0], [2.0]]), bandwidth=1.0)
    once = GaussianProcess(embedder_of(prompts[1:], [[0.0], [1.0], [2.0]]), bandwidth=1.0)
    twice.update(make_batch(prompts[:3], [1, 2, 0], [2, 4, 2]))
    once.update(make_batch(prompts[1:3], [3, 0], [6, 2]))
    np.testing.assert_array_equal(twice.predict(prompts).mean[1:], once.predict(prompts[1:]).mean)
    assert twice.predict(prompts[:2]).mean.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(("spread", "noise"), [(1e-7, 1e-10), (1e-5, 1e-6)])
def test_near_duplicates_stay_finite(spread, noise):
    rng, prompts = np.random.default_rng(4), make_prompts(200)
    x = np.repeat(rng.normal(size=(20, 5)), 10, axis=0) + spread * rng.normal(size=(200, 5))
    predictor = GaussianProcess(embedder_of(prompts, x), noise=noise)
    predictor.prepare(prompts)
    for _ in range(10):
        predictor.update(random_batch(rng, prompts, 100))
        mean = predictor.predict(prompts).mean
        assert ((mean > 0) & (mean < 1)).all()


def test_the_bandwidth_is_the_median_distance_at_prepare_and_is_kept():
    x, prompts = embeddings(30, 3), make_prompts(30)
    predictor = GaussianProcess(embedder_of(prompts, x))
    predictor.prepare([])
    predictor.prepare(prompts[:20])
    expected = np.median(pdist(x[:20].astype(np.float64)))
    assert predictor.state_dict()["bandwidth"] == pytest.approx(expected)
    predictor.prepare(prompts)
    predictor.update(random_batch(np.random.default_rng(6), prompts, 5))
    assert predictor.state_dict()["bandwidth"] == pytest.approx(expected)


def test_beyond_2048_prompts_the_median_is_that_of_a_subsample_in_any_order():
    x, prompts = embeddings(2500, 3), make_prompts(2500)
    forward, backward = (GaussianProcess(embedder_of(prompts, x)) for _ in range(2))
    forward.prepare(prompts)
    backward.prepare(prompts[::-1])
    h = forward.state_dict()["bandwidth"]
    assert backward.state_dict()["bandwidth"] == pytest.approx(h)
    assert h == pytest.approx(np.median(pdist(x.astype(np.float64))), rel=0.05)


def test_an_embedder_that_fails_leaves_the_state_as_it_was():
    prompts = make_prompts(3)
    predictor = GaussianProcess(embedder_of(prompts[:2], embeddings(2, 3)))
    predictor.prepare(prompts[:2])
    with pytest.raises(ValueError, match="must have an embedding, got none for"):
        predictor.predict(prompts)
    assert len(predictor.state_dict()["ids"]) == 2
    assert len(predictor.predict(prompts[:2])) == 2


@pytest.mark.slow
def test_an_update_at_17000_prompts_stays_within_its_memory():
    count, size, dimensions = 17_000, 512, 32
    x, prompts, rng = embeddings(count, dimensions), make_prompts(count), np.random.default_rng(7)
    predictor = GaussianProcess(embedder_of(prompts, x))
    predictor.prepare(prompts)
    batch = random_batch(rng, prompts, size)
    tracemalloc.start()
    predictor.update(batch)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200e6 / 4


@pytest.mark.parametrize(("dtype", "offset"), [(np.float32, 0.0), (np.float64, 1000.0)])
def test_blocks_are_the_kernel_of_exact_distances(dtype, offset):
    rng = np.random.default_rng(0)
    x = (offset + rng.normal(size=(70_000, 7))).astype(dtype)
    centres = x[:31]
    exact = np.exp(-cdist(x.astype(np.float64), centres.astype(np.float64), "sqeuclidean") / (2 * 1.7**2))
    blocks = list(rbf_blocks(x, centres, 1.7))
    assert len(blocks) > 1 and max(len(block) for block in blocks) * (7 + 31) <= BLOCK_CELLS
    np.testing.assert_allclose(np.concatenate(blocks), exact, atol=1e-12)
