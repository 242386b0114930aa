"""Measures of an arm over its seeds, and what both reports make of them: a table and a verdict."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from apportion.lab.report.results import Run, Runs, SeedInterval
from apportion.runs.text_table import markdown_table

Value = Callable[[Sequence[Run], Sequence[Run], Sequence[Sequence[Run]]], Any]
"""A value of an arm, from its own runs, the baseline's runs with the same seeds, and the runs of all arms by seed."""


class Arm(SimpleNamespace):
    """The runs of one allocator over all seeds: its ``name``, and each measure of the report as an attribute."""


class Measure(NamedTuple):
    """One value of an arm: its name, how it follows from the runs, and its column and format if it has one."""

    name: str
    value: Value
    head: str = ""
    form: str = ""


def over(value: Callable[[Run], float]) -> Value:
    """Measure the interval of a value of each run."""
    return lambda runs, *_: SeedInterval.of([value(run) for run in runs])


def mean(value: Callable[[Run], float]) -> Value:
    """Measure the mean of a value of each run."""
    return lambda *runs: over(value)(*runs).mean


def final(key: str) -> Value:
    """Measure the interval of the value at the last evaluation."""
    return over(lambda run: run.final(key))


def paired(value: Callable[[Run, Run], float]) -> Value:
    """Measure the interval of a value of each run and the baseline's run with the same seed."""
    return lambda runs, baseline, _: SeedInterval.of([value(*pair) for pair in zip(runs, baseline, strict=True)])


TOKENS = Measure("tokens", mean(lambda run: run.final("tokens")), "tokens", ",.0f")
CPU_SECONDS = Measure("cpu_seconds", mean(lambda run: run.cpu_seconds), "CPU s", ".0f")


def summarise(measures: Sequence[Measure], runs: Runs, baseline: str) -> list[Arm]:
    """Return every measure of every arm."""
    of_seed = list(zip(*runs.values(), strict=True))
    return [
        Arm(name=name, **{each.name: each.value(mine, runs[baseline], of_seed) for each in measures})
        for name, mine in runs.items()
    ]


def arm_table(measures: Sequence[Measure], summary: Sequence[Arm]) -> list[str]:
    """Return a Markdown table with a row for each arm and a column for each measure with a head.

    A column that has no value for any arm is left out.
    """
    columns = [each for each in measures if each.head and any(getattr(arm, each.name) is not None for arm in summary)]

    def cell(arm: Arm, column: Measure) -> str:
        value = getattr(arm, column.name)
        return "-" if value is None else format(value, column.form)

    rows = [[arm.name, *(cell(arm, column) for column in columns)] for arm in summary]
    return markdown_table(["allocator", *(each.head for each in columns)], rows)


def verdict(summary: Sequence[Arm], measure: Measure, differs: str, baseline: str, seeds: int) -> str:
    """Return one sentence: which arms' ``measure``, a difference from the baseline, exceeds noise, and which do not.

    ``differs`` says so, as "area differs from". A single seed or a single arm allows no verdict, and the text says so.
    """
    if seeds == 1:
        return f"One seed: no difference from {baseline} can be told from noise."
    differences = {arm.name: getattr(arm, measure.name) for arm in summary if arm.name != baseline}
    within = [arm for arm, difference in differences.items() if difference.contains_zero]
    beyond = [f"{arm} ({format(differences[arm], measure.form)})" for arm in differences if arm not in within]
    parts = [f"Within noise of {baseline}: {', '.join(within)}"] if within else []
    parts += [f"{differs} {baseline}'s beyond noise: {', '.join(beyond)}"] if beyond else []
    return f"{'; '.join(parts) or 'Nothing to compare'} ({seeds} seeds; intervals are 95%, Student's t over seeds)."
