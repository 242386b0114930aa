"""Tests of the stopping benchmark: its data and their licence notice, the replays, the intervals and the tables."""

from collections import Counter
from pathlib import Path

import pytest

import benchmarks.stopping
from benchmarks.recorded import VENDORED, Question, read_datasets, read_vendored

NOWHERE = Path("nowhere") / "votes.parquet"


def test_the_vendored_rows_carry_their_source_and_their_notice():
    rows = read_vendored()
    assert Counter(row["dataset"] for row in rows) == {"game24_cot": 100, "game24_standard": 100}
    assert {(row["source"], row["license"]) for row in rows} == {("princeton-nlp/tree-of-thought-llm", "MIT")}
    assert {len(row["answers"]) for row in rows} == {len(row["correct"]) for row in rows} == {100}
    notice = " ".join((VENDORED.parent / "README.md").read_text().split())
    assert "https://github.com/princeton-nlp/tree-of-thought-llm" in notice
    for words in (
        "MIT License Copyright (c) 2023 Shunyu Yao Permission is hereby granted, free of charge, to any person",
        "The above copyright notice and this permission notice shall be included in all copies",
        'THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND',
    ):
        assert words in notice


@pytest.mark.slow
def test_the_whole_benchmark_runs_on_a_few_questions(tmp_path, monkeypatch, capsys):
    few = {name: found[:4] for name, found in read_datasets(NOWHERE).items()}
    few["gsm8k"] = [Question(q.answers, q.right, (5,) * len(q.answers)) for q in few["game24_standard"]]
    monkeypatch.setattr(benchmarks.stopping, "read_datasets", lambda _: few)
    monkeypatch.setattr(benchmarks.stopping, "QUICK", tmp_path)
    monkeypatch.setattr(benchmarks.stopping, "RACES", 200)
    benchmarks.stopping.main(quick=True)
    text = (tmp_path / "stopping.md").read_text()
    assert "Skipped: aime24" in text
    assert {path.name for path in tmp_path.iterdir()} == {"stopping.md", "cells"}
    assert capsys.readouterr().out
