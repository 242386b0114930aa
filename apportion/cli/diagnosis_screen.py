"""The first screen of a diagnosis: at most 20 lines of 80 columns that decide. ``--full`` prints the rest."""

from __future__ import annotations

import textwrap

from apportion.cli.diagnosis_text import span, told_head
from apportion.cli.lines import WIDTH, doubt_lines, wrapped
from apportion.diagnosis import Diagnosis
from apportion.diagnosis.advice import Advice
from apportion.diagnosis.health import RunHealth
from apportion.records.scalars import LOG_ROLLOUTS, Scalars

LINES = 20
MOST_ADVICE, MOST_DOUBT_LINES = 3, 5
SERIES_NAMES = {"cut": "truncation", "kl": "KL", "components": "single rewards", "repeats": "repeated prompts"}


def screen(found: Diagnosis) -> str:
    """Return what a person needs to decide: is it sick, what was wasted, and what to change first."""
    lines = [*wrapped(told_head(found)), *doubt_lines(found.doubts, MOST_DOUBT_LINES), *health_lines(found.health)]
    waste = found.waste
    if waste.compared:
        lines += wrapped(
            f"Wasted: {span(waste.dead)} of the groups were dead (equal rewards). They took {span(waste.rollouts)} of "
            "the rollouts."
        )
    else:
        lines += wrapped("Wasted: no group has two rewards or more, so nothing can be compared.")
    last = ["More: --full for all tables, --json for all numbers, docs/diagnose.md."]
    advice = found.advice
    if advice.problem:
        return "\n".join([*lines, *wrapped(f"No advice: {advice.problem}."), *last])
    if not advice.recommended:
        return "\n".join([*lines, "Nothing here would help this run.", *last])
    code = _code(advice.recommended[0])
    told = ["What would help, by its effect on learning, then on variance, then on rollouts:"]
    for number, each in enumerate(advice.recommended[:MOST_ADVICE], 1):
        own = wrapped(f"{number}. {each.change}: {each.learning.text}{_saving(each)}.", "   ")
        if len(lines) + len(told) + len(own) + len(code) + len(last) > LINES:
            break
        told += own
    return "\n".join([*lines, *told, *code, *last])


def health_lines(found: RunHealth, full: bool = False) -> list[str]:
    """Return the signs, each with its onset and what to do; or what was looked at without one."""
    looked = ", ".join(SERIES_NAMES.get(name, name) for name in found.looked_at)
    unknown = ", ".join(SERIES_NAMES.get(name, name) for name in found.unknown)
    if not found.signs:
        more = f"; not recorded: {unknown}" if unknown else ""
        return wrapped(f"Health: no sign of sickness in {looked or 'anything'}{more}.")
    lines = []
    for sign in found.signs:
        remedy = f" {sign.remedy}" if full or len(found.signs) <= 3 else ""
        lines += wrapped(f"SICK from step {sign.onset} ({sign.kind}): {sign.evidence}.{remedy}", "  ")
    return lines


def scalars_text(found: Scalars, health: RunHealth) -> str:
    """Return what the means of steps say of a run without rollouts."""
    steps = max(len(own[0]) for own in found.found.values())
    lines = [f"{found.name} ({found.source}): means of {steps:,} steps, no rollouts", *health_lines(health, full=True)]
    dead, reward, cut = (found.series(name) for name in ("dead", "reward", "cut"))
    if dead is not None:
        lines += wrapped(f"Wasted: {dead[1].mean():.2%} of the groups were dead, the mean over {len(dead[1]):,} steps.")
    if reward is not None:
        lines.append(f"The mean reward went from {reward[1][0]:.3g} to {reward[1][-1]:.3g}.")
    if cut is not None:
        lines.append(f"Completions cut at the limit: {cut[1][0]:.1%} at first, {cut[1][-1]:.1%} at last.")
    return "\n".join([*lines, *wrapped(f"No advice: {LOG_ROLLOUTS}.")])


def _saving(each: Advice) -> str:
    found = each.saving
    if found.value != found.value:
        return ""
    what = f"{each.measure} {each.before:.2f} to {each.after:.2f}, "
    return f"; here {what}{found.value:.0%} fewer rollouts [{found.low:.0%}, {found.high:.0%}]"


def _code(first: Advice) -> list[str]:
    """Return the code of the first change."""
    whole = f"AllocatedGRPOTrainer(..., {first.code.trl})"
    lines = textwrap.wrap(whole, WIDTH - 8, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    python = [("  TRL:  " if not place else "        ") + line for place, line in enumerate(lines)]
    return ["The first as code (imports: --full):", *python, *_command(first.code.command)]


def _command(command: str) -> list[str]:
    wrapped = textwrap.wrap(command, WIDTH - 10, break_long_words=False, break_on_hyphens=False)
    return [
        ("  verl: " if not place else "        ") + line + (" \\" if place < len(wrapped) - 1 else "")
        for place, line in enumerate(wrapped)
    ]
