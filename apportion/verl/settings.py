"""Read the settings of an allocation from verl's configuration."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from apportion.allocators import Allocator
from apportion.config import REGISTRIES, ConfigError, build
from apportion.verl.coordinator.settings import VerlAllocation
from apportion.verl.estimators import PREFIX

PER_PROMPT = "rollouts_per_prompt"
"""The budget that is ``rollout.n`` by default, as in verl."""

BUDGETS = (PER_PROMPT, "budget", "tokens_per_prompt")


def allocation_of(config: DictConfig) -> VerlAllocation:
    """Return the settings under ``allocation`` in verl's ``config``, which may also be the name of an allocator.

    Null means that a key is left out. An allocator without a budget gets ``rollout.n`` rollouts a prompt, so that a
    batch has as many rollouts as without an allocator.

    Raises ConfigError without settings, for an unknown key, and for a value that does not fit.
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
        return build(VerlAllocation, _with_budget(_without_null(plain), rollouts), "allocation")
    except ConfigError as error:
        if PER_PROMPT in str(error):
            default = f"{PER_PROMPT} is actor_rollout_ref.rollout.n by default, {rollouts}"
            raise ConfigError(f"{error} ({default}; set it to null if another key gives the budget)") from error
        raise


def by_row(config: DictConfig) -> bool:
    """Return whether each row has its own uid, by which the ``apportion_`` estimators find its group."""
    return str(config.algorithm.adv_estimator).startswith(PREFIX)


def _with_budget(table: Any, rollouts: int) -> Any:
    """Give allocators in ``table`` that have no budget ``rollouts`` rollouts a prompt, if they accept that setting."""
    if not isinstance(table, Mapping) or "allocator" not in table:
        return table
    named = table["allocator"]
    allocator = _with_budget({"name": named} if isinstance(named, str) else named, rollouts)
    if isinstance(allocator, Mapping) and not allocator.keys() & set(BUDGETS):
        kind = REGISTRIES[Allocator].get(str(allocator.get("name")))
        if kind is not None and PER_PROMPT in {field.name for field in fields(kind)}:
            allocator = {**allocator, PER_PROMPT: rollouts}
    return {**table, "allocator": allocator}


def _without_null(table: Any) -> Any:
    if isinstance(table, Mapping):
        return {key: _without_null(value) for key, value in table.items() if value is not None}
    return [_without_null(value) for value in table] if isinstance(table, list) else table
