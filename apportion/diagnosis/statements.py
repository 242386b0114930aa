"""The sentences that decide, for the first screen of ``diagnose`` and the head of a report."""

from __future__ import annotations

import math
from collections.abc import Sequence

from apportion.diagnosis.advice import Advice, AdviceList
from apportion.diagnosis.health import UNLEARNABLE, RunHealth
from apportion.diagnosis.phantoms import Phantoms
from apportion.diagnosis.series import LEAST_STEPS
from apportion.diagnosis.waste import DEAD, KINDS, Waste
from apportion.records.doubts import SPOILT
from apportion.replay.intervals import Spanned, share

SERIES_NAMES = {"cut": "truncation", "kl": "KL", "components": "single rewards", "repeats": "repeated prompts"}
ORDER = "What would help{}, by its effect on learning, then on variance, then on rollouts:"
MOST_REMEDIES = 3
"""Number of signs that are printed with their remedy."""
HARMLESS = ("read as:", "columns not read:", "replayed on a random")
"""Beginnings of doubts that change no figure by more than chance."""
GATE = "gate them by the outcome (docs/shaped_rewards.md)"
COURSE = 0.2
"""Change in the share of dead groups from which on its course is printed in place of its mean."""


def health_statements(found: RunHealth, full: bool = True) -> list[str]:
    """Return the signs, each with its onset and what to do; or what was looked at if there is none.

    Without ``full`` many signs are told without what to do. Changes that may be the data's are told last.
    """
    looked, unknown, short = (
        ", ".join(SERIES_NAMES.get(name, name) for name in names)
        for names in (found.looked_at, found.unknown, found.short)
    )
    told = full or len(found.signs) <= MOST_REMEDIES
    lines = [
        f"{'NOTHING TO LEARN' if sign.kind in UNLEARNABLE else 'SICK'} from step {sign.onset} ({sign.kind}): "
        f"{sign.evidence}.{f' {sign.remedy}' if told else ''}"
        for sign in found.signs
    ]
    if not found.signs:
        more = f"; at fewer than {LEAST_STEPS} steps: {short}" if short else ""
        more += f"; not recorded: {unknown}" if unknown else ""
        lines = [f"Health: no sign of sickness in {looked or 'anything'}{more}."]
    return lines + [f"UNCLEAR from step {each.onset} ({each.kind}): {each.evidence}." for each in found.unclear]


def as_read(doubts: Sequence[str], where: str = "?") -> str:
    """Return the words after a figure that one of ``doubts`` may change, "" if none may. ``where`` lists the doubts."""
    if SPOILT in " ".join(doubts):
        return f", but not of the run (see {where})"
    return "" if all(doubt.startswith(HARMLESS) for doubt in doubts) else f", as read (see {where})"


def waste_statements(found: Waste, phantoms: Phantoms | None, doubts: Sequence[str] = ()) -> list[str]:
    """Return the share of dead groups, and that of phantom groups if there are any, in words."""
    return [_dead_statement(found, doubts), *phantom_statements(phantoms, as_read(doubts))]


def phantom_statements(found: Phantoms | None, read: str = "") -> list[str]:
    """Return the share of phantom groups, and how outcome and shaping moved; nothing if there are none.

    ``read`` is what ``as_read`` says.
    """
    if found is None or not found.whole.groups.value > 0:
        return []
    whole, first, last = found.whole, found.over_time[0], found.over_time[-1]
    return [
        f"Phantom groups{read}: {span(whole.groups)} of the groups have equal outcomes ({found.outcome}) and different "
        f"rewards, so the shaping alone trains there. They have {share(whole.normalised.value)} of the squared "
        f"advantages by GRPO, {share(whole.centred.value)} by RLOO. The outcome went from {first.accuracy:.3g} to "
        f"{last.accuracy:.3g}, the rest of the reward from {first.rest:.3g} to {last.rest:.3g}: {GATE}."
    ]


def _dead_statement(found: Waste, doubts: Sequence[str]) -> str:
    """Return the share of dead groups, of which kinds they are, and how it moved over the run."""
    if not found.compared:
        return "Wasted: no group has two rewards or more, so nothing can be compared."
    if SPOILT in " ".join(doubts):
        return f"Wasted: unknown, because {SPOILT} (see ?)."
    whole, first, last = found.whole, found.over_time[0], found.over_time[-1]
    kinds = [f"{share(whole.groups[kind] / whole.compared)} {KINDS[kind]}" for kind in DEAD if whole.groups[kind]]
    noise = 1.5 * math.sqrt(sum(1 / max(1, each.compared) for each in (first, last)))
    moved = ""
    if abs(last.dead_share - first.dead_share) >= max(COURSE, noise):
        moved = f"{share(first.dead_share)} at first and {share(last.dead_share)} at last, "
    return (
        f"Wasted{as_read(doubts)}: {moved}{span(found.dead)} of {'all' if moved else 'the'} groups were dead (zero "
        f"variance{': ' * bool(kinds)}{', '.join(kinds)}). They took {span(found.rollouts)} of the rollouts."
    )


def span(found: Spanned) -> str:
    """Return a share with its interval as text."""
    interval = "" if math.isnan(found.low) else f" [{share(found.low)}, {share(found.high)}]"
    return f"{share(found.value)}{interval}"


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
