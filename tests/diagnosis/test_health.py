"""Signs of a sick run have their onset and their evidence; test_known_runs.py has the runs that have none."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from apportion.diagnosis import advice_of, diagnose
from apportion.diagnosis.health import health_of
from apportion.diagnosis.statements import health_statements
from apportion.records import open_run, scalars_at
from tests.diagnosis.builders import record_of, run_of

ROOT = Path(__file__).parents[2]
REAL = ROOT.parent / "shared" / "data"
STEPS, PROMPTS, GROUP = 80, 10, 8


def run_with(reward, tokens=None, prompts=None, components=None):
    """Return a run of 80 steps of 10 groups of 8 from functions of the step, the group and a generator."""
    rng = np.random.default_rng(0)
    step = np.repeat(np.arange(STEPS), PROMPTS)
    at = np.repeat(step, GROUP)
    length = None if tokens is None else tokens(at, rng).astype(np.float64)
    prompt = np.tile(np.arange(PROMPTS), STEPS) if prompts is None else prompts(step)
    rewards = reward(at, length, rng).astype(np.float64)
    record = record_of(rewards.reshape(-1, GROUP), prompt, step, tokens=length)
    return replace(record, components={} if components is None else components(at, rng))


def bernoulli(rate):
    return lambda at, _, rng: rng.random(len(at)) < rate(at)


def learning(at):
    return 0.3 + 0.5 * at / STEPS


def kinds(run, scalars=None):
    return {sign.kind: sign.onset for sign in health_of(run, scalars).signs}


def lengths(mean, most=1000):
    return lambda at, rng: np.minimum(most, rng.gamma(8, mean(at) / 8) + 1).round()


def near(found, expected, within=6):
    return abs(found - expected) <= within


def test_completions_that_are_cut_are_a_sign():
    run = run_with(bernoulli(learning), lengths(lambda at: np.where(at < 40, 200, 3000)))
    assert list(kinds(run)) == ["truncation"] and near(kinds(run)["truncation"], 40)
    assert "at the largest length, 1,000 tokens" in health_of(run).signs[0].evidence


@pytest.mark.parametrize("onset", [2, 40, 55])
def test_a_sudden_and_lasting_fall_is_a_sign(onset):
    run = run_with(bernoulli(lambda at: np.where(at < onset, 0.6, 0.01)))
    assert list(kinds(run)) == ["collapse"] and near(kinds(run)["collapse"], onset, 2)


def test_a_fall_that_the_same_prompts_do_not_share_is_harder_data():
    """Of ten easy and ten hard prompts eight of a step are easy at first, and two from the middle on."""

    def prompts(step):
        place = np.tile(np.arange(PROMPTS), STEPS)
        return (place + step) % 10 + 10 * (place >= np.where(step < 40, 8, 2))

    def reward(at, _, rng):
        hard = np.repeat(prompts(np.repeat(np.arange(STEPS), PROMPTS)), GROUP) >= 10
        return rng.random(len(at)) < np.where(hard, 0.02, 0.9)

    harder = run_with(reward, prompts=prompts)
    assert kinds(harder) == {}
    new = replace(
        harder, prompt=np.arange(len(harder.step)), ids=list(range(len(harder.step))), texts=[None] * len(harder.step)
    )
    [fall] = health_of(new).unclear
    assert kinds(new) == {} and fall.kind == "collapse" and "harder ones would look alike" in fall.evidence
    assert "UNCLEAR from step 40 (collapse)" in health_statements(health_of(new))[1]


def test_a_reward_that_is_farmed_while_another_falls_is_a_sign():
    run = run_with(
        bernoulli(learning),
        components=lambda at, rng: {
            "format": np.minimum(1, at / 40) + 0 * rng.random(len(at)),
            "exact": rng.random(len(at)) < np.where(at < 30, 0.6, 0.02),
        },
    )
    [sign] = health_of(run).signs
    assert sign.kind == "farming" and "exact fell from" in sign.evidence


def test_prompts_that_come_twice_in_a_step_are_a_sign():
    run = run_with(bernoulli(learning), prompts=lambda step: np.tile(np.arange(10) // 2, STEPS))
    assert kinds(run) == {"repeats": 0}


def state(path, steps=STEPS, **series):
    rows = [{"step": s + 1, **{k.replace("__", "/"): float(f(s)) for k, f in series.items()}} for s in range(steps)]
    path.write_text(json.dumps({"log_history": [*rows, {"step": steps, "train_loss": 0.0}]}))
    return scalars_at(path)


def test_what_a_framework_logged_has_signs_of_its_own(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "trainer_state.json"
    fine = {
        "reward": lambda s: 0.3 + s / 200 + rng.normal(0, 0.03),
        "kl": lambda s: 0.001 * s,
        "entropy": lambda s: 0.5,
    }
    assert kinds(None, state(path, **fine)) == {}
    assert kinds(None, state(path, **fine, completions__clipped_ratio=lambda s: 0.97 * (s > 30))).keys() == {
        "truncation"
    }
    assert near(kinds(None, state(path, **fine | {"kl": lambda s: 0.1 * s}))["kl"], 11)
    assert near(kinds(None, state(path, **fine | {"entropy": lambda s: 0.4 + 0.05 * s}))["entropy"], 31)
    frozen = {"entropy": lambda s: 0.5 if s < 40 else 0.001, "reward": lambda s: 0.6 if s < 41 else 0.1}
    assert kinds(None, state(path, **frozen)).keys() == {"collapse", "frozen"}
    assert "kl" in health_of(None, state(path, reward=lambda s: 0.5)).unknown


def test_what_the_framework_counted_as_cut_goes_before_the_largest_length(tmp_path):
    """Answers of 20 or 21 tokens: most have the largest length, and none is cut."""
    run = run_with(bernoulli(learning), lambda at, rng: 20 + (rng.random(len(at)) < 0.6))
    logged = state(tmp_path / "trainer_state.json", reward=lambda s: 0.5, completions__clipped_ratio=lambda s: 0.0)
    assert "truncation" in kinds(run) and kinds(run, logged) == {}


def test_a_sick_run_is_advised_nothing_else():
    half_dead = np.where(np.arange(200) % 2, 0.5, 0.0)
    record = run_of(half_dead, visits=8)
    assert advice_of(record).recommended
    sick = replace(record, tokens=np.where(np.arange(len(record.reward)) > 2000, 500.0, 20.0))
    found = diagnose(sick)
    assert [sign.kind for sign in found.health.signs] == ["truncation"]
    assert not found.advice.recommended and "the run is sick (truncation)" in found.advice.problem


def test_the_recorded_run_is_healthy():
    assert not health_of(open_run(ROOT / "examples" / "data" / "grpo_run.jsonl.gz")).signs


@pytest.mark.skipif(not (REAL / "health").exists(), reason="the recorded runs are not here")
@pytest.mark.parametrize(
    ("name", "logged", "rollouts"),
    [
        ("healthy", set(), set()),
        ("length", {"truncation", "entropy", "farming"}, {"truncation", "length"}),
        ("klblow", {"collapse", "kl", "entropy", "truncation"}, {"collapse", "truncation"}),
    ],
)
def test_real_runs_are_judged_rightly(name, logged, rollouts):
    assert kinds(None, scalars_at(REAL / "health" / f"{name}_trainer_state.json")).keys() == logged
    assert kinds(open_run(REAL / "health" / f"{name}.parquet")).keys() == rollouts


def test_a_series_of_few_steps_is_recorded(tmp_path):
    found = health_of(None, state(tmp_path / "trainer_state.json", steps=4, reward=lambda s: 0.5))
    assert found.short == ("reward",) and "reward" not in found.unknown and found.looked_at == ()
    assert health_statements(found) == [
        "Health: no sign of sickness in anything; at fewer than 8 steps: reward; not recorded: truncation, length, KL, "
        "entropy."
    ]
