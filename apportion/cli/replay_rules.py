"""Rules for a replay, by their names in the registries and settings such as ``vip.low=4``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from apportion.allocators import Allocator
from apportion.config import ConfigError, build
from apportion.predictors import Predictor
from apportion.selection import Selector
from apportion.simulation.rules import read_rule
from apportion.untrusted import shown

MOST_ROLLOUTS = 10_000
"""The most rollouts per prompt, because rules that choose prompts hold a number for each."""


def rules_of(names: Sequence[str], tables: Mapping[str, Any], group_size: int) -> dict[str, Allocator | Selector]:
    """Return the rules with these ``names``, in their order, each as ``read_rule`` reads it with its table.

    ``group_size`` is that of rules that choose prompts, if their settings leave it open. Raises ValueError for an
    unknown rule, a wrong setting, and an allocator together with a selection.

    >>> rules_of(["vip:counts", "wide"], {"wide": {"name": "vip", "high": 16}}, 8)["wide"].high
    16
    """
    if group_size > MOST_ROLLOUTS:
        raise ConfigError(f"rollouts must be at most {MOST_ROLLOUTS:,} a prompt, got {group_size:,}; lower --rollouts")
    unused = [name for name in tables if name not in names]
    if unused:
        raise ConfigError(f"settings must be of a rule that is replayed, got {shown(unused[0])}; name it in --rules")
    return {name: _rule(name, tables.get(name), group_size) for name in dict.fromkeys(names)}


def _rule(name: str, table: Any, group_size: int) -> Allocator | Selector:
    def predictor(known: str) -> Predictor:
        made: Predictor = build(Predictor, {"name": known}, f"{name}.predictor")  # type: ignore[type-abstract]
        return made

    allocator, selector = read_rule(name, table, predictor, {"group_size": max(2, group_size)})
    if allocator and selector:
        raise ConfigError(f"a replay plays an allocator or a selection, got both in {shown(name)}; replay each alone")
    if (size := getattr(selector, "group_size", 0)) > MOST_ROLLOUTS:
        raise ConfigError(f"{name}.group_size must be at most {MOST_ROLLOUTS:,}, got {size:,}; lower it")
    rule = allocator or selector
    assert rule  # a text without either is no rule
    return rule
