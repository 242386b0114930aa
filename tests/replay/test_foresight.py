"""Replay of predictors along a recorded run: no peeking, the batches, and the table of benchmarks/real_run."""

from pathlib import Path

import numpy as np
import pytest

from apportion.evaluation import bootstrap_interval
from apportion.predictors import DiscountedCounts, EmpiricalBayes, Shuffled, UniformPrior
from apportion.records import open_run
from apportion.replay.foresight import batches_of, calibration_error, correlation, foresee, sample_of, shuffled
from apportion.replay.intervals import mean_over_prompts, ratio_over_prompts, ratios_over_prompts
from tests.replay.runs import visits_of
from tests.soak import case

RUN = Path(__file__).parents[2] / "examples" / "data" / "grpo_run.jsonl.gz"
TABLE = Path(__file__).parents[2] / "benchmarks" / "results" / "real_run.md"


@pytest.fixture(scope="module")
def record():
    run = open_run(RUN)
    return run.of_groups(run.step < 3)


def random_record(prompts=40, visits=2, seed=0):
    counts = np.random.default_rng(seed).integers(9, size=(prompts, visits))
    return visits_of(counts)


@pytest.mark.parametrize(
    ("make", "name"), [case(DiscountedCounts, "counts", suite=False), (EmpiricalBayes, "empirical Bayes")]
)
def test_the_errors_on_the_real_run_are_those_of_the_benchmark(record, make, name):
    row = next(line for line in TABLE.read_text().splitlines() if line.startswith(f"| {name} "))
    cells = [float(cell.split()[0]) for cell in row.split("|")[2:5]]
    found = [foresee(make(), record, batches_of(record, seed)).mean for seed in (0, 1, 2)]
    for visit, cell in enumerate(cells):
        own = record.step == visit
        error = np.mean([(mean[own] - record.shares[own]) ** 2 for mean in found])
        assert f"{error:.3f}" == f"{cell:.3f}"


def test_predictors_do_not_see_the_group_that_they_predict():
    record, other = random_record(seed=0), random_record(seed=1)
    both = (foresee(EmpiricalBayes(), each, batches_of(each)).mean[:40] for each in (record, other))
    first = [next(iter(batches_of(each))) for each in (record, other)]
    np.testing.assert_array_equal(*first)
    np.testing.assert_array_equal(*both)


def test_every_group_of_a_visit_is_in_one_batch_of_that_visit():
    record = random_record(prompts=300, visits=3)
    batches = batches_of(record, seed=1)
    assert [len(each) for each in batches] == [128, 128, 44] * 3
    assert sorted(np.concatenate(batches).tolist()) == list(range(900))
    assert [set(record.step[each]) for each in batches] == [{0}] * 3 + [{1}] * 3 + [{2}] * 3


def test_the_batches_of_real_steps_are_the_steps():
    record = random_record(prompts=5, visits=3)
    columns = {name: getattr(record, name) for name in record.__dataclass_fields__}
    steps = type(record)(**columns | {"visits": False})
    assert [each.tolist() for each in batches_of(steps)] == [list(range(5)), list(range(5, 10)), list(range(10, 15))]


def test_a_sample_has_all_groups_of_its_prompts():
    record = random_record(prompts=100, visits=4)
    part = sample_of(record, 60)
    assert len(part.step) == 60 and np.bincount(part.prompt).tolist() == [4] * 15
    for q, id in enumerate(part.ids):
        np.testing.assert_array_equal(part.totals[part.prompt == q], record.totals[record.prompt == int(id)])
    assert sample_of(record, 400) is record


def test_a_predictor_that_counts_refuses_graded_rewards():
    record = random_record()
    columns = {name: getattr(record, name) for name in record.__dataclass_fields__}
    graded = type(record)(**columns | {"reward": record.reward / 2})
    with pytest.raises(ValueError, match="counts must have rewards of 0 and 1"):
        foresee(DiscountedCounts(), graded, batches_of(graded))
    assert foresee(UniformPrior(), record, batches_of(record)).mean.tolist() == [0.5] * 80


def test_calibration_error_is_the_distance_within_bins():
    assert calibration_error(np.array([0.15, 0.15, 0.95]), np.array([0.0, 0.1, 1.0])) == pytest.approx(0.25 / 3)


def test_the_interval_of_a_mean_is_that_of_the_bootstrap_of_scipy():
    values = np.random.default_rng(0).random(300)
    found = mean_over_prompts(values)
    assert (found.low, found.high) == pytest.approx(bootstrap_interval(values, resamples=2000), abs=1e-12)
    whole = ratio_over_prompts(values, np.ones(300))
    assert (whole.low, whole.high) == pytest.approx((found.low, found.high), abs=0.006)


def test_shuffled_beliefs_are_those_of_the_shuffled_predictor():
    record = random_record(prompts=300)
    batches = batches_of(record)
    inner = foresee(EmpiricalBayes(), record, batches)
    assert shuffled(inner, batches) == foresee(Shuffled(EmpiricalBayes()), record, batches)


def test_nothing_has_no_interval():
    assert np.isnan(correlation(np.full(3, 0.5), np.arange(3.0)))
    assert np.isnan(mean_over_prompts(np.zeros(0))).all()
    assert np.isnan(ratios_over_prompts(np.zeros((3, 2)), lambda sums: sums[..., 0] / sums[..., 1])).all()
