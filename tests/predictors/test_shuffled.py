from apportion.predictors import DiscountedCounts, Shuffled
from tests.builders import make_batch, make_prompts


def trained(predictor):
    predictor.update(make_batch([[1, 1, 1], [0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 0, 1]]))
    return predictor


def test_beliefs_are_permuted_among_prompts():
    prompts = make_prompts(5)
    plain, shuffled = (trained(each).predict(prompts) for each in (DiscountedCounts(), Shuffled(DiscountedCounts())))
    assert sorted(shuffled.mean) == sorted(plain.mean)
    assert shuffled.mean.tolist() != plain.mean.tolist()


def test_a_step_is_repeatable_and_steps_differ():
    prompts, shuffled = make_prompts(30), Shuffled(DiscountedCounts())
    shuffled.update(make_batch([[q % 2] * (1 + q) for q in range(30)]))
    first = shuffled.predict(prompts)
    assert first == shuffled.predict(prompts)
    shuffled.update(make_batch([[]]))
    assert first != shuffled.predict(prompts)
