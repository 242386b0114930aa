"""Answers for votes: read as asked, and one for all that mean the same to the same prompt."""

import asyncio

import pytest

from apportion.integrations.answers import Answers
from apportion.integrations.trl.voting import Votes
from apportion.verifiers.equivalence import Equivalence, ExactMatch


def test_answers_are_read_by_name_or_by_a_function():
    assert Answers().read("So the answer is 42.") == "42" and Answers().read("42") is None
    assert Answers(how=lambda text: text[:1] or None).read("42") == "4"


def test_equal_answers_to_one_prompt_take_the_words_of_the_first_also_in_later_rounds():
    class Length(Equivalence):
        """Answers of one length are one."""

        async def place(self, answer, known):
            return next((i for i, other in enumerate(known) if len(other) == len(answer)), None)

    votes = Votes(Answers(how=lambda text: text or None, equivalence=Length()))
    assert votes.cast([0, 0, 1, 0], ["ab", "c", "xy", "de"]) == ["ab", "c", "xy", "ab"]
    assert votes.cast([1, 0, 0], ["zz", "", "f"]) == ["xy", None, "c"]


def test_votes_may_be_cast_inside_a_running_loop():
    async def notebook():
        return Votes(Answers(how=str, equivalence=ExactMatch())).cast([0, 0], ["7", "7"])

    assert asyncio.run(notebook()) == ["7", "7"]


def test_an_equivalence_by_name_is_made_once_and_closed_and_one_that_is_given_is_left_alone():
    pytest.importorskip("math_verify")
    answers = Answers(how=lambda text: text, equivalence="math")
    first, second = Votes(answers), Votes(answers)
    assert first.cast([0, 0], ["1/2", "0.5"]) == ["1/2", "1/2"]
    assert first.cast([0], [r"\frac{1}{2}"]) == ["1/2"]
    assert second.cast([0], ["0.5"]) == ["0.5"]  # a batch of its own
    made = answers._made
    answers.close()
    with pytest.raises(RuntimeError, match="closed"):
        made.same(r"\sqrt{4}", "2")
    assert Votes(answers).cast([0, 0], ["0.5", r"\frac12"]) == ["0.5", "0.5"]  # made again where it is needed again
    answers.close()
    answers.close()

    class Open(ExactMatch):
        closed = False

        async def aclose(self):
            self.closed = True

    own = Open()
    kept = Answers(equivalence=own)
    kept.close()
    assert not own.closed


def test_what_an_extractor_raises_is_raised():
    def broken(text):
        raise KeyError(text)

    with pytest.raises(KeyError, match="42"):
        Votes(Answers(how=broken)).cast([0], ["42"])
