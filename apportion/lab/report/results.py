"""The results of a study: its runs as read from disk, and means over seeds with 95% intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from apportion.evaluation import seed_interval
from apportion.lab.training.metrics import METRICS, read_metrics
from apportion.types import Floats


@dataclass(frozen=True)
class SeedInterval:
    """A mean over seeds and the half width of its 95% interval (Student's t). A single seed gives no width."""

    mean: float
    half_width: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> SeedInterval:
        """Return the interval of ``values``, one for each seed."""
        mean, half = map(float, seed_interval(values))
        return cls(mean, None if len(values) < 2 else half)

    @property
    def contains_zero(self) -> bool:
        """Whether 0 lies in the interval. Always true for a single seed."""
        return self.half_width is None or abs(self.mean) <= self.half_width

    def __format__(self, kind: str) -> str:
        kind = kind or ".3f"
        return format(self.mean, kind) + ("" if self.half_width is None else f" ± {self.half_width:{kind.lstrip('+')}}")

    def __str__(self) -> str:
        return format(self)

    @property
    def signed(self) -> str:
        """The interval of a difference as text: +0.070 ± 0.012."""
        return f"{self:+.3f}"


@dataclass(frozen=True)
class Run:
    """One finished run: its evaluations and steps, by the keys of the metrics.

    ``evaluations`` has one value for each evaluation [E], the start first. ``steps`` has one value for each step [S].
    Lists over the prompts of a step are joined into one array over all steps. Keys that only some records have are
    left out, so scores against gold are missing in a run without gold.
    """

    evaluations: Mapping[str, Floats]
    steps: Mapping[str, Floats]

    @classmethod
    def read(cls, directory: Path) -> Run:
        """Return the run whose metrics are in ``directory``. Raises ValueError if they are damaged."""
        records = read_metrics(directory / METRICS)
        evaluations = _columns([record for record in records if "success" in record])
        steps = [record for record in records if "counts" in record]
        for step in steps:
            votes = step.get("allocator", {})
            if "leader_share" in votes:
                step |= {"leader_share": votes["leader_share"], "unlabelled": votes["tied"] + votes["unanswered"]}
        return cls(evaluations, _columns(steps))

    @property
    def rollouts(self) -> Floats:
        """Rollouts at each evaluation [E]."""
        return self.evaluations["rollouts"]

    @property
    def tokens(self) -> Floats:
        """Tokens at each evaluation [E]."""
        return self.evaluations["tokens"]

    @property
    def success(self) -> Floats:
        """Exact success on the held-out problems at each evaluation [E]: the learning curve."""
        return self.evaluations["success"]

    @property
    def cpu_seconds(self) -> float:
        """CPU time of all steps."""
        return float(self.steps["cpu_seconds"].sum())

    @property
    def has_gold(self) -> bool:
        """Whether right answers are known, at least for some of the prompts."""
        return "mean_16" in self.evaluations

    @property
    def area(self) -> float:
        """Mean height of the learning curve at equal rollouts. Fast learning and a high end both raise it."""
        return float(np.trapezoid(self.success, self.rollouts) / (self.rollouts[-1] - self.rollouts[0]))

    def area_to(self, tokens: float) -> float:
        """Return the mean height of the learning curve over its first ``tokens`` tokens."""
        within = np.append(self.tokens[self.tokens < tokens], tokens)
        return float(np.trapezoid(np.interp(within, self.tokens, self.success), within) / (tokens - self.tokens[0]))

    def reached(self, success: float) -> float:
        """Return the rollouts at which the curve first reaches ``success``, interpolated; inf if it never does."""
        above = np.flatnonzero(self.success >= success)
        if not above.size:
            return float("inf")
        around = slice(max(0, above[0] - 1), above[0] + 1)
        return float(np.interp(success, self.success[around], self.rollouts[around]))

    def final(self, key: str) -> float:
        """Return the value at the last evaluation."""
        return float(self.evaluations[key][-1])

    def per_label(self, key: str) -> float:
        """Return the sum of ``key`` as a share of the labels that gold is known for, at least one."""
        return float(self.steps[key].sum() / self.steps["labels"].sum())

    @property
    def revisits(self) -> tuple[float, float]:
        """Return the mean visits of a prompt, and the root mean square change of its success between two visits.

        nan if the run did not record which prompts came, or if none came twice.
        """
        prompts, p = self.steps.get("prompts", np.zeros(0)), self.steps["p"]
        order = np.argsort(prompts, kind="stable")
        moves = np.diff(p[order])[np.diff(prompts[order]) == 0]
        if not len(moves):
            return float("nan"), float("nan")
        return len(order) / (len(order) - len(moves)), float(np.sqrt(np.mean(moves**2)))

    @property
    def rollouts_per_prompt(self) -> float:
        """Mean rollouts of the prompts that got any."""
        return float(self.steps["counts"].sum() / max(1, (self.steps["counts"] > 0).sum()))


Runs = Mapping[str, Sequence[Run]]
"""The runs of every arm, with the same seeds in the same order."""


def _columns(records: Sequence[dict[str, Any]]) -> dict[str, Floats]:
    """Return the values of every key that all records have. Nested tables are left out."""
    keys = [key for key, value in records[0].items() if not isinstance(value, dict)]
    return {key: np.hstack([each[key] for each in records]) for key in keys if all(key in each for each in records)}
