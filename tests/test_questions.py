from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from apportion.questions import TEMPLATE, Question, fill_template, read_questions
from apportion.tables import TableError
from apportion.types import prompt_id


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_the_shape_of_the_recorded_problems(tmp_path: Path) -> None:
    rows = [{"id": "amc/0", "prompt": "What is $1+1$?", "answer": "2.0"}, {"id": "amc/1", "prompt": "And {x}?"}]
    assert read_questions(write(tmp_path / "q.jsonl", rows)) == [
        Question("amc/0", "What is $1+1$?", "2.0"),
        Question("amc/1", "And {x}?", None),
    ]


def test_columns_with_other_names_in_csv(tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_text('problem,solution\n"Which, then?",4\nWhat?,\n')
    assert read_questions(tmp_path / "q.csv") == [Question("", "Which, then?", "4"), Question("", "What?", None)]


def test_columns_in_parquet(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(
        arrow.table({"question": ["a?", "b?"], "gold": [1, None], "id": [7, 8]}), tmp_path / "q.parquet"
    )
    assert read_questions(tmp_path / "q.parquet") == [Question("7", "a?", "1"), Question("8", "b?", None)]


def test_prompt_precedes_question_and_answer_precedes_solution(tmp_path: Path) -> None:
    rows = [{"question": "no", "prompt": "yes", "solution": "no", "answer": "yes"}]
    assert read_questions(write(tmp_path / "q.jsonl", rows))[0] == Question("", "yes", "yes")


def test_without_an_id_the_id_is_a_hash_of_the_content() -> None:
    assert Question("", "What?").id == prompt_id("What?")


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (42, "42"),
        (0, "0"),
        (2.5, "2.5"),
        (" 7 ", "7"),
        ("p - q", "p - q"),
        ("9 - 7 = 2, so\n#### 2", "2"),
        (r"Then \boxed{1}, no, $\boxed{\frac{1}{2}}$.", r"\frac{1}{2}"),
        ("", None),
        (None, None),
    ],
)
def test_gold_is_the_final_answer(tmp_path: Path, gold: Any, answer: str | None) -> None:
    path = write(tmp_path / "q.jsonl", [{"prompt": "What?", "answer": gold}])
    assert read_questions(path)[0].gold == answer


def test_braces_are_kept_as_they_are() -> None:
    sent = fill_template(TEMPLATE, Question("", "Let S = {question} and {0}, {}."))
    assert sent.startswith("Let S = {question} and {0}, {}.\n\nPlease reason") and sent.endswith("\\boxed{}.")


def test_the_limit_takes_the_first_questions(tmp_path: Path) -> None:
    path = write(tmp_path / "q.jsonl", [{"prompt": f"{i}?"} for i in range(5)])
    assert [question.prompt for question in read_questions(path, limit=2)] == ["0?", "1?"]


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([{"text": "a"}], "must have a column prompt, question or problem"),
        ([{"prompt": "a"}, {"prompt": ["a"]}], r"line 2: a prompt must be a text, got \['a'\]"),
        ([{"prompt": "a"}, {"id": "x"}], "line 2: a prompt must be a text, got None"),
        ([{"prompt": "a"}, {"prompt": "b\ud800"}], "must be JSON lines, got half of a surrogate pair.* in line 2"),
        ([{"prompt": " "}], "a prompt must be a text, got ' '"),
        ([{"prompt": "a", "answer": [1]}], r"a gold answer must be a text or a number, got \[1\]"),
        ([{"prompt": "a", "id": 1.5}], "an id must be a text or an integer, got 1.5"),
        ([{"prompt": "a", "id": "x"}, {"prompt": "b"}, {"prompt": "c", "id": "x"}], "'x' in .*line 1 and .*line 3"),
        ([{"prompt": "a", "id": 1}, {"prompt": "b", "id": "1"}], "'1' in .*line 1 and .*line 2"),
        ([{"prompt": "same"}, {"prompt": "same"}], "line 1 and .*line 2"),
    ],
)
def test_a_row_that_is_not_a_question_is_refused(tmp_path: Path, rows: list[dict[str, Any]], problem: str) -> None:
    with pytest.raises(TableError, match=problem):
        read_questions(write(tmp_path / "q.jsonl", rows))


def test_a_limit_below_1_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="limit must be at least 1, got -1"):
        read_questions(write(tmp_path / "q.jsonl", [{"prompt": "a"}]), limit=-1)
