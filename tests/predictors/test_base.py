"""Contract tests of the predictor protocol, over the registry."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from apportion.predictors import PREDICTORS, GaussianProcess, MovingAverage, Shuffled
from apportion.types import Batch, Belief, Prompt
from tests.predictors.builders import embedder_of, make_batch, make_prompts, random_batch

PROMPTS = make_prompts(30)
EMBEDDER = embedder_of(PROMPTS, np.random.default_rng(0).normal(size=(30, 4)))


def make(name):
    kind = PREDICTORS[name.split()[0]]
    if kind is Shuffled:
        return Shuffled(MovingAverage())
    return kind(embedder=EMBEDDER) if name in EMBEDDING else kind()


def told(predictor, prompts):
    """Return mean and variance of the belief, [2, P], because some predictors learn means and some variances."""
    belief = predictor.predict(prompts)
    return np.stack([belief.mean, belief.variance])


EMBEDDING = ("gp", "graded_gp", "empirical_bayes embedded")
NAMES = sorted(PREDICTORS.keys() | {*EMBEDDING})


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


@pytest.fixture
def predictor(name):
    return make(name)


@pytest.fixture
def not_dealt_anew(name):
    if name == "shuffled":
        pytest.skip("deals the beliefs to other prompts at each step on purpose")


def test_no_prompts_give_an_empty_belief(predictor):
    assert len(predictor.predict([])) == 0
    predictor.update(random_batch(np.random.default_rng(1), PROMPTS, 5))
    assert len(predictor.predict([])) == 0
    predictor.prepare([])


def test_the_mean_is_one_half_before_the_first_update(predictor):
    belief = predictor.predict(PROMPTS)
    assert belief.mean.tolist() == [0.5] * len(PROMPTS)
    assert belief.variance.tolist() == [belief.variance[0]] * len(PROMPTS)


def test_predict_does_not_change_later_predictions(predictor):
    rng = np.random.default_rng(2)
    for _ in range(3):
        predictor.update(random_batch(rng, PROMPTS[:20], 6))
    before = told(predictor, PROMPTS[:10])
    predictor.predict(PROMPTS[::-1])
    predictor.predict([*PROMPTS[:10], *PROMPTS[:10]])
    np.testing.assert_array_equal(told(predictor, PROMPTS[:10]), before)


def test_batches_without_verified_rollouts_are_ignored(predictor, not_dealt_anew):
    predictor.update(random_batch(np.random.default_rng(3), PROMPTS, 8))
    before = told(predictor, PROMPTS)
    predictor.update(Batch.start([], Belief.uniform(0)))
    predictor.update(make_batch(PROMPTS[:3], [0, 0, 0], [0, 0, 0]))
    np.testing.assert_array_equal(told(predictor, PROMPTS), before)


def test_a_restored_predictor_continues_identically(predictor, name):
    """Also with known rates, which the prompts alone give."""
    rng = np.random.default_rng(4)
    predictor.prepare([replace(prompt, rate=q / 20) for q, prompt in enumerate(PROMPTS[:20])])
    for _ in range(3):
        predictor.update(random_batch(rng, PROMPTS[:20], 7))
    twin = make(name)
    twin.load_state_dict(pickle.loads(pickle.dumps(predictor.state_dict())))
    for _ in range(3):
        batch = random_batch(rng, PROMPTS, 7)
        for either in (predictor, twin):
            either.update(batch)
        np.testing.assert_array_equal(told(predictor, PROMPTS), told(twin, PROMPTS))


def test_states_are_copied_on_save_and_on_load(predictor, name):
    rng = np.random.default_rng(5)
    predictor.update(random_batch(rng, PROMPTS, 7))
    state, batch = predictor.state_dict(), random_batch(rng, PROMPTS, 7)
    before = pickle.loads(pickle.dumps(state))
    predictor.update(batch)
    np.testing.assert_equal(state, before)
    twin = make(name)
    twin.load_state_dict(state)
    twin.update(batch)
    np.testing.assert_equal(state, before)


def test_the_state_of_another_predictor_is_refused(predictor):
    other = make("uniform" if predictor.name != "uniform" else "counts")
    with pytest.raises(ValueError, match=f"must come from the predictor '{predictor.name}', got '{other.name}'"):
        predictor.load_state_dict(other.state_dict())
    with pytest.raises(ValueError, match="got None"):
        predictor.load_state_dict({})


def test_the_state_of_other_settings_is_refused():
    with pytest.raises(ValueError, match=r"window must be 8 to load this state of 'moving_average', got 1024; use"):
        MovingAverage().load_state_dict(MovingAverage(window=8).state_dict())


def test_the_state_of_another_embedder_is_refused():
    def mine(prompts):
        return np.zeros((len(prompts), 4), np.float32)

    with pytest.raises(ValueError, match=r"embedder must be .*mine"):
        GaussianProcess(EMBEDDER).load_state_dict(GaussianProcess(mine).state_dict())


def test_prompts_are_identified_by_id_not_by_position(predictor, not_dealt_anew):
    rng = np.random.default_rng(6)
    for _ in range(2):
        predictor.update(random_batch(rng, PROMPTS, 9))
    forward, backward = told(predictor, PROMPTS), told(predictor, PROMPTS[::-1])
    np.testing.assert_allclose(backward[:, ::-1], forward, rtol=1e-12)


def test_successes_of_one_prompt_raise_its_mean_or_lower_its_variance(predictor, name):
    prompt = Prompt("only", id=PROMPTS[0].id)
    predictor.update(make_batch([prompt], [4], [4]))
    variance, before = predictor.predict([prompt]).variance[0], make(name).predict([prompt]).variance[0]
    assert variance < before or predictor.name == "uniform"
    assert predictor.predict([prompt]).mean[0] > 0.5 or not predictor.needs.binary


def test_only_predictors_with_an_embedder_read_texts(name):
    assert make(name).reads_texts == (name in EMBEDDING)
    assert Shuffled(make(name)).reads_texts == (name in EMBEDDING)
