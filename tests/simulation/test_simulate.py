from dataclasses import dataclass, replace

import numpy as np
import pytest

from apportion.allocators.vip import gradient_variance, minimise_noise
from apportion.simulation import SHAPES, Population, course, make_rule, simulate
from tests.soak import case


def small(rules=("vip",), population=None, **settings):
    given = {"steps": 6, "prompts_per_step": 32, **settings}
    return simulate(population or Population(prompts=64), rules, seeds=(0, 1), **given)


def test_the_oracle_has_no_regret():
    found = small(population=Population(prompts=64, drift=0.3, false_positive=0.1, shape=SHAPES["uniform"]))
    regret = found.courses["vip:oracle"].of("variance") - found.courses["vip:oracle"].of("optimum")
    assert (regret == 0).all()
    assert found.regret("vip").mean > 0
    assert found.variance("vip:oracle").mean < found.variance("vip").mean


def test_the_variance_of_uniform_is_its_closed_form():
    population = Population(prompts=40, shape=SHAPES["uniform"])
    found = simulate(population, [], steps=1, prompts_per_step=40, seeds=(0,), rollouts_per_prompt=5)
    p = population.start
    assert found.courses["uniform"].of("variance")[0, 0] == pytest.approx((4 * p * (1 - p) / 4).sum())
    assert found.variance("uniform").mean == 1


def test_the_optimum_is_that_of_the_solver_at_the_probability_of_a_reward():
    population = Population(prompts=40, shape=SHAPES["uniform"], false_positive=0.2, false_negative=0.1)
    found = simulate(population, [], steps=1, prompts_per_step=40, seeds=(0,))
    reward = population.start * 0.9 + (1 - population.start) * 0.2
    best = minimise_noise(reward * (1 - reward), 8 * 40, "rloo", 3, 64)
    assert found.courses["uniform"].of("optimum")[0, 0] == pytest.approx(gradient_variance(reward, best).sum())


def test_equal_seeds_give_equal_numbers_and_rules_do_not_disturb_each_other():
    one, two = small(["vip", "uniform+mixed"]), small(["uniform+mixed", "hora", "vip"])
    for rule in ("uniform", "vip", "uniform+mixed"):
        untimed = slice(None, -4)
        assert np.array_equal(one.courses[rule].values[..., untimed], two.courses[rule].values[..., untimed], True)


def test_rules_with_equal_counts_see_equal_outcomes():
    found = small(["even"])
    assert np.array_equal(found.courses["even"].of("mixed"), found.courses["uniform"].of("mixed"))


@dataclass(frozen=True, kw_only=True)
class Turned(Population):
    """A population whose truth is turned: what was right is wrong, and its verifier calls it right all the same."""

    @property
    def start(self):
        return 1 - Population(prompts=self.prompts, seed=self.seed, shape=self.shape).start


@pytest.mark.parametrize(
    "rule",
    [
        case(rule, suite=rule in ("vip", "uniform+greso", "ar3po"))
        for rule in ("vip", "hora", "dapo", "knapsack", "reinforce_ada", "uniform+mixed", "uniform+greso", "ar3po")
    ],
)
def test_rules_see_neither_the_truth_nor_its_probability(rule):
    own = Population(prompts=48, shape=SHAPES["uniform"], wrong_longer=1.0)
    turned = Turned(prompts=48, shape=SHAPES["uniform"], wrong_longer=1.0, false_positive=1.0, false_negative=1.0)
    pairs = list(zip(*(course(each, make_rule(rule, each), 8, 16) for each in (own, turned)), strict=True))
    for one, other in pairs:
        assert [prompt.id for prompt in one.batch.prompts] == [prompt.id for prompt in other.batch.prompts]
        assert np.array_equal(one.batch.asked, other.batch.asked)
        assert np.array_equal(one.outcomes.reward, other.outcomes.reward)
        assert np.array_equal(one.outcomes.right, ~other.outcomes.right)  # the truth was turned indeed


def test_verifier_errors_make_groups_mixed_that_teach_nothing():
    hard = Population(prompts=200, shape=SHAPES["hard"])
    clean = small(population=hard, prompts_per_step=100)
    noisy = small(population=replace(hard, false_positive=0.1), prompts_per_step=100)
    assert clean.share("uniform", "spurious").mean == 0
    assert noisy.share("uniform", "spurious").mean > 0.05
    assert noisy.share("uniform", "mixed").mean > clean.share("uniform", "mixed").mean


def test_a_rule_whose_counts_depend_on_outcomes_has_no_variance_in_closed_form():
    found = small(["hora"])
    assert np.isnan(found.variance("hora").mean) and str(found.variance("hora")) == "-"
    assert found.share("hora", "hits").mean > 0


def test_a_selection_of_uncertain_prompts_has_more_mixed_groups_than_shuffled_epochs():
    population = Population(prompts=256)
    found = small(["uniform+mixed", "uniform+mixed:oracle"], population, steps=20, prompts_per_step=32)
    shuffled, learnt, known = (
        found.share(rule, "mixed").mean for rule in ("uniform", "uniform+mixed", "uniform+mixed:oracle")
    )
    assert shuffled < learnt < known
    assert found.coverage("uniform").mean == 1 > found.coverage("uniform+mixed:oracle").mean


def test_rules_have_settings_and_names_of_their_own():
    tables = {
        "vip": {"low": 8},
        "wide": {"name": "vip:counts+mixed", "high": 9, "selection": {"explore": 0.5}},
        "mixed": {"group_size": 4},
    }
    population = Population(prompts=64)
    wide, mixed = (make_rule(name, population, 8, tables[name]) for name in ("wide", "mixed"))
    assert (wide.name, wide.allocator.high, wide.selector.explore) == ("wide", 9, 0.5)
    assert (mixed.name, mixed.allocator.name, mixed.selector.group_size) == ("mixed", "uniform", 4)
    found = simulate(population, ["vip", "wide", "mixed"], 4, 32, (0,), 8, tables)
    assert list(found.courses) == ["uniform", "vip:oracle", "vip", "wide", "mixed"]
    assert np.array_equal(found.courses["vip"].of("variance"), found.courses["uniform"].of("variance"))  # all get 8
