"""C-GRPO as the benchmark writes it out: by hand, at its corners."""

import numpy as np
import pytest

from benchmarks.conformal import GRID, committed, figures, main, score, simulated, stopped, thresholds

RNG = np.random.default_rng(0)


def test_a_score_is_the_mass_ahead_and_a_part_of_its_own():
    wrong_first = np.array([1, 1, 1, 0])
    assert 0.75 <= score(wrong_first, RNG) < 1
    assert score(np.array([1, 1, 2, -1]), RNG) == 1
    scores = [score(np.array([0, 1]), RNG) for _ in range(2000)]  # a tie: ahead of the right one is 0 or .5
    assert abs(np.mean(scores) - 0.5) < 0.03


def test_thresholds_promise_what_is_solved_less_a_margin():
    answers = np.zeros((99, GRID[-1]), int)
    answers[:33] = 1
    limits, promised = thresholds(answers, RNG)
    assert promised == pytest.approx(1 - 1 / 3 - 0.05)
    assert all(0.8 < limit < 1 for limit in limits)  # about the 62nd of 99 scores, of which 66 are below 1 and uniform


def test_a_set_of_one_must_reach_the_threshold():
    rest = [2] * 28
    assert stopped(np.array([0, 0, 1, 1, *rest]), [0.9] * 5, RNG) == 2
    assert stopped(np.array([1, -1, 1, 1, *rest]), [0.7] * 5, RNG) == 4
    assert stopped(np.arange(1, 33), [0.9] * 5, RNG) == 32


def test_the_control_commits_to_mixed_pilots():
    answers = np.array([[0, 0, 1, 1], [0, 1, 1, 1], [1, 1, 1, 0]])
    assert committed(answers, 2).tolist() == [2, 32, 2]


def test_an_even_split_is_its_own_measure():
    own = simulated(alike=True, rng=RNG)
    assert figures(own, np.full(len(own.rates), 8)) == pytest.approx([8, 1, 1])


def test_wrong_answers_that_are_alike_make_both_rules_one(tmp_path, monkeypatch):
    tables = []
    monkeypatch.setattr("benchmarks.conformal.write", lambda *a, **_: tables.append(a))
    monkeypatch.setattr("benchmarks.conformal.SEEDS", (0, 1))
    main(tmp_path / "none")
    found = {row[0]: row[1:] for row in tables[0][3]}
    assert (
        found["GRPO run, wrong answers alike: C-GRPO"]
        == (found["GRPO run, wrong answers alike: explore-then-commit, 2 pilots"])
    )
