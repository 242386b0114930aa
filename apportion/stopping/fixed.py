"""A fixed number of samples, whatever the answers: self-consistency as it is usually run.

Reference: Wang et al. 2022, "Self-Consistency Improves Chain of Thought Reasoning", arXiv 2203.11171.
"""

from dataclasses import dataclass
from typing import ClassVar

from apportion.checks import check_numbers
from apportion.stopping.base import CountRule
from apportion.types import Counts, Mask


@dataclass(frozen=True)
class Fixed(CountRule):
    """Stops after ``samples`` samples.

    Args:
        samples: the number of samples; None for the maximum.
    """

    samples: int | None = None

    name: ClassVar[str] = "fixed"
    _bounded: ClassVar[str | None] = "samples"

    def __post_init__(self) -> None:
        check_numbers(self)
        if self.samples is not None and self.samples < 1:
            raise ValueError(f"samples must be at least 1, got {self.samples}; or leave it out for the maximum")

    def enough(self, votes: Counts, samples: Counts, max_samples: int) -> Mask:
        return samples >= (max_samples if self.samples is None else self.samples)
