import json
import re
from collections import Counter
from itertools import permutations
from math import factorial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from apportion.data.layouts import LETTERS, WRONG_OPTIONS, aliases, context, conversation, options, plain
from tests.cases import lines
from tests.data.builders import dapo, gpqa, wrapped

texts = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), min_size=1).map(str.strip).filter(bool)


def asked(row):
    return options(row, "Question", "Correct Answer")


@given(texts, st.lists(texts, min_size=4, max_size=4, unique=True))
def test_the_letter_is_that_of_the_right_option_and_every_option_is_listed(question, four):
    prompt, letter = asked(gpqa(question, *four))
    lines = prompt.split("\n")[-4:]
    assert prompt.startswith(f"{question}\n\n") and f"{letter}) {four[0]}" in lines
    assert sorted(line[3:] for line in lines) == sorted(four) and [line[0] for line in lines] == list(LETTERS)


def test_the_order_of_options_does_not_depend_on_which_is_right():
    prompts = {asked(gpqa("Which?", *four)) for four in permutations(["w", "x", "y", "z"])}
    assert len({prompt for prompt, _ in prompts}) == 1
    assert {letter for _, letter in prompts} == set(LETTERS)


def test_every_order_of_options_is_equally_likely():
    orders = Counter(asked(gpqa(f"Which of {n}?", "w", "x", "y", "z"))[0].split("\n\n")[1] for n in range(6000))
    assert len(orders) == factorial(4)
    assert chisquare(list(orders.values())).pvalue > 1e-3


@given(texts, texts)
def test_the_template_around_a_prompt_of_dapo_is_removed(question, answer):
    assert conversation(dapo(question, answer), "prompt", "reward_model") == (question, answer)
    bare = dapo(question, answer) | {"prompt": [{"role": "user", "content": question}]}
    assert conversation(bare, "prompt", "reward_model") == (question, answer)


def test_whole_numbers_are_written_without_decimals():
    golds = [142.0, 0.5, "142.0", 7, -3.0, float("inf")]
    assert [plain({"p": "?", "a": gold}, "p", "a")[1] for gold in golds] == [142, 0.5, "142.0", 7, -3, float("inf")]


CONTEXTS = """
    {"question": "Find x.", "final_answer": ["$1$"], "context": null}        => ["Find x.", "$1$"]
    {"question": "Find x.", "final_answer": ["1", "2"], "context": ""}       => ["Find x.", "1, 2"]
    {"question": "Find x.", "final_answer": "[\\"1\\", \\"2\\"]", "context": "Let."} => ["Let.\\n\\nFind x.", "1, 2"]
    {"question": "Find x.", "final_answer": "[1, 2]"}                        => ["Find x.", "[1, 2]"]
    {"question": "Find x.", "final_answer": null}                            => ["Find x.", null]
    {"question": null, "final_answer": "1", "context": "Let it be."}         => [null, "1"]
"""


def test_the_context_goes_before_the_question_and_all_answers_are_wanted():
    for row, expected in lines(CONTEXTS):
        assert [*context(json.loads(row), "question", "final_answer")] == json.loads(expected), row


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"prompt": "1 + 1?"}, "prompt must be a list of one message, got '1 + 1?'"),
        ({"prompt": wrapped("1 + 1?") * 2}, "prompt must be a list of one message"),
        ({"prompt": [{"role": "user"}]}, "prompt must be a list of one message"),
        ({"prompt": str(wrapped("1 + 1?"))}, "prompt must be a list of one message"),
        ({"prompt": wrapped(wrapped("1 + 1?")[0]["content"])}, "prompt must be in DAPO's template or in none"),
        ({"reward_model": "34"}, "reward_model must be an object with ground_truth, got '34'"),
        ({"reward_model": {"style": "rule"}}, "reward_model must be an object with ground_truth"),
    ],
)
def test_a_row_that_is_not_laid_out_as_dapo_is_refused(change, problem):
    with pytest.raises(ValueError, match=re.escape(problem)):
        conversation(dapo("1 + 1?", "2") | change, "prompt", "reward_model")


def test_aliases_are_right_answers_and_may_be_missing():
    for others in (["b", "c"], '["b", "c"]', "[]", [], None, ""):
        row = {"question": "q", "answer": "a", "answer_aliases": others}
        assert aliases(row, "question", "answer") == ("q", ["a", *("bc" if others and "b" in others else "")]), others
    assert aliases({"question": "q", "answer": "a"}, "question", "answer") == ("q", ["a"])


def test_aliases_that_are_no_list_are_refused():
    with pytest.raises(ValueError, match="answer_aliases must be a list of texts, got 'b'; put the text in a list"):
        aliases({"question": "q", "answer": "a", "answer_aliases": "b"}, "question", "answer")


@pytest.mark.parametrize("column", ["Question", "Correct Answer", *WRONG_OPTIONS])
def test_a_question_without_all_of_its_options_is_refused(column):
    row = gpqa("Which?", "w", "x", "y", "z")
    for without in (row | {column: None}, row | {column: " "}, {key: row[key] for key in row if key != column}):
        with pytest.raises(ValueError, match=f"must have four options, got nothing in {column}; fill it in"):
            asked(without)
