"""Extractors and equivalences by name and from the user's own code: what is found, refused, and how failures end."""

import asyncio
import time

import pytest

from apportion.answers import (
    EXTRACTORS,
    AnswerClasses,
    AnswerFunctionError,
    ExactMatch,
    PhraseMatch,
    check_equivalence,
    for_question,
    is_correct,
    make_equivalence,
    make_extractor,
    merge_answers,
    read_answer,
    user_code,
)
from tests.cases import check_all, check_refused, lines

OWN = """
import asyncio, time

def after_colon(text): return text.partition(":")[2]
def no_text(text): return 7
def broken(text): raise KeyError("gone")
def exits(text): raise SystemExit(3)
def two(text, more): return text
async def later(text): return text
def slow(text): time.sleep(30)

def same_length(answer, other): return len(answer) == len(other)
def within(answer, other, *, tolerance=0.1): return abs(float(answer) - float(other)) <= tolerance
async def same_start(answer, other):
    await asyncio.sleep(0)
    return answer[0] == other[0]
def maybe(answer, other): return "maybe"
def raises(answer, other): return 1 / 0
def leaves(answer, other): raise SystemExit(3)
def sleeps(answer, other): time.sleep(30)
def three(a, b, c): return True

class Own:
    def __init__(self, letters=1): self.letters = letters
    async def find_equal(self, answer, known):
        starts = [other[: self.letters] for other in known]
        return starts.index(answer[: self.letters]) if answer[: self.letters] in starts else None
    async def aclose(self): pass

def factory(letters=2): return Own(letters)
def wrong_factory(): return "no equivalence"
one_object = Own(3)
number = 5
"""


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return lambda name: f"{path}:{name}"


def merged(how, answers, **settings):
    return merge_answers(answers, make_equivalence(how, **settings))


def test_an_extractor_of_the_user_is_called_by_its_name(own):
    extractor = make_extractor(own("after_colon"))
    assert extractor("Answer:  42 ") == "42" and extractor("Answer: ") is None
    assert make_extractor(extractor) is extractor
    assert (
        asyncio.run(read_answer(extractor, "a: 7"))
        == "7"
        == asyncio.run(read_answer(EXTRACTORS["boxed"], r"\boxed{7}"))
    )
    assert make_extractor(str.upper)("x") == "X"


UNUSABLE = """
    make_extractor    => no_such => extract must be in its module, got '.*own.py:no_such'; define it there
    make_extractor    => two     => extract must take one argument, the text, got .*own.py:two; give it that one
    make_extractor    => later   => extract must be a plain function from text to answer or None, got .*:later; write
    make_extractor    => number  => extract must be a plain function from text to answer or None, got .*:number; write
    make_extractor    => Own     => extract must be a plain function from text to answer or None, got .*:Own; write
    check_equivalence => three   => equivalence must take two answers, or nothing and return an Equivalence, got .*three
    check_equivalence => number  => must be a function of two answers or have async find_equal and aclose, got .*number
    check_equivalence => no_such => equivalence must be in its module
    make_equivalence  => wrong_factory => must have async find_equal and aclose, got 'no equivalence' from
"""


def test_what_cannot_be_used_is_refused_when_it_is_made(own):
    makers = {each.__name__: each for each in (make_extractor, check_equivalence, make_equivalence)}
    check_refused(ValueError, lambda make, name: makers[make](own(name)), lines(UNUSABLE))
    check_equivalence(own("wrong_factory"))  # it is not called yet


FAILS = """
    no_text => must return a text or None, got 7 for 'Answer: 1'; correct it
    broken  => must return an answer or None for 'Answer: 1', raised KeyError: 'gone'; correct it
    exits   => must return an answer or None for 'Answer: 1', raised SystemExit: 3; correct it
    maybe   => must return True or False for 'b' and 'a', got 'maybe'; correct it
    raises  => must return True or False for 'b' and 'a', raised ZeroDivisionError: .*; correct it
"""


def test_a_function_that_fails_is_named_with_what_it_was_given(own):
    def check(name, message):
        extractor = make_extractor(own(name)) if name not in ("maybe", "raises") else None
        for call in (
            lambda: extractor("Answer: 1") if extractor else merged(own(name), ["a", "a", "b"]),
            lambda: asyncio.run(read_answer(extractor, "Answer: 1")) if extractor else merged(own(name), ["a", "b"]),
        ):
            with pytest.raises(AnswerFunctionError, match=f"{name} {message}"):
                call()

    check_all(check, lines(FAILS))


def test_an_equivalence_of_the_user_may_be_a_function_a_class_a_factory_or_an_object(own):
    answers = ["abc", "abd", "xyzw", "bcdd"]
    assert merged(own("same_length"), answers) == ["abc", "abc", "xyzw", "xyzw"]
    assert merged(own("same_start"), answers) == ["abc", "abc", "xyzw", "bcdd"]
    assert merged(own("Own"), answers) == ["abc", "abc", "xyzw", "bcdd"]
    assert merged(own("factory"), answers) == ["abc", "abc", "xyzw", "bcdd"]
    assert merged(own("one_object"), answers) == answers
    assert merged("operator:eq", ["a", "a", "b"]) == ["a", "a", "b"]
    assert merged(lambda answer, other: answer[-1] == other[-1], ["1a", "2a"]) == ["1a", "1a"]


def test_settings_reach_the_equivalence(own):
    assert merged(own("within"), ["1.0", "1.05", "1.3"]) == ["1.0", "1.0", "1.3"]
    assert merged(own("within"), ["1.0", "1.05", "1.3"], tolerance=0.5) == ["1.0"] * 3
    assert merged(own("Own"), ["abc", "abd"], letters=3) == ["abc", "abd"]
    for name in ("within", "Own", "factory", "one_object"):
        with pytest.raises(ValueError, match=r"must have settings that it knows, got sise; it has \w+"):
            check_equivalence(own(name), sise=1)


def test_a_function_that_takes_too_long_ends_the_run_and_blocks_nobody(own, monkeypatch):
    monkeypatch.setattr(user_code, "FUNCTION_SECONDS", 0.2)
    equivalence, extractor = make_equivalence(own("sleeps")), make_extractor(own("slow"))

    async def run():
        beats, done = (
            0,
            asyncio.gather(equivalence.find_equal("a", ["b"]), read_answer(extractor, "x"), return_exceptions=True),
        )
        while not done.done():
            beats += 1
            await asyncio.sleep(0.01)
        return beats, await done

    started = time.perf_counter()
    beats, errors = asyncio.run(run())
    assert time.perf_counter() - started < 20 and beats > 1
    assert [str(error).split(", took")[1] for error in errors] == [" more than 0.2 seconds; make it faster"] * 2


def test_verdicts_of_the_user_are_remembered_and_equal_texts_are_not_compared():
    asked = []
    equivalence = make_equivalence(lambda answer, other: asked.append((answer, other)) or False)

    async def twice():
        for _ in range(2):
            assert await equivalence.find_equal("b", ["a", "c"]) is None
            assert await equivalence.find_equal("a", ["c", "a"]) == 1

    asyncio.run(twice())
    assert asked == [("b", "a"), ("b", "c")]


def test_an_answer_is_correct_if_it_equals_one_of_several_golds():
    async def found():
        phrase, golds = PhraseMatch(), ["New York City", "NYC", "the Big Apple"]
        return [await is_correct(answer, golds, phrase) for answer in ("nyc", "big apple!", "York", None)]

    assert asyncio.run(found()) == [True, True, False, False]
    assert not asyncio.run(is_correct("x", [], ExactMatch()))


def test_answers_that_equal_several_classes_are_counted_once_each():
    def near(answer, other):
        return abs(int(answer) - int(other)) <= 1

    async def count(**options):
        classes = AnswerClasses(make_equivalence(near), **options)
        found = [await classes.join(answer) for answer in ("1", "3", "2", "2", "4", "9")]
        return found, classes.ambiguous

    assert asyncio.run(count()) == (["1", "3", "1", "1", "3", "9"], 0)
    assert asyncio.run(count(all_classes=True)) == (["1", "3", "1", "1", "3", "9"], 1)


def test_an_equivalence_is_told_the_question_if_it_wants_to_know():
    class Told(ExactMatch):
        question = None

        def for_question(self, question):
            told = Told()
            told.question = question
            return told

    exact = ExactMatch()
    assert for_question(Told(), "Why?").question == "Why?" and for_question(exact, "Why?") is exact


def test_an_extractor_that_hangs_blocks_one_reply_and_not_each_in_turn(own, monkeypatch):
    monkeypatch.setattr(user_code, "FUNCTION_SECONDS", 0.3)
    extractor, started = make_extractor(own("slow")), time.monotonic()
    for _ in range(20):
        with pytest.raises(AnswerFunctionError, match=r"took more than 0\.3 seconds; make it faster"):
            extractor.read_now("a")
    assert time.monotonic() - started < 5  # 6 if each waited
