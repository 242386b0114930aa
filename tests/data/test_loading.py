import json
import re
import sys
from pathlib import Path

import pytest

from apportion.data import NAMED, Data, Loaded, describe, load, load_questions
from apportion.questions import Question
from apportion.rows import TableError
from apportion.types import prompt_id
from tests.cases import check_all, lines
from tests.data.builders import dapo, write
from tests.soak import case

SUFFIXES = (".jsonl", ".csv", ".parquet")

PUBLISHED = json.loads((Path(__file__).parent / "published.json").read_text())
"""For each named set rows with the columns of its publisher, and the questions that they hold."""


@pytest.mark.parametrize(
    ("name", "suffix"),
    [case(name, suffix, suite=suffix != ".csv" or name == "amc") for name in NAMED for suffix in SUFFIXES],
)
def test_a_local_file_of_every_named_set(name, suffix, tmp_path):
    rows, expected = PUBLISHED[name]
    if suffix == ".csv":
        rows = [dict.fromkeys(rows[0]) | row for row in rows]
    loaded = load_questions(Data(name=name, path=write(tmp_path / f"file{suffix}", rows)))
    golds = [[gold] if isinstance(gold, str) else gold for _, gold in expected]
    if (name, suffix) == ("amc", ".csv"):  # a CSV has texts
        golds = [["142.0"]]
    assert loaded == [
        Question("", prompt, golds=tuple(gold)) for (prompt, _), gold in zip(expected, golds, strict=True)
    ]


def test_rows_that_repeat_a_prompt_are_merged_and_counted_and_contradictions_left_out(tmp_path):
    rows = [dapo(f"{n % 7}?", str(n % 7)) for n in range(70)] + [dapo("3?", "4"), dapo(" 5?", " 5")]
    loaded = load(Data(name="dapo_math_17k", path=write(tmp_path / "dapo.jsonl", rows)))
    assert [(q.prompt, q.gold) for q in loaded.questions] == [(f"{n}?", str(n)) for n in (0, 1, 2, 4, 5, 6)]
    assert (loaded.rows, loaded.repeated, loaded.contradictory, loaded.available) == (72, 65, 1, 6)
    assert loaded.questions[0].id == prompt_id("0?")


def test_repeated_prompts_are_refused_in_other_sets(tmp_path):
    path = write(tmp_path / "file.jsonl", [{"problem": "p", "answer": "1"}] * 2)
    for data in (Data(name="aime24", path=path), Data(path=path)):
        with pytest.raises(TableError, match=r"an id must be there once, got .* in .*line 1 and .*line 2"):
            load_questions(data)


def test_the_columns_of_any_file_can_be_named(tmp_path):
    path = write(tmp_path / "file.csv", [{"prompt": "no", "text": "What?", "result": "7", "answer": "no", "id": "x"}])
    assert load_questions(Data(path=path)) == [Question("x", "no", "no")]
    assert load_questions(Data(path=path, prompt_column="text", answer_column="result")) == [
        Question("x", "What?", "7")
    ]
    assert load_questions(Data(name="aime24", path=path, prompt_column="text")) == [Question("", "What?", "no")]


def test_known_rates_are_read_from_their_column_and_may_be_missing(tmp_path):
    rows = [{"problem": "a?", "answer": "1", "rate": 0.25}, {"problem": "b?", "answer": "2", "rate": None}]
    for suffix in SUFFIXES:
        path = write(tmp_path / f"file{suffix}", rows)
        for name in (None, "math500"):
            assert [q.rate for q in load_questions(Data(name=name, path=path, rate_column="rate"))] == [0.25, None]
            assert [q.rate for q in load_questions(Data(name=name, path=path))] == [None, None]


@pytest.mark.parametrize("name", [None, "math500"])
@pytest.mark.parametrize(("rate", "shown"), [(1.5, "1.5"), (-0.1, "-0.1"), ("often", "'often'"), (True, "True")])
def test_a_rate_that_is_none_is_refused(tmp_path, name, rate, shown):
    rows = [{"problem": "a?", "answer": "1", "rate": 0}, {"problem": "b?", "answer": "2", "rate": rate}]
    path = write(tmp_path / "file.jsonl", rows)
    message = f"file.jsonl line 2: a known rate must be a number between 0 and 1, got {shown}; divide"
    with pytest.raises(TableError, match=re.escape(message)):
        load_questions(Data(name=name, path=path, rate_column="rate"))
    with pytest.raises(TableError, match="must have a column rates, got problem, answer"):
        load_questions(Data(name=name, path=path, rate_column="rates"))


def test_a_seed_gives_the_same_order_for_every_order_of_the_rows(tmp_path):
    rows = [{"prompt": f"{n}?"} for n in range(40)]
    forth, back = write(tmp_path / "forth.jsonl", rows), write(tmp_path / "back.jsonl", rows[::-1])
    orders = {seed: load_questions(Data(path=forth, seed=seed)) for seed in (0, 1)}
    assert orders[0] == load_questions(Data(path=back, seed=0)) != orders[1] != load_questions(Data(path=forth))
    assert sorted(orders[0], key=lambda q: int(q.prompt[:-1])) == load_questions(Data(path=forth))
    assert load_questions(Data(path=forth, seed=0, limit=3)) == orders[0][:3]
    assert load_questions(Data(path=forth, limit=3)) == load_questions(Data(path=forth))[:3]
    firsts = [load_questions(Data(path=forth, seed=seed, limit=1))[0].prompt for seed in range(60)]
    assert len(set(firsts)) > 20  # of 40: 31 are expected, and 20 is five standard deviations below


LACKING = r"""
    [{"prompt": "p", "answer": "1"}]  => math500 => must have a column problem, got prompt, answer; say which
    [{"problem": "p"}]                => math500 => must have a column answer, got problem; say which
    [{"problem": "p", "answer": "1"}, {"answer": "1"}] => math500 => line 2: a prompt must be a text, got None
    [{"Question": "Which?", "Correct Answer": "1"}] => gpqa => line 1: a question must have four options, got nothing in
    [{"problem": "p", "solution": "\\boxed 1"}, {"problem": "p", "solution": "\\boxed 2"}] => math => got none in 2 rows
    []                                => math500 => must have questions, got none in 0 rows
    []                                => => must have at least one row, got none
    [{"text": "p"}]                   => => must have a column prompt, question or problem; add one
"""


def test_errors_say_what_a_file_lacks(tmp_path):
    def check(rows, name, problem):
        with pytest.raises(TableError) as caught:
            load_questions(Data(name=name or None, path=write(tmp_path / "file.jsonl", json.loads(rows))))
        told = str(caught.value)
        assert problem in told and "\n" not in told and "file.jsonl" in told

    check_all(check, lines(LACKING))


def test_a_missing_column_and_a_missing_file_are_refused(tmp_path):
    path = write(tmp_path / "file.jsonl", [{"prompt": "p", "answer": "1"}])
    with pytest.raises(TableError, match="must have a column gold, got prompt, answer; name another"):
        load_questions(Data(path=path, answer_column="gold"))
    for name in (None, "math500"):
        with pytest.raises(TableError, match=r"a file must be readable, got .*none.jsonl"):
            load_questions(Data(name=name, path=tmp_path / "none.jsonl"))


def test_the_description_is_one_paragraph(tmp_path):
    data = Data(hub="a/b", limit=2, seed=7, template="Q: {question}")
    loaded = Loaded((Question("", "12345", "1"), Question("", "1234567", "1")), "a/b (train)", 1_791_700, 1_791_600, 3)
    assert describe(data, loaded) == (
        "2 questions from a/b (train), 1,791,700 rows. 1,791,600 rows repeat a prompt. 3 prompts are left out because "
        "their rows disagree about the answer. Shuffled with seed 7. Cut to 2 of 97. The template is own; the median "
        "prompt has 9 characters."
    )
    path = write(tmp_path / "file.csv", [{"prompt": "12", "answer": "1"}])
    data = Data(path=path, template="plain")
    assert describe(data, load(data)) == (
        f"1 questions from {path}, 1 rows. The template is plain; the median prompt has 2 characters."
    )
    rated = write(tmp_path / "rated.csv", [{"prompt": "12", "rate": 0.5}, {"prompt": "34", "rate": None}])
    data = Data(path=rated, template="plain", rate_column="rate")
    assert "2 rows. 1 have a known rate. The template" in describe(data, load(data))


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A folder that ``datasets`` loads as it would a repository of the hub, and no network."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    folder = tmp_path / "repository"
    folder.mkdir()
    return folder


def test_the_real_loader_gives_the_rows_of_a_repository(hub, monkeypatch):
    rows = [dapo(f"{n}?", str(n)) for n in range(3)] * 70
    write(hub / "train.parquet", rows)
    write(hub / "test.parquet", rows[:2])
    named = NAMED["dapo_math_17k"]
    monkeypatch.setitem(NAMED, named.name, type(named)(**{**vars(named), "hub": str(hub)}))
    loaded = load(Data(name=named.name))
    assert [(q.prompt, q.gold) for q in loaded.questions] == [("0?", "0"), ("1?", "1"), ("2?", "2")]
    assert (loaded.rows, loaded.repeated, loaded.source) == (210, 207, f"{hub} (train)")
    assert [q.prompt for q in load_questions(Data(name=named.name, split="test"))] == ["0?", "1?"]
    with pytest.raises(TableError, match="must have one split, got train, test; set split to one of them"):
        load_questions(Data(hub=str(hub)))
    with pytest.raises(TableError, match='must be a data set that can be loaded, got ValueError: Unknown split "no"'):
        load_questions(Data(hub=str(hub), split="no"))


def test_any_repository_is_read_by_the_same_columns_as_a_file(hub):
    write(hub / "data.jsonl", [{"question": "q", "answer": "a", "title": "t", "id": 5}])
    assert load_questions(Data(hub=str(hub))) == [Question("5", "q", "a")]
    assert load_questions(Data(hub=str(hub), prompt_column="title", answer_column="question")) == [
        Question("5", "t", "q")
    ]
    with pytest.raises(TableError, match="must have a column body, got question, answer, id; name another"):
        load_questions(Data(hub=str(hub), prompt_column="body"))


def test_a_data_set_that_cannot_be_reached_is_refused_in_one_line(hub):
    for data in (Data(name="gpqa"), Data(hub="nobody/nothing")):
        with pytest.raises(
            TableError, match=r"must be a data set that can be loaded, got .*; check its name, the"
        ) as caught:
            load_questions(data)
        assert "\n" not in str(caught.value) and "give a file with the same columns as path" in str(caught.value)


def test_without_datasets_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        TableError, match=r"loading HuggingFaceH4/MATH-500 needs datasets, .*pip install 'apportion\[trl\]'"
    ):
        load_questions(Data(name="math500"))
