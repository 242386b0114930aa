"""Commits of prompts and their rows, compared with hand-counted ones."""

from collections import Counter

import pytest

from apportion.allocators import Uniform
from apportion.types import Batch, Belief, Group, Plan, Prompt, Rollout
from apportion.verl.coordinator.commits import commit_tasks, single_rollout_group
from apportion.verl.coordinator.messages import RowAddress, WrittenRollout, row_keys
from apportion.verl.coordinator.rounds import FinishedPrompts


def finished(batch, groups):
    """Return the prompts of ``batch`` with equal weights and without baselines."""
    return FinishedPrompts(batch, tuple(groups), {prompt.id: (None, 1.0) for prompt in batch.prompts})


def test_a_prompt_without_requests_is_finished_and_one_without_rollouts_has_failed():
    """verl's asynchronous trainers replace a failed prompt by another."""
    uids = ["h0", "h1", "h2"]
    allocator, fails, succeeds = Uniform(2), "h0", "h2"
    batch = allocator.start([Prompt(uid, data=RowAddress(uid, uid)) for uid in uids])
    plan = Plan([2, 0, 2])
    arrive = [Rollout(True, None, 1.0, WrittenRollout(bytes(1), succeeds, session, (1,)), 1) for session in range(2)]
    batch = batch.add(plan, [arrive if uid == succeeds else [] for uid in uids])
    commits = commit_tasks(finished(batch, allocator.groups(batch)), Counter({fails: 2, succeeds: 2}))
    assert {each.uid: each.status for each in commits} == dict.fromkeys(uids, "finished") | {fails: "failure"}
    assert [each.uid for each in commits if each.groups] == [succeeds]


def rollout(uid, session, correct=True, outputs=1, step=None):
    return Rollout(
        correct, completion=WrittenRollout(bytes([session]), uid, session, (4,) * outputs), tokens=4, step=step
    )


@pytest.fixture
def prompts():
    return [
        Prompt("a", data=RowAddress("h", "h")),
        Prompt("b", data=RowAddress("g", "g")),
        Prompt("c", data=RowAddress("h.1", "h", 10)),
    ]


@pytest.fixture
def batch(prompts):
    """A batch: two of four sessions of h arrived, one with two rows; none of g; and one of an extra prompt under h."""
    own = [[rollout("h", 0, outputs=2), rollout("h", 3, correct=False)], [], [rollout("h", 10)]]
    return Batch.start(prompts, Belief.uniform(3)).add(Plan([4, 2, 1]), own)


def committed(batch, *groups):
    """Return the commits of h and g, after so many sessions of each group."""
    return commit_tasks(finished(batch, groups), {"h": 4, "g": 2, "h.1": 1})


def test_rows_of_no_group_and_of_sessions_without_a_result_are_cleared(prompts, batch):
    groups = [Group(prompts[0], batch.rollouts[0], keep=[False, True])]
    uid, other = committed(batch, *groups)
    assert (uid.uid, uid.status, other.uid, other.status) == ("h", "finished", "g", "failure")
    (group,) = uid.groups
    assert group.columns == {"group": "h", "rewards": (1.0, 0.0), "tokens": (4, 4), "rounds": (0, 0), "weight": 1.0}
    assert [(row.position, row.written.keys, row.session) for row in group.rows] == [(1, ["h_3_0"], None)]
    assert set(uid.cleared) == {"h_0_0", "h_0_1", "h_1_0", "h_2_0", "h_10_0"}
    assert (other.groups, set(other.cleared)) == ((), {"g_0_0", "g_1_0"})


def test_the_group_of_an_extra_prompt_is_committed_with_its_uid(prompts, batch):
    uid, _ = committed(batch, Group(prompts[2], batch.rollouts[2]))
    assert [group.columns["group"] for group in uid.groups] == ["h.1"]
    assert "h_10_0" not in uid.cleared


def test_reused_rollouts_are_written_as_new_sessions(prompts, batch):
    mixed = (batch.rollouts[0][0], rollout("old", 7, step=1, outputs=2), rollout("old", 8, step=1))
    uid, _ = committed(batch, Group(prompts[0], mixed))
    assert [row.session for row in uid.groups[0].rows] == [None, 4, 5]
    assert not {key for session in (4, 5) for key in row_keys("h", session, 2)} & set(uid.cleared)


def test_reused_rollouts_of_an_extra_prompt_follow_its_own_sessions(prompts, batch):
    group = Group(prompts[2], (batch.rollouts[2][0], rollout("old", 7, step=1)))
    uid, _ = committed(batch, group)
    assert [row.session for row in uid.groups[0].rows] == [None, 11]


def test_an_empty_round_gets_a_group_of_one_rollout(prompts, batch):
    found = single_rollout_group(batch)
    assert (found.prompt, found.rollouts, found.rewards.tolist()) == (prompts[0], batch.rollouts[0][:1], [1.0])
    assert single_rollout_group(Batch.start(prompts, Belief.uniform(3))) is None
    unverified = Batch.start(prompts[:1], Belief.uniform(1)).add(Plan([1]), [[rollout("h", 0, correct=None)]])
    assert single_rollout_group(unverified).rewards.tolist() == [0.0]
