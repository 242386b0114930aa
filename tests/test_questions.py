import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.messages import prompt_hash
from apportion.questions import TEMPLATE, Question, fill_template, read_questions
from apportion.rows import TableError
from apportion.types import prompt_id
from tests.builders import write_jsonl
from tests.cases import check_all, check_refused, lines

USER = {"role": "user", "content": "6 x 7?"}
SYSTEM = {"role": "system", "content": "Be brief."}


def write_parquet(path, columns):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table(columns), path)


def test_the_shape_of_the_recorded_problems(tmp_path):
    rows = [{"id": "amc/0", "prompt": "What is $1+1$?", "answer": "2.0"}, {"id": "amc/1", "prompt": "And {x}?"}]
    assert read_questions(write_jsonl(tmp_path / "q.jsonl", rows)) == [
        Question("amc/0", "What is $1+1$?", "2.0"),
        Question("amc/1", "And {x}?", None),
    ]


def test_columns_with_other_names_in_csv(tmp_path):
    (tmp_path / "q.csv").write_text('problem,solution\n"Which, then?",4\nWhat?,\n')
    assert read_questions(tmp_path / "q.csv") == [Question("", "Which, then?", "4"), Question("", "What?", None)]


def test_columns_in_parquet(tmp_path):
    write_parquet(tmp_path / "q.parquet", {"question": ["a?", "b?"], "gold": [1, None], "id": [7, 8]})
    assert read_questions(tmp_path / "q.parquet") == [Question("7", "a?", "1"), Question("8", "b?", None)]


def test_prompt_precedes_question_and_answer_precedes_solution(tmp_path):
    rows = [{"question": "no", "prompt": "yes", "solution": "no", "answer": "yes"}]
    assert read_questions(write_jsonl(tmp_path / "q.jsonl", rows))[0] == Question("", "yes", "yes")


def test_without_an_id_the_id_is_a_hash_of_the_content():
    assert Question("", "What?").id == prompt_id("What?")


GOLD = r"""
    {"answer": 42}                               => ["42"]
    {"answer": 0}                                => ["0"]
    {"answer": 2.5}                              => ["2.5"]
    {"answer": " 7 "}                            => ["7"]
    {"answer": "p - q"}                          => ["p - q"]
    {"answer": "9 - 7 = 2, so\n#### 2"}          => ["2"]
    {"answer": "Then \\boxed{1}, no, $\\boxed{\\frac{1}{2}}$."} => ["\\frac{1}{2}"]
    {"answer": ""}                               => []
    {"answer": null}                             => []
    {"answer": ["Paris", "Paris, France", "Paris"]} => ["Paris", "Paris, France"]
    {"answer": {"value": "Paris", "aliases": ["Paris", "La", "La"], "type": "city"}} => ["Paris", "La"]
    {"answer": {"text": ["Paris", "the city"], "answer_start": [1, 2]}} => ["Paris", "the city"]
    {"answer": "Paris", "aliases": ["City of Light"]} => ["Paris", "City of Light"]
    {"golds": ["Paris", "", null, 3]}            => ["Paris", "3"]
    {"gold": "Paris", "golds": "[\"Light\"]", "aliases": "the city"} => ["Paris", "the city", "Light"]
    {"answer": ["so \\boxed{1}", "#### 2"]}      => ["1", "2"]
    {"answer": []}                               => []
    {"answer": {"value": null, "aliases": []}}   => []
"""
"""The columns of a row beside its prompt, and its right answers."""


def test_gold_is_one_final_answer_or_several(tmp_path):
    def check(row, golds):
        (question,) = read_questions(write_jsonl(tmp_path / "q.jsonl", [{"prompt": "What?", **json.loads(row)}]))
        assert list(question.golds) == json.loads(golds) and question.gold == next(iter(question.golds), None)

    check_all(check, lines(GOLD))


def test_several_gold_answers_of_csv_and_parquet(tmp_path):
    (tmp_path / "q.csv").write_text('prompt,answer,aliases\na?,Paris,"[""City of Light"", ""the city""]"\nb?,4,four\n')
    first, second = read_questions(tmp_path / "q.csv")
    assert first.golds == ("Paris", "City of Light", "the city") and second.golds == ("4", "four")
    cells = [{"value": "Paris", "aliases": ["City of Light"]}, {"value": "4", "aliases": []}]
    prompts = [[SYSTEM, USER], [USER]]
    write_parquet(tmp_path / "q.parquet", {"question": prompts, "answer": cells})
    first, second = read_questions(tmp_path / "q.parquet")
    assert (first.prompt, first.golds) == ((SYSTEM, USER), ("Paris", "City of Light"))
    assert (second.prompt, second.golds) == ((USER,), ("4",))


def test_gold_and_golds_of_a_question():
    assert Question("", "a", "1").golds == ("1",) and Question("", "a").golds == ()
    assert Question("", "a", "1", None, ("2", "1")).golds == ("1", "2")


def test_ids_and_gold_answers_that_a_journal_could_not_hold_are_refused():
    cases = [({"id": "\ud800"}, "an id must be Unicode"), ({"gold": "\ud800"}, "a gold answer must be Unicode")]
    check_refused(ValueError, lambda given: Question(**{"id": "a", "prompt": "a?"} | given), cases)


def test_chat_messages_are_prompts(tmp_path):
    rows = [{"prompt": [SYSTEM, USER, {"role": "assistant", "content": "42"}, USER]}, {"prompt": [USER]}]
    first, second = read_questions(write_jsonl(tmp_path / "q.jsonl", rows))
    filled = fill_template("Q: {question} {}", first)
    assert filled == (*rows[0]["prompt"][:3], {"role": "user", "content": "Q: 6 x 7? {}"})
    assert second.id == prompt_hash((USER,)) != first.id
    with pytest.raises(ValueError, match="a prompt must be a text here, got chat messages in question"):
        assert second.text
    assert Question("", "6 x 7?").text == "6 x 7?"


def test_repeated_prompts_without_ids_are_numbered(tmp_path):
    rows = [
        {"prompt": "same"},
        {"prompt": "other"},
        {"prompt": "same"},
        {"prompt": "same", "id": "own"},
        {"prompt": "same"},
    ]
    same = prompt_id("same")
    ids = [question.id for question in read_questions(write_jsonl(tmp_path / "q.jsonl", rows))]
    assert ids == [same, prompt_id("other"), f"{same}-2", "own", f"{same}-3"]


def test_a_cell_of_a_megabyte(tmp_path):
    """The standard library's reader of CSV refuses more than 131,072 characters unless it is told otherwise."""
    path, text = tmp_path / "q.csv", "long, \u20ac " * 100_000
    path.write_text(f'prompt,answer\n"{text}",4\n')
    assert read_questions(path) == [Question("", text, "4")]


cells = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.sampled_from(["value", "aliases", "text", "role", "content"]), inner)
    ),
)


@given(st.lists(st.dictionaries(st.sampled_from(["prompt", "answer", "aliases", "golds", "id"]), cells), min_size=1))
def test_any_rows_are_questions_or_a_table_error(rows):
    with TemporaryDirectory() as folder:
        path = write_jsonl(Path(folder) / "q.jsonl", rows)
        try:
            questions = read_questions(path)
        except TableError:
            return
    assert len({question.id for question in questions}) == len(questions) == len(rows)
    assert all(question.gold == next(iter(question.golds), None) for question in questions)


def test_braces_are_kept_as_they_are():
    sent = fill_template(TEMPLATE, Question("", "Let S = {question} and {0}, {}."))
    assert isinstance(sent, str)
    assert sent.startswith("Let S = {question} and {0}, {}.\n\nPlease reason") and sent.endswith("\\boxed{}.")


def test_the_limit_takes_the_first_questions(tmp_path):
    path = write_jsonl(tmp_path / "q.jsonl", [{"prompt": f"{i}?"} for i in range(5)])
    assert [question.prompt for question in read_questions(path, limit=2)] == ["0?", "1?"]


def test_a_row_that_is_not_a_question_is_refused(tmp_path):
    told = r"""
        {"text": "a"}                        => must have a column prompt, question or problem
        {"prompt": "a"}&{"prompt": ["a"]}    => line 2: a chat message must have a role .* got 'a'
        {"prompt": "a"}&{"prompt": [{"role": "system", "content": "a"}]} => 2: .* must hold a text of the role "user"
        {"prompt": [{"role": "user", "content": [{"type": "text"}]}]} => a content that is a text
        {"prompt": "a"}&{"id": "x"}          => line 2: a prompt must be a text, got None
        {"prompt": "a"}&{"prompt": "b\ud800"} => must be JSON, got half of a surrogate pair.* in .* line 2
        {"prompt": " "}                      => a prompt must be a text, got ' '
        {"prompt": "a", "answer": [[1]]}     => line 1: a gold answer must be a text or a number, got \[1\]
        {"prompt": "a", "answer": {"best": 1}} => gold answers must be in the fields value and aliases, got
        {"prompt": "a", "aliases": "[1, 2) and"} => aliases that start with \[ must be a JSON list, got
        {"prompt": "a", "id": 1.5}           => an id must be a text or an integer, got 1.5
        {"prompt": "a", "id": "x"}&{"prompt": "b"}&{"prompt": "c", "id": "x"} => 'x' in .*line 1 and .*line 3
        {"prompt": "a", "id": 1}&{"prompt": "b", "id": "1"} => '1' in .*line 1 and .*line 2
    """
    path, again = tmp_path / "q.jsonl", prompt_id("a") + "-2"

    def read(rows):
        path.write_text(rows.replace("&", "\n"))
        read_questions(path)

    check_refused(TableError, read, lines(told))
    with pytest.raises(TableError, match=r"line 2 and .*line 3"):
        read_questions(write_jsonl(path, [{"prompt": "a"}, {"prompt": "a"}, {"prompt": "b", "id": again}]))
    with pytest.raises(TableError, match="limit must be at least 1, got -1"):
        read_questions(path, limit=-1)
