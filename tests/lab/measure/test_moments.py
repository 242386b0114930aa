import numpy as np
import pytest

from apportion.lab.measure.moments import Moments, score_moments
from apportion.lab.measure.variance import measure_variances
from apportion.lab.policy.exact import exact_success
from apportion.lab.world.task import Problem
from tests.lab.measure.test_variance import error_of

FORKED = Problem(7, ("+3", "*7"), ("-2", "+4"))


def simulated_variance(moments, right, wrong, shares, n, draws, seed):
    """Return the trace variance of the RLOO gradient if every rollout draws one of the ``right`` or ``wrong`` ones."""
    rng = np.random.default_rng(seed)
    correct = rng.random((draws, n)) < moments.success[0]
    of_right = right[rng.choice(len(right), (draws, n), p=shares)]
    of_wrong = wrong[rng.choice(len(wrong), (draws, n))]
    gradients = np.where(correct[..., None], of_right, of_wrong)
    rest = (correct.sum(1, keepdims=True) - correct) / (n - 1)
    batches = ((correct - rest)[..., None] * gradients).mean(1)
    squares = ((batches - batches.mean(0)) ** 2).sum(1)
    return squares.mean(), squares.std() / np.sqrt(draws)


@pytest.mark.parametrize("n", [2, 5])
def test_the_variance_is_that_of_many_right_gradients(n):
    rng, p = np.random.default_rng(0), 0.4
    shares = np.array([0.5, 0.3, 0.2])
    right, wrong = rng.normal(size=(3, 4)), rng.normal(size=(6, 4))
    wrong += -p / (1 - p) * (shares @ right) - wrong.mean(0)  # the score has expectation 0
    moments = Moments(
        success=np.array([p]),
        right=np.array([shares @ (right**2).sum(1)]),
        wrong=np.array([(wrong**2).sum(1).mean()]),
        wrong_error=np.zeros(1),
        right_mean=np.array([((shares @ right) ** 2).sum()]),
    )
    variance, error = simulated_variance(moments, right, wrong, shares, n, draws=40_000, seed=1)
    assert abs(moments.variance([n])[0] - variance) < 4 * error
    assert error < variance / 50


def test_moments_of_a_forked_problem_give_its_measured_variance(small_base):
    moments = score_moments(small_base, [FORKED], wrong_rollouts=100)
    assert moments.success == pytest.approx(exact_success(small_base, [FORKED]))
    assert moments.right_mean[0] < 0.99 * moments.right[0]  # its solutions differ, and so do their gradients
    [measured] = measure_variances(small_base, [FORKED], [[4]], draws=80, seed=2)
    error = np.hypot(error_of(measured), moments.slope([4])[0] * moments.wrong_error[0])
    assert abs(measured.trace_variance - moments.variance([4])[0]) < 3.5 * error
    assert error < measured.trace_variance / 3


def test_one_right_completion_is_its_own_mean(small_base):
    moments = score_moments(small_base, [Problem(7, ("+3",))], wrong_rollouts=5)
    assert moments.right_mean == pytest.approx(moments.right)
