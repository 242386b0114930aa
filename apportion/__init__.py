"""How many rollouts each prompt gets, when language models learn from verifiable rewards.

Data flows down this list and imports go up it: ``types`` (the values), ``predictors`` (prompts to belief),
``allocators`` (belief to plan), ``loop`` (plan to rollouts), ``advantages`` (groups to advantages); ``solve`` is all
of it in one call. ``stopping`` (votes to stop or go on) stands beside: ``apportion.stopping.decide``; on it stands
``consensus`` (votes to pseudo-labels and rewards). These two take scipy, and are loaded when they are first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from apportion import consensus as consensus
    from apportion import stopping as stopping
    from apportion.consensus import TTRL, OptPO, SharedVotes, Voting

__version__ = "0.1.0"

__all__ = [
    "AR3PO",
    "DAPO",
    "HORA",
    "TTRL",
    "VIP",
    "Allocator",
    "Batch",
    "Belief",
    "Even",
    "Group",
    "InverseAccuracy",
    "InverseVariance",
    "Neyman",
    "OptPO",
    "Plan",
    "Prompt",
    "ReinforceAda",
    "Rollout",
    "Select",
    "SharedVotes",
    "Uniform",
    "Voting",
    "allocate",
    "collect",
    "collect_async",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "consensus", "stopping"})


def __getattr__(name: str) -> object:
    """What takes scipy, where the rest takes only numpy: loaded when it is first asked for."""
    if name in ("consensus", "stopping"):
        return import_module(f"apportion.{name}")
    if name in ("OptPO", "SharedVotes", "TTRL", "Voting"):
        return getattr(import_module("apportion.consensus"), name)
    raise AttributeError(f"module 'apportion' has no attribute {name!r}")
