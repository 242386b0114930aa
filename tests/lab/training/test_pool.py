import pytest

from apportion.lab.training.pool import pool_of
from apportion.lab.training.settings import Training
from apportion.lab.world.task import Problem, completion_text, held_out_problems, problem_pool, verify
from apportion.rows import TableError
from tests.builders import write_jsonl
from tests.cases import assert_refused, refuse_lines
from tests.lab.states import write_prompts

PROBLEMS = problem_pool(12, seed=5)


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
        other = "".join(str((int(digit) + 1) % 10) for digit in problem.answer)
        assert verify(problem, completion_text(other)) == (other, other in right)
    several = [len(pool.gold[prompt.id]) > 1 for prompt in pool.prompts]
    assert all(several) if base == "forks" else not any(several)


def test_gold_of_problems_with_notes_is_the_last_digit():
    pool = pool_of(Training(base="notes", problems=40, held_out=30), seed=3)
    for problem, prompt in zip(pool.problems, pool.prompts, strict=True):
        assert {verify(problem, completion)[0] for completion in problem.solutions} == pool.gold[prompt.id]


def test_a_seed_draws_problems_and_a_file_is_the_same_for_all(tmp_path):
    drawn = [pool_of(Training(base="easy", problems=40), seed).problems for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    path = write_prompts(tmp_path / "prompts.jsonl", PROBLEMS)
    assert pool_of(of_file(path), seed=0) == pool_of(of_file(path), seed=1)


def test_a_file_gives_its_prompts_in_order_and_the_gold_that_it_has(tmp_path):
    """Gold is for the report, and a wrong one is not corrected."""
    wrong = "".join(str((int(digit) + 1) % 10) for digit in PROBLEMS[1].answer)
    gold = [PROBLEMS[0].answer, wrong, None, ""] + [None] * 8
    pool = pool_of(of_file(write_prompts(tmp_path / "prompts.jsonl", PROBLEMS, gold)), seed=0)
    assert pool.problems == PROBLEMS
    assert [prompt.text for prompt in pool.prompts] == [problem.text for problem in PROBLEMS]
    first, second, *others = (prompt.id for prompt in pool.prompts)
    assert pool.gold == {first: {PROBLEMS[0].answer}, second: {wrong}}
    assert len(others) == 10
    assert pool_of(of_file(write_prompts(tmp_path / "bare.jsonl", PROBLEMS)), seed=0).gold == {}


def test_leading_zeros_of_an_answer_survive_a_csv(tmp_path):
    problem = Problem(7, ("+3", "*7", "-4"))
    path = tmp_path / "prompts.csv"
    path.write_text(f"question,gold\n{problem.text},006\n{PROBLEMS[0].text},\n")
    pool = pool_of(of_file(path, prompts_per_step=2), seed=0)
    assert pool.gold == {problem.prompt().id: {"006"}} == {problem.prompt().id: {problem.answer}}


@pytest.mark.parametrize("gold", [6, 6.0, "6", "0060", "a0b0c6", "٠٠٦"])
def test_gold_that_no_answer_could_be_is_refused(tmp_path, gold):
    """A number loses its leading zeros, so that every answer would count as wrong."""
    path = write_prompts(tmp_path / "prompts.jsonl", [PROBLEMS[0], Problem(7, ("+3", "*7", "-4"))], [None, gold])
    with pytest.raises(ValueError, match=r"prompt 2: gold must be 3 digits, .*, got '.*'; write it as text"):
        pool_of(of_file(path, prompts_per_step=2), seed=0)


def test_problems_of_the_file_are_not_held_out(tmp_path):
    reserved = held_out_problems()
    pool = pool_of(of_file(write_prompts(tmp_path / "prompts.jsonl", (*reserved[:20:2], *PROBLEMS))), seed=0)
    assert pool.held_out == (*reserved[1:20:2], *reserved[20:60])
    with pytest.raises(ValueError, match=r"must leave out one of the 1000 held-out problems, got them all; remove"):
        pool_of(of_file(write_prompts(tmp_path / "all.jsonl", reserved)), seed=0)


def test_more_prompts_than_drawn_ones_may_be_in_a_step(tmp_path):
    path = write_prompts(tmp_path / "prompts.jsonl", PROBLEMS)
    assert len(pool_of(of_file(path, problems=2, prompts_per_step=12), seed=0).problems) == 12


def test_a_file_that_cannot_be_learnt_on_is_refused(tmp_path):
    """The longest problem that is taken, of six operations, has 13 tokens with its end, of 14 that can be written."""
    path = tmp_path / "prompts.jsonl"

    def read(rows):
        return pool_of(of_file(write_jsonl(path, rows)), seed=0)

    wrong = """
        7 a+3 = & what is 1 + 1? => prompts.jsonl.* 2: a problem reads like .*, got 'what is 1 .*; write it with
        7 a+3 = & 7 a+3          => prompt 2: a problem reads like .*, got '7 a.3'; write it with
        7 a+3 = & 7 a+3 a+3 =    => prompt 2: a problem must have .* another operation
        7 a+3 = & 7 a+4 = & 7 a+5 = => at least the 4 prompts of a step, got 3; lower prompts_per
        7 a+3 = & 1 a+3 b+3 c+3 d+3 e+3 f+3 g+3 = => 2: .* at most 6 operations, .* base easy, got '1 a.*; remove
        7 a+3 = & 7 a+3 b*7 b-2 = => prompt 2: .* operations, no forks and the end '=' for the base easy
        7 a+3 = & 7 a+3 b*7 ==   => prompt 2: .* the end '=' for the base easy, got '7 a.3 b.7 =='; remove
        7 a+3 = & 7 a+3 =        => prompt 2: a prompt must be there once, got '7 a.3 =' again; remove it
    """
    refuse_lines(lambda prompts: read([{"prompt": prompt} for prompt in prompts.split(" & ")]), wrong)
    twice = [{"id": i, "prompt": "7 a+3 ="} for i in range(2)]
    assert_refused(
        read, [("prompt 2: a prompt must be there once", twice), ("must have a column prompt", [{"text": "a"}])]
    )
    with pytest.raises(TableError, match=r"nowhere\.csv"):
        pool_of(of_file(tmp_path / "nowhere.csv"), seed=0)
