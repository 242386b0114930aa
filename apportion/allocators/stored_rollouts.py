"""Rollouts that a later step may use again: which fields are kept, and how they are saved and restored."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from apportion.predictors.saved import SavedValues
from apportion.types import Rollout

NAMES = ["correct", "answer", "reward", "completion", "tokens", "score_norm", "round", "step"]
"""The fields that are kept of a rollout. It keeps its verdict, and is not checked for truncation again."""


def for_reuse(rollout: Rollout, step: int) -> Rollout:
    """Return the kept fields of ``rollout``, sampled in ``step``, as a rollout.

    If its completion has a method ``for_reuse``, what that returns is kept: a copy with what a later step needs, and
    nothing else. Whether it was truncated is not kept.
    """
    completion = rollout.completion
    kept = completion.for_reuse() if hasattr(completion, "for_reuse") else completion
    return replace(rollout, step=step, completion=kept, truncated=None)


def plain_rollout(rollout: Rollout, names: Iterable[str] = NAMES) -> dict[str, Any]:
    """Return the fields of ``rollout`` with these ``names``. The completion is not copied."""
    return {name: getattr(rollout, name) for name in names}


def saved_by_prompt(saved: SavedValues, key: str, kind: type) -> list[tuple[str, Any]]:
    """Return the pairs of a prompt id and a ``kind`` that is not empty. Raise ValueError for anything else."""
    entries = saved.values[key]
    if not isinstance(entries, list) or not all(
        isinstance(each, tuple) and [*map(type, each)] == [str, kind] and each[1] for each in entries
    ):
        raise saved.refusal(key, "a list of prompt ids and their rollouts")
    return entries


def restored_rollout(values: Mapping[str, Any], step: int) -> Rollout:
    """Rebuild the rollout that ``plain_rollout`` was given.

    Raise ValueError if it cannot have been kept before ``step``.
    """
    saved = SavedValues(values, "a stored rollout", NAMES)
    if saved.count("step") > step:
        raise saved.refusal("step", f"at most {step}, the present one,")
    if type(values["correct"]) is not bool:
        raise saved.refusal("correct", "true or false")
    if not isinstance(values["answer"], str | None):
        raise saved.refusal("answer", "a text or None")
    if values["completion"] is None:
        raise saved.refusal("completion", "a response")
    saved.number("reward")
    saved.count("round")
    if values["tokens"] is not None:
        saved.count("tokens")
    if values["score_norm"] is not None:
        saved.number("score_norm", low=0)
    return Rollout(**values)
