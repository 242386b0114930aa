"""Other trainers get the lab's own policy, problems and verdicts."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from apportion.lab.policy.exact import exact_success
from apportion.lab.policy.export import (
    RIGHT,
    STATED,
    max_new_tokens,
    policy_folder,
    problems_file,
    right,
    row,
    stated,
)
from apportion.lab.world.task import TASKS, Problem, held_out_problems, problem_pool, training_problems, verify
from apportion.questions import read_questions
from apportion.user_functions import import_function


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
    assert import_function(RIGHT) is right and import_function(STATED) is stated
    assert not list(path.parent.glob(".*"))


@pytest.mark.slow
def test_generate_gives_the_exact_success_of_the_lab(small_base_folder):
    """The success of 150 samples of each problem, drawn by transformers, is within five standard deviations."""
    folder, draws = policy_folder(small_base_folder), 150
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    problems = problem_pool(6, seed=11)
    exact = exact_success(model, problems)
    assert np.ptp(exact) > 0.3
    tokens = tokenizer([problem.text for problem in problems], return_tensors="pt", padding=True)
    torch.manual_seed(0)
    with torch.no_grad():
        sampled = model.generate(
            input_ids=tokens["input_ids"].repeat_interleave(draws, 0),
            attention_mask=tokens["attention_mask"].repeat_interleave(draws, 0),
            do_sample=True,
            top_k=0,
            max_new_tokens=max_new_tokens(small_base_folder),
        )
    texts = tokenizer.batch_decode(sampled[:, tokens["input_ids"].shape[1] :], skip_special_tokens=True)
    golds = [row(problem)["answer"] for problem in problems for _ in range(draws)]
    share = np.reshape([right(*pair) for pair in zip(texts, golds, strict=True)], (len(problems), draws)).mean(1)
    assert (np.abs(share - exact) <= 5 * np.sqrt(exact * (1 - exact) / draws) + 1 / draws).all()
