import random
import re
from collections import Counter
from dataclasses import replace
from itertools import compress, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.lab.world.demonstrator import NOTED, PAUSED, Demonstrator
from apportion.lab.world.task import (
    EOS,
    OPERATIONS,
    PAD,
    TASKS,
    Problem,
    apply,
    completion_text,
    decode,
    encode,
    held_out_problems,
    problem_pool,
    same_function,
    training_problems,
    verify,
)
from apportion.types import prompt_id
from tests.cases import assert_refused, settings_of

problems = st.builds(
    Problem, st.integers(0, 9), st.lists(st.sampled_from(OPERATIONS), min_size=1, max_size=8).map(tuple)
)


@st.composite
def any_problem(draw):
    """Draw problems with forks at no, some or all operations, and with or without notes."""
    operations = tuple(draw(st.lists(st.sampled_from(OPERATIONS), min_size=1, max_size=6)))
    others = [draw(st.sampled_from(["", *OPERATIONS])) for _ in operations]
    alternatives = tuple("" if other == op else other for op, other in zip(operations, others, strict=True))
    forks = alternatives if any(alternatives) else ()
    return Problem(draw(st.integers(0, 9)), operations, forks, draw(st.booleans()))


FORKED = Problem(7, ("+3", "*7", "-4"), ("", "-2", ""))


@given(problems)
def test_digits_are_python_arithmetic_modulo_ten(problem):
    value, expected = problem.start, ""
    for operation in problem.operations:
        value = eval(f"({value} {operation}) % 10")
        expected += str(value)
    assert problem.answer == expected


@given(any_problem())
def test_text_parses_and_encodes_back(problem):
    assert Problem.parse(problem.text) == problem
    assert decode(encode(problem.text)) == problem.text.replace(" ", "")
    assert decode([*encode(problem.completion), EOS, 5]) == problem.completion


def chains_of(problem):
    return {Problem(problem.start, chosen).completion for chosen in product(*problem.choices)}


@given(any_problem())
def test_solutions_are_the_chains_of_every_choice(problem):
    plain = replace(problem, notes=False)
    assert set(plain.solutions) == chains_of(problem)
    assert len(plain.solutions) == len(chains_of(problem))
    assert problem.solutions[0] == problem.completion == plain.completion


@given(any_problem(), st.data())
def test_right_is_what_is_among_the_solutions(problem, data):
    near = st.lists(st.integers(0, 9), min_size=1, max_size=8).map(completion_text)
    completion = data.draw(st.one_of(st.sampled_from(problem.solutions), near))
    answer, right = verify(problem, completion)
    assert right == (completion in problem.solutions)
    assert not right or answer in problem.answers
    assert problem.notes or answer == completion[1::2]
    assert verify(problem, [*encode(completion), EOS]) == (answer, right)


@given(any_problem().filter(lambda problem: len(problem.operations) <= 4), st.data())
def test_notes_may_be_left_out_and_must_be_right(problem, data):
    """Compared with a rule that is written apart: at most two pauses, then lines of one chain of which the last is."""
    noted = replace(problem, notes=True)
    chains = [re.findall("..", chain) for chain in chains_of(problem)]
    line = st.one_of(st.sampled_from([line for chain in chains for line in chain]), st.sampled_from(["a3", "b0", "d5"]))
    written = data.draw(st.one_of(st.sampled_from(chains).flatmap(subsequences), st.lists(line, max_size=5)))
    pauses = data.draw(st.integers(0, 4))
    of_a_chain = any(written and chain[-1] == written[-1] and is_subsequence(written, chain) for chain in chains)
    answer, right = verify(noted, "=" * pauses + "".join(written))
    assert right == (pauses <= 2 and of_a_chain)
    labels = [each[0] for each in written]
    ordered = labels == sorted(set(labels)) and labels[-1:] == [chains[0][-1][0]]
    assert answer == (written[-1][1] if pauses <= 2 and ordered else None)
    assert len(set(noted.solutions)) == len(noted.solutions)


def subsequences(lines):
    return st.lists(st.booleans(), min_size=len(lines), max_size=len(lines)).map(lambda keep: [*compress(lines, keep)])


def is_subsequence(some, lines):
    left = iter(lines)
    return all(each in left for each in some)


NO_FORKS = ["7 a+3 a+4 a+5 =", "7 a+3 b+1 a+4 =", "7 b+3 b+1 =", "7 a+3 +4 =", "7 a+3+4 =", "7 a+3 ===", "7 a+3 a+4"]
NO_PROBLEMS = ["", "7 =", "7 b+3 =", "7 a+3", "7 a+0 =", "7 a*1 =", "7 a+3 c+3 =", "7  a+3 =", "12 a+3 =", *NO_FORKS]


WRONG = """
    start = 10, operations = ["+1"]
    start = 1, operations = []
    start = 1, operations = ["*1"]
    start = 1, operations = ["="]
    start = 1, operations = ["+1"], alternatives = ["+0"]
    start = 1, operations = ["+1", "+2"], alternatives = [""]
    start = 1, operations = ["+1", "+2"], alternatives = ["", "", ""]
    start = 1, operations = ["+1", "+2"], alternatives = ["", ""]
    start = 1, operations = ["+1", "+2"], alternatives = ["+2"]
    start = 1, operations = ["+1", "+2"], alternatives = ["", "+2"]
"""


def test_what_is_no_problem_or_demonstrator_is_refused():
    assert_refused(Problem.parse, [("a problem reads like", text) for text in NO_PROBLEMS])
    assert_refused(
        lambda text: Problem(**settings_of(text)),
        [("a problem must have a digit and 1 to 8 operations", line) for line in WRONG.strip().splitlines()],
    )
    assert_refused(encode, [("ledger tokens", "7 a/3 =")])
    wrong = [("alpha must be finite and above 0", (0, 1, 0, 0)), ("both are probabilities", (1, 1, 0, 1.5))]
    assert_refused(lambda given: Demonstrator(*given), wrong)


def test_a_prompt_is_named_by_its_content_and_carries_the_problem():
    problem = Problem(7, ("+3",))
    prompt = problem.prompt()
    assert prompt.text == "7 a+3 ="
    assert prompt.id == prompt_id("7 a+3 =", dataset="ledger")
    assert prompt.data is problem


def test_malformed_completions_have_no_answer():
    problem = Problem(7, ("+3", "*7"))
    for text in ["", "a", "0", "b0a0", "a0b", "a0c0", "a0b0=", "a²b0", "aab0"]:
        assert verify(problem, text) == (None, False)
    assert verify(problem, "a0") == ("0", False)
    assert verify(problem, "a0b1") == ("01", False)


def test_tokens_must_come_to_their_end():
    problem = Problem(7, ("+3", "*7"))
    right = encode(problem.completion)
    assert verify(problem, [*right, EOS]) == ("00", True)
    for tokens in [[], [EOS], right, [*right, EOS, EOS], [*right, PAD, EOS], [*right, EOS, PAD]]:
        assert verify(problem, tokens) == (None, False)


@pytest.mark.parametrize("task", TASKS)
def test_pools_are_seeded_distinct_and_disjoint_from_the_held_out(task):
    assert problem_pool(300, seed=1, task=task) == problem_pool(300, seed=1, task=task)
    assert problem_pool(300, seed=1, task=task) != problem_pool(300, seed=2, task=task)
    held_out, training = held_out_problems(task=task), training_problems(600, seed=3, task=task)
    assert len({*held_out, *training}) == 1000 + 600
    assert held_out_problems(10, task=task) == held_out[:10]
    operations = {"ledger": range(1, 6), "forks": range(4, 9), "notes": range(2, 5)}[task]
    assert {len(problem.operations) for problem in held_out} == {*operations}
    assert max(len(text) for problem in held_out for text in problem.solutions) < TASKS[task].max_new_tokens
    assert {problem.notes for problem in held_out} == {task == "notes"}


LEDGER_TRAINING = ["5 a+7 b+8 c+7 =", "4 a-7 ="]
LEDGER_HELD_OUT = ["9 a*2 =", "7 a-7 b+5 c*9 d*4 e-2 ="]


def test_the_ledger_pools_are_these_very_problems():
    """Resumed runs, studies and benchmarks depend on them."""
    assert [problem.text for problem in training_problems(512)[:2]] == LEDGER_TRAINING
    assert [problem.text for problem in held_out_problems(2)] == LEDGER_HELD_OUT


def test_forked_pools_have_what_the_task_says():
    problems = problem_pool(600, seed=3, task="forks")
    for problem in problems:
        forks = [options for options in problem.choices if len(options) == 2]
        assert 2 <= len(problem.solutions) <= 2 ** len(forks)
        assert not any(same_function(*options) for options in forks)
        assert 2 * len(problem.operations) + 1 <= TASKS["forks"].max_new_tokens
    assert {sum(map(bool, problem.alternatives)) for problem in problems} == {1, 2, 3, 4}


def test_a_demonstration_takes_either_operation_of_a_fork():
    reliable, rng = Demonstrator(alpha=1.0, beta=1.0, low=1.0, misconceptions=0.0), random.Random(0)
    written = Counter(reliable.demonstrate(FORKED, rng) for _ in range(2_000))
    assert set(written) == set(FORKED.solutions)
    assert written[FORKED.solutions[0]] == pytest.approx(1_000, abs=100)


def test_a_demonstration_leaves_out_notes_and_pauses():
    reliable, rng = Demonstrator(alpha=1.0, beta=1.0, low=1.0, misconceptions=0.0), random.Random(0)
    problem = Problem(7, ("+3", "*7", "-4"), notes=True)
    written = [reliable.demonstrate(problem, rng) for _ in range(2_000)]
    assert {text.lstrip("=") for text in written} == {"a0b0c6", "a0c6", "b0c6", "c6"}
    for part, share in (("a", NOTED), ("b", NOTED), ("c6", 1.0), ("=", PAUSED), ("===", PAUSED**3)):
        assert sum(part in text for text in written) == pytest.approx(2_000 * share, abs=120)


def test_errors_propagate_through_the_chain():
    always_wrong = Demonstrator(alpha=1e-9, beta=1.0, low=0.0, misconceptions=0.0)
    completion = always_wrong.demonstrate(Problem(1, ("+1", "+1")), random.Random(0))
    first, second = int(completion[1]), int(completion[3])
    assert first != 2 and second != apply(first, "+1")


def test_a_misconception_writes_one_wrong_digit_only():
    misconceived = Demonstrator(alpha=0.5, beta=5.0, low=0.0, misconceptions=1.0)
    rng = random.Random(0)
    written = {misconceived.demonstrate(Problem(4, ("*7",)), rng) for _ in range(500)}
    slips = Demonstrator(alpha=0.5, beta=5.0, low=0.0, misconceptions=0.0)
    assert len(written) == 2 and "a8" in written
    assert len({slips.demonstrate(Problem(4, ("*7",)), rng) for _ in range(500)}) == 10
