"""The first screen of a diagnosis: what decides, in about 20 lines of 80 columns. ``--full`` prints the rest."""

from __future__ import annotations

from apportion.cli.diagnosis_text import told_head
from apportion.cli.lines import code_lines, doubt_lines, wrapped
from apportion.diagnosis import Diagnosis
from apportion.diagnosis.health import RunHealth
from apportion.diagnosis.series import Series
from apportion.diagnosis.statements import (
    COURSE,
    ORDER,
    advice_statements,
    as_read,
    health_statements,
    waste_statements,
)
from apportion.records.scalars import LOG_ROLLOUTS, Scalars

LINES = 20
MOST_DOUBT_LINES = 5


def screen(found: Diagnosis, texts: bool = False) -> str:
    """Return what a person needs to decide: is it sick, what was wasted, and what to change first.

    ``texts`` says that the prompts have texts, which no predictor has read.
    """
    changes = advice_statements(found.advice)
    lines = [*wrapped(told_head(found)), *doubt_lines(found.doubts, MOST_DOUBT_LINES), *_health(found.health, False)]
    lines += [line for each in waste_statements(found.waste, found.phantoms, found.doubts) for line in wrapped(each)]
    last = ["More: --full for all tables, --json for all numbers, docs/diagnose.md."]
    if texts:
        last.append("--embeddings minilm (the extra embed) shows whether the prompts' texts help.")
    if not found.advice.recommended:
        return "\n".join([*lines, *wrapped(changes[0]), *last])
    code = ["The first as code:", *code_lines(found.advice.recommended[0].code)]
    told, hidden = wrapped(ORDER.format(as_read(found.doubts))), 0
    for number, each in enumerate(changes):
        own = wrapped(each)
        if number and len(lines) + len(told) + len(own) + len(code) + len(last) > LINES:
            hidden = len(changes) - number
            last[0] = (
                f"More: --full for {hidden} more change{'s' * (hidden > 1)} and all tables, --json, docs/diagnose.md."
            )
            break
        told += own
    return "\n".join([*lines, *told, *code, *last])


def _health(found: RunHealth, full: bool) -> list[str]:
    return [line for each in health_statements(found, full) for line in wrapped(each, "  " if found.signs else "")]


def scalars_text(found: Scalars, health: RunHealth) -> str:
    """Return what can be said of a run without rollouts, from the logged means of its steps."""
    steps = max(len(own[0]) for own in found.found.values())
    lines = [f"{found.name} ({found.source}): means of {steps:,} steps, no rollouts", *_health(health, True)]
    reward, cut = (found.series(name) for name in ("reward", "cut"))
    lines += wrapped(_wasted(found))
    if reward is not None:
        lines.append(f"The mean reward went from {reward[1][0]:.3g} to {reward[1][-1]:.3g}.")
    if cut is not None:
        lines.append(f"Completions cut at the limit: {cut[1][0]:.1%} at first, {cut[1][-1]:.1%} at last.")
    return "\n".join([*lines, *wrapped(f"No advice: {LOG_ROLLOUTS}.")])


def _wasted(found: Scalars) -> str:
    """Return the share of dead groups by kind; as a range if the log can be read in more than one way.

    With rewards of 0 and 1 the mean reward bounds the share of groups that are all right.
    """
    known = {name: Series(*own) for name in ("dead", "all right", "all wrong") if (own := found.series(name))}
    dead, reward = known.pop("dead", None), found.series("reward")
    if dead is None:
        return "Wasted: the share of dead groups (zero variance) is not recorded."
    start, end = dead.start, dead.end
    moved = abs(end - start) >= COURSE
    told = f"{start:.0%} at first and {end:.0%} at last" if moved else f"{dead.values.mean():.2%}"
    kinds = [f"{own.end if moved else own.values.mean():.0%} {name}" for name, own in known.items()]
    if not kinds and reward is not None and reward[1].min() >= 0 and reward[1].max() <= 1:
        share, mean = (end, Series(*reward).end) if moved else (dead.values.mean(), reward[1].mean())
        low, high = max(0.0, mean + share - 1), min(share, mean)
        wrong = f"{share - high:.0%} to {share - low:.0%} all wrong"
        kinds = [f"if rewards are 0 or 1, {low:.0%} to {high:.0%} all right, {wrong}"]
    said = f" ({'at the end ' * (moved and bool(known))}{', '.join(kinds)})" if kinds else ""
    return f"Wasted: {told} of the groups were dead: zero variance{said}. Means over {len(dead.steps):,} steps."
