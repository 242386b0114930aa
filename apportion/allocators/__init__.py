"""Who gets how many rollouts: one file a rule, one registry line each."""

from __future__ import annotations

from apportion.allocators.base import Allocator
from apportion.allocators.hora import HORA
from apportion.allocators.solver import spend
from apportion.allocators.uniform import Uniform
from apportion.allocators.vip import VIP

ALLOCATORS: dict[str, type[Allocator]] = {rule.name: rule for rule in (Uniform, VIP, HORA)}

__all__ = ["ALLOCATORS", "HORA", "VIP", "Allocator", "Uniform", "spend"]
