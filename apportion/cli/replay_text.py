"""A replay as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from apportion.cli.lines import doubt_lines, wrapped
from apportion.diagnosis.statements import as_read
from apportion.replay.cells import MEASURES
from apportion.replay.notes import notes
from apportion.replay.results import AllocatorReplay, Replay, SelectorReplay
from apportion.report.replay_tables import allocator_row, measures, selector_row
from apportion.runs.json_text import json_text
from apportion.runs.text_table import text_table

FIRST = ("rule", "rollouts", "variance", "signal", "dead")
FIRST_OF_CHOICES = ("choice", "mixed share", "above shuffled", "dead", "coverage")
"""The columns of selection rules that fit into 80 columns."""

LEFT = ("rule", "choice", "outcomes")
"""The columns that hold text, which are aligned to the left."""


def replay_text(found: Replay, full: bool = False) -> str:
    """Return the tables of a replay, and what they cannot say. ``full`` has all columns, which are wide."""
    rules = [allocator_row(each, 3 if full else 2) for each in (found.run, *found.allocators)]
    if not full:
        rules = [row | {"dead": row["dead"].partition(" [")[0]} for row in rules]

    choices = [selector_row(each) for each in found.selectors]
    read = as_read(found.doubts)
    about = f"{f'Figures{read}. ' * bool(read)}{measures(found)}{' All columns: --full, --json.' * (not full)}"
    parts = [
        "\n".join(doubt_lines(found.doubts)),
        "\n".join(wrapped(about)),
        _table(rules, [*rules[0]] if full else FIRST),
        _table(choices, [*choices[0]] if full else FIRST_OF_CHOICES) if choices else "",
        "\n".join(line for note in notes(found) for line in wrapped(note, "  ")),
    ]
    return "\n\n".join(part for place, part in enumerate(parts) if part or place == len(parts) - 1)


def _table(rows: Sequence[Mapping[str, str]], header: Sequence[str]) -> str:
    align = "".join("l" if name in LEFT else "r" for name in header)
    return text_table([[row[name] for name in header] for row in rows], header, align=align)


def replay_json(found: Replay) -> str:
    """Return a replay as one JSON object. An unknown or infinite number is null."""
    content = {
        "run": found.name,
        **{name: getattr(found, name) for name in ("observe", "outcome", "window", "seeds", "dropped", "doubts")},
        "recorded": _allocator_json(found.run),
        "allocators": [_allocator_json(each) for each in found.allocators],
        "selectors": [_selector_json(each) for each in found.selectors],
        "notes": notes(found),
    }
    return json_text(content)


def _allocator_json(each: AllocatorReplay) -> dict[str, Any]:
    own, even = (
        {name: each.cells.total(name, even=level) for name in MEASURES} | {"coverage": each.cells.coverage(level)}
        for level in (False, True)
    )
    return {
        "name": each.name,
        "outcomes": each.source,
        "closed_form": each.closed,
        "of_budget": each.of_budget,
        **own,
        "even": even,
        "ratios": each.ratios,
        "missing": None if each.missing is None else vars(each.missing),
    }


def _selector_json(each: SelectorReplay) -> dict[str, Any]:
    seeds = len(each.choices)
    return {
        "name": each.name,
        "mixed": float(np.nanmean(each.mixed)),
        "above_shuffled": each.above_shuffled,
        "hits": float(each.hits.mean()),
        **{name: float(getattr(each, name).sum() / seeds) for name in ("rollouts", "tokens", "dead")},
        "coverage": each.coverage,
        "never_chosen": max(own.never for own in each.choices),
        "longest_wait": max(own.longest_wait for own in each.choices),
        "regret": float(np.mean([own.regret for own in each.choices])),
    }
