"""What a user says under ``allocation`` in verl's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, get_args

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from apportion.advantages import Weighting
from apportion.allocators import Allocator
from apportion.config import REGISTRIES, ConfigError, build
from apportion.consensus import ConsensusAllocator
from apportion.integrations.verl.estimators import PREFIX
from apportion.verifiers import EQUIVALENCES, EXTRACTORS

PER_PROMPT = "rollouts_per_prompt"
"""The budget that is ``rollout.n``, as in verl, where an allocator is given none."""

BUDGETS = (PER_PROMPT, "budget", "tokens_per_prompt")
SCORE = "score"
"""The verdict that is the reward itself: right where it is above 0."""


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """How the rollouts of what verl's trainer dispatches are spent.

    Args:
        allocator: decides how many rollouts each prompt gets; with labels or without.
        weighting: whether prompts, rollouts or tokens count the same in the loss, under the ``apportion_`` estimators.
        verdict: what tells right from wrong: a key that the reward function returns beside the score, or "score", in
            either case right where it is above 0. None where scores are 0 and 1 themselves.
        id_key: the key of ``extra_info`` that identifies a prompt; by default a hash of its text and data source.
        extract: without labels, where the answer is in a response: one of ``apportion.verifiers.EXTRACTORS``.
        equivalence: without labels, which answers are one: a name of ``apportion.verifiers.EQUIVALENCES``.
        deadline_seconds: how long rollouts of one prompt may take before those that are not there are given up, so that
            no straggler holds a round up. Infinity waits without end.
        retries: how often a rollout that raised is tried again before it counts as failed.
    """

    allocator: Allocator
    weighting: Weighting = "prompt"
    verdict: str | None = None
    id_key: str | None = None
    extract: str = "auto"
    equivalence: str = "exact"
    deadline_seconds: float = 3600.0
    retries: int = 1

    def __post_init__(self) -> None:
        if self.weighting not in get_args(Weighting):
            raise ValueError(
                f"weighting must be one of {', '.join(get_args(Weighting))}, got {self.weighting!r}; check the spelling"
            )
        if self.extract not in EXTRACTORS:
            raise ValueError(f"extract must be one of {', '.join(EXTRACTORS)}, got {self.extract!r}; check it")
        if self.equivalence not in EQUIVALENCES:
            raise ValueError(
                f"equivalence must be one of {', '.join(EQUIVALENCES)}, got {self.equivalence!r}; check it"
            )
        if not self.deadline_seconds > 0:
            raise ValueError(f"deadline_seconds must be above 0, got {self.deadline_seconds}; .inf waits without end")
        if self.retries < 0:
            raise ValueError(f"retries must be at least 0, got {self.retries}; 0 never tries a rollout again")
        if self.label_free and self.verdict is not None:
            raise ValueError(
                f"without labels rewards come from the votes, got verdict {self.verdict!r} with {self.allocator.name}; "
                "leave it out"
            )

    @property
    def label_free(self) -> bool:
        """Whether rewards come from votes."""
        return isinstance(self.allocator, ConsensusAllocator)


def allocation_of(config: DictConfig) -> Allocation:
    """The settings under ``allocation`` in verl's ``config``, or under the name of an allocator that stands there.

    Null is as if the key were left out. Where an allocator is given no budget it is ``rollout.n`` for each prompt, so
    that a batch has as many rollouts as without one.

    Raises ConfigError where there are none, for an unknown key, and for a value that does not fit.
    """
    table = OmegaConf.select(config, "allocation")
    if table is None:
        raise ConfigError(
            "the configuration must have allocation, got none; start with python -m apportion.verl allocation=vip, or "
            "give stock verl '+allocation={allocator: {name: vip}}'"
        )
    if isinstance(table, str):
        table = OmegaConf.create({"allocator": table})
    try:
        plain = OmegaConf.to_container(table, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{error.full_key} must have a value, got {str(error).splitlines()[0]!r}; set it") from error
    rollouts = int(config.actor_rollout_ref.rollout.n)
    try:
        return build(Allocation, _budgeted(_without_null(plain), rollouts), "allocation")
    except ConfigError as error:
        if PER_PROMPT in str(error):
            default = f"{PER_PROMPT} is actor_rollout_ref.rollout.n by default, {rollouts}"
            raise ConfigError(f"{error} ({default}; null where the budget is given by another key)") from error
        raise


def by_row(config: DictConfig) -> bool:
    """Whether rows have uids of their own, by which the ``apportion_`` estimators find their groups."""
    return str(config.algorithm.adv_estimator).startswith(PREFIX)


def _budgeted(table: Any, rollouts: int) -> Any:
    """``table`` with ``rollouts`` for each prompt where an allocator in it is given no budget, and takes this one."""
    if not isinstance(table, Mapping) or "allocator" not in table:
        return table
    named = table["allocator"]
    allocator = _budgeted({"name": named} if isinstance(named, str) else named, rollouts)
    if isinstance(allocator, Mapping) and not allocator.keys() & set(BUDGETS):
        kind = REGISTRIES[Allocator].get(str(allocator.get("name")))
        if kind is not None and PER_PROMPT in {field.name for field in fields(kind)}:
            allocator = {**allocator, PER_PROMPT: rollouts}
    return {**table, "allocator": allocator}


def _without_null(table: Any) -> Any:
    if isinstance(table, Mapping):
        return {key: _without_null(value) for key, value in table.items() if value is not None}
    return [_without_null(value) for value in table] if isinstance(table, list) else table
