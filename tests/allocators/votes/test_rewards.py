"""Rewards without labels against counts by hand, and a user's own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion import Rollout
from apportion.allocators import TTRL, OptPO
from apportion.allocators.votes import agreement, vote_share
from apportion.allocators.votes.rewards import pseudo_rewards
from tests.allocators.votes.builders import replayed
from tests.builders import finished, make_prompts

answers = st.lists(st.sampled_from(["a", "b", "c", "", None]), min_size=1, max_size=12)


def rollouts_of(answers):
    return [Rollout(answer=answer) for answer in answers]


@given(answers)
def test_the_share_of_votes_is_counted_by_hand(answers):
    votes = [answer for answer in answers if answer is not None]
    expected = [sum(answer == own for answer in votes) / len(votes) if own is not None else 0.0 for own in answers]
    found = vote_share(rollouts_of(answers), "a")
    assert found == pytest.approx(expected)
    assert ((found >= 0) & (found <= 1)).all()


@given(answers, st.sampled_from("abz"))
def test_agreement_is_one_where_the_answer_is_the_label(answers, label):
    assert agreement(rollouts_of(answers), label).tolist() == [float(answer == label) for answer in answers]


def closeness(rollouts, label):
    """1 for the pseudo-label, less for an answer further off."""
    return [0 if rollout.answer is None else 1 / (1 + abs(int(rollout.answer) - int(label))) for rollout in rollouts]


@pytest.mark.parametrize("kind", [TTRL, OptPO])
def test_a_users_reward_function_is_used_as_the_named_ones_are(kind):
    allocator = kind(max_samples=6, min_samples=2, retain="all", reward=closeness)
    (group,) = allocator.groups(replayed(allocator, [["7", "8", None, "7", "4", "7"]]))
    assert group.rewards.tolist() == [1, 0.5, 0, 1, 0.25, 1][: len(group.rollouts)]


def test_a_users_function_is_shown_no_verdict():
    """A sampler that verifies all the same leaks nothing, also where the function asks for it."""

    def nosy(rollouts, label):
        return [float(rollout.correct or 0) + (rollout.reward or 0) / 2 for rollout in rollouts]

    ttrl = TTRL(max_samples=3, min_samples=2, reward=nosy)
    drawn = [Rollout(True, "a"), Rollout(answer="a", reward=0.5), Rollout(False, "b")]
    (group,) = ttrl.groups(finished(make_prompts(1), [drawn]))
    assert group.rewards.tolist() == [0, 0]


def test_an_object_that_can_be_called_is_named_in_the_error():
    class Constant:
        def __call__(self, rollouts, label):
            return [7] * len(rollouts)

        def __repr__(self):
            return "Constant()"

    with pytest.raises(ValueError, match=r"got 7.0 for rollout 0; scale what Constant\(\) returns"):
        pseudo_rewards(Constant(), rollouts_of("ab"), "a")
