"""The bound on right winners: valid over all draws of labels, exact at its ends, and read from files of people."""

import asyncio
import json
import time
from dataclasses import replace
from itertools import combinations

import pytest
from scipy.stats import beta

from apportion.answers import ExactMatch
from apportion.messages import prompt_hash
from apportion.questions import Question
from apportion.rows import TableError
from apportion.vote.right import RightWinners, check_golds, exact_interval, least_share, read_labels, right_winners
from apportion.vote.setup import make_setup
from tests.vote.builders import make_ballot


@pytest.mark.parametrize("right", range(9))
@pytest.mark.parametrize("labelled", [1, 3, 5, 8])
@pytest.mark.parametrize("confidence", [0.6, 0.95])
def test_over_all_draws_the_bound_is_above_the_truth_as_seldom_as_it_says(right, labelled, confidence):
    winners = [True] * right + [False] * (8 - right)
    draws = list(combinations(winners, labelled))
    wrong = sum(least_share(sum(drawn), labelled, 8, confidence) > right / 8 for drawn in draws)
    assert wrong / len(draws) <= 1 - confidence


@pytest.mark.parametrize(("right", "labelled"), [(0, 10), (9, 10), (10, 10), (45, 50)])
def test_it_is_never_below_clopper_pearson_and_approaches_it(right, labelled):
    binomial = beta.ppf(0.05, right, labelled - right + 1) if right else 0.0
    few, many = (least_share(right, labelled, questions) for questions in (100, 100_000))
    assert few >= many - 1e-9 and many == pytest.approx(binomial, abs=1e-3)
    assert least_share(right, labelled, labelled) == right / labelled


def test_a_million_questions_take_no_time():
    started = time.process_time()
    assert least_share(450, 500, 1_000_000) == pytest.approx(beta.ppf(0.05, 450, 51), abs=1e-3)
    assert time.process_time() - started < 5  # some milliseconds; a loop over all shares takes minutes


def test_the_interval_of_no_and_of_all_right_ones_is_no_point():
    assert exact_interval(0, 20) == pytest.approx((0.0, 0.16843), abs=1e-4)
    assert exact_interval(20, 20) == pytest.approx((0.83157, 1.0), abs=1e-4)


def golds_of(path):
    return {id: label.golds for id, label in read_labels(path).items()}


def test_labels_are_read_by_id_and_by_prompt(tmp_path):
    by_id, by_prompt = tmp_path / "id.csv", tmp_path / "prompt.jsonl"
    by_id.write_text("id,answer\n7,18\nb,\\boxed{4}\n", encoding="utf-8")
    by_prompt.write_text(json.dumps({"prompt": "1 + 1?", "answer": ["2", "two"]}) + "\n", encoding="utf-8")
    assert golds_of(by_id) == {"7": ("18",), "b": ("4",)}
    assert golds_of(by_prompt) == {prompt_hash("1 + 1?"): ("2", "two")}
    by_id.write_text("id,answer\n7,\n", encoding="utf-8")
    with pytest.raises(TableError, match=r"must have an answer for each question, got none for \['7'\]; add it"):
        read_labels(by_id)


def test_winners_are_compared_with_labels_and_questions_without_an_answer_are_not_right():
    ballots = [make_ballot("a", answer="7"), make_ballot("b", answer="8"), make_ballot("c", answer=None, votes={})]
    labels = {id: Question(id, id, golds=golds) for id, golds in {"a": ("7",), "c": ("7",), "z": ("1",)}.items()}
    found = asyncio.run(right_winners(ballots, labels, ExactMatch()))
    assert found == RightWinners(2, 1, 3, least_share(1, 2, 3))
    with pytest.raises(ValueError, match="labels must be of questions that are finished, got none of 1; give the ids"):
        asyncio.run(right_winners(ballots, {"z": labels["z"]}, ExactMatch()))


def test_a_label_with_the_id_of_another_question_is_refused():
    label, ballot = Question("a", "1 + 1?", "2"), make_ballot("a", question_hash=prompt_hash("2 + 2?"))
    with pytest.raises(ValueError, match=r"got another text for 'a': '1 \+ 1\?'; correct"):
        asyncio.run(right_winners([ballot], {"a": label}, ExactMatch()))
    asyncio.run(right_winners([replace(ballot, question_hash=prompt_hash("1 + 1?"))], {"a": label}, ExactMatch()))


def test_the_right_option_must_be_a_letter_where_letters_are_read():
    """The number of the option, or its text, would count every winner as wrong."""
    choice, auto = (make_setup("http://localhost:1/v1", "tiny", extract=extract) for extract in ("choice", "auto"))
    check_golds([Question("a", "?", golds=("B", "(b)", "B."))], choice)
    for gold in ("1", "B) Paris", "Paris"):
        check_golds([Question("a", "?", gold)], auto)
        with pytest.raises(ValueError, match="must be a letter from A to J under extract = choice"):
            check_golds([Question("a", "?", gold)], choice)
