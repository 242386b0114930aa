"""VIP's Appendix B against scipy, exact cases and simulation."""

import numpy as np
import pytest
import scipy.stats

from benchmarks.evidence.vip_tests import correlations, edgington, fisher, levene, obrien


def ragged(seed=0, groups=30, least=3):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(least, 12, groups)
    return np.repeat(np.arange(groups), sizes), rng.gamma(2.0, size=sizes.sum()), rng


def parts(group, values):
    return [values[group == each] for each in np.unique(group)]


def test_correlations_and_their_p_values_are_scipys():
    group, norm, rng = ragged()
    reward = rng.random(len(group))
    r, p = correlations(group, reward, norm)
    wanted = [scipy.stats.pearsonr(a, b) for a, b in zip(parts(group, reward), parts(group, norm), strict=True)]
    np.testing.assert_allclose(r, [each.statistic for each in wanted])
    np.testing.assert_allclose(p, [each.pvalue for each in wanted])


def test_groups_without_a_correlation_are_left_out():
    group = np.array([0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 3])
    reward = np.array([1, 1, 1, 0, 1, 1, 0, 1, 0, 1, 0.0])
    norm = np.array([1, 2, 3, 1, 2, 4, 1, 2, 5, 5, 5.0])
    assert len(correlations(group, reward, norm)[0]) == 1


def test_fisher_is_scipys():
    p = np.random.default_rng(1).random(40)
    wanted = scipy.stats.combine_pvalues(p, method="fisher")
    assert fisher(p) == pytest.approx((wanted.statistic, wanted.pvalue))
    assert fisher(np.array([0.0, 0.5]))[1] < 1e-200


def test_edgington_agrees_with_simulation_and_with_its_approximation():
    sums = np.random.default_rng(2).random((200_000, 20)).sum(axis=1)
    for total in (6.0, 8.5, 10.0, 12.5):
        exact = edgington(np.full(20, total / 20))[1]
        assert exact == pytest.approx((sums <= total).mean(), abs=0.004)
        assert exact == pytest.approx(edgington(np.full(21, (total + 0.5) / 21))[1], abs=0.02)


def test_levene_is_scipys():
    group, norm, _ = ragged(least=2)
    wanted = scipy.stats.levene(*parts(group, norm), center="median")
    assert levene(group, norm) == pytest.approx((wanted.statistic, wanted.pvalue))
    assert levene(np.repeat(np.arange(12), 4), np.tile([1.0, 3.0], 24)) == (0.0, 1.0)  # equal spreads, without noise


def test_obrien_is_scipys():
    group, norm, _ = ragged()
    wanted = scipy.stats.f_oneway(*(scipy.stats.obrientransform(each)[0] for each in parts(group, norm)))
    assert obrien(group, norm) == pytest.approx((wanted.statistic, wanted.pvalue))
