"""Equivalence of short answers in words: what is the same phrase and what is not, in several scripts."""

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.answers import PhraseMatch
from apportion.answers.phrase import phrase_form
from tests.cases import lines

SAME = """
    The Beatles => beatles!
    twenty-one => 21
    one hundred and five => 105
    two thousand and twelve => 2012
    three million four hundred thousand => 3,400,000
    São Paulo => sao paulo
    U.S.A. => usa
    New-York => New York
    O’Brien => O'Brien
    １２ => 12
    +5.00 => 5
    −5 => -5
    50 % => 50%
"""

DIFFERENT = """
    -5 => 5
    1.5 => 15
    5² => 52
    C => C++
    C# => C
    1912 => 1921
    $5 => 5
    5% => 5
    x^2 => x 2
    one two => 12
    twenty ten => 30
    が => か
    हिन्दी => हन्द
    Paris => Paris, Texas
    =>
    the => an
"""


def same(first, second):
    return asyncio.run(PhraseMatch().find_equal(first, ["no such answer", second])) == 1


def test_the_same_phrase_is_one_vote():
    assert not [pair for pair in lines(SAME) if not (same(*pair) and same(*pair[::-1]))]


def test_two_phrases_are_two_votes():
    different = [*lines(DIFFERENT), ("x" * 2000, "X" * 2000)]
    assert not [pair for pair in different if same(*pair) or same(*pair[::-1])]


ONES = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
ONES = [*ONES.split(), "eighteen", "nineteen"]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def in_words(number):
    """Spell a number below a billion, from the highest digit down."""
    for value, word in ((10**6, "million"), (10**3, "thousand"), (100, "hundred")):
        if number >= value:
            rest = f" and {in_words(number % value)}" if number % value else ""
            return f"{in_words(number // value)} {word}{rest}"
    if number < 20:
        return ONES[number]
    return TENS[number // 10 - 2] + (f"-{ONES[number % 10]}" if number % 10 else "")


@given(st.integers(0, 10**9 - 1))
def test_a_number_in_words_is_the_number(number):
    assert phrase_form(in_words(number)) == str(number) == phrase_form(f"{number:,}")


@given(st.text())
def test_a_phrase_form_stays_itself_and_case_and_space_make_no_difference(text):
    form = phrase_form(text)
    assert phrase_form(form) == form or not any(c.isalnum() for c in text)
    assert phrase_form(f"  {text} ") == form


@pytest.mark.parametrize("unit", ["a", "1,", "the ", "one ", "'", "é", "a.", "-1"])
def test_a_long_text_takes_little_time(unit):
    started = time.process_time()
    phrase_form((unit * 1000)[:1000])
    phrase_form(unit * 10**5)
    assert time.process_time() - started < 5
