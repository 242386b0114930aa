"""The contract of engines with their own scheduler, on a small one that ends groups in any order."""

import random
from threading import Thread

import numpy as np
import pytest

from apportion import VIP, Group, Prompt, Rollout, Uniform
from apportion.advantages import advantages_of
from apportion.engines.contract import EngineGroups, differ
from apportion.engines.prime_rl import ChosenTasks, DeadGroups
from apportion.engines.saved_state import load_state, save_state
from apportion.predictors import DiscountedCounts
from apportion.scheduler.decisions import TrainerAllocation
from apportion.selection import Mixed
from tests.cases import assert_refused
from tests.damaged_states import check_damage

PROMPTS = [Prompt(str(q)) for q in range(30)]
CASES = {
    "equal groups, ranked": {"allocator": "uniform", "selection": "mixed"},
    "a price, Thompson draws, history": {
        "allocator": "vip", "selection": "mopps", "baseline": "spo", "estimator": "reinforce"
    },
    "two rounds": {"allocator": "hora", "selection": "shuffled"},
    "rounds until mixed": {"allocator": "reinforce_ada"},
}  # fmt: skip


def make(case="equal groups, ranked", **settings):
    return EngineGroups(TrainerAllocation(**CASES[case]), PROMPTS, seed=1, **settings)


def drive(groups, steps, flying, rng):
    """Open a group, and end another one, ``steps`` times. Return what was asked for."""
    asked = []
    for _ in range(steps):
        opened = groups.next()
        asked.append((opened.key, opened.count))
        flying.append(opened)
        if len(flying) > 5:
            done = flying.pop(rng.randrange(len(flying)))
            more = done.count
            while more:
                right = int(done.prompt.text) / len(PROMPTS)
                more = groups.observe(done.key, [groups.rollout(float(rng.random() < right)) for _ in range(more)])
                asked.append((done.key, more))
    return asked


@pytest.mark.parametrize("case", CASES)
def test_groups_go_on_after_a_save_as_they_would_have(case, tmp_path):
    groups, flying, rng = make(case), [], random.Random(0)
    drive(groups, 14, flying, rng)
    save_state(tmp_path / "state", "engine", groups.state_dict())
    lost, resumed = [opened.key for opened in groups.in_flight], []
    for _ in range(2):
        again = make(case)
        again.load_state_dict(load_state(tmp_path / "state", "engine", remedy="start anew"))
        assert again.counts == groups.counts
        resumed.append(drive(again, 14, [], random.Random(1)))
    assert resumed[0] == resumed[1]
    assert lost and [key for key, _ in resumed[0][: len(lost)]] == lost


def test_damage_beside_the_scheduler_is_a_value_error_that_changes_nothing_or_does_no_harm():
    case = "a price, Thompson draws, history"
    drive(groups := make(case), 12, [], random.Random(0))

    def beside(state):
        own = ((), ("clock",), ("values",), ("counts",), ("counts", "opened"))
        return [*own, ("values", next(iter(state["values"])))]

    assert check_damage(lambda: make(case), groups.state_dict(), lambda loaded: loaded.next(), beside) > 60


def test_a_gate_takes_its_own_counts_alone():
    gate = DeadGroups()
    gate.load_state_dict({"seen": 4, "dead": 1})
    assert gate.metrics() == {"rejected": 0.25} and differ([]) and differ([0.0])
    assert check_damage(DeadGroups, {"seen": 5, "dead": 3}, DeadGroups.metrics) > 30
    with pytest.raises(ValueError, match="dead must be at most 5, the groups seen"):
        DeadGroups().load_state_dict({"seen": 5, "dead": 6})


def test_a_group_that_is_lost_is_given_up_and_its_prompt_comes_again():
    groups = EngineGroups(TrainerAllocation(allocator="uniform"), PROMPTS, lost_after=10)
    lost, flying = groups.next(), []
    drive(groups, 10, flying, random.Random(0))
    assert groups.counts["given_up"] == 1 and lost.key not in {opened.key for opened in groups.in_flight}
    assert groups.observe(lost.key, [Rollout(True)] * 8) == 0 and groups.counts["ignored"] == 1
    keys = [key for key, _ in drive(groups, 100, flying, random.Random(0))]
    assert any(key.startswith(f"{lost.prompt.id}#") for key in keys) and lost.key not in keys


def test_prompts_of_groups_that_have_failed_are_free_until_so_many_fail_that_the_verifier_must_be_dead():
    groups = EngineGroups(TrainerAllocation(allocator="uniform"), PROMPTS[:2])
    groups.next()
    with pytest.raises(RuntimeError, match="got none of the latest 256 in 1 attempts each; mend the engine or"):
        _ = [groups.observe(groups.next().key, []) for _ in range(257)]
    assert groups.counts["opened"] == 33  # of 8 rollouts


def test_the_baseline_of_a_group_is_that_of_before_its_rollouts():
    groups = make("a price, Thompson draws, history")
    opened = groups.next()
    won = [groups.rollout(1.0)] * opened.count
    groups.observe(opened.key, won)
    assert groups.advantages([opened.key] * opened.count, won) == pytest.approx(np.full(opened.count, 0.5))
    other = groups.next()
    mixed = [Rollout(True), Rollout(False), Rollout(True)]
    found = groups.advantages([opened.key, other.key, opened.key], mixed)  # in any order
    assert found[0] == found[2] > 0 > found[1]


def test_a_preset_that_is_grpo_gives_its_advantages():
    groups = EngineGroups(TrainerAllocation(preset="hora_as_printed"), [Prompt("a")])
    opened = groups.next()
    rollouts = [groups.rollout(float(row < 2)) for row in range(opened.count)]
    advantages = groups.advantages([opened.key] * 8, rollouts)
    assert opened.count == 8 and advantages == pytest.approx(advantages_of([Group(opened.prompt, rollouts)], "grpo"))


def test_threads_open_each_group_once():
    groups = EngineGroups(TrainerAllocation(**CASES["two rounds"]), [Prompt(str(q)) for q in range(200)])
    keys = []
    threads = [Thread(target=lambda: keys.extend(groups.next().key for _ in range(25))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(set(keys)) == len(keys) == 100


def engine(group_size=None, **decisions):
    return EngineGroups(TrainerAllocation(**{"allocator": "uniform"} | decisions), PROMPTS, group_size=group_size)


BINARY = Mixed(predictor=DiscountedCounts())
HISTORY = {"baseline": "spo", "estimator": "reinforce"}
REFUSED = {
    "groups of one size, got vip; use uniform": lambda: engine(8, allocator="vip"),
    "rewards in this engine, got ttrl": lambda: engine(allocator="ttrl"),
    "batch must say how many prompts dapo": lambda: engine(allocator="dapo"),
    "at least 2 rollouts for rloo, which compares them, got 1 by uniform": lambda: engine(1, estimator="rloo"),
    "got 1 by uniform": lambda: engine(allocator=Uniform(1), estimator="rloo"),
    "variance of the estimator that trains, rloo, got dr_grpo": lambda: engine(
        allocator=VIP(rollouts_per_prompt=4.0, estimator="dr_grpo"), estimator="rloo"
    ),
    "must not compare rounds, .*, got sequential with hora; use": lambda: engine(
        allocator="hora", estimator="sequential"
    ),
    "got all 30 in flight; use a data set": lambda: [groups.next() for groups in [make()] for _ in range(31)],
    "at most the 8 rollouts that were asked for": lambda: (own := make()).observe(own.next().key, [None] * 9),
    "rewards must be 0 or 1 .* got 0.5": lambda: engine(selection=BINARY).rollout(0.5),
    "allocator must be 'hora', as in the run": lambda: make().load_state_dict(make("two rounds").state_dict()),
    "group_size must be 8, as in": lambda: make(group_size=4).load_state_dict(make(group_size=8).state_dict()),
    "tasks must be a finite sequence": lambda: ChosenTasks(iter([]), 8, TrainerAllocation(allocator="uniform")),
    "one of the latest 4096 that were opened, got 'other'; raise lost_after": lambda: engine().advantages(
        ["other#1"], [Rollout(True)]
    ),
    f"got '{PROMPTS[1].id}#7'; raise lost_after": lambda: engine(**HISTORY).advantages(
        [f"{PROMPTS[1].id}#7"], [Rollout(True)]
    ),
}


def test_what_cannot_be_followed_is_refused():
    assert_refused(lambda act: act(), REFUSED.items())
    assert engine(allocator="vip", estimator="dr_grpo")._stream.rule.needs.estimator == "dr_grpo"


def test_rollouts_without_log_probabilities_are_refused_where_score_norms_are_read():
    groups = EngineGroups(TrainerAllocation(preset="fixed_baseline"), [Prompt("a"), Prompt("b")])
    with pytest.raises(ValueError, match="must have the log-probabilities of their sampled tokens"):
        groups.rollout(1.0, 3)


def test_the_gate_goes_by_the_verdict_and_only_with_an_estimator_of_the_allocation():
    gated = TrainerAllocation(allocator="uniform", estimator="dr_grpo", outcome_gate=True)
    groups = EngineGroups(gated, PROMPTS, group_size=2)
    keys = [groups.next().key for _ in range(2)]
    dead = [groups.rollout(reward, verdict=1.0) for reward in (1.2, 0.8)]
    mixed = [groups.rollout(reward, verdict=right) for reward, right in ((1.5, 1), (0.5, 0))]
    found = groups.advantages([keys[0]] * 2 + [keys[1]] * 2, [*dead, *mixed])
    np.testing.assert_allclose(found, [0, 0, 0.5, -0.5])
    assert groups.rollout(0.5, verdict=float("nan")) is None
    with pytest.raises(ValueError, match=r"rewards must be 0 or 1 where correct rollouts are counted, got 0\.5"):
        groups.rollout(0.5)
    with pytest.raises(ValueError, match="outcome_gate must go with an estimator of the allocation"):
        EngineGroups(TrainerAllocation(allocator="uniform", outcome_gate=True), PROMPTS, group_size=2)
