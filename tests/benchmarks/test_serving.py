"""Tests of the benchmark of votes on a served model: its arithmetic, and a small run."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from benchmarks.serving import ARMS, FULL, Arm, Vote, agreement, chosen_rows, main, replayed, spent_rows
from benchmarks.serving_left import FREE, OURS, STREAMED, WAVE, Left

VOTE = Vote(
    answers=("1", "3"),
    streams=(("1",) * 16, ("2", "3") * 8),
    accuracy=0.5,
    samples=32,
    tokens=96,
    requests=32,
    left=0,
    round_trips=1.0,
    server_seconds=4.0,
    client_seconds=1.0,
    seconds=5.0,
)


def test_a_rule_is_replayed_on_the_samples_of_the_full_vote():
    full = replace(VOTE, answers=("1", "2"))  # of equally many votes, the first to appear wins
    assert replayed(full, Arm(FULL, "free"), 16) == 1.0
    assert replayed(replace(VOTE, answers=("1", "3")), Arm("posterior_predictive", 1), 16) == 0.5


def test_agreement_counts_questions():
    assert agreement(["1", None, "2"], ["1", None, "3"]) == pytest.approx(2 / 3)


def test_the_full_vote_is_compared_with_that_of_the_next_seed():
    full, other = VOTE, replace(VOTE, answers=("1", "2"))
    votes = {arm: [full, other] for arm in ARMS}
    first, *others = chosen_rows(votes, 16)
    assert first[4] == "50.0% ± 0.0%"
    assert all(row[4] == "100.0% ± 0.0%" for row in others)
    assert chosen_rows({arm: [full] for arm in ARMS}, 16)[0][4] == "-"


def test_what_is_spent_is_compared_seed_by_seed():
    votes = {arm: [VOTE, replace(VOTE, server_seconds=8.0)] for arm in ARMS}
    votes[ARMS[1]] = [replace(VOTE, server_seconds=2.0), VOTE]
    assert spent_rows(votes)[1][6] == "0.50 ± 0.00"


def test_the_share_computed_of_what_was_left():
    assert Left(needed=4, in_flight=2, until_seconds=8.0, after_seconds=1.0, next_seconds=0.0).computed == 0.25
    assert Left(needed=4, in_flight=0, until_seconds=8.0, after_seconds=0.1, next_seconds=0.0).computed == 0.0


@pytest.mark.soak  # tests/vote votes on a served model
@pytest.mark.slow
@pytest.mark.xdist_group("served_model")
def test_the_whole_benchmark_runs_on_two_questions(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    results = tmp_path / "results"
    main(results, questions=2, max_samples=16, seeds=(0,), tokens=100)
    assert {path.name for path in results.iterdir()} == {"serving.md", "cells"}
    assert capsys.readouterr().out
    found = json.loads((results / "cells" / "serving.json").read_text())
    assert len(found["votes"]) == len(ARMS)
    for one in found["votes"]:
        assert one["samples"] <= 2 * 16 and one["server_seconds"] > 0
        assert one["samples"] <= one["requests"]
        assert one["samples"] == 2 * 16 or one["rule"] != FULL
        assert one["left"] == 0 or one["wave"] == 8
    [left] = found["left"]
    assert left[OURS]["needed"] + left[OURS]["in_flight"] == WAVE > left[OURS]["needed"]
    assert left[FREE]["in_flight"] == 0
    assert left[OURS]["after_seconds"] > 2 * left[STREAMED]["after_seconds"]
    assert left[OURS]["next_seconds"] > left[FREE]["next_seconds"]
