"""The measures of gradient quality on gradients that are known, and both studies at their smallest size."""

import numpy as np
import pytest

from apportion.lab.measure.gradients import completion_gradients
from apportion.lab.policy.base import base_policy
from apportion.lab.policy.exact import solution_probabilities
from apportion.lab.training.loss import TrainingRow
from apportion.lab.world.task import encode, training_problems
from benchmarks.gradient_quality import (
    MEASURES,
    VOTES,
    qualities,
    report,
    reuse_quality,
    solutions_of,
    vote_quality,
)


def test_the_measures_of_known_gradients(small_base_folder):
    policy, problems, draws = base_policy(small_base_folder), training_problems(3), 4
    entries = []
    for problem, [chance] in zip(problems, solution_probabilities(policy, problems), strict=True):
        [right] = solutions_of(policy, problem)
        row = TrainingRow(tuple(encode(problem.text)), right, advantage=1.0, weight=float(chance))
        exact = [(0, draw, row) for draw in range(draws)]
        opposed = [(1, draw, TrainingRow(row.prompt, right, -1.0, row.weight)) for draw in range(draws)]
        twice = [(2, draw, TrainingRow(row.prompt, right, 2.0, row.weight)) for draw in (0, 2)]
        entries.append([*exact, *opposed, *twice])
    measured = qualities(policy, problems, entries, 4, draws)
    found = np.array([[own[name] for name in MEASURES[:-1]] for own in measured])
    rows = [own[0][2] for own in entries]
    each = [row.weight * completion_gradients(policy, row.prompt, [row.completion])[0] for row in rows]
    variance = 4 / 3 * float(sum(one.square().sum() for one in each) / sum(each).square().sum())
    assert found[0] == pytest.approx([1, 1, 0, 0], abs=1e-3)
    assert found[1] == pytest.approx([-1, -1, 4, 0], abs=1e-3)
    assert found[2] == pytest.approx([0.5, 1, -variance / 4, variance], abs=1e-3)
    assert found[3] == pytest.approx([0, 0, 1, 0], abs=1e-3)


def test_both_studies_at_their_smallest_size(small_base_folder, tmp_path):
    votes = vote_quality(small_base_folder, 0, prompts=2, draws=2)
    assert votes.keys() == VOTES.keys()
    assert votes["TTRL, 64 votes"]["rollouts"] == 64 >= votes["OptPO"]["rollouts"] >= 32
    reuse = reuse_quality(small_base_folder, 0, prompts=2, draws=2, steps=2, pool=96)
    assert reuse["Option I"]["kept"] > reuse["Option II"]["kept"]
    report({"small": [votes]}, {"small": [reuse]}, [0], results=tmp_path)
    text = (tmp_path / "gradient_quality.md").read_text(encoding="utf-8")
    assert "less 64 votes: rollouts" in text and "direct replay" in text
