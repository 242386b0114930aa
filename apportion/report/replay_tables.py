"""The tables of a replay: what other rules would have done, against an even split and shuffled epochs."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from apportion.replay.intervals import Spanned
from apportion.replay.notes import notes
from apportion.replay.results import AllocatorReplay, Replay, SelectorReplay
from apportion.report.charts import ReportTable, table_of

UNKNOWN = Spanned(math.nan, math.nan, math.nan)


def measures(found: Replay) -> str:
    """Return the explanation of the columns of ratios."""
    return (
        f"Ratios are over an even split of the same rollouts, with 95% intervals over prompts"
        f"{' and seeds' * (found.seeds > 1)}. Variance: of RLOO under a loss that is a mean over prompts; less is "
        "better. Signal: of a rollout under a loss that weighs rollouts or tokens equally (TRL's dapo, verl's "
        "token-mean); more is better."
    )


def allocator_row(each: AllocatorReplay, digits: int = 2) -> dict[str, str]:
    """Return the columns of an allocator's row. Ratios have ``digits`` decimals."""
    cells = each.cells
    names = ("mixed", "variance", "signal", "hits", "dead")
    return {
        "rule": "as recorded" if each.source == "recorded" else each.name,
        "outcomes": each.source,
        "rollouts": f"{cells.total('rollouts'):,.0f}" + ("" if each.same_total else f" (x{each.of_budget:.2f})"),
        "tokens": _whole(cells.total("tokens")),
        **{name: spanned_text(each.ratios.get(name, UNKNOWN), f".{digits}f") for name in names},
        "coverage": f"{_whole(cells.coverage())} of {cells.prompts:,}",
        "even's": _whole(cells.coverage(even=True)),
    }


def selector_row(each: SelectorReplay) -> dict[str, str]:
    """Return the columns of a selection rule's row."""
    return {
        "choice": each.name,
        "mixed share": f"{np.nanmean(each.mixed):.3f}",
        "above shuffled": spanned_text(each.above_shuffled, "+.3f"),
        "hits share": "-" if np.isnan(each.hits).any() else f"{each.hits.mean():.3f}",
        "dead": f"{each.dead.sum() / max(1.0, each.rollouts.sum()):.1%}",
        "coverage": f"{each.coverage:,.0f} of {each.choices[0].prompts:,}",
        "never": str(max(own.never for own in each.choices)),
        "longest wait": str(max(own.longest_wait for own in each.choices)),
    }


def replay_tables(name: str, found: Replay) -> Iterator[ReportTable]:
    """Yield the tables of a replay of the run ``name``: of rules that split rollouts, and of rules that choose prompts.

    The last one has what the numbers cannot say.
    """
    rules = [allocator_row(each) for each in (found.run, *found.allocators)] if found.allocators else []
    choices = [selector_row(each) for each in found.selectors]
    told = notes(found)
    if rules:
        about = [measures(found), *([] if choices else told)]
        yield table_of(f"Rules replayed on {name}", [*rules[0]], [[*row.values()] for row in rules], about)
    if choices:
        yield table_of(f"Choices replayed on {name}", [*choices[0]], [[*row.values()] for row in choices], told)


def spanned_text(found: Spanned, form: str) -> str:
    """Return a number with its interval, if it has one."""
    if not math.isfinite(found.value):
        return "-" if math.isnan(found.value) else "inf"
    value, low, high = (format(each, form) for each in found)
    return value + ("" if math.isnan(found.low) else f" [{low}, {high}]")


def _whole(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:,.0f}"
