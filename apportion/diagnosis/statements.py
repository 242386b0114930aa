"""The sentences that decide, for the first screen of ``diagnose`` and the head of a report."""

from __future__ import annotations

from apportion.diagnosis.advice import Advice, AdviceList
from apportion.diagnosis.health import LEAST_STEPS, RunHealth
from apportion.replay.intervals import share

SERIES_NAMES = {"cut": "truncation", "kl": "KL", "components": "single rewards", "repeats": "repeated prompts"}
ORDER = "What would help, by its effect on learning, then on variance, then on rollouts:"
MOST_REMEDIES = 3
"""Signs that are told with what to do."""


def health_statements(found: RunHealth, full: bool = True) -> list[str]:
    """Return the signs, each with its onset and what to do; or what was looked at if there is none.

    Without ``full`` many signs are told without what to do.
    """
    looked, unknown, short = (
        ", ".join(SERIES_NAMES.get(name, name) for name in names)
        for names in (found.looked_at, found.unknown, found.short)
    )
    if not found.signs:
        more = f"; at fewer than {LEAST_STEPS} steps: {short}" if short else ""
        more += f"; not recorded: {unknown}" if unknown else ""
        return [f"Health: no sign of sickness in {looked or 'anything'}{more}."]
    told = full or len(found.signs) <= MOST_REMEDIES
    return [
        f"SICK from step {sign.onset} ({sign.kind}): {sign.evidence}.{f' {sign.remedy}' if told else ''}"
        for sign in found.signs
    ]


def advice_statements(found: AdviceList) -> list[str]:
    """Return the recommended changes, each with its effect on learning, and on this run; or why there is none."""
    if found.problem:
        return [f"No advice: {found.problem}."]
    if not found.recommended:
        return ["Nothing here would help this run."]
    return [f"{number}. {_change(each)}" for number, each in enumerate(found.recommended, 1)]


def _change(each: Advice) -> str:
    saving = each.saving
    here = ""
    if saving.value == saving.value:
        here = (
            f"; here {each.measure} {each.before:.2f} to {each.after:.2f}, {share(saving.value)} fewer rollouts "
            f"[{share(saving.low)}, {share(saving.high)}]"
        )
    return f"{each.change}: {each.learning.text}{here}."
