"""Signs of a sick run have their onset and their evidence; test_known_runs.py has every kind, and runs without one."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from apportion.diagnosis import advice_of, diagnose
from apportion.diagnosis.health import health_of
from apportion.diagnosis.statements import health_statements
from apportion.records import open_run, scalars_at
from tests.diagnosis.builders import run_of
from tests.diagnosis.known_runs import HALF, LEARNS, at, constant, epoch, lengths, line, means, noisy, read, rollouts

ROOT = Path(__file__).parents[2]
REAL = ROOT.parent / "shared" / "data"


@pytest.fixture
def health(tmp_path):
    """Return a function from rows to the health of their run."""
    return lambda rows: health_of(*read(tmp_path, rows))


def kinds(found):
    return {sign.kind: sign.onset for sign in found.signs}


def test_completions_that_are_cut_are_a_sign(health):
    found = health(rollouts(LEARNS, tokens=lengths(at(40, 200, 3000), 1000)))
    assert kinds(found) == {"truncation": pytest.approx(41, abs=6)}
    assert "at the largest length, 1,000 tokens" in found.signs[0].evidence


@pytest.mark.parametrize("onset", [2, 40, 50])
def test_a_sudden_and_lasting_fall_is_a_sign(health, onset):
    assert kinds(health(rollouts(at(onset, 0.6, 0.01)))) == {"collapse": pytest.approx(onset + 1, abs=2)}


def test_a_fall_of_a_short_run_has_its_own_step(health):
    found = kinds(health(rollouts(lambda step, _: 0.45 + 0.2 * (step in (2, 3)) if step < 8 else 0.0, steps=16)))
    assert found == dict.fromkeys(("decline", "zero variance"), pytest.approx(9, abs=1))


def test_a_fall_of_prompts_that_come_once_may_be_harder_data(health):
    """Of eight prompts of a step seven are easy at first, and two from the middle on."""
    found = health(rollouts(lambda s, p: 0.9 if p % 8 < (7 if s < 30 else 2) else 0.02, prompt=epoch))
    [fall] = found.unclear
    assert kinds(found) == {} and fall.kind == "collapse" and "harder ones would look alike" in fall.evidence
    assert "UNCLEAR from step 31 (collapse)" in health_statements(found)[1]


def test_what_a_framework_logged_has_signs_of_its_own(health):
    fine = {"reward": noisy(line(0.3, 0.7)), "kl": lambda s: 0.001 * s, "entropy": HALF}
    assert kinds(health(means(**fine))) == {}
    assert kinds(health(means(**fine | {"kl": lambda s: 0.1 * s}))) == {"kl": pytest.approx(11, abs=6)}
    assert kinds(health(means(**fine | {"entropy": lambda s: 0.4 + 0.05 * s}))) == {"entropy": pytest.approx(31, abs=6)}
    frozen = health(means(at(41, 0.6, 0.1), entropy=at(40, 0.5, 0.001)))
    assert kinds(frozen).keys() == {"collapse", "frozen"} and "kl" in frozen.unknown


def test_what_the_framework_counted_as_cut_goes_before_the_largest_length(tmp_path):
    """Answers of 20 or 21 tokens: most have the largest length, and none is cut."""
    run, _ = read(tmp_path, rollouts(LEARNS, tokens=lambda s, r, rng: 20 + int(rng.random() < 0.6)))
    _, logged = read(tmp_path, means(completions__clipped_ratio=constant(0.0)))
    assert "truncation" in kinds(health_of(run)) and kinds(health_of(run, logged)) == {}


def test_a_sick_run_is_advised_nothing_else():
    record = run_of(np.where(np.arange(200) % 2, 0.5, 0.0), visits=8)
    assert advice_of(record).recommended
    found = diagnose(replace(record, tokens=np.where(np.arange(len(record.reward)) > 2000, 500.0, 20.0)))
    assert [sign.kind for sign in found.health.signs] == ["truncation"]
    assert not found.advice.recommended and "the run is sick (truncation)" in found.advice.problem


def test_the_recorded_run_is_healthy():
    assert not health_of(open_run(ROOT / "examples" / "data" / "grpo_run.jsonl.gz")).signs


@pytest.mark.skipif(not (REAL / "health").exists(), reason="the recorded runs are not here")
@pytest.mark.parametrize(
    ("name", "logged", "rollouts"),
    [
        ("healthy", "", ""),
        ("length", "truncation entropy farming", "truncation length"),
        ("klblow", "collapse kl entropy truncation", "collapse truncation"),
    ],
)
def test_real_runs_are_judged_rightly(name, logged, rollouts):
    series = scalars_at(REAL / "health" / f"{name}_trainer_state.json")
    assert kinds(health_of(None, series)).keys() == set(logged.split())
    assert kinds(health_of(open_run(REAL / "health" / f"{name}.parquet"))).keys() == set(rollouts.split())


def test_a_series_of_few_steps_is_recorded(health):
    found = health(means(steps=4, loss=HALF))
    assert found.short == ("reward",) and "reward" not in found.unknown and found.looked_at == ()
    assert health_statements(found) == [
        "Health: no sign of sickness in anything; at fewer than 8 steps: reward; not recorded: truncation, length, KL, "
        "entropy."
    ]
