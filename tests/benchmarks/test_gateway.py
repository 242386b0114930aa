"""A small run of the benchmark of the gateway."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("uvicorn")

from benchmarks.gateway import PLAIN, SAMPLES, STREAMED, main


@pytest.mark.soak  # tests/gateway votes on a served model
@pytest.mark.slow
@pytest.mark.xdist_group("served_model")
def test_the_whole_benchmark_runs_on_a_few_votes(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    results = tmp_path / "results"
    main(results, votes=2, at_once=(8,), seeds=(0,), tokens=100)
    text = (results / "gateway.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out.strip() == text.strip()
    [left] = json.loads((results / "cells" / "gateway.json").read_text(encoding="utf-8"))["left"]
    assert all(one["needed"] + one["in_flight"] == SAMPLES > one["needed"] for one in left.values())
    assert left[PLAIN]["after_seconds"] > 2 * left[STREAMED]["after_seconds"]
