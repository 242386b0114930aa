"""Other trainers get the lab's own policy, problems and verdicts."""

import pytest

from apportion.lab.policy.export import right, row
from apportion.lab.world.task import TASKS, noted, problem_pool, stated, verify


@pytest.mark.parametrize("task", TASKS)
def test_rows_are_judged_as_the_lab_judges(task):
    for problem in problem_pool(30, seed=3, task=task):
        gold = row(problem)["answer"]
        others = [other.completion for other in problem_pool(30, seed=4, task=task)]
        for completion in (*problem.solutions, *others, problem.completion[:-1], "", f"{problem.completion}a"):
            answer, correct = verify(problem, completion)
            assert right(completion, gold) == correct
            assert (noted(problem, completion) if problem.notes else stated(completion)) == answer
