"""Rules for a replay, by their names in the registries and settings such as ``vip.low=4``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from apportion.allocators import ALLOCATORS, Allocator
from apportion.config import ConfigError, build, choices
from apportion.selection import SELECTORS, Selector
from apportion.untrusted import shown

MOST_ROLLOUTS = 10_000
"""The most rollouts per prompt, because rules that choose prompts hold a number for each."""


def rules_of(names: Sequence[str], tables: Mapping[str, Any], group_size: int) -> dict[str, Allocator | Selector]:
    """Return the rules with these ``names``, in their order.

    ``tables`` has the settings of each. A name is that of a rule, or one of the user's for a table that has the rule's
    as ``name``, so that a rule can be replayed under several settings. ``group_size`` is that of rules that choose
    prompts, if their settings leave it open. Raises ConfigError for an unknown rule or a wrong setting.

    >>> rules_of(["vip", "wide"], {"wide": {"name": "vip", "high": 16}}, 8)["wide"].high
    16
    """
    if group_size > MOST_ROLLOUTS:
        raise ConfigError(f"rollouts must be at most {MOST_ROLLOUTS:,} a prompt, got {group_size:,}; lower --rollouts")
    unused = [name for name in tables if name not in names]
    if unused:
        raise ConfigError(f"settings must be of a rule that is replayed, got {shown(unused[0])}; name it in --rules")
    return {name: _rule(name, tables.get(name, {}), group_size) for name in dict.fromkeys(names)}


def _rule(name: str, table: Any, group_size: int) -> Allocator | Selector:
    if not isinstance(table, Mapping):
        raise ConfigError(f"the settings of {shown(name)} must be a table, got {shown(table)}; write {name}.KEY=VALUE")
    rule = table.get("name", name)
    if isinstance(rule, str) and rule in SELECTORS:
        sized = "group_size" in {field.name for field in fields(SELECTORS[rule])}
        given = {"group_size": max(2, group_size), **table} if sized else table
        made: Selector = build(Selector, {**given, "name": rule}, name)  # type: ignore[type-abstract]
        if (size := getattr(made, "group_size", 0)) > MOST_ROLLOUTS:
            raise ConfigError(f"{name}.group_size must be at most {MOST_ROLLOUTS:,}, got {size:,}; lower it")
        return made
    if not (isinstance(rule, str) and rule in ALLOCATORS):
        raise ConfigError(f"a rule must have a known name, got {shown(rule)}; {choices(str(rule), known_rules())}")
    built: Allocator = build(Allocator, {**table, "name": rule}, name)  # type: ignore[type-abstract]
    return built


def known_rules() -> list[str]:
    """Return the names of all rules: those that split rollouts, and then those that choose prompts."""
    return [*ALLOCATORS, *SELECTORS]
