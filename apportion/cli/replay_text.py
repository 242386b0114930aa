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

FIRST = ("rule", "rollouts", "variance", "signal", "dead")
FIRST_OF_CHOICES = ("choice", "mixed share", "above shuffled", "dead", "coverage")
"""The columns that fit 80 columns."""

LEFT = ("rule", "choice", "outcomes")
"""The columns of texts."""


def replay_text(found: Replay, terminal: bool = False, full: bool = False) -> str:
    """Return the tables of a replay, and what they cannot say. ``full`` has all columns, which are wide."""

    def table(rows: list[dict[str, str]], first: tuple[str, ...]) -> str:
        header = tuple(rows[0]) if full else first
        align = "".join("l" if name in LEFT else "r" for name in header)
        return text_table([[row[name] for name in header] for row in rows], header, align=align, terminal=terminal)

    about = (
        "Ratios are over an even split of the same rollouts, with 95% intervals over prompts"
        f"{' and seeds' * (found.seeds > 1)}. Variance: of RLOO under a loss that is a mean over prompts; less is "
        "better. Signal: of a rollout under a loss that weighs rollouts or tokens equally (TRL's dapo, verl's "
        f"token-mean); more is better.{' All columns: --full, --json.' * (not full)}"
    )
    parts = [
        "\n".join(doubt_lines(found.doubts)),
        "\n".join(wrapped(about)),
        table([_allocator_row(each, full) for each in (found.run, *found.allocators)], FIRST),
        table([_selector_row(each) for each in found.selectors], FIRST_OF_CHOICES) if found.selectors else "",
        "\n".join(line for note in notes(found) for line in wrapped(note, "  ")),
    ]
    return "\n\n".join(part for place, part in enumerate(parts) if part or place == len(parts) - 1)


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
        "dropped": found.dropped,
        "doubts": found.doubts,
    }
    return json_text(content)


def _allocator_row(each: AllocatorReplay, full: bool) -> dict[str, str]:
    cells = each.cells
    names = ("mixed", "variance", "signal", "hits", "dead")
    ratios = {name: _shown(each.ratios[name], 3 if full else 2) if name in each.ratios else "-" for name in names}
    if not full:
        ratios["dead"] = ratios["dead"].partition(" [")[0]
    return {
        "rule": "as recorded" if each.source == "recorded" else each.name,
        "outcomes": each.source,
        "rollouts": f"{cells.total('rollouts'):,.0f}" + ("" if each.same_total else f" (x{each.of_budget:.2f})"),
        "tokens": _whole(cells.total("tokens")),
        **ratios,
        "coverage": f"{_whole(cells.coverage())} of {cells.prompts:,}",
        "even's": _whole(cells.coverage(even=True)),
    }


def _selector_row(each: SelectorReplay) -> dict[str, str]:
    above = each.above_shuffled
    return {
        "choice": each.name,
        "mixed share": f"{np.nanmean(each.mixed):.3f}",
        "above shuffled": f"{above.value:+.3f}"
        + ("" if math.isnan(above.low) else f" [{above.low:+.3f}, {above.high:+.3f}]"),
        "hits share": "-" if np.isnan(each.hits).any() else f"{each.hits.mean():.3f}",
        "dead": f"{each.dead.sum() / max(1.0, each.rollouts.sum()):.1%}",
        "coverage": f"{each.coverage:,.0f} of {each.choices[0].prompts:,}",
        "never": str(max(own.never for own in each.choices)),
        "longest wait": str(max(own.longest_wait for own in each.choices)),
    }


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
        "ratios": each.ratios,
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
