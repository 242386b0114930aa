"""Tests of the factorial of shapes and baselines: runs do not depend on their neighbours, and the schedule goes on."""

import json

import pytest

from benchmarks import model_factorial
from benchmarks.model_factorial import ARMS, measure
from tests.benchmarks.llama import make_llama
from tests.trl.tiny import make_tokenizer


@pytest.fixture
def small(monkeypatch):
    """Return a tiny model with random weights and its tokenizer; runs have two updates."""
    tokenizer = make_tokenizer()
    model = make_llama(vocab_size=len(tokenizer), initializer_range=0.02)
    for name, value in {"UPDATES": 2, "EVERY": 1, "DURING": 2, "AT_END": 4, "ATTEMPTS": 2, "TOGETHER": 2}.items():
        monkeypatch.setattr(model_factorial, name, value)
    monkeypatch.setattr(model_factorial, "load", lambda: (model, tokenizer))
    return model, tokenizer


def test_a_measurement_goes_on_where_it_stopped(small, tmp_path, capsys):
    file = tmp_path / "measured.json"
    measure(file, 60.0, "abc")
    whole = json.loads(file.read_text())
    assert [name.split()[0] for name in whole] == ["sweep"] * 4 + ["seeds"] * 6
    assert {run["arm"] for run in whole["seeds sums (0, 1)"]["runs"]} == set(ARMS)
    kept = dict(list(whole.items())[:9])
    file.write_text(json.dumps(kept))
    measure(file, 60.0, "abc")
    again = json.loads(file.read_text())
    assert {name: own["runs"] for name, own in again.items()} == {name: own["runs"] for name, own in whole.items()}
