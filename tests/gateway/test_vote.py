"""The vote loop on scripted samples, against the replay of the same answers."""

import asyncio
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion.allocators import Voting
from apportion.answers import ExactMatch
from apportion.gateway.body import VoteRequest
from apportion.gateway.errors import UpstreamError
from apportion.gateway.upstream import Bill
from apportion.gateway.vote import RunningVote, calls_of
from apportion.stopping import RULES, decide, make_rule

MOST = 16


def reply(text):
    return {"choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]}


def held(answers, voting, n=1, jitter=0, messages=()):
    """Return the vote on samples with these answers, which arrive in an order that ``jitter`` decides."""
    order = random.Random(jitter)

    async def draw(number):
        for _ in range(order.randrange(5) if jitter else 0):
            await asyncio.sleep(0)
        answer = answers[number]
        if answer == "failed":
            raise UpstreamError(502, "out of memory", again=True)
        return reply(answer or "")

    async def run():
        request = VoteRequest({"messages": [*messages]}, n, None, False, False, voting, lambda text: text or None)
        vote = RunningVote(request, draw, ExactMatch(), give_up=MOST)
        await vote.run(10)
        return vote

    return asyncio.run(run())


@settings(max_examples=40, deadline=None)
@given(
    answers=st.lists(st.sampled_from(["a", "b", "c", None]), min_size=MOST, max_size=MOST),
    rule=st.sampled_from(sorted(RULES)),
    wave=st.sampled_from([1, 3, "free"]),
    jitter=st.integers(1, 9),
)
def test_a_vote_is_the_replay_of_its_answers(answers, rule, wave, jitter):
    """Whatever the wave, samples count one by one, as in a replay with wave 1."""
    answers[0] = "a"
    made = make_rule(rule, **({"min_samples": 8} if rule == "optpo" else {}))
    vote = held(answers, Voting(made, MOST, wave=wave), jitter=jitter)
    wanted = decide(answers, made, MOST, wave=1, curtail=True)
    assert (vote.answer, int(vote.count.batch.asked[0])) == (wanted.answer, wanted.samples)
    own = vote.ballot(Bill())
    assert sum(own["votes"].values()) + own["unparsed"] == own["samples"]
    assert own["stopped"] == ("max_samples" if wanted.samples == MOST else "rule")
    assert 0 <= own["disagreement"] <= 1


def test_only_replies_that_may_be_returned_are_kept():
    voting = Voting(make_rule("fixed"), MOST, curtail=False)
    vote = held(["a", "b", "a", "b", "a", "c", None, "a"] * 2, voting, n=2)
    assert list(vote.replies) == [0, 1, 5, 6] and list(vote.chosen()) == [0, 1]
    one_by_one = held(["a", "b"] * 8, replace(voting, wave=1), n=2)
    assert sorted(one_by_one._replies) == [0, 1, 15]  # and that of the last wave


def test_three_failures_in_a_row_end_a_vote_with_what_it_has():
    vote = held(["a", "b", "a", *["failed"] * 13], Voting(make_rule("fixed"), MOST))
    own = vote.ballot(Bill())
    assert own == own | {"answer": "a", "stopped": "failures", "failed": 3, "samples": 6}
    assert own["errors"] == ["out of memory"]
    with pytest.raises(UpstreamError, match="out of memory"):
        held(["failed"] * MOST, Voting(make_rule("fixed"), MOST))


def test_calls_of_custom_tools_are_votes_of_their_own():
    def called(id, text):
        return calls_of({"tool_calls": [{"id": id, "type": "custom", "custom": {"name": "sql", "input": text}}]})

    assert called("a", "SELECT 1") == called("b", "SELECT 1") != called("c", "DROP TABLE x")


def test_a_question_of_white_space_or_of_half_a_character_is_voted_on():
    for content in ("  ", "\ud800"):
        assert held(["a"] * 2, Voting(make_rule("fixed"), 2), messages=[{"content": content}]).answer == "a"
