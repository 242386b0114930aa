"""Tests of the benchmark of the calibrated rule: its curves against replays, and its tables on a few questions."""

from itertools import product

import numpy as np
import pytest

import benchmarks.calibrated
from apportion.stopping import Calibrated, decide, make_rule
from apportion.stopping.calibrated import FEW, SCALE
from benchmarks.calibrated_curves import Curve, Prefixes, beta_doubt, hull, priced
from benchmarks.recorded import Question, Streams, read_datasets

M = 12


@pytest.fixture(scope="module")
def prefixes():
    rows = read_datasets(benchmarks.calibrated.QUICK / "nowhere")["game24_standard"]
    return Prefixes(Streams.draw(rows[:8], 5, 0), M)


@pytest.mark.parametrize(
    ("score", "threshold", "rule"),
    [
        (priced(FEW), SCALE * 0.01, Calibrated(0.01)),
        (beta_doubt, 0.15, make_rule("adaptive_consistency_beta", confidence=0.85)),
    ],
)
def test_the_ends_at_a_threshold_are_those_of_the_rule(prefixes, score, threshold, rule):
    found = decide(prefixes.streams.answers, rule, M, curtail=True)
    ends = prefixes.ends(prefixes.score(score), threshold)
    assert (ends + 1).tolist() == found.samples.tolist()
    full = decide(prefixes.streams.answers, "fixed", M).answer
    place = (np.arange(len(ends)), ends)
    assert prefixes.wrong[place].tolist() == [a != b for a, b in zip(found.answer, full, strict=True)]
    assert prefixes.right[place].tolist() == prefixes.streams.right(found.answer).tolist()


def test_the_hull_is_above_every_mixture_of_two_points():
    rng = np.random.default_rng(0)
    samples, agreement = rng.random(12), rng.random(12)
    x, y = hull(samples, agreement)
    assert (np.diff(x) > 0).all() and (np.diff(y) > 0).all() and (np.diff(np.diff(y) / np.diff(x)) < 0).all()
    for i, j, share in product(range(12), range(12), (0.0, 0.3, 0.8)):
        mixed = share * samples[i] + (1 - share) * samples[j], share * agreement[i] + (1 - share) * agreement[j]
        assert np.interp(mixed[0], x, y) >= mixed[1] - 1e-12 or mixed[0] < x[0]


def test_the_samples_at_a_level_are_those_of_the_best_mixture():
    found = Curve(np.array([[2.0, 4.0], [6.0, 8.0], [7.0, 8.0]]), np.array([[0.5, 0.9], [0.9, 0.9], [1.0, 1.0]]))
    assert found.needed(0.85) == pytest.approx(3 + 4.5 / 2)
    assert found.needed(1.0) == pytest.approx(7.5)
    assert found.needed(0.9, np.array([0.0, 1.0])) == pytest.approx(4.0)


@pytest.mark.slow
def test_the_whole_benchmark_runs_on_a_few_questions(tmp_path, monkeypatch, capsys):
    found = {name: rows[:6] for name, rows in read_datasets(tmp_path / "nowhere").items()}
    found["open"] = [Question(q.answers, None, (5,) * len(q.answers)) for q in found["game24_standard"]]
    monkeypatch.setattr(benchmarks.calibrated, "read_datasets", lambda _: found)
    monkeypatch.setattr(benchmarks.calibrated, "QUICK", tmp_path)
    monkeypatch.setattr(benchmarks.calibrated, "RESAMPLES", 20)
    benchmarks.calibrated.main(quick=True)
    text = (tmp_path / "calibrated.md").read_text(encoding="utf-8")
    risks = [line for line in text.splitlines() if line.startswith("| open") and "fixed, n = 5" in line]
    assert [line.split("|")[-2].strip() for line in risks] == ["-"], "accuracy is unknown without gold"
    assert "nan" not in capsys.readouterr().out
