"""A noisy demonstrator of ledger chains. A base policy learns its slips and misconceptions."""

import hashlib
import random
from dataclasses import dataclass
from functools import lru_cache

from scipy.special import betaincinv

from apportion.checks import check_positive
from apportion.lab.world.task import PAUSE, Problem, apply, completion_text

NOTED, PAUSED = 0.75, 0.4


@dataclass(frozen=True, slots=True)
class Demonstrator:
    """A demonstrator that works a problem digit by digit, with a reliability for every fact (digit, operation).

    The reliability is ``low + (1 - low) * Beta(alpha, beta)``, fixed by a hash. A slip writes a uniformly wrong digit.
    For a share ``misconceptions`` of the facts it always writes the same wrong digit. The chain continues from the
    written digit. At a fork both operations are equally likely. A note is written with a probability of ``NOTED``, and
    a pause is followed by another one with ``PAUSED``. Equal seeds order the 260 facts equally for all other
    parameters, so a policy that copied one demonstrator is a good start for another.
    """

    alpha: float
    beta: float
    low: float
    misconceptions: float
    seed: int = 0

    def __post_init__(self) -> None:
        check_positive(self, "alpha", "beta")
        if not (0 <= self.low <= 1 and 0 <= self.misconceptions <= 1):
            raise ValueError(
                f"low and misconceptions must be in [0, 1], got {self.low} and {self.misconceptions}; "
                "both are probabilities"
            )

    def demonstrate(self, problem: Problem, rng: random.Random) -> str:
        """Return a sampled completion, with slips."""
        digits, digit = [], problem.start
        for options in problem.choices:
            operation = options[0] if len(options) == 1 else rng.choice(options)
            reliability, misconception = _fact(self, digit, operation)
            slip = 0 if rng.random() < reliability else misconception or rng.randrange(1, 10)
            digit = (apply(digit, operation) + slip) % 10
            digits.append(digit)
        text = completion_text(digits)
        if problem.notes:
            notes = (text[place : place + 2] for place in range(0, len(text) - 2, 2))
            text = "".join(note for note in notes if rng.random() < NOTED) + text[-2:]
            while rng.random() < PAUSED:
                text = PAUSE + text
        return text


@lru_cache(maxsize=4096)
def _fact(demonstrator: Demonstrator, digit: int, operation: str) -> tuple[float, int]:
    """Return the reliability of a fact, and the offset of its fixed mistake (0: slips are uniform)."""
    fact = (digit, operation)
    quantile = betaincinv(demonstrator.alpha, demonstrator.beta, _uniform(demonstrator.seed, "r", fact))
    misconceived = _uniform(demonstrator.seed, "m", fact) < demonstrator.misconceptions
    offset = 1 + int(_uniform(demonstrator.seed, "o", fact) * 9)
    return demonstrator.low + (1 - demonstrator.low) * float(quantile), offset if misconceived else 0


def _uniform(*key: object) -> float:
    """Return a number in [0, 1) fixed by the hash of ``key``."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64


EASY = Demonstrator(alpha=1.5, beta=0.4, low=0.1, misconceptions=0.08)
MEDIUM = Demonstrator(alpha=0.7, beta=0.4, low=0.03, misconceptions=0.15)
HARD = Demonstrator(alpha=0.35, beta=0.25, low=0.02, misconceptions=0.15)
CAREFUL = Demonstrator(alpha=1.5, beta=0.2, low=0.05, misconceptions=0.1)
FORKS = Demonstrator(alpha=0.12, beta=0.018, low=0.01, misconceptions=0.2)
