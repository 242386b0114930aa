"""How many rollouts each prompt gets, when language models learn from verifiable rewards.

Data flows down this list and imports go up it: ``types`` (the values), ``predictors`` (prompts to belief),
``allocators`` (belief to plan), ``loop`` (plan to rollouts), ``advantages`` (groups to advantages); ``solve`` is all
of it in one call. ``stopping`` (votes to stop or go on) stands beside: ``apportion.stopping.decide``.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from apportion.allocators import (
    AR3PO,
    DAPO,
    HORA,
    VIP,
    Allocator,
    Even,
    InverseAccuracy,
    InverseVariance,
    Neyman,
    ReinforceAda,
    Select,
    Uniform,
)
from apportion.loop import collect, collect_async
from apportion.solve import allocate
from apportion.types import Batch, Belief, Group, Plan, Prompt, Rollout

__version__ = "0.1.0"

__all__ = [
    "AR3PO",
    "DAPO",
    "HORA",
    "VIP",
    "Allocator",
    "Batch",
    "Belief",
    "Even",
    "Group",
    "InverseAccuracy",
    "InverseVariance",
    "Neyman",
    "Plan",
    "Prompt",
    "ReinforceAda",
    "Rollout",
    "Select",
    "Uniform",
    "allocate",
    "collect",
    "collect_async",
]


def __getattr__(name: str) -> ModuleType:
    """``apportion.stopping``, loaded when it is first asked for: it takes scipy, and the rest only numpy."""
    if name == "stopping":
        return import_module("apportion.stopping")
    raise AttributeError(f"module 'apportion' has no attribute {name!r}")
