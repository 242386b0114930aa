"""Ledger chains: running sums modulo 10 with exactly one right completion, their verifier, and seeded pools of them.

A problem ``7 a+3 b*7 =`` is a start digit and labelled operations, applied left to right modulo 10. Its completion
``a0b0`` gives every running digit under its label; the answer is all of them, ``00``, so chance is 10^-k for k
operations and wrong answers spread. Exactly one completion is right: its probability *is* the success probability.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Self

from apportion.types import Prompt, prompt_id

DIGITS = tuple("0123456789")
LABELS = tuple("abcdefgh")
OPERATIONS = tuple(f"{sign}{operand}" for sign in "+-*" for operand in range(2 if sign == "*" else 1, 10))
VOCABULARY = ("<pad>", "<eos>", *DIGITS, *OPERATIONS, "=", *LABELS)
PAD, EOS = 0, 1
TOKEN_PATTERN = r"<pad>|<eos>|[+-][1-9]|\*[2-9]|[0-9a-h=]"

_TOKEN_IDS = {token: index for index, token in enumerate(VOCABULARY)}
_PROBLEM = re.compile(rf"(\d)((?: [a-h](?:[+-][1-9]|\*[2-9])){{1,{len(LABELS)}}}) =")


def encode(text: str) -> list[int]:
    """Token ids of a prompt or a completion, without an end token; a ValueError where a character is no token.

    >>> encode("7 a+3 =") == [VOCABULARY.index(token) for token in ("7", "a", "+3", "=")]
    True
    """
    rest = re.sub(TOKEN_PATTERN, "", text).strip()
    if rest:
        raise ValueError(
            f"text must be made of ledger tokens, got {rest[:20]!r} in {text!r}; use digits, a+3 and so on"
        )
    return [_TOKEN_IDS[token] for token in re.findall(TOKEN_PATTERN, text)]


def decode(tokens: Sequence[int]) -> str:
    """Text of token ids up to the first end or padding token, without spaces: ``a0b0c6``."""
    text = ""
    for token in tokens:
        if token in (PAD, EOS):
            break
        text += VOCABULARY[token]
    return text


def apply(digit: int, operation: str) -> int:
    """The digit after one operation, modulo 10.

    >>> apply(7, "+3"), apply(0, "-4"), apply(7, "*7")
    (0, 6, 9)
    """
    operand = int(operation[1:])
    match operation[0]:
        case "+":
            return (digit + operand) % 10
        case "-":
            return (digit - operand) % 10
        case _:
            return digit * operand % 10


@dataclass(frozen=True, slots=True)
class Problem:
    """A start digit and one to eight operations.

    >>> problem = Problem(7, ("+3", "*7", "-4"))
    >>> problem.text, problem.completion, problem.answer
    ('7 a+3 b*7 c-4 =', 'a0b0c6', '006')
    >>> Problem.parse(problem.text) == problem
    True
    """

    start: int
    operations: tuple[str, ...]

    def __post_init__(self) -> None:
        if not 0 <= self.start <= 9:
            raise ValueError(f"start must be a digit, got {self.start}; take it modulo 10")
        if not 1 <= len(self.operations) <= len(LABELS):
            raise ValueError(
                f"a problem has 1 to {len(LABELS)} operations, got {len(self.operations)}; shorten the chain"
            )
        unknown = [
            operation for operation in self.operations if operation not in _TOKEN_IDS or operation[0] not in "+-*"
        ]
        if unknown:
            raise ValueError(
                f"operations must be +1 to +9, -1 to -9 or *2 to *9, got {unknown[0]!r}; choose from OPERATIONS"
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """The problem that ``text`` states; a ValueError where it states none."""
        match = _PROBLEM.fullmatch(text)
        if match is None or [part[0] for part in match[2].split()] != list(LABELS[: len(match[2].split())]):
            raise ValueError(f"a problem reads like '7 a+3 b*7 =', got {text!r}; write it with Problem(...).text")
        return cls(int(match[1]), tuple(part[1:] for part in match[2].split()))

    @property
    def text(self) -> str:
        """What the policy is shown."""
        return " ".join(
            [str(self.start), *(f"{label}{op}" for label, op in zip(LABELS, self.operations, strict=False)), "="]
        )

    @property
    def digits(self) -> tuple[int, ...]:
        """The correct running digits, one an operation."""
        running = [self.start]
        for operation in self.operations:
            running.append(apply(running[-1], operation))
        return tuple(running[1:])

    @property
    def answer(self) -> str:
        """All running digits as one string."""
        return "".join(map(str, self.digits))

    @property
    def completion(self) -> str:
        """The one correct completion, without the end token."""
        return completion_text(self.digits)

    @property
    def facts(self) -> tuple[tuple[int, str], ...]:
        """The (digit, operation) pairs that the correct chain needs."""
        return tuple(zip((self.start, *self.digits), self.operations, strict=False))

    def prompt(self) -> Prompt:
        """The problem as the core sees it: named by its content, carrying itself."""
        return Prompt(self.text, prompt_id(self.text, dataset="ledger"), data=self)

    def describe(self) -> str:
        """The problem in words, for embedders that read language better than symbols.

        >>> Problem(7, ("+3", "*7")).describe()
        'Start with 7. Add 3. Multiply by 7. Keep only the last digit after each of the 2 steps.'
        """
        verbs = {"+": "Add", "-": "Subtract", "*": "Multiply by"}
        steps = " ".join(f"{verbs[operation[0]]} {operation[1:]}." for operation in self.operations)
        count = len(self.operations)
        after = "the step" if count == 1 else f"each of the {count} steps"
        return f"Start with {self.start}. {steps} Keep only the last digit after {after}."


def completion_text(digits: Sequence[int]) -> str:
    """The completion that writes these running digits, right or wrong, under their labels."""
    return "".join(f"{label}{digit}" for label, digit in zip(LABELS, digits, strict=False))


def verify(problem: Problem, completion: str | Sequence[int]) -> tuple[str | None, bool]:
    """The answer that a completion gives (None where it is malformed) and whether it is the right one.

    Text is judged as it stands; token ids must end with the end token, for a completion that was cut off answers
    nothing. Labels must run a, b, c, ...: so correct means that this is *the* correct completion, token by token.

    >>> problem = Problem(7, ("+3", "*7"))
    >>> verify(problem, "a0b0"), verify(problem, "a1b7"), verify(problem, "b0a0")
    (('00', True), ('17', False), (None, False))
    """
    if not isinstance(completion, str):
        if not len(completion) or completion[-1] != EOS or EOS in completion[:-1] or PAD in completion:
            return None, False
        completion = decode(completion)
    answer = completion[1::2]
    if (
        not answer.isdecimal()
        or not answer.isascii()
        or completion_text([int(digit) for digit in answer]) != completion
    ):
        return None, False
    return answer, answer == problem.answer


def random_problem(operations: int, rng: random.Random) -> Problem:
    """A problem of that many operations, uniform among all of them."""
    return Problem(rng.randrange(10), tuple(rng.choice(OPERATIONS) for _ in range(operations)))


def problem_pool(size: int, seed: int, exclude: Collection[Problem] = ()) -> tuple[Problem, ...]:
    """``size`` distinct problems of 1 to 5 operations, none of them in ``exclude``; equal seeds give equal pools."""
    rng, excluded = random.Random(seed), frozenset(exclude)
    pool: dict[Problem, None] = {}
    while len(pool) < size:
        problem = random_problem(rng.randint(1, 5), rng)
        if problem not in excluded:
            pool[problem] = None
    return tuple(pool)


def held_out_problems(size: int = 1000) -> tuple[Problem, ...]:
    """The problems that no training pool holds: the first ``size`` of a fixed pool of 1,000."""
    if not 0 <= size <= 1000:
        raise ValueError(
            f"size must be 0 to 1000, the held-out pool, got {size}; use problem_pool for a pool of your own"
        )
    return problem_pool(1000, seed=999)[:size]


def training_problems(size: int, seed: int = 0) -> tuple[Problem, ...]:
    """A seeded pool that shares no problem with the held-out one."""
    return problem_pool(size, seed=77 + seed, exclude=held_out_problems())
