"""Answers like 9^{9^{9^9}} and 10000000!, whose evaluation has no end, recognised by their text.

Powers of whole numbers and factorials are evaluated from the inside as long as the results are small. Other expressions
are left alone, so the test is not complete. It recognises what people and models write.
"""

import re
from math import factorial, lgamma, log, log10

DIGITS = 10**6
"""Numbers with more digits than this are not evaluated. sympy needs about 0.3 seconds for that many."""
EXACT = 30
"""Results with more digits than this are taken for a number of this many digits. As an exponent it is too large."""
STEPS = 20
"""Rounds of evaluation. An answer that needs more is left alone."""

BRACKETED = re.compile(r"(?<![\w)}])[({] ?([-+]?\d+) ?[)}](?![\w({])")
POWER = re.compile(r"(?<![\w.)}])(\d+) ?(?:\^|\*\*) ?[-+]?(\d+)(?![\d.]| ?[\^*!])")
FACTORIAL = re.compile(r"(?<![\w.)}])(\d+) ?!")


def too_large(text: str) -> bool:
    """Return whether ``text`` holds a power of whole numbers, or a factorial, of more than ``DIGITS`` digits.

    >>> [too_large(text) for text in ("9^{9^{9^9}}", "10^(-10^(10))", "9**9**9", "10000000!", "3!!!!")]
    [True, True, True, True, True]
    >>> [too_large(text) for text in ("2^{1000}", "2^{2^{10}}", "x^{x^{9}}", "1000!", "10^{12}", "1^{10^{10}}")]
    [False, False, False, False, False, False]
    >>> [too_large(text) for text in ("2^{10}3^{5}", "(2^{10})^{30}", "x^{9^{2}}", "20!", "x!", "^", "!")]
    [False, False, False, False, False, False, False]
    """
    if not re.search(r"[\^!]|\*\*", text):
        return False
    for _ in range(STEPS):
        before, text = text, BRACKETED.sub(r"\1", text)
        if found := POWER.search(text) or FACTORIAL.search(text):
            numbers = [int(digits) if len(digits) <= EXACT else 10**EXACT for digits in found.groups()]
            digits = _digits_of_power(*numbers) if len(numbers) == 2 else _digits_of_factorial(*numbers)
            if digits > DIGITS:
                return True
            text = f"{text[: found.start()]}{_value(numbers, digits)}{text[found.end() :]}"
        elif text == before:
            return False
    return False


def _digits_of_power(base: int, exponent: int) -> float:
    return min(exponent, 10**9) * log10(max(base, 1))


def _digits_of_factorial(number: int) -> float:
    return lgamma(min(number, 10**9) + 1) / log(10)


def _value(numbers: list[int], digits: float) -> int:
    if digits > EXACT:
        return 10 ** (EXACT - 1)
    return numbers[0] ** numbers[1] if len(numbers) == 2 else factorial(numbers[0])
