from apportion.predictors import UniformPrior
from tests.predictors.builders import make_batch, make_prompts


def test_the_belief_never_changes():
    predictor, prompts = UniformPrior(alpha=2.0, beta=6.0), make_prompts(3)
    predictor.update(make_batch(prompts, [4, 4, 4], [4, 4, 4]))
    belief = predictor.predict(prompts)
    assert belief.alpha.tolist() == [2.0] * 3
    assert belief.beta.tolist() == [6.0] * 3
