"""Dead groups, drift and coverage on small runs whose answers are known."""

from dataclasses import replace

import numpy as np
import pytest

from apportion.diagnosis.coverage import coverage_of
from apportion.diagnosis.drift import drift_of
from apportion.diagnosis.phantoms import phantoms_of
from apportion.diagnosis.statements import as_read, waste_statements
from apportion.diagnosis.walks import vip_variances
from apportion.diagnosis.waste import KINDS, kinds_of, waste_of
from tests.builders import write_jsonl
from tests.commands import invoke, printed
from tests.diagnosis.builders import record_of, run_of


def test_every_kind_of_group_is_told_apart():
    record = record_of([[1, 1], [0, 0], [0, 1], [np.nan, 1], [np.nan, np.nan]])
    assert [KINDS[kind] for kind in kinds_of(record)] == ["all right", "all wrong", "mixed", "single", "without reward"]
    graded = record_of([[0.1, 0.1, 0.1], [0.1, 0.2, 0.1]])
    assert [KINDS[kind] for kind in kinds_of(graded)] == ["equal", "mixed"]


def test_groups_of_graded_rewards_within_0_and_1_are_all_right_or_all_wrong_at_the_ends():
    rewards = np.array([[1, 1], [0, 0], [0.4, 0.4], [0.4, 1]])
    assert [KINDS[kind] for kind in kinds_of(record_of(rewards))] == ["all right", "all wrong", "equal", "mixed"]
    for other in (rewards + 1, rewards - 1):  # of which nobody knows what is right
        assert [KINDS[kind] for kind in kinds_of(record_of(other))] == ["equal", "equal", "equal", "mixed"]


def test_no_share_is_told_where_no_figure_is_that_of_the_run():
    waste = waste_of(record_of([[1, 1], [0, 1]]))
    selected = "a column holds 8 values: a selection of the rollouts, and no figure here is that of the run"
    for doubt, said in (
        (selected, "Wasted: unknown, because no figure here is that of the run"),
        ("ids have several texts", "Wasted, as read (see ?): 50%"),
        ("read as: reward=score", "Wasted: 50%"),
    ):
        assert waste_statements(waste, None, [doubt])[0].startswith(said)
    assert as_read([selected], "the notes") == ", but not of the run (see the notes)"


def test_groups_of_equal_outcomes_and_different_rewards_are_phantoms_with_a_share_of_the_gradient():
    outcomes, rewards = [[1, 1], [0, 0], [0, 1], [0, 0]], [[1, 0.8], [0, -0.2], [0, 0.8], [0, 0]]
    shaped = replace(record_of(rewards), components={"length": np.zeros(8), "acc": np.ravel(outcomes).astype(float)})
    found = phantoms_of(shaped)
    assert found.outcome == "acc" and found.whole.groups.value == 1 / 2
    assert found.whole.normalised.value == pytest.approx(2 / 3)
    assert found.whole.centred.value == pytest.approx(0.04 / 0.36)
    told = waste_statements(waste_of(shaped), found)[1]
    assert told.startswith("Phantom groups: 50%") and "67% of the squared advantages by GRPO, 11% by RLOO" in told
    verdicts = replace(record_of(outcomes), components={"reward": np.ravel(rewards)})
    assert phantoms_of(verdicts).whole == found.whole
    filtered = replace(shaped, kept=np.repeat([False, False, True, True], 2))  # by the outcome
    assert phantoms_of(filtered).whole.groups.value == 0
    assert len(waste_statements(waste_of(filtered), phantoms_of(filtered))) == 1
    assert "The outcome went from 0.375 to 0.375, the rest of the reward from -0.075 to -0.075" in told
    assert phantoms_of(record_of(rewards)) is None
    acc = shaped.components["acc"]
    same = replace(
        shaped, components={"acc": acc, "correct": acc.copy(), "solved": np.full(8, np.nan), "flag": acc * 0}
    )
    assert phantoms_of(same) == found
    assert phantoms_of(replace(shaped, components={"flag": np.ones(8)})) is None  # it need not be an outcome
    two = replace(shaped, components={"acc": acc, "correct": 1 - acc})
    assert phantoms_of(two) is None
    assert phantoms_of(replace(two, outcome="acc")) == found


def test_a_group_without_rollouts_is_one_without_reward():
    rewards = {"first": np.array([0, 0, 2, 4, 4]), "reward": np.array([1.0, 0.0, 0.0, 0.0])}
    empty = record_of(np.ones((4, 1)), [0, 0, 1, 1], **rewards)
    assert [KINDS[kind] for kind in kinds_of(empty)] == ["without reward", "mixed", "all wrong", "without reward"]
    assert waste_of(empty).dead.value == 0.5


def test_unknown_tokens_are_unknown_and_not_zero():
    rewards = [[1, 1], [0, 1], [0, 0]]
    assert waste_of(record_of(rewards)).tokens is None and waste_of(record_of(rewards)).whole.tokens is None
    found = waste_of(record_of(rewards, tokens=np.array([10, 20, 30, np.nan, 40, 50])))
    assert found.whole.tokens[:3] == (30, 30, 90) and found.whole.lengths_unknown == 1
    assert found.tokens.value == pytest.approx(120 / 150)


def test_the_parts_of_a_run_add_up_to_the_whole():
    found = waste_of(run_of(np.linspace(0, 1, 60), visits=5))
    for parts in (found.over_time, found.by_difficulty):
        assert np.sum([part.groups for part in parts], axis=0).tolist() == list(found.whole.groups)
        assert np.sum([part.rollouts for part in parts], axis=0).tolist() == list(found.whole.rollouts)
    assert found.dead.low < found.dead.value < found.dead.high
    assert found.never_mixed >= 2 and found.compared == 60


def test_constant_rates_have_no_drift_and_moving_ones_have():
    rng = np.random.default_rng(0)
    still = drift_of(run_of(rng.random(300), visits=8))
    assert still.ratio.low < 1 < still.ratio.high and still.half_life is None
    assert abs(still.rise.value) < 0.04
    assert all(abs(lag.kept - 1) < 0.1 for lag in still.lags)
    moving = drift_of(run_of(rng.random((8, 300)), visits=8))
    assert moving.ratio.low > 1.5 and moving.half_life <= 1
    rising = drift_of(run_of(np.linspace(0.2, 0.8, 8)[:, None] * np.ones(300), visits=8))
    assert rising.rise.low > 0.5 and rising.means[1] - rising.means[0] > 0.5


def test_the_half_life_of_a_random_walk_is_its_own():
    rng, rho = np.random.default_rng(0), 0.5**0.25
    latent = [rng.normal(size=3000)]
    for _ in range(15):
        latent.append(rho * latent[-1] + (1 - rho**2) ** 0.5 * rng.normal(size=3000))
    rates = 0.5 + 0.12 * np.clip(latent, -4, 4)
    assert drift_of(run_of(rates, visits=16, group=16)).half_life == pytest.approx(4, rel=0.15)


def test_a_small_run_has_no_drift_and_says_what_is_missing():
    found = drift_of(run_of(np.full(5, 0.5)))
    assert found.ratio is None and "30 prompts" in found.problem and "has 5" in found.problem


def test_coverage_counts_visits_waits_and_failures():
    record = record_of([[1, 0], [0, 0], [1, np.nan], [1, 1]], prompt=[0, 1, 0, 2], step=[0, 0, 3, 3])
    found = coverage_of(replace(record, asked=np.array([2, 3, 2, 2]), kept=np.arange(8) < 6))
    assert (found.visited, found.once, found.visits) == (3, 2, (1, 1, 2)) and found.waits == (3, 3, 3)
    assert (found.asked, found.arrived, found.rewarded, found.kept) == (9, 8, 7, 6)
    assert (found.never_right, found.always_right) == (1, 1)


def test_one_prompt_has_no_interval():
    assert not np.isnan(waste_of(record_of([[1, 1], [0, 1]])).dead.low)
    alone = waste_of(record_of([[1, 1], [0, 1]], [0, 0], [0, 1]))
    assert alone.dead.value == 0.5 and np.isnan(alone.dead.low) and np.isnan(alone.dead.high)


def test_the_recorded_variance_of_vip_is_rloos_by_the_samples_own_variance():
    rewards = [[1, 0, 0, 1], [1, 1, 1, 0], [0, 0, 0, 0]]
    _planned, recorded = vip_variances(record_of(rewards), [np.arange(3)])
    np.testing.assert_allclose(recorded, [4 * np.var(each, ddof=1) / 3 for each in rewards])


def test_the_outcome_is_named_among_several_rewards_and_a_wrong_name_is_refused(tmp_path):
    rng = np.random.default_rng(0)
    rows = [
        {
            "step": step,
            "prompt": f"q{q}",
            "a": float(rng.random() < q / 9),
            "b": step / 5 + rng.random(),
            "ok_score": 1.0,
        }
        for step in range(20)
        for q in (0, 3)
        for _ in range(4)
    ]
    path, rewards = write_jsonl(tmp_path / "run.jsonl", rows), ("--reward", "a", "--reward", "b=0.5")
    told = printed("diagnose", path, *rewards, "--outcome", "a")
    assert "SICK from step" in told and "equal outcomes (a)" in " ".join(told.split())
    assert "have equal outcomes (a)" in " ".join(printed("report", path, *rewards, "--outcome", "a", "--json").split())
    assert "have equal outcomes (a)" in printed("report", path, "--reward", "b", "--outcome", "a", "--json")
    for given in (rewards, ("--reward", "b")):
        found = invoke("diagnose", path, *given, "--outcome", "acc")
        assert found.exit_code == 2 and "must have the reward column acc" in found.stderr
    found = invoke("diagnose", path, "--column", "reward=b", "--outcome", "acc")
    assert "outcome must be one of the further rewards of the log, ok_score, got 'acc'" in found.stderr
