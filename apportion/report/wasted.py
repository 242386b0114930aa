"""The prompts with the most rollouts in dead groups, and prompts as they are shown."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from apportion.records import RunRecord
from apportion.untrusted import one_line, parse_json

LONGEST_CHAT = 100_000
WORST, PROMPT_LETTERS = 8, 140
"""Number of prompts that are listed for a run, and number of characters shown of each."""


@dataclass(frozen=True)
class WastedPrompt:
    """A prompt with many rollouts in dead groups."""

    text: str
    rollouts: int
    dead: int
    success: float


def wasted_prompts(record: RunRecord) -> tuple[WastedPrompt, ...]:
    """Return the prompts with the most rollouts in dead groups, most first."""
    lost, spent = record.by_prompt(record.asked * record.dead), record.by_prompt(record.asked)
    order = np.argsort(-lost, kind="stable")[:WORST]
    return tuple(
        WastedPrompt(
            shown_prompt(record.texts[q] or record.ids[q]), int(spent[q]), int(lost[q]), float(record.rates[q])
        )
        for q in order
        if lost[q]
    )


_MARKUP = re.compile(r"<\|[^|<>]{1,40}\|>\s*(?:system|user|assistant)?|\[/?INST\]|</?s>|<\w+_of_turn>(?:user|model)?")
_TURN = re.compile(r"(?:^|\n)(?:system|user)\n(.*?)(?=\n(?:user|assistant)\n|$)", re.DOTALL)


def _spoken(text: str) -> str:
    """Return the content of the last message of a chat, which may be JSON or a filled template; else ``text``."""
    if text.startswith("[{") and len(text) <= LONGEST_CHAT:
        try:
            messages = parse_json(text)
        except ValueError:
            return text
        said = [each.get("content") for each in messages if isinstance(each, dict) and each.get("role") != "assistant"]
        return next((each for each in reversed(said) if isinstance(each, str)), text)
    turns = _TURN.findall(text) if text.rstrip().endswith("\nassistant") else []
    return turns[-1] if turns else text


def shown_prompt(text: str) -> str:
    """Return the beginning of a prompt in one line. Control characters and marks of direction are written out.

    Of a chat the latest message is shown, without the marks of its template.

    >>> shown_prompt("What is\\n2 + 2?"), shown_prompt("\\u202eevil"), len(shown_prompt("x" * 10**6))
    ('What is 2 + 2?', '\\\\u202eevil', 140)
    >>> shown_prompt("<|im_start|>user\\n2 + 2?<|im_end|>\\n<|im_start|>assistant\\n")
    '2 + 2?'
    """
    line = one_line(_MARKUP.sub(" ", _spoken(text)[: 4 * PROMPT_LETTERS]).strip())
    return line if len(line) <= PROMPT_LETTERS else f"{line[: PROMPT_LETTERS - 3]}..."
