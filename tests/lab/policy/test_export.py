"""Other trainers get the lab's own policy, problems and verdicts."""

import json

import pytest

from apportion.lab.policy.export import max_new_tokens, problems_file, right, row
from apportion.lab.world.task import TASKS, Problem, held_out_problems, problem_pool, stated, training_problems, verify
from apportion.questions import read_questions


@pytest.mark.parametrize("task", TASKS)
def test_rows_are_judged_as_the_lab_judges(task):
    for problem in problem_pool(30, seed=3, task=task):
        gold = row(problem)["answer"]
        others = [other.completion for other in problem_pool(30, seed=4, task=task)]
        for completion in (*problem.solutions, *others, problem.completion[:-1], "", f"{problem.completion}a"):
            answer, correct = verify(problem, completion)
            assert right(completion, gold) == correct and stated(completion) == answer


@pytest.mark.parametrize(("base", "task"), [("medium", "ledger"), ("forks", "forks")])
def test_files_hold_the_problems_of_a_study_once_and_keep_training_from_evaluation(base, task):
    found = {}
    for held_out, problems in ((False, training_problems(512, task=task)), (True, held_out_problems(task=task))):
        path = problems_file(base, held_out)
        assert [Problem.parse(question.prompt) for question in read_questions(path)] == list(problems)
        assert [json.loads(line) for line in path.read_text().splitlines()] == [row(problem) for problem in problems]
        written = path.stat().st_mtime_ns
        assert problems_file(base, held_out) == path and path.stat().st_mtime_ns == written
        found[held_out] = set(path.read_text().splitlines())
    assert not found[True] & found[False]
    assert max_new_tokens(base) == TASKS[task].max_new_tokens
    assert not list(path.parent.glob(".*"))
