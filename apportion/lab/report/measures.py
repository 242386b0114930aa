"""Measures of an arm over its seeds, and what both reports make of them: a table and a verdict."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

from apportion.lab.report.results import Run, Runs, SeedInterval
from apportion.runs.text_table import markdown_table


@dataclass(frozen=True)
class ArmRuns:
    """The runs of one arm, and the baseline's with the same seeds. ``runs_of_seed`` holds the runs of all arms."""

    runs: Sequence[Run]
    baseline: Sequence[Run]
    runs_of_seed: Sequence[Sequence[Run]]


class Arm(SimpleNamespace):
    """What one allocator did over all seeds: its ``name``, and each measure of the report as an attribute."""


class Measure(NamedTuple):
    """One value of an arm: its name, how it follows from the runs, and its column if it has one."""

    name: str
    value: Callable[[ArmRuns], Any]
    head: str = ""
    shown: Callable[[Any], str] = str


def over(value: Callable[[Run], float]) -> Callable[[ArmRuns], SeedInterval]:
    """Measure the interval of a value of each run."""
    return lambda arm: SeedInterval.of([value(run) for run in arm.runs])


def mean(value: Callable[[Run], float]) -> Callable[[ArmRuns], float]:
    """Measure the mean of a value of each run."""
    return lambda arm: over(value)(arm).mean


def paired(value: Callable[[Run, Run], float]) -> Callable[[ArmRuns], SeedInterval]:
    """Measure the interval of a value of each run and the baseline's run with the same seed."""
    return lambda arm: SeedInterval.of([value(*runs) for runs in zip(arm.runs, arm.baseline, strict=True)])


def summarise(measures: Sequence[Measure], runs: Runs, baseline: str) -> list[Arm]:
    """Return every measure of every arm."""
    of_seed = list(zip(*runs.values(), strict=True))
    found = {name: ArmRuns(mine, runs[baseline], of_seed) for name, mine in runs.items()}
    return [Arm(name=name, **{each.name: each.value(arm) for each in measures}) for name, arm in found.items()]


def arm_table(measures: Sequence[Measure], summary: Sequence[Arm]) -> list[str]:
    """Return a Markdown table with a row for each arm and a column for each measure with a head."""
    columns = [each for each in measures if each.head]
    rows = [[(each, getattr(arm, each.name)) for each in columns] for arm in summary]
    cells = [["-" if value is None else each.shown(value) for each, value in row] for row in rows]
    named = [[arm.name, *row] for arm, row in zip(summary, cells, strict=True)]
    return markdown_table(["allocator", *(each.head for each in columns)], named)


def verdict_on(
    differences: Mapping[str, SeedInterval], baseline: str, sentence: Callable[[list[str], list[str]], str]
) -> str:
    """Return ``sentence(beyond, within)``: the arms whose difference from ``baseline`` exceeds noise, and the others.

    A single seed or a single arm allows no verdict, and the text says so.
    """
    others = {arm: difference for arm, difference in differences.items() if arm != baseline}
    if not others:
        return "nothing to compare"
    if any(difference.half_width is None for difference in others.values()):
        return f"one seed: no difference from {baseline} can be told from noise"
    within = [arm for arm, difference in others.items() if difference.contains_zero]
    return sentence([arm for arm in others if arm not in within], within)


def headline(verdict: str, seeds: int) -> str:
    """Return the verdict as the first sentence of the findings."""
    return f"{verdict[:1].upper()}{verdict[1:]} ({seeds} seeds; intervals are 95%, Student's t over seeds)."
