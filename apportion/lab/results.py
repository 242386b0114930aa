"""The results of a study: its runs as read from disk, and means over seeds with 95% intervals, paired by seed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

BANDS = (0.0, 0.05, 0.2, 0.5, 0.8, 0.95, 1.0)
"""Edges of the bands of exact success probability that rollouts are counted in."""


@dataclass(frozen=True)
class Interval:
    """A mean over seeds and the half width of its 95% interval (Student's t); no width from a single seed."""

    mean: float
    half_width: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        if len(values) < 2:
            return cls(float(np.mean(values)), None)
        half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
        return cls(float(np.mean(values)), float(half))

    @property
    def contains_zero(self) -> bool:
        return self.half_width is None or abs(self.mean) <= self.half_width

    def __str__(self) -> str:
        return self._text(f"{self.mean:.3f}")

    @property
    def signed(self) -> str:
        """As text, for a difference: +0.070 ± 0.012."""
        return self._text(f"{self.mean:+.3f}")

    @property
    def percent(self) -> str:
        """As text, for a share: 35.2% ± 1.4%."""
        return f"{self.mean:.1%}" + ("" if self.half_width is None else f" ± {self.half_width:.1%}")

    def _text(self, mean: str) -> str:
        return mean if self.half_width is None else f"{mean} ± {self.half_width:.3f}"


Record = dict[str, Any]
"""One line of a run's metrics."""


def read_metrics(directory: Path) -> tuple[list[Record], list[Record]]:
    """The records of the run in ``directory`` that hold an evaluation, the start among them, and those of its steps."""
    records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [record for record in records if "success" in record], [record for record in records if "counts" in record]


@dataclass(frozen=True)
class Run:
    """One finished run: the learning curve (rollouts [E], tokens [E], exact held-out success [E]) and what it cost."""

    rollouts: NDArray[np.float64]
    tokens: NDArray[np.float64]
    success: NDArray[np.float64]
    pass_32: float
    informative: float
    without_correct: float
    updates: int
    cpu_seconds: float
    rollouts_by_band: NDArray[np.float64]
    prompts_by_band: NDArray[np.int64]
    prompts_sampled: int

    @property
    def area(self) -> float:
        """Mean height of the learning curve over the budget: fast learning and a high end both raise it."""
        return float(np.trapezoid(self.success, self.rollouts) / (self.rollouts[-1] - self.rollouts[0]))

    def area_to(self, tokens: float) -> float:
        """Mean height of the learning curve over its first ``tokens`` tokens."""
        within = np.append(self.tokens[self.tokens < tokens], tokens)
        return float(np.trapezoid(np.interp(within, self.tokens, self.success), within) / (tokens - self.tokens[0]))

    def reached(self, success: float) -> float:
        """Rollouts at which the curve first reaches ``success``, between evaluations by interpolation; inf if never."""
        above = np.flatnonzero(self.success >= success)
        if not above.size:
            return float("inf")
        i = int(above[0])
        if i == 0:
            return float(self.rollouts[0])
        return float(np.interp(success, self.success[i - 1 : i + 1], self.rollouts[i - 1 : i + 1]))

    @property
    def rollouts_per_prompt(self) -> float:
        """Over the prompts that got any."""
        return float(self.rollouts_by_band.sum() / max(1, self.prompts_sampled))

    @classmethod
    def read(cls, directory: Path) -> Run:
        evaluated, steps = read_metrics(directory)
        p, counts = (np.concatenate([record[key] for record in steps]) for key in ("p", "counts"))
        band = np.clip(np.searchsorted(BANDS, p, side="right") - 1, 0, len(BANDS) - 2)
        return cls(
            np.array([record["rollouts"] for record in evaluated], float),
            np.array([record["tokens"] for record in evaluated], float),
            np.array([record["success"] for record in evaluated]),
            evaluated[-1]["pass_32"],
            float(np.mean([record["informative"] for record in steps])),
            float(np.mean([record["without_correct"] for record in steps])),
            len(steps),
            sum(record["cpu_seconds"] for record in steps),
            np.bincount(band, counts, minlength=len(BANDS) - 1),
            np.bincount(band, minlength=len(BANDS) - 1),
            int((counts > 0).sum()),
        )


@dataclass(frozen=True)
class Arm:
    """What one allocator did over all seeds; differences are to the baseline, paired by seed."""

    name: str
    success: Interval
    area: Interval
    area_difference: Interval
    token_area_difference: Interval
    """The same for the curve over tokens, up to the fewest tokens that any allocator took with that seed."""
    pass_32: Interval
    informative: Interval
    without_correct: float
    rollouts_per_prompt: float
    updates: float
    tokens: float
    cpu_seconds: float
    rollouts_by_band: tuple[float, ...]
    """Mean rollouts of a prompt whose exact success probability lies in each of BANDS; nan where there was none."""


def summarise(runs: dict[str, list[Run]], baseline: str) -> list[Arm]:
    """One Arm an allocator; ``runs`` lists the same seeds in the same order for each."""
    fewest = [min(run.tokens[-1] for run in seed) for seed in zip(*runs.values(), strict=True)]
    return [_arm(name, mine, runs[baseline], fewest) for name, mine in runs.items()]


def _arm(name: str, runs: list[Run], baseline: list[Run], fewest: list[float]) -> Arm:
    prompts = sum(run.prompts_by_band for run in runs)
    spent = sum(run.rollouts_by_band for run in runs)
    return Arm(
        name,
        Interval.of([run.success[-1] for run in runs]),
        Interval.of([run.area for run in runs]),
        Interval.of([mine.area - other.area for mine, other in zip(runs, baseline, strict=True)]),
        Interval.of(
            [
                mine.area_to(tokens) - other.area_to(tokens)
                for mine, other, tokens in zip(runs, baseline, fewest, strict=True)
            ]
        ),
        Interval.of([run.pass_32 for run in runs]),
        Interval.of([run.informative for run in runs]),
        float(np.mean([run.without_correct for run in runs])),
        float(np.mean([run.rollouts_per_prompt for run in runs])),
        float(np.mean([run.updates for run in runs])),
        float(np.mean([run.tokens[-1] for run in runs])),
        float(np.mean([run.cpu_seconds for run in runs])),
        tuple(np.where(prompts > 0, spent / np.maximum(prompts, 1), np.nan).tolist()),
    )
