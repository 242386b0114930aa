import json
import random

import pytest

from apportion.lab.training.pool import pool_of
from apportion.lab.training.settings import Training
from apportion.lab.world.task import (
    Problem,
    completion_text,
    encode,
    held_out_problems,
    problem_pool,
    random_problem,
    verify,
)
from apportion.rows import TableError

PROBLEMS = problem_pool(12, seed=5)


def write(path, problems, gold=None):
    """Write a file of prompts. ``gold`` gives the answers; None writes no column."""
    answers = [{}] * len(problems) if gold is None else [{"answer": answer} for answer in gold]
    rows = [{"prompt": problem.text, **answer} for problem, answer in zip(problems, answers, strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def of_file(path, **changes):
    return Training(base="easy", labels="none", **({"prompts": path, "prompts_per_step": 4, "held_out": 50} | changes))


@pytest.mark.parametrize("base", ["easy", "forks"])
def test_gold_of_drawn_problems_is_what_the_verifier_calls_right(base):
    pool = pool_of(Training(base=base, problems=40, held_out=30), seed=3)
    assert len(pool.problems) == len(pool.gold) == 40 and len(pool.held_out) == 30
    assert not set(pool.problems) & set(pool.held_out)
    for problem, prompt in zip(pool.problems, pool.prompts, strict=True):
        right = pool.gold[prompt.id]
        assert prompt.text == problem.text and len(right) == len(problem.solutions)
        assert all(verify(problem, completion_text(answer)) == (answer, True) for answer in right)
        other = "".join(str((digit + 1) % 10) for digit in problem.digits)
        assert verify(problem, completion_text(other)) == (other, other in right)
    several = [len(pool.gold[prompt.id]) > 1 for prompt in pool.prompts]
    assert all(several) if base == "forks" else not any(several)


def test_a_seed_draws_problems_and_a_file_is_the_same_for_all(tmp_path):
    drawn = [pool_of(Training(base="easy", problems=40), seed).problems for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    path = write(tmp_path / "prompts.jsonl", PROBLEMS)
    assert pool_of(of_file(path), seed=0) == pool_of(of_file(path), seed=1)


def test_a_file_gives_its_prompts_in_order_and_the_gold_that_it_has(tmp_path):
    """Gold is for the report, and a wrong one is not corrected."""
    wrong = "".join(str((digit + 1) % 10) for digit in PROBLEMS[1].digits)
    gold = [PROBLEMS[0].answer, wrong, None, ""] + [None] * 8
    pool = pool_of(of_file(write(tmp_path / "prompts.jsonl", PROBLEMS, gold)), seed=0)
    assert pool.problems == PROBLEMS
    assert [prompt.text for prompt in pool.prompts] == [problem.text for problem in PROBLEMS]
    first, second, *others = (prompt.id for prompt in pool.prompts)
    assert pool.gold == {first: {PROBLEMS[0].answer}, second: {wrong}}
    assert len(others) == 10
    assert pool_of(of_file(write(tmp_path / "bare.jsonl", PROBLEMS)), seed=0).gold == {}


def test_leading_zeros_of_an_answer_survive_a_csv(tmp_path):
    problem = Problem(7, ("+3", "*7", "-4"))
    path = tmp_path / "prompts.csv"
    path.write_text(f"question,gold\n{problem.text},006\n{PROBLEMS[0].text},\n")
    pool = pool_of(of_file(path, prompts_per_step=2), seed=0)
    assert pool.gold == {problem.prompt().id: {"006"}} == {problem.prompt().id: {problem.answer}}


@pytest.mark.parametrize("gold", [6, 6.0, "6", "0060", "a0b0c6", "٠٠٦"])
def test_gold_that_no_answer_could_be_is_refused(tmp_path, gold):
    """A number loses its leading zeros, so that every answer would count as wrong."""
    path = write(tmp_path / "prompts.jsonl", [PROBLEMS[0], Problem(7, ("+3", "*7", "-4"))], [None, gold])
    with pytest.raises(ValueError, match=r"prompt 2: gold must be 3 digits, .*, got '.*'; write it as text"):
        pool_of(of_file(path, prompts_per_step=2), seed=0)


def test_problems_of_the_file_are_not_held_out(tmp_path):
    reserved = held_out_problems()
    pool = pool_of(of_file(write(tmp_path / "prompts.jsonl", (*reserved[:20:2], *PROBLEMS))), seed=0)
    assert pool.held_out == (*reserved[1:20:2], *reserved[20:60])
    with pytest.raises(ValueError, match=r"must leave out one of the 1000 held-out problems, got them all; remove"):
        pool_of(of_file(write(tmp_path / "all.jsonl", reserved)), seed=0)


def test_more_prompts_than_drawn_ones_may_be_in_a_step(tmp_path):
    path = write(tmp_path / "prompts.jsonl", PROBLEMS)
    assert len(pool_of(of_file(path, problems=2, prompts_per_step=12), seed=0).problems) == 12


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["7 a+3 =", "what is 1 + 1?"], "prompt 2: a problem reads like .*, got 'what is 1 .*; write it with"),
        (["7 a+3 =", "7 a+3"], "prompt 2: a problem reads like .*, got '7 a.3'; write it with"),
        (["7 a+3 =", "7 b+3 ="], "prompt 2: a problem reads like"),
        (["7 a+3 =", "7 a+3 a+3 ="], "prompt 2: a fork must have two operations"),
        (
            ["7 a+3 =", "7 a+4 =", "7 a+5 ="],
            "must hold at least the 4 prompts of a step, got 3; lower prompts_per_step",
        ),
        (
            ["7 a+3 =", "1 a+3 b+3 c+3 d+3 e+3 f+3 g+3 ="],
            "prompt 2: a problem must have at most 6 operations for the base easy, got 7; remove it",
        ),
        (["7 a+3 =", "7 a+3 b*7 b-2 ="], "prompt 2: a problem must have no forks for the base easy"),
    ],
)
def test_a_file_that_cannot_be_learnt_on_is_refused(tmp_path, texts, message):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    with pytest.raises(ValueError, match=f"{path.name}.*{message}"):
        pool_of(of_file(path), seed=0)


def test_a_prompt_that_is_there_twice_is_refused_under_whatever_id(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"id": i, "prompt": "7 a+3 ="}) + "\n" for i in range(2)))
    with pytest.raises(ValueError, match=r"prompt 2: a prompt must be there once, got '7 a\+3 =' again; remove it"):
        pool_of(of_file(path), seed=0)
    write(path, PROBLEMS[:1] * 2)
    with pytest.raises(ValueError, match="prompt 2: a prompt must be there once"):
        pool_of(of_file(path), seed=0)


def test_a_file_without_prompts_is_refused(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"text": "7 a+3 ="}\n')
    with pytest.raises(TableError, match="must have a column prompt, question or problem; add one"):
        pool_of(of_file(path), seed=0)
    with pytest.raises(TableError, match=r"nowhere\.csv"):
        pool_of(of_file(tmp_path / "nowhere.csv"), seed=0)


def test_the_longest_problem_that_is_taken_can_be_answered(tmp_path):
    """Six operations and the end token are 13 tokens, and the ledger's sampler writes up to 14."""
    rng = random.Random(0)
    longest = [random_problem(6, rng) for _ in range(4)]
    assert {len(encode(problem.completion)) + 1 for problem in longest} == {13}
    assert len(pool_of(of_file(write(tmp_path / "prompts.jsonl", longest)), seed=0).problems) == 4
