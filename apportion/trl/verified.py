"""Reward functions for TRL by a verifier: of completions that are texts or messages, in any form of answer.

reward_funcs:
  - apportion.trl.verified.math
"""

from collections.abc import Callable, Sequence
from typing import Any

from apportion.engines.prompts import last_text
from apportion.questions import GOLD_COLUMNS, make_question
from apportion.verifiers import Math, Verifier


def reward_of(verifier: Verifier) -> Callable[..., list[float | None]]:
    """Return a reward function: the best verdict of ``verifier`` on each completion by the right answers of its row.

    These are in the first column found of answer, gold, solution, as ``apportion.questions.read_questions`` reads it.

    >>> from apportion.verifiers import Exact
    >>> reward = reward_of(Exact())
    >>> reward.__name__, reward(completions=["The answer is 4.", "The answer is 5."], answer=["4", "4"])
    ('exact', [1.0, 0.0])
    """

    def reward(completions: Sequence[Any], **columns: Any) -> list[float | None]:
        column = next((name for name in GOLD_COLUMNS if name in columns), None)
        if column is None:
            raise ValueError(
                f"the data must have a column {', '.join(GOLD_COLUMNS)}, got {', '.join(columns)}; add one"
            )
        golds = [make_question(f"column {column}", None, "?", cell).golds for cell in columns[column]]
        return [verifier.best_verdict(last_text(text), own) for text, own in zip(completions, golds, strict=True)]

    reward.__name__ = verifier.name
    return reward


math = reward_of(Math())
