"""Ledger chains: arithmetic modulo 10, a verifier, and seeded pools of problems.

A problem ``7 a+3 b*7 =`` is a start digit and labelled operations, applied left to right modulo 10. Its completion
``a0b0`` gives every running digit under its label. The answer is all digits, ``00``, so chance is 10^-k for k
operations. Exactly one completion is right, and its probability is the success probability.

A label that is given twice is a fork: in ``7 a+3 b*7 b-2 c-4 =`` either operation may be applied at b, so ``a0b0c6``
and ``a0b8c4`` are both right. The right completions can still be listed, and the success probability is the sum of
their probabilities. A reward for correctness does not favour one of them.

In a problem with notes, ``7 a+3 b*7 ==``, every digit but the last is a note, which may be left out, and up to two
pauses may come first: ``a0b0``, ``b0`` and ``==b0`` are right. The answer is the last digit, and a right completion has
only right notes. So the length is free, and short completions are harder, because the policy has to calculate without
writing. More than two pauses are malformed.

There are three tasks: "ledger" has short chains without forks, "forks" has longer chains with one to four forks, and
"notes" has chains of two to four operations with notes.
"""

import random
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby, product, takewhile
from operator import eq
from typing import Literal, Self

from apportion.types import Prompt, prompt_id

Reward = Literal["exact", "share"]
"""Whether a completion is right, or the share of its leading digits that are right."""

DIGITS = tuple("0123456789")
LABELS = tuple("abcdefgh")
OPERATIONS = tuple(f"{sign}{operand}" for sign in "+-*" for operand in range(2 if sign == "*" else 1, 10))
VOCABULARY = ("<pad>", "<eos>", *DIGITS, *OPERATIONS, "=", *LABELS)
PAD, EOS = 0, 1
PAUSE, PAUSES = "=", 2
"""PAUSE: the token that a policy may write before its notes. PAUSES: how often at most."""
TOKEN_PATTERN = r"<pad>|<eos>|[+-][1-9]|\*[2-9]|[0-9a-h=]"

_TOKEN_IDS = {token: index for index, token in enumerate(VOCABULARY)}
_PROBLEM = re.compile(rf"(\d)((?: [a-h](?:[+-][1-9]|\*[2-9])){{1,{2 * len(LABELS)}}}) (==?)")


def encode(text: str) -> list[int]:
    """Return the token ids of a prompt or a completion, without an end token. Raises ValueError for other text.

    >>> encode("7 a+3 =") == [VOCABULARY.index(token) for token in ("7", "a", "+3", "=")]
    True
    """
    rest = re.sub(TOKEN_PATTERN, "", text).strip()
    if rest:
        raise ValueError(f"text must be made of ledger tokens, got {rest[:20]!r} in {text!r}; use digits, a+3, ...")
    return [_TOKEN_IDS[token] for token in re.findall(TOKEN_PATTERN, text)]


def decode(tokens: Sequence[int]) -> str:
    """Return the text of token ids up to the first end or padding token, without spaces: ``a0b0c6``."""
    return "".join(VOCABULARY[token] for token in takewhile(lambda token: token not in (PAD, EOS), tokens))


def apply(digit: int, operation: str) -> int:
    """Return the digit after one operation, modulo 10.

    >>> apply(7, "+3"), apply(0, "-4"), apply(7, "*7")
    (0, 6, 9)
    """
    operand = int(operation[1:])
    results = {"+": digit + operand, "-": digit - operand, "*": digit * operand}
    return results[operation[0]] % 10


@dataclass(frozen=True, slots=True)
class Problem:
    """A start digit and one to eight operations, some of which may be forks.

    ``alternatives`` has an entry for each operation: the other operation of a fork, or "" if there is no fork. It is
    empty for a problem without forks. With ``notes`` only the last digit must be written.

    >>> problem = Problem(7, ("+3", "*7", "-4"))
    >>> problem.text, problem.completion, problem.answer
    ('7 a+3 b*7 c-4 =', 'a0b0c6', '006')
    >>> Problem.parse(problem.text) == problem
    True
    >>> forked = Problem(7, ("+3", "*7", "-4"), ("", "-2", ""))
    >>> forked.text, forked.solutions
    ('7 a+3 b*7 b-2 c-4 =', ('a0b0c6', 'a0b8c4'))
    >>> noted = Problem(7, ("+3", "*7"), notes=True)
    >>> noted.text, noted.solutions, noted.answer
    ('7 a+3 b*7 ==', ('a0b0', 'b0', '=a0b0', '=b0', '==a0b0', '==b0'), '0')
    """

    start: int
    operations: tuple[str, ...]
    alternatives: tuple[str, ...] = ()
    notes: bool = False

    def __post_init__(self) -> None:
        one_each = not self.alternatives or (any(self.alternatives) and len(self.alternatives) == len(self.operations))
        known = {*self.operations, *filter(None, self.alternatives)} <= {*OPERATIONS}
        differ = not any(map(eq, self.operations, self.alternatives))
        if not (0 <= self.start <= 9 and 1 <= len(self.operations) <= len(LABELS) and one_each and known and differ):
            raise ValueError(
                "a problem must have a digit and 1 to 8 operations of +1 to +9, -1 to -9 and *2 to *9, and for forks "
                f"another operation or '' beside each, got {self}; change it"
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the problem that ``text`` states. Raises ValueError if it states none."""
        if match := _PROBLEM.fullmatch(text):
            steps = [[part[1:] for part in parts] for _, parts in groupby(match[2].split(), key=lambda part: part[0])]
            operations, alternatives = zip(*((*options, "")[:2] for options in steps), strict=True)
            found = cls(int(match[1]), operations, alternatives if any(alternatives) else (), match[3] == "==")
            if found.text == text:
                return found
        raise ValueError(f"a problem reads like '7 a+3 b*7 =', got {text!r}; write it with Problem(...).text")

    @property
    def choices(self) -> tuple[tuple[str, ...], ...]:
        """The allowed operations at each label: one, or two at a fork."""
        alternatives = self.alternatives or ("",) * len(self.operations)
        return tuple((op, other) if other else (op,) for op, other in zip(self.operations, alternatives, strict=True))

    @property
    def text(self) -> str:
        """The prompt."""
        steps = [f"{label}{op}" for label, options in zip(LABELS, self.choices, strict=False) for op in options]
        return " ".join([str(self.start), *steps, "==" if self.notes else "="])

    @property
    def solutions(self) -> tuple[str, ...]:
        """Every right completion once, without the end token.

        The first one takes the first operation at every fork, and has all notes and no pause.
        """
        paths: list[tuple[int, ...]] = [(self.start,)]
        for options in self.choices:
            paths = [(*path, digit) for path in paths for digit in dict.fromkeys(apply(path[-1], op) for op in options)]
        full = [completion_text(digits) for _, *digits in paths]
        if not self.notes:
            return tuple(full)
        # Every line but the last is written or not.
        lines = [product(*((text[i : i + 2], "") for i in range(0, len(text) - 2, 2)), (text[-2:],)) for text in full]
        written = dict.fromkeys("".join(some) for each in lines for some in each)
        return tuple(PAUSE * pauses + text for pauses in range(PAUSES + 1) for text in written)

    @property
    def completion(self) -> str:
        """The first of the ``solutions``, without the end token."""
        return self.solutions[0]

    @property
    def answer(self) -> str:
        """The answer of the ``completion``: all running digits as one string, or the last one if there are notes."""
        return self.completion[-1] if self.notes else self.completion[1::2]

    @property
    def answers(self) -> frozenset[str]:
        """The answers of all ``solutions``."""
        return frozenset(text[-1] if self.notes else text[1::2] for text in self.solutions)

    def prompt(self) -> Prompt:
        """Return the problem as a ``Prompt``, with an id by content and the problem as ``data``."""
        return Prompt(self.text, prompt_id(self.text, dataset="ledger"), data=self)


def completion_text(digits: Sequence[int]) -> str:
    """Return the completion that writes these running digits, right or wrong, under their labels."""
    return "".join(f"{label}{digit}" for label, digit in zip(LABELS, digits, strict=False))


def verify(problem: Problem, completion: str | Sequence[int]) -> tuple[str | None, bool]:
    """Return the answer of a completion (None if it is malformed) and whether it is right.

    Token ids must end with the end token, because a completion that was cut off gives no answer. Labels must run a, b,
    c, ..., so a right completion is one of ``problem.solutions``, token by token.

    >>> problem = Problem(7, ("+3", "*7"))
    >>> verify(problem, "a0b0"), verify(problem, "a1b7"), verify(problem, "b0a0")
    (('00', True), ('17', False), (None, False))
    >>> verify(Problem(7, ("+3", "*7"), ("", "-2")), "a0b8")
    ('08', True)
    """
    if not isinstance(completion, str):
        if not len(completion) or completion[-1] != EOS or EOS in completion[:-1] or PAD in completion:
            return None, False
        completion = decode(completion)
    return (noted(problem, completion) if problem.notes else stated(completion)), completion in problem.solutions


def noted(problem: Problem, completion: str) -> str | None:
    """Return the last digit of a completion with notes; None if it is malformed, or ends before the last label.

    >>> problem = Problem(7, ("+3", "*7"), notes=True)
    >>> noted(problem, "=b5"), noted(problem, "a0"), noted(problem, "===b0")
    ('5', None, None)
    """
    *before, last = LABELS[: len(problem.operations)]
    lines = "".join(f"({label}[0-9])?" for label in before)
    return completion[-1] if re.fullmatch(f"{PAUSE}{{0,{PAUSES}}}{lines}{last}[0-9]", completion) else None


def stated(completion: str) -> str | None:
    """Return the answer of ``completion``, all its running digits; None if it is malformed.

    >>> stated("a0b8"), stated("b0a8"), stated("")
    ('08', None, None)
    """
    digits = completion[1::2]
    if not digits.isdecimal() or not digits.isascii():
        return None
    return digits if completion_text([int(digit) for digit in digits]) == completion else None


@dataclass(frozen=True, slots=True)
class Task:
    """A kind of problem: its least and most operations, its least and most forks, and whether it has notes.

    >>> TASKS["forks"].max_new_tokens
    20
    """

    operations: tuple[int, int]
    forks: tuple[int, int] = (0, 0)
    notes: bool = False

    @property
    def max_new_tokens(self) -> int:
        """Tokens of the longest right completion with its end token, and three more."""
        return 2 * self.operations[1] + 4 + PAUSES * self.notes

    def draw(self, rng: random.Random) -> Problem:
        """Draw a problem with uniform numbers of operations and forks. A forked one has at least two solutions."""
        return self.of_length(rng.randint(*self.operations), rng)

    def of_length(self, operations: int, rng: random.Random) -> Problem:
        """Draw a problem with that many uniform operations, of which a uniform number are forks.

        An alternative is uniform among the operations that differ modulo 10, so +3 and -7 are no fork.
        """
        forks = rng.randint(*self.forks) if any(self.forks) else 0
        while True:
            start, chain = rng.randrange(10), tuple(rng.choice(OPERATIONS) for _ in range(operations))
            problem = Problem(start, chain, notes=self.notes)
            if not forks:
                return problem
            alternatives = [""] * operations
            for place in sorted(rng.sample(range(operations), forks)):
                while not alternatives[place] or same_function(alternatives[place], problem.operations[place]):
                    alternatives[place] = rng.choice(OPERATIONS)
            found = replace(problem, alternatives=tuple(alternatives))
            if len(found.solutions) > 1:
                return found


TASKS = {"ledger": Task((1, 5)), "forks": Task((4, 8), forks=(1, 4)), "notes": Task((2, 4), notes=True)}


def same_function(one: str, other: str) -> bool:
    """Return whether two operations give the same result for every digit.

    >>> same_function("+3", "-7"), same_function("*2", "*7")
    (True, False)
    """
    return all(apply(digit, one) == apply(digit, other) for digit in range(10))


def problem_pool(size: int, seed: int, exclude: Collection[Problem] = (), task: str = "ledger") -> tuple[Problem, ...]:
    """Draw ``size`` distinct problems of ``task`` that are not in ``exclude``. Equal seeds give equal pools."""
    rng, excluded = random.Random(seed), frozenset(exclude)
    pool: dict[Problem, None] = {}
    while len(pool) < size:
        problem = TASKS[task].draw(rng)
        if problem not in excluded:
            pool[problem] = None
    return tuple(pool)


@cache
def held_out_problems(size: int = 1000, task: str = "ledger") -> tuple[Problem, ...]:
    """Return the first ``size`` of 1,000 fixed problems that no training pool holds."""
    return problem_pool(size, seed=999, task=task)


def training_problems(size: int, seed: int = 0, task: str = "ledger") -> tuple[Problem, ...]:
    """Draw a pool that shares no problem with the held-out one."""
    return problem_pool(size, seed=77 + seed, exclude=held_out_problems(task=task), task=task)
