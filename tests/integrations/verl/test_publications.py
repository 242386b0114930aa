"""What the trainer is told of prompts and their rows, counted by hand."""

from collections import Counter

import pytest

from apportion.allocators import Select, Uniform
from apportion.integrations.verl.messages import Place, Written, row_keys
from apportion.integrations.verl.publications import filler, publications, without_reused
from apportion.types import Batch, Belief, Group, Plan, Prompt, Rollout


def test_a_prompt_that_was_not_chosen_is_done_and_one_without_rollouts_has_failed():
    """verl's asynchronous trainers put another prompt in the place of one that failed."""
    hosts = ["h0", "h1", "h2"]
    allocator = Select(allocator=Uniform(2), prompts=2)
    batch = allocator.start([Prompt(host, data=Place(host, host)) for host in hosts])
    plan = allocator.plan(batch)
    fails, succeeds = (hosts[q] for q in plan.counts.nonzero()[0])
    arrive = [Rollout(True, None, 1.0, Written(bytes(1), succeeds, session, (1,)), 1) for session in range(2)]
    batch = batch.add(plan, [arrive if host == succeeds else [] for host in hosts])
    said = publications(batch, allocator.groups(batch), hosts, Counter({fails: 2, succeeds: 2}))
    assert {each.host: each.status for each in said} == dict.fromkeys(hosts, "finished") | {fails: "failure"}
    assert [each.host for each in said if each.groups] == [succeeds]


def rollout(host, session, correct=True, outputs=1, step=None):
    return Rollout(correct, completion=Written(bytes([session]), host, session, (4,) * outputs), tokens=4, step=step)


@pytest.fixture
def prompts():
    return [
        Prompt("a", data=Place("h", "h")),
        Prompt("b", data=Place("g", "g")),
        Prompt("c", data=Place("h.1", "h", 10)),
    ]


@pytest.fixture
def batch(prompts):
    """Four sessions of h of which two arrived, one of them with two rows; none of g; one of a guest of h."""
    own = [[rollout("h", 0, outputs=2), rollout("h", 3, correct=False)], [], [rollout("h", 10)]]
    return Batch.start(prompts, Belief.uniform(3)).add(Plan([4, 2, 1]), own)


SESSIONS = Counter({"h": 4, "g": 2, "h.1": 1})


def test_rows_that_no_group_keeps_are_cleared_with_those_of_sessions_that_said_nothing(prompts, batch):
    groups = [Group(prompts[0], batch.rollouts[0], keep=[False, True])]
    host, other = publications(batch, groups, ["h", "g"], SESSIONS)
    assert (host.host, host.status, other.host, other.status) == ("h", "finished", "g", "failure")
    (group,) = host.groups
    assert (group.name, group.rewards, group.tokens, group.rounds) == ("h", (1.0, 0.0), (4, 4), (0, 0))
    assert [(row.place, row.written.keys, row.session) for row in group.rows] == [(1, ["h_3_0"], None)]
    assert set(host.cleared) == {"h_0_0", "h_0_1", "h_1_0", "h_2_0", "h_10_0"}
    assert (other.groups, set(other.cleared)) == ((), {"g_0_0", "g_1_0"})


def test_a_guests_group_is_its_hosts(prompts, batch):
    host, _ = publications(batch, [Group(prompts[2], batch.rollouts[2])], ["h", "g"], SESSIONS)
    assert [group.name for group in host.groups] == ["h.1"]
    assert "h_10_0" not in host.cleared


def test_reused_rollouts_are_written_as_sessions_of_their_own(prompts, batch):
    mixed = (batch.rollouts[0][0], rollout("old", 7, step=1, outputs=2), rollout("old", 8, step=1))
    host, _ = publications(batch, [Group(prompts[0], mixed)], ["h", "g"], SESSIONS)
    assert [row.session for row in host.groups[0].rows] == [None, 4, 5]
    assert not {key for session in (4, 5) for key in row_keys("h", session, 2)} & set(host.cleared)
    assert [row.session for row in without_reused(host).groups[0].rows] == [None]


def test_a_guests_reused_rollouts_follow_upon_its_own_sessions(prompts, batch):
    group = Group(prompts[2], (batch.rollouts[2][0], rollout("old", 7, step=1)))
    host, _ = publications(batch, [group], ["h", "g"], SESSIONS)
    assert [row.session for row in host.groups[0].rows] == [None, 11]


def test_a_filler_is_one_rollout_alone(prompts, batch):
    found = filler(batch)
    assert (found.prompt, found.rollouts, found.rewards.tolist()) == (prompts[0], batch.rollouts[0][:1], [1.0])
    assert filler(Batch.start(prompts, Belief.uniform(3))) is None
    unverified = Batch.start(prompts[:1], Belief.uniform(1)).add(Plan([1]), [[rollout("h", 0, correct=None)]])
    assert filler(unverified).rewards.tolist() == [0.0]
