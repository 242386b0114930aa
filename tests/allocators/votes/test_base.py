"""The shared parts of rules without labels: waves, pseudo-labels, groups."""

from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion import Prompt, Rollout
from apportion.allocators import TTRL, Voting
from apportion.allocators.votes import PseudoLabel
from apportion.stopping import Fixed, count_votes, encode_answers
from apportion.stopping.votes import first_true
from tests.allocators.votes.builders import replayed
from tests.stopping.test_rules import INNER, each_rule

M = 8

streams = st.lists(st.sampled_from(["a", "a", "a", "b", "b", "c", None]), min_size=M, max_size=M)
votings = st.builds(
    Voting,
    st.sampled_from(INNER),
    max_samples=st.just(M),
    min_samples=st.integers(1, M),
    wave=st.integers(1, M + 2) | st.just("free"),
    curtail=st.booleans(),
)


def asked_by_hand(voting, stream):
    """Samples of ``stream`` until the rule is content after a whole wave, at least N; "free" is one at a time."""
    answers, codes = encode_answers(stream)
    stops = voting.stopping.stops(count_votes(codes, len(answers)), M)
    wave = 1 if voting.wave == "free" else voting.wave
    ends = [min(t, M) for t in range(wave, M + wave, wave)]
    return next(t for t in ends if t >= voting.min_samples and (t == M or stops[t - 1]))


@given(voting=votings, stream=streams)
@settings(deadline=None)
def test_at_least_n_samples_are_drawn_and_no_wave_takes_more_than_the_rule(voting, stream):
    batch = replayed(voting, [stream])
    assert int(batch.asked[0]) == asked_by_hand(voting, stream)
    assert voting.min_samples <= int(batch.asked[0]) <= M
    assert voting.finished(batch, 0) and not voting.plan(batch)
    if voting.wave == "free":
        assert voting.plan(voting.start(batch.prompts)).counts >= voting.min_samples


@each_rule
def test_free_waves_hold_where_a_rule_was_content_before_n(rule):
    """After every history, also one in which the rule was content before: then N kept the vote going."""
    codes = [encode_answers([None if c < 0 else str(c) for c in row])[1] for row in product(range(-1, 3), repeat=6)]
    votes = count_votes(np.unique(codes, axis=0), 3)
    stops = rule.stops(votes, 6)
    for taken in range(1, 6):
        going = ~stops[:, taken - 1]
        if going.any():
            earliest = rule.earliest(votes[going, :taken], 6)
            assert (earliest <= first_true(stops[going, taken:])).all()


@given(voting=votings, stream=streams)
@settings(deadline=None)
def test_a_pseudo_label_says_how_its_vote_ended(voting, stream):
    batch = replayed(voting, [stream])
    taken = int(batch.asked[0])
    votes = Counter(answer for answer in stream[:taken] if answer is not None)
    label = voting.label(batch, 0)
    leaders = [answer for answer, count in votes.items() if count == max(votes.values())]
    if not votes:
        assert label == PseudoLabel(None, "unanswered", 0.0)
    elif len(leaders) > 1:
        assert label == PseudoLabel(None, "tied", votes[leaders[0]] / taken)
    else:
        assert label.status == ("decided" if taken < M else "exhausted")
        assert label.answer == voting.winner(batch, 0)
        assert label.share == votes[label.answer] / taken
        assert [label.answer] == leaders or "literal" in repr(voting.rule)


def test_curtailment_gives_a_tie_to_the_answer_that_came_first():
    plain, curtailed = (Voting(Fixed(), max_samples=M, curtail=curtail) for curtail in (False, True))
    stream = ["a", "b"] * (M // 2)
    assert plain.labels(replayed(plain, [stream])) == [PseudoLabel(None, "tied", 0.5)]
    assert curtailed.labels(replayed(curtailed, [stream])) == [PseudoLabel("a", "decided", 4 / 7)]


@pytest.mark.parametrize(("retain", "kept"), [("first", 3), ("all", 6)])
def test_groups_hold_the_rollouts_retained_rewarded_by_all_votes(retain, kept):
    ttrl = TTRL(max_samples=6, min_samples=3, retain=retain)
    batch = replayed(ttrl, [["b", None, "a", "a", "c", "a"], list("ababab"), [None] * 6, list("bbbbbb")])
    first, second = ttrl.groups(batch)
    assert [first.prompt, second.prompt] == [batch.prompts[0], batch.prompts[3]]
    assert first.rewards.tolist() == [0, 0, 1, 1, 0, 1][:kept] and first.keep.all()
    shares = TTRL(max_samples=6, min_samples=3, retain=retain, reward="vote_share").groups(batch)[0].rewards
    assert shares.tolist() == [0.2, 0.0, 0.6, 0.6, 0.2, 0.6][:kept]


def test_a_voted_reward_has_nothing_that_would_be_compared_in_its_place():
    ttrl = TTRL(max_samples=3, min_samples=3)
    rollouts = [[Rollout(answer=text, reward=0.5, components=(1.0, 0.0)) for text in "aab"]]
    batch = ttrl.start([Prompt("a question")])
    [group] = ttrl.groups(batch.add(ttrl.plan(batch), rollouts))
    assert [(rollout.components, rollout.correct) for rollout in group.rollouts] == [((), None)] * 3
