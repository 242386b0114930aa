"""A replay as text and as JSON."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from apportion.cli.lines import doubt_lines, wrapped
from apportion.replay.cells import MEASURES
from apportion.replay.intervals import Spanned
from apportion.replay.notes import notes
from apportion.replay.results import AllocatorReplay, Replay, SelectorReplay
from apportion.runs.json_text import json_text
from apportion.runs.text_table import text_table

COLUMNS = (
    "rule",
    "outcomes",
    "rollouts",
    "tokens",
    "mixed",
    "variance",
    "signal",
    "hits",
    "dead",
    "coverage",
    "even's",
)
DEAD = COLUMNS.index("dead")
FIRST = (0, 2, 5, 6, DEAD)
"""The columns that fit 80 columns: the rule, its rollouts, variance, signal, and dead rollouts."""


def replay_text(found: Replay, terminal: bool = False, full: bool = False) -> str:
    """Return the tables of a replay, and what they cannot say. ``full`` has all columns, which are wide."""
    columns = range(len(COLUMNS)) if full else FIRST
    rows = [_allocator_row(each, full) for each in (found.run, *found.allocators)]
    if not full:
        rows = [
            [cell.partition(" [")[0] if column == DEAD else cell for column, cell in enumerate(row)] for row in rows
        ]
    parts = [
        *(["\n".join(doubt_lines(found.doubts))] if found.doubts else []),
        "\n".join(
            wrapped(
                "Ratios are over an even split of the same rollouts, with 95% intervals over prompts"
                f"{' and seeds' if found.seeds > 1 else ''}. Variance: of RLOO under a loss that is a mean over "
                "prompts; less is better. Signal: of a rollout under a loss that weighs rollouts or tokens equally "
                f"(TRL's dapo, verl's token-mean); more is better.{'' if full else ' All columns: --full, --json.'}"
            )
        ),
        text_table(
            [[row[column] for column in columns] for row in rows],
            [COLUMNS[column] for column in columns],
            align="l" + ("l" if full else "r") + "r" * (len(columns) - 2),
            terminal=terminal,
        ),
    ]
    if found.selectors:
        header = ("choice", "mixed share", "above shuffled", "hits share", "dead", "coverage", "never", "longest wait")
        shown = range(len(header)) if full else (0, 1, 2, 4, 5)
        chosen = [[row[column] for column in shown] for row in map(_selector_row, found.selectors)]
        names = [header[column] for column in shown]
        parts.append(text_table(chosen, names, align="l" + "r" * (len(names) - 1), terminal=terminal))
    return "\n\n".join([*parts, "\n".join(line for note in notes(found) for line in wrapped(note, "  "))])


def replay_json(found: Replay) -> str:
    """Return a replay as one JSON object. An unknown or infinite number is null."""
    content = {
        "run": found.name,
        "observe": found.observe,
        "outcome": found.outcome,
        "window": found.window,
        "seeds": found.seeds,
        "recorded": _allocator_json(found.run),
        "allocators": [_allocator_json(each) for each in found.allocators],
        "selectors": [_selector_json(each) for each in found.selectors],
        "notes": notes(found),
        "dropped": list(found.dropped),
        "doubts": list(found.doubts),
    }
    return json_text(content)


def _allocator_row(each: AllocatorReplay, full: bool) -> list[str]:
    cells = each.cells
    total = f"{cells.total('rollouts'):,.0f}" + ("" if each.same_total else f" (x{each.of_budget:.2f})")
    ratios = [
        _shown(each.ratios[name], 3 if full else 2) if name in each.ratios else "-"
        for name in ("mixed", "variance", "signal", "hits", "dead")
    ]
    return [
        "as recorded" if each.source == "recorded" else each.name,
        each.source,
        total,
        _whole(cells.total("tokens")),
        *ratios,
        f"{_whole(cells.coverage())} of {cells.prompts:,}",
        _whole(cells.coverage(even=True)),
    ]


def _selector_row(each: SelectorReplay) -> list[str]:
    above = each.above_shuffled
    return [
        each.name,
        f"{np.nanmean(each.mixed):.3f}",
        f"{above.value:+.3f}" + ("" if math.isnan(above.low) else f" [{above.low:+.3f}, {above.high:+.3f}]"),
        "-" if np.isnan(each.hits).any() else f"{each.hits.mean():.3f}",
        f"{each.dead.sum() / max(1.0, each.rollouts.sum()):.1%}",
        f"{each.coverage:,.0f} of {each.choices[0].prompts:,}",
        str(max(own.never for own in each.choices)),
        str(max(own.longest_wait for own in each.choices)),
    ]


def _allocator_json(each: AllocatorReplay) -> dict[str, Any]:
    return {
        "name": each.name,
        "outcomes": each.source,
        "closed_form": each.closed,
        "of_budget": each.of_budget,
        **{name: each.cells.total(name) for name in MEASURES},
        "coverage": each.cells.coverage(),
        "even": {name: each.cells.total(name, even=True) for name in MEASURES}
        | {"coverage": each.cells.coverage(True)},
        "ratios": dict(each.ratios),
        "missing": None if each.missing is None else vars(each.missing),
    }


def _selector_json(each: SelectorReplay) -> dict[str, Any]:
    return {
        "name": each.name,
        "mixed": float(np.nanmean(each.mixed)),
        "above_shuffled": each.above_shuffled,
        "hits": float(each.hits.mean()),
        "rollouts": float(each.rollouts.sum() / len(each.choices)),
        "tokens": float(each.tokens.sum() / len(each.choices)),
        "dead": float(each.dead.sum() / len(each.choices)),
        "coverage": each.coverage,
        "never_chosen": max(own.never for own in each.choices),
        "longest_wait": max(own.longest_wait for own in each.choices),
        "regret": float(np.mean([own.regret for own in each.choices])),
    }


def _shown(found: Spanned, digits: int) -> str:
    if not math.isfinite(found.value):
        return "-" if math.isnan(found.value) else "inf"
    value, low, high = (f"{each:.{digits}f}" for each in found)
    return value + ("" if math.isnan(found.low) else f" [{low}, {high}]")


def _whole(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:,.0f}"
