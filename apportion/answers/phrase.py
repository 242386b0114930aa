"""The equivalence of short answers in words: "The Beatles" and "beatles!" are one vote, "twenty-one" is 21.

It follows the normalisation of SQuAD's and TriviaQA's evaluation: lower case, no punctuation, no articles, single
spaces.

Note: it differs in four ways. Signs and decimal points stay, so that -5 is not 5 and 1.5 is not 15. Letters of other
widths, and Latin letters with accents, become plain ones. Whole numbers in words become digits. An answer that is only
an article, such as the choice "A", stays.

Reference: Rajpurkar et al. 2016, arXiv 1606.05250, section 6.1; Joshi et al. 2017, arXiv 1705.03551, section 6.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache

from apportion.answers.equivalence import Equivalence
from apportion.answers.normal_form import LONGEST, REMEMBERED

ARTICLES = ("a", "an", "the")
ACCENT = re.compile(r"(?<=[a-z])[\u0300-\u036f]+")
"""Marks on Latin letters. Marks of other scripts tell words apart."""
THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
INITIALS = re.compile(r"\b(?:[^\W\d_]\.){2,}")
PIECE = re.compile(r"(?<![\w.])[-+]?(?:\d+(?:\.\d+)?|\.\d+)(?!\w)|.", re.DOTALL)
"""A number with its sign, or else one character."""
MEANINGFUL = ("Sc", "Sm", "So")
"""Unicode categories of symbols that are no punctuation: of currencies, of mathematics and others."""
ONES = """zero one two three four five six seven eight nine ten
eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"""
TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
SMALL = {word: value for value, word in enumerate(ONES.split())}
SMALL |= {word: 10 * tens for tens, word in enumerate(TENS.split(), start=2)}
SCALES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9}


class PhraseMatch(Equivalence):
    """Answers are equal if their words are, apart from case, punctuation, accents and articles; "two" is 2.

    It needs no model and no process. Answers of more than 1,000 characters are compared as text.
    """

    async def find_equal(self, answer: str, known: Sequence[str]) -> int | None:
        """Return the index of the first of ``known`` with the same words; None if none has them."""
        phrase, phrases = phrase_form(answer), [phrase_form(other) for other in known]
        return phrases.index(phrase) if phrase and phrase in phrases else None


@lru_cache(REMEMBERED)
def phrase_form(answer: str) -> str:
    """Return the words of ``answer`` in one spelling.

    >>> [phrase_form(answer) for answer in ("The  Beatles!", "Twenty-one", "1,000.50", "São Paulo", "A.")]
    ['beatles', '21', '1000.5', 'sao paulo', 'a']
    >>> [phrase_form(answer) for answer in ("-5", "one hundred and five dollars", "New-York", "O'Brien’s", "50 %")]
    ['-5', '105 dollars', 'new york', 'obriens', '50 %']
    """
    if len(answer) > LONGEST:
        return answer.strip()
    text = "".join(c if unicodedata.category(c) == "No" else unicodedata.normalize("NFKC", c) for c in answer)
    text = unicodedata.normalize("NFD", text.casefold().replace("−", "-"))
    text = unicodedata.normalize("NFC", ACCENT.sub("", text))
    text = INITIALS.sub(lambda found: found[0].replace(".", ""), text)
    text = THOUSANDS.sub(lambda found: found[0].replace(",", ""), text)
    tokens = "".join(_spelled(piece[0]) for piece in PIECE.finditer(text)).split()
    words = [word for word in tokens if word not in ARTICLES] or tokens
    return " ".join(_numbers_as_digits(words)) or answer.strip()


def _spelled(piece: str) -> str:
    """Return a piece of an answer, spelled for comparison. Numbers and symbols stand apart; punctuation is a space."""
    if len(piece) > 1 or piece.isdecimal() or piece in "%#/^" or unicodedata.category(piece) in MEANINGFUL:
        return f" {piece} " if len(piece) > 1 or not piece.isdecimal() else piece
    if piece in "'’":
        return ""
    return " " if unicodedata.category(piece)[0] in "PSZC" else piece


def _numbers_as_digits(words: Sequence[str]) -> Iterator[str]:
    """Yield ``words`` with each run of number words replaced by its value, and numbers without needless zeros."""
    start = 0
    while start < len(words):
        end, value = _number_words(words, start)
        yield str(value) if end > start else _plain(words[start])
        start = max(end, start + 1)


def _number_words(words: Sequence[str], start: int) -> tuple[int, int]:
    """Return the end and the value of the longest number in words from ``start``; the end is ``start`` if none is."""
    total, part, last = 0, 0, 10**12
    end = place = start
    while place < len(words):
        word = words[place]
        if word == "and" and max(part, total) >= 100 and place == end and words[place + 1 : place + 2] != ["and"]:
            place += 1
            continue
        value = SMALL.get(word)
        if value is not None and value < last and (value or place == start):
            part, last = part + value, 10 if value >= 20 else 1
        elif word == "hundred" and 0 < part < 10:
            part, last = 100 * part, 100
        elif word in SCALES and SCALES[word] > 100 and 0 < part < 1000 and (not total or total % SCALES[word] == 0):
            total, part, last = total + part * SCALES[word], 0, 1000
        else:
            break
        place += 1
        end = place
    return end, total + part


def _plain(word: str) -> str:
    """Return a decimal number without needless zeros and plus sign; any other word as it is."""
    if not re.fullmatch(r"[-+]?(?:\d+\.?\d*|\.\d+)", word):
        return word
    whole, _, decimals = word.lstrip("+-").partition(".")
    digits = f"{whole.lstrip('0') or '0'}.{decimals.rstrip('0')}".rstrip(".")
    return f"-{digits}" if word[0] == "-" and digits != "0" else digits
