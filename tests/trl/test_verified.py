"""Reward functions for TRL by a verifier: texts and messages, one right answer or several."""

import pytest

pytest.importorskip("math_verify")

from apportion.trl.verified import math, reward_of
from apportion.verifiers import Exact


def test_mathematics_reads_boxes_and_answer_lines_in_texts_and_messages():
    texts = [r"It is \boxed{0.5}.", "Answer: 1/2", "It is one half", "Answer: 3"]
    messages = [[{"role": "assistant", "content": text}] for text in texts]
    for completions in (texts, messages):
        assert math(completions=completions, prompts=[None] * 4, solution=["1/2"] * 4) == [1.0, 1.0, 0.0, 0.0]
    assert math.__name__ == "math"


def test_the_right_answer_is_the_first_column_found_without_its_worked_solution():
    worked = "Half of 14 is 7.\n#### 7"
    assert math(completions=["Answer: 7"], answer=[worked], solution=["8"]) == [1.0]
    assert math(completions=["Answer: 7", "Answer: 7"], answer=[7.0, None]) == [1.0, None]
    with pytest.raises(ValueError, match="the data must have a column answer, gold, solution, got prompts; add one"):
        math(completions=["Answer: 7"], prompts=["?"])


def test_any_of_several_right_answers_is_rewarded():
    golds = [["Seine", "River Seine"], ["Seine", "River Seine"], ["Rhine"]]
    texts = ["The answer is River Seine.", "The answer is Rhine.", "The answer is Rhine."]
    assert reward_of(Exact())(completions=texts, gold=golds) == [1.0, 0.0, 1.0]
