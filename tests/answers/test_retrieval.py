import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.answers import exact_match, f1_at_k, precision_at_k

FOUND = 5
"""Passages of a search."""
passages = st.lists(st.sampled_from("abcdefghij"), min_size=FOUND, max_size=FOUND, unique=True)


def test_known_figures():
    relevant = ["a", "b", "c", "d"]
    assert precision_at_k([list("axybz")], relevant, 5) == 0.4
    assert precision_at_k([list("axybz")], relevant, 2) == 0.5
    assert precision_at_k([list("ab")], relevant, 5) == 0.4  # three places are empty
    assert precision_at_k([list("aa")], relevant, 2) == 0.5  # once
    assert precision_at_k([list("ab"), list("xy")], relevant, 2) == 0.5
    assert f1_at_k([list("axybz")], relevant, 5) == pytest.approx(2 * 0.4 * 0.5 / 0.9)
    assert f1_at_k([list("ab"), list("cb")], relevant, 2) == pytest.approx(2 * 1.0 * 0.75 / 1.75)
    assert f1_at_k([list("xy")], relevant, 2) == f1_at_k([], relevant, 2) == precision_at_k([], relevant, 2) == 0.0
    assert not exact_match(None, ["Seine"])


def retrieval(searches, gold):
    """Return the precision at 5, a mean over searches, and F1 with the recall of all of them."""
    if not searches:
        return 0.0, 0.0
    precision = sum(len(gold.intersection(found)) / FOUND for found in searches) / len(searches)
    recall = len(set().union(*searches).intersection(gold)) / len(gold)
    return precision, 2 * precision * recall / (precision + recall) if precision + recall else 0.0


@given(st.lists(passages, max_size=4), st.sets(st.sampled_from("abcdefghij"), min_size=1))
def test_they_are_the_measures_of_a_search_agent(searches, relevant):
    precision, f1 = retrieval(searches, relevant)
    assert precision_at_k(searches, relevant, FOUND) == pytest.approx(precision)
    assert f1_at_k(searches, relevant, FOUND) == pytest.approx(f1)
