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

    def __post_init__(self) -> None:
        check_numbers(self)
        if self.samples is not None and self.samples < 1:
            raise ValueError(f"samples must be at least 1, got {self.samples}; or leave it out for the maximum")

    def check(self, max_samples: int) -> None:
        """Raise ValueError if ``samples`` is more than ``max_samples``."""
        if self.samples is not None and self.samples > max_samples:
            raise ValueError(
                f"samples must be at most max_samples, got {self.samples} and {max_samples}; raise max_samples"
            )

    def enough(self, votes: Counts, samples: Counts, max_samples: int) -> Mask:
        """Return whether ``samples`` have been taken."""
        return samples >= (max_samples if self.samples is None else self.samples)
