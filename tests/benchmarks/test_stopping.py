"""Tests of the stopping benchmark: its data and their licence notice, the replays, the intervals and the tables."""

from collections import Counter
from pathlib import Path

import pytest

import benchmarks.stopping
from apportion.stopping import BayesianSPRT, decide
from benchmarks.recorded import VENDORED, Question, Streams, read_datasets, read_vendored
from benchmarks.stopping_measured import (
    CurtailmentCosts,
    replay,
)
from tests.soak import case

NOWHERE = Path("nowhere") / "votes.parquet"


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


def test_a_curtailment_that_loses_agreement_is_an_error():
    """The literal OptPO stops for the runner-up late; curtailed, it stops for the leader before."""
    stream = ("a",) * 12 + ("b",) * 2 + ("a",) * 6
    rule = BayesianSPRT(min_samples=16, choices=2, p0_factor=0.5, exceedances=3, low_accuracy="literal")
    assert decide(stream, rule, 20).answer == "b"
    streams = Streams((Question(stream, {"a": True, "b": False}, None),), 1, (stream,), None)
    replay(streams, rule, 20, 1, ["a"])
    with pytest.raises(CurtailmentCosts, match="at most 20 samples in waves of 1"):
        replay(streams, rule, 20, 1, ["b"])


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
