"""Answers as votes: equal answers to a prompt get the same text."""

import pytest

from apportion.answers.equivalence import Equivalence, ExactMatch
from apportion.answers.reader import AnswerReader
from apportion.trl.votes import Votes


def test_equal_answers_to_a_prompt_get_the_text_of_the_first_also_in_later_rounds():
    class Length(Equivalence):
        """Answers of equal length are equal."""

        async def find_equal(self, answer, known):
            return next((i for i, other in enumerate(known) if len(other) == len(answer)), None)

    votes = Votes(AnswerReader(how=lambda text: text or None, equivalence=Length()))
    assert votes.read([0, 0, 1, 0], ["ab", "c", "xy", "de"]) == ["ab", "c", "xy", "ab"]
    assert votes.read([1, 0, 0], ["zz", "", "f"]) == ["xy", None, "c"]


def test_an_equivalence_by_name_is_made_once_and_closed_and_one_that_is_given_is_left_alone():
    pytest.importorskip("math_verify")
    answers = AnswerReader(how=lambda text: text, equivalence="math")
    first, second = Votes(answers), Votes(answers)
    assert first.read([0, 0], ["1/2", "0.5"]) == ["1/2", "1/2"]
    assert first.read([0], [r"\frac{1}{2}"]) == ["1/2"]
    assert second.read([0], ["0.5"]) == ["0.5"]  # a batch of its own
    made = answers._made
    answers.close()
    with pytest.raises(RuntimeError, match="closed"):
        made.same(r"\sqrt{4}", "2")
    assert Votes(answers).read([0, 0], ["0.5", r"\frac12"]) == ["0.5", "0.5"]  # made again where it is needed again
    answers.close()
    answers.close()

    class Open(ExactMatch):
        closed = False

        async def aclose(self):
            self.closed = True

    own = Open()
    kept = AnswerReader(equivalence=own)
    kept.close()
    assert not own.closed
