"""Equivalence by embeddings: the threshold, the most similar class, numbers, and the model that is bundled."""

import asyncio

import pytest

from apportion.answers import EmbeddingMatch, make_equivalence, merge_answers

DIRECTIONS = {"Paris": [1, 0, 0], "city of Paris": [2, 0.2, 0], "Lyon": [0, 1, 0], "Paris or Lyon": [1, 0.9, 0]}


def directions(texts):
    directions.calls.append(list(texts))
    return [DIRECTIONS.get(text, [0, 0, 1]) for text in texts]


@pytest.fixture(autouse=True)
def forget():
    directions.calls = []


def test_answers_above_the_threshold_are_one_vote():
    match = EmbeddingMatch(0.9, directions)
    answers = ["Paris", "Lyon", "city of Paris", "the Paris!", "Paris or Lyon"]
    assert merge_answers(answers, match) == ["Paris", "Lyon", "Paris", "Paris", "Paris or Lyon"]
    assert merge_answers(answers, EmbeddingMatch(0.7, directions))[-1] == "Paris"
    assert merge_answers(["Lyon", "Paris", "Paris or Lyon"], EmbeddingMatch(0.6, directions))[-1] == "Paris"


def test_each_answer_is_embedded_once():
    match = EmbeddingMatch(0.9, directions)
    merge_answers(["Paris", "Lyon", "city of Paris"], match)
    merge_answers(["city of Paris", "Lyon", "Paris"], match)
    assert sorted(text for call in directions.calls for text in call) == ["Lyon", "Paris", "city of Paris"]


def test_different_numbers_are_never_equal():
    match = EmbeddingMatch(0.1, directions)
    answers = ["in 1912", "in 1921", "the year 1912", "-5 degrees", "5 degrees", "five degrees"]
    assert merge_answers(answers, match) == ["in 1912", "in 1921", "in 1912", "-5 degrees", "5 degrees", "5 degrees"]


def test_an_embedding_of_zeros_equals_nothing_but_the_same_words():
    match = EmbeddingMatch(0.5, lambda texts: [[0.0, 0.0]] * len(texts))
    assert merge_answers(["a b", "c d", "A b."], match) == ["a b", "c d", "a b"]


def test_a_model_that_returns_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"an embedder must give \[2, d\]"):
        merge_answers(["x", "y"], EmbeddingMatch(0.5, lambda texts: [[1.0]]))


def test_many_tasks_may_compare_at_once():
    async def ask():
        match = EmbeddingMatch(0.9, directions)
        return await asyncio.gather(*(match.find_equal("Paris", ["Lyon", "city of Paris"]) for _ in range(20)))

    assert asyncio.run(ask()) == [1] * 20


@pytest.mark.slow
def test_the_bundled_model_finds_an_alias_and_tells_another_city(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    answers = ["Paris", "the city of Paris", "Nairobi"]
    assert merge_answers(answers, make_equivalence("embedding", threshold=0.6)) == ["Paris", "Paris", "Nairobi"]
