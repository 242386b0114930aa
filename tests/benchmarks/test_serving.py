"""Tests of the benchmark of votes on a served model: its arithmetic, and a small run."""

import json

import pytest

from benchmarks.serving import ARMS, FULL, main


@pytest.mark.soak  # tests/vote votes on a served model
@pytest.mark.slow
@pytest.mark.xdist_group("served_model")
def test_the_whole_benchmark_runs_on_two_questions(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    results = tmp_path / "results"
    main(results, questions=2, max_samples=16, seeds=(0,))
    assert {path.name for path in results.iterdir()} == {"serving.md", "cells"}
    assert capsys.readouterr().out
    found = json.loads((results / "cells" / "serving.json").read_text())
    assert len(found["votes"]) == len(ARMS)
    for one in found["votes"]:
        assert one["samples"] <= 16 and one["server_seconds"] > 0
        assert one["samples"] == 16 or one["rule"] != FULL
