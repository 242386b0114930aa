"""Curtailment against every possible continuation: it never changes the full vote and never stops late."""

from collections import Counter
from functools import cache
from itertools import product

import pytest

from apportion.stopping import decide

ALPHABET = ("a", "b", "c", None)


def full_vote(stream):
    """Return the answer with the most votes; the first to appear among equals, None if there is no answer."""
    ranked = Counter(answer for answer in stream if answer is not None).most_common(1)
    return ranked[0][0] if ranked else None


@cache
def possible(stream, max_samples):
    """Return the full vote's answer for every continuation, including one with unseen answers."""
    if len(stream) == max_samples:
        return frozenset([full_vote(stream)])
    return frozenset().union(*(possible((*stream, answer), max_samples) for answer in (*ALPHABET, "new")))


@pytest.mark.parametrize("max_samples", [1, 5])
def test_it_stops_exactly_when_every_continuation_gives_the_same_answer(max_samples):
    streams = list(product(ALPHABET, repeat=max_samples))
    decisions = decide(streams, rule="curtailment", max_samples=max_samples)
    for stream, decision in zip(streams, decisions, strict=True):
        sure = [t for t in range(1, max_samples + 1) if len(possible(stream[:t], max_samples)) == 1]
        assert (decision.samples, decision.answer) == (sure[0], full_vote(stream)), stream
