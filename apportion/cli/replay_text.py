"""A replay as text and as JSON."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from apportion.replay.intervals import Spanned
from apportion.replay.replaying import AllocatorReplay, Replay, SelectorReplay
from apportion.runs.text_table import text_table

COLUMNS = (
    "rule",
    "outcomes",
    "rollouts",
    "tokens",
    "mixed",
    "variance",
    "hits",
    "dead",
    "mixed groups",
    "coverage",
    "even's",
)


def replay_text(found: Replay, terminal: bool = False) -> str:
    """Return the tables of a replay, and what they cannot say, one note a line."""
    parts = [
        "Mixed groups, variance, hits and dead rollouts are over those of an even split of the same rollouts "
        f"(95% over prompts{' and seeds' if found.seeds > 1 else ''}).",
        text_table(
            [_allocator_row(each) for each in (found.run, *found.allocators)],
            COLUMNS,
            align="ll" + "r" * (len(COLUMNS) - 2),
            terminal=terminal,
        ),
    ]
    if found.selectors:
        header = ("choice", "mixed share", "above shuffled", "hits share", "dead", "coverage", "never", "longest wait")
        rows = [_selector_row(each) for each in found.selectors]
        parts.append(text_table(rows, header, align="l" + "r" * 7, terminal=terminal))
    return "\n\n".join([*parts, "\n".join(notes(found))])


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
    }
    return json.dumps(_finite(content))


def notes(found: Replay) -> list[str]:
    """Return what the numbers of a replay cannot say, one sentence or two each."""
    told = []
    for each in found.allocators:
        if not each.same_total:
            told.append(
                f"{each.name} takes {each.of_budget:.2f} times the budget of {each.budget} rollouts a prompt. Compare "
                "it by its ratios, whose control takes as many."
            )
        if each.missing is not None:
            told.append(f"{each.name}: {each.missing}.")
        if each.warnings:
            told.append(f"{each.name} logged {each.warnings} warnings, such as a batch that it could not fill.")
    expected = [each.name for each in found.allocators if each.source == "expected"]
    if expected:
        bound = 1 - 0.05 ** (1 / max(1, found.certain_size))
        smoothing = found.run.ratios.get("mixed")
        told.append(
            f"In expectation ({', '.join(expected)}), outcomes are drawn at the mean of {_around(found)}. At "
            f"{found.certain:.0%} of the groups that mean is 0 or 1, so nothing can be found there, though {bound:.1%} "
            f"would fit {found.certain_size} equal rollouts. Rules that search such prompts gain more than is shown."
        )
        if smoothing is not None and np.isfinite(smoothing.value):
            told.append(
                f"The run itself has {smoothing.value:.3f} times the mixed groups that this expectation gives it. "
                "Differences as small as that are not differences between rules."
            )
    if math.isnan(found.drift):
        told.append("No prompt has as many visits as the window, so how far mean rewards move within it is unknown.")
    elif found.drift:
        told.append(
            f"Within the window a prompt's mean reward moves by {found.drift:.3f} (root mean square, without sampling "
            "noise), which the replay does not see."
        )
    told.append(
        "The policy was trained on what the run sampled. A replay says what a rule would have found at that policy, "
        "not what the policy would have become."
    )
    return told


def _allocator_row(each: AllocatorReplay) -> list[str]:
    cells = each.cells
    total = f"{cells.total('rollouts'):,.0f}" + ("" if each.same_total else f" (x{each.of_budget:.2f})")
    ratios = [
        _shown(each.ratios[name]) if name in each.ratios else "-" for name in ("mixed", "variance", "hits", "dead")
    ]
    mixed, covered = cells.total("mixed"), cells.coverage()
    return [
        "as recorded" if each.source == "recorded" else each.name,
        each.source,
        total,
        _whole(cells.total("tokens")),
        *ratios,
        _whole(mixed),
        f"{_whole(covered)} of {cells.prompts:,}",
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
    names = ("rollouts", "tokens", "mixed", "hits", "dead", "variance")
    return {
        "name": each.name,
        "outcomes": each.source,
        "closed_form": each.closed,
        "of_budget": each.of_budget,
        **{name: each.cells.total(name) for name in names},
        "coverage": each.cells.coverage(),
        "even": {name: each.cells.total(name, even=True) for name in names} | {"coverage": each.cells.coverage(True)},
        "ratios": {name: _comparison_json(ratio) for name, ratio in each.ratios.items()},
        "missing": None if each.missing is None else vars(each.missing),
    }


def _selector_json(each: SelectorReplay) -> dict[str, Any]:
    return {
        "name": each.name,
        "mixed": float(np.nanmean(each.mixed)),
        "above_shuffled": _comparison_json(each.above_shuffled),
        "hits": float(each.hits.mean()),
        "rollouts": float(each.rollouts.sum() / len(each.choices)),
        "tokens": float(each.tokens.sum() / len(each.choices)),
        "dead": float(each.dead.sum() / len(each.choices)),
        "coverage": each.coverage,
        "never_chosen": max(own.never for own in each.choices),
        "longest_wait": max(own.longest_wait for own in each.choices),
        "regret": float(np.mean([own.regret for own in each.choices])),
    }


def _comparison_json(found: Spanned) -> dict[str, float]:
    return {"value": found.value, "low": found.low, "high": found.high}


def _finite(value: Any) -> Any:
    """Return ``value`` with None for each number that JSON has no word for."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _shown(found: Spanned) -> str:
    if not math.isfinite(found.value):
        return "-" if math.isnan(found.value) else "inf"
    return f"{found.value:.3f}" + ("" if math.isnan(found.low) else f" [{found.low:.3f}, {found.high:.3f}]")


def _around(found: Replay) -> str:
    return "up to ten visits around" if found.window is None else f"{found.window} visits before and after"


def _whole(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:,.0f}"
