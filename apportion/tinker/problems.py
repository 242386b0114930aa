"""The user's group builders: the prompt of each, and copies with other numbers of environments."""

import copy
from dataclasses import is_dataclass, replace
from typing import Any

from tinker_cookbook.rl.problem_env import ProblemGroupBuilder
from tinker_cookbook.rl.types import EnvGroupBuilder

from apportion.types import Prompt

SIZES = ("num_envs", "group_size")
"""Attributes with the number of environments, in the builders of tinker-cookbook."""


def question_of(builder: EnvGroupBuilder) -> Prompt:
    """Return the question of a ``ProblemGroupBuilder`` as a prompt. Raise ValueError for another builder."""
    if not isinstance(builder, ProblemGroupBuilder):
        raise ValueError(
            "prompt_of must be given for a group builder that is not a ProblemGroupBuilder, got "
            f"{type(builder).__name__}; pass a function from such a builder to its apportion.Prompt"
        )
    return Prompt(builder.env_thunk().get_question())


def size_of(builder: EnvGroupBuilder) -> int | None:
    """Return the number of environments that ``builder`` makes, by its ``num_envs`` or ``group_size``; None without."""
    return next((getattr(builder, name) for name in SIZES if hasattr(builder, name)), None)


def resized(builder: EnvGroupBuilder, count: int) -> EnvGroupBuilder:
    """Return a copy of ``builder`` that makes ``count`` environments, by its ``num_envs`` or ``group_size``.

    Raises ValueError if it has neither.
    """
    for name in SIZES:
        if hasattr(builder, name):
            sized: Any = builder
            if is_dataclass(builder):
                return replace(sized, **{name: count})
            sized = copy.copy(builder)
            setattr(sized, name, count)
            return sized
    raise ValueError(
        f"resize must be given for a group builder without {' and '.join(SIZES)}, got {type(builder).__name__}; "
        "pass a function from such a builder and a number to a copy with so many environments"
    )
