import numpy as np
import pytest

from apportion.allocators import ALLOCATORS
from apportion.selection import SELECTORS
from apportion.simulation import SHAPES, Population, simulated_record, true_success

RULES = [*ALLOCATORS, *(f"uniform+{name}" for name in SELECTORS), "vip:oracle", "vip:embeddings", "vip:gp+mixed:oracle"]


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_of_the_registries_runs_unchanged(rule):
    population = Population(prompts=80, drift=0.1, embedding_size=4, failures=0.1, false_positive=0.1)
    record = simulated_record(population, rule, steps=4, prompts_per_step=8)
    assert set(record.step) == {0, 1, 2, 3}
    assert (record.trials <= record.asked).all()
    assert record.trials.sum() < record.asked.sum()  # failed rollouts are paid for, and have no result
    assert record.binary and len(record.kept) == record.trials.sum() and record.kept.any()


def test_the_truth_of_a_record_is_that_of_its_population():
    population = Population(prompts=300, shape=SHAPES["uniform"], drift=0.3, seed=4)
    record = simulated_record(population, steps=30, prompts_per_step=100, rollouts_per_prompt=16)
    truth = true_success(population, record)
    assert len(truth) == len(record.step)
    excess = (record.shares - truth) ** 2 / (truth * (1 - truth) / 16)
    assert abs(excess.mean() - 1) < 0.1  # a binomial variance, so no other truth fits


def test_equal_seeds_give_equal_records():
    population = Population(prompts=60, drift=0.2, seed=3)
    one, two, other = (
        simulated_record(each, "vip+mixed", steps=5, prompts_per_step=10)
        for each in (population, Population(prompts=60, drift=0.2, seed=3), population.with_seed(5))
    )
    assert np.array_equal(one.reward, two.reward) and np.array_equal(one.prompt, two.prompt)
    assert not np.array_equal(one.prompt, other.prompt)
