"""Tests of the stopping benchmark: its data and their licence notice, the replays, the intervals and the tables."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import benchmarks.stopping
from apportion.evaluation import bootstrap_interval
from apportion.stopping import RULES, BayesianSPRT, PosteriorPredictive, decide, make_rule
from benchmarks.recorded import VENDORED, VOTES, Question, Streams, read_datasets, read_vendored, read_votes
from benchmarks.stopping import CLOSE, mean
from benchmarks.stopping_measured import (
    CurtailmentCosts,
    Key,
    estimate,
    is_default,
    measure,
    ratio,
    replay,
    settings,
)
from benchmarks.stopping_picture import STYLES
from tests.soak import case

NOWHERE = Path("nowhere") / "votes.parquet"


@pytest.fixture(scope="module")
def questions():
    return read_datasets(NOWHERE)["game24_cot"]


def test_the_vendored_rows_carry_their_source_and_their_notice():
    rows = read_vendored()
    assert Counter(row["dataset"] for row in rows) == {"game24_cot": 100, "game24_standard": 100}
    assert {(row["source"], row["license"]) for row in rows} == {("princeton-nlp/tree-of-thought-llm", "MIT")}
    assert {len(row["answers"]) for row in rows} == {len(row["correct"]) for row in rows} == {100}
    notice = " ".join((VENDORED.parent / "README.md").read_text(encoding="utf-8").split())
    assert "https://github.com/princeton-nlp/tree-of-thought-llm" in notice
    for words in (
        "MIT License Copyright (c) 2023 Shunyu Yao Permission is hereby granted, free of charge, to any person",
        "The above copyright notice and this permission notice shall be included in all copies",
        'THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND',
    ):
        assert words in notice


def test_the_vendored_rows_are_all_rows_of_the_votes_that_may_be_copied():
    if not VOTES.exists():
        pytest.skip("the recorded votes are not beside the repository")
    free = [row for row in read_votes(VOTES) if row["license"] == "MIT"]
    vendored = read_vendored()
    assert [{key: row[key] for key in vendored[0]} for row in free] == vendored


def test_without_the_file_of_votes_only_the_game_of_24_is_read(tmp_path):
    assert list(read_datasets(NOWHERE)) == ["game24_cot", "game24_standard"]


def test_other_data_sets_are_read_from_the_file_of_votes(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    row = {"question_id": "1", "answers": ["7", "8", "7"], "correct": [True, False, True], "tokens": [3, 4, 5]}
    rows = [{"dataset": "game24_cot", **row}, {"dataset": "sums", **row}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "votes.parquet")
    found = read_datasets(tmp_path / "votes.parquet")
    assert found["sums"] == [Question(("7", "8", "7"), {"7": True, "8": False}, (3, 4, 5))]
    assert len(found["game24_cot"]) == 100


def write_votes(path, rows):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    schema = pa.schema(
        {
            "dataset": pa.string(),
            "question_id": pa.string(),
            "gold": pa.string(),
            "answers": pa.list_(pa.string()),
            "correct": pa.list_(pa.bool_()),
            "tokens": pa.list_(pa.int32()),
        }
    )
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)


def test_rows_without_gold_are_measured(tmp_path):
    """``correct`` is null, or null for each sample; an answer and the tokens may be null, and lengths may differ."""
    answers = [*"aabaaabaaaba", None, *"aaa"]
    rows = [
        {"dataset": "open", "question_id": "1", "answers": answers, "correct": None, "tokens": [1] * 16},
        {"dataset": "open", "question_id": "2", "answers": answers[:9], "correct": [None] * 9, "tokens": [2] * 9},
        {"dataset": "mixed", "question_id": "3", "answers": answers, "correct": None, "tokens": None},
        {"dataset": "mixed", "question_id": "4", "gold": "b", "answers": answers[:12]}
        | {"correct": [a == "b" for a in answers[:12]], "tokens": [None] * 12},
    ]
    write_votes(tmp_path / "votes.parquet", rows)
    found = read_datasets(tmp_path / "votes.parquet")
    data = {name: Streams.draw(found[name], 3, 0) for name in ("open", "mixed")}
    rules = {"fixed, all": make_rule("fixed"), "esc": make_rule("esc", window=3)}
    cells = measure(data, rules, 8, [1])
    for label in rules:
        mine = cells[Key(label)]
        assert np.isnan(data["open"].right(["a"] * 6)).all()
        assert np.isnan(data["mixed"].right(["a"] * 6)).tolist() == [True] * 3 + [False] * 3
        assert mine["open"].agreement.shape == mine["mixed"].samples.shape == (2,)
    assert mean(cells, Key("fixed, all"), "agreement") == 1


def test_a_row_with_fewer_verdicts_than_answers_is_refused():
    with pytest.raises(ValueError, match="correct must have an entry for each answer, got 1 for 2 in question 1"):
        Question.of({"question_id": "1", "answers": ["7", "8"], "correct": [True]})


def test_equal_answers_that_are_not_equally_right_are_refused():
    row = {"question_id": "1", "answers": ["7", "7"], "correct": [True, False]}
    with pytest.raises(ValueError, match="equally right"):
        Question.of(row)


def test_streams_are_orders_of_all_answers_with_their_own_tokens():
    tokens = {"a": 1, "b": 10, "c": 100}
    asked = [Question(tuple("abcab"), {"a": True, "b": False, "c": False}, (1, 10, 100, 1, 10))] * 3
    streams = Streams.draw(asked, orders=4, seed=0)
    assert len(streams.answers) == 12
    assert streams.answers == Streams.draw(asked, orders=4, seed=0).answers
    assert len(set(streams.answers)) > 1
    for answers, so_far in zip(streams.answers, streams.tokens, strict=True):
        assert sorted(answers) == sorted("abcab")
        assert so_far.tolist() == np.cumsum([tokens[a] for a in answers]).tolist()
    assert streams.right(["a", "b", None] * 4).tolist() == [True, False, False] * 4
    assert streams.by_question(np.arange(12)).tolist() == [1.5, 5.5, 9.5]


def test_every_rule_is_measured_once_with_its_defaults():
    found = settings()
    assert {rule.name for rule in found.values()} == set(RULES) == set(STYLES)
    assert Counter(rule.name for rule in found.values() if is_default(rule)) == dict.fromkeys(RULES, 1)
    assert [found[label] for label in CLOSE] == [BayesianSPRT(min_samples=16), PosteriorPredictive(eps=0.01)]


def test_a_replay_equals_decide_on_each_stream(questions):
    streams = Streams.draw(questions[:5], orders=3, seed=1)
    rule = make_rule("esc", window=3)
    full = [Counter(answers[:20]).most_common(1)[0][0] for answers in streams.answers]  # ties: the first seen
    for curtail, measured in zip((False, True), replay(streams, rule, 20, 2, full), strict=True):
        for q in range(5):
            mine = streams.answers[3 * q : 3 * q + 3]
            one = [decide(answers, rule, 20, wave=2, curtail=curtail) for answers in mine]
            assert measured.samples[q] == np.mean([found.samples for found in one])
            assert measured.waves[q] == np.mean([found.waves for found in one])
            agreed = [found.answer == vote for found, vote in zip(one, full[3 * q :], strict=False)]
            assert measured.agreement[q] == np.mean(agreed)


def test_a_curtailment_that_loses_agreement_is_an_error():
    """The literal OptPO stops for the runner-up late; curtailed, it stops for the leader before."""
    stream = ("a",) * 12 + ("b",) * 2 + ("a",) * 6
    rule = BayesianSPRT(min_samples=16, choices=2, p0_factor=0.5, exceedances=3, low_accuracy="literal")
    assert decide(stream, rule, 20).answer == "b"
    streams = Streams((Question(stream, {"a": True, "b": False}, None),), 1, (stream,), None)
    replay(streams, rule, 20, 1, ["a"])
    with pytest.raises(CurtailmentCosts, match="at most 20 samples in waves of 1"):
        replay(streams, rule, 20, 1, ["b"])


def test_the_intervals_are_bootstrap_intervals_over_questions():
    values = np.random.default_rng(0).exponential(size=200)
    mine, low_high = estimate(values), bootstrap_interval(values)
    assert mine.value == values.mean()
    np.testing.assert_allclose([mine.low, mine.high], low_high, atol=0.15 * (low_high.high - low_high.low))
    assert mine.show(".2f", 100).startswith(f"{100 * values.mean():.2f} (")


def test_data_sets_have_equal_weight_and_questions_are_paired():
    few, many = np.array([4.0, 6.0]), np.full(50, 1.0)
    assert estimate(few, many).value == 3.0
    assert ratio((few, few / 2), (many, many / 2)).show() == "2.0 (2.0 to 2.0)"
    assert estimate(few).low < 5 < estimate(few).high


@pytest.mark.slow
@pytest.mark.parametrize("everything", [case(False, suite=False), case(True, suite=True)])
def test_the_whole_benchmark_runs_on_a_few_questions(everything, tmp_path, monkeypatch, capsys):
    few = {name: found[:4] for name, found in read_datasets(NOWHERE).items()}
    if everything:
        few |= {
            name: [Question(q.answers, q.right, (5,) * len(q.answers)) for q in few["game24_standard"]]
            for name in ("gsm8k", "aime24")
        }
    monkeypatch.setattr(benchmarks.stopping, "read_datasets", lambda _: few)
    monkeypatch.setattr(benchmarks.stopping, "QUICK", tmp_path)
    monkeypatch.setattr(benchmarks.stopping, "RACES", 200)
    benchmarks.stopping.main(quick=True)
    text = (tmp_path / "stopping.md").read_text(encoding="utf-8")
    assert ("Skipped: gsm8k, aime24" in text) == (not everything)
    assert {path.name for path in tmp_path.iterdir()} == {"stopping.md", "cells", "stopping.png"}
    assert capsys.readouterr().out
