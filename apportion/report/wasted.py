"""The prompts that took the most rollouts and taught nothing, and prompts as they are shown."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from apportion.records import RunRecord
from apportion.report.curves import ratio
from apportion.types import Mask
from apportion.untrusted import one_line

WORST, PROMPT_LETTERS = 8, 140
"""Prompts that are listed for a run, and the letters that are shown of each."""


@dataclass(frozen=True)
class WastedPrompt:
    """A prompt with many rollouts in dead groups."""

    text: str
    rollouts: int
    dead: int
    success: float


def wasted_prompts(record: RunRecord, dead: Mask) -> tuple[WastedPrompt, ...]:
    """Return the prompts with the most rollouts in the ``dead`` groups [N], most first."""
    size = len(record.ids)
    lost = np.bincount(record.prompt[dead], record.asked[dead], minlength=size)
    spent = np.bincount(record.prompt, record.asked, minlength=size)
    success = ratio(
        np.bincount(record.prompt, record.totals, minlength=size),
        np.bincount(record.prompt, record.trials, minlength=size),
    )
    order = np.argsort(-lost, kind="stable")[:WORST]
    return tuple(
        WastedPrompt(shown_prompt(record.texts[q] or record.ids[q]), int(spent[q]), int(lost[q]), float(success[q]))
        for q in order
        if lost[q]
    )


def shown_prompt(text: str) -> str:
    """Return the beginning of a prompt in one line. Control characters and marks of direction are written out.

    >>> shown_prompt("What is\\n2 + 2?"), shown_prompt("\\u202eevil"), len(shown_prompt("x" * 10**6))
    ('What is 2 + 2?', '\\\\u202eevil', 140)
    """
    line = one_line(text[: 4 * PROMPT_LETTERS])
    return line if len(line) <= PROMPT_LETTERS else f"{line[: PROMPT_LETTERS - 3]}..."
