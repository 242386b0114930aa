"""Answer codes and running vote counts against Counters."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from apportion.stopping import count_votes, encode_answers, leader, top_two
from apportion.stopping.votes import extend_for_leader

streams = st.lists(st.sampled_from(["7", "9", "11", "", None]), min_size=1, max_size=20)


@given(streams)
def test_codes_name_the_answers_in_order_of_appearance(stream):
    answers, codes = encode_answers(stream)
    assert answers == list(dict.fromkeys(answer for answer in stream if answer is not None))
    assert [None if code < 0 else answers[code] for code in codes] == stream


@given(streams)
def test_counts_are_those_of_each_prefix(stream):
    answers, codes = encode_answers(stream)
    votes = count_votes(codes, len(answers))
    for t, row in enumerate(votes, 1):
        counter = Counter(answer for answer in stream[:t] if answer is not None)
        assert row.tolist() == [counter[answer] for answer in answers] or not answers
        ranked = [*counter.most_common(), ("", 0), ("", 0)]
        assert [int(n) for n in top_two(row)] == [ranked[0][1], ranked[1][1]]
        if counter:
            assert answers[leader(row)] == ranked[0][0]


def test_an_empty_answer_is_an_answer_and_none_is_not():
    assert encode_answers(["", None, ""])[0] == [""]
    assert encode_answers([None, None])[1].tolist() == [-1, -1]
    assert count_votes(np.array([-1, -1]), 0).tolist() == [[0], [0]]


@given(streams, st.integers(0, 5))
def test_votes_for_the_leader_are_those_of_the_longer_stream(stream, more):
    answers, codes = encode_answers(stream)
    votes = count_votes(codes, len(answers))
    longer = np.append(codes, np.full(more, leader(votes[-1]) if len(votes) else 0))
    np.testing.assert_array_equal(extend_for_leader(votes, more), count_votes(longer, len(answers))[len(votes) :])
