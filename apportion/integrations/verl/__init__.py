"""verl 0.9 under any allocator: ``AllocatedAgentLoopManager`` on Ray, and ``SavedAllocation`` for its checkpoints."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from apportion.integrations.verl.checkpoints import SavedAllocation
    from apportion.integrations.verl.manager import AllocatedAgentLoopManager
    from apportion.integrations.verl.settings import Allocation

__all__ = ["AllocatedAgentLoopManager", "Allocation", "SavedAllocation"]

HOMES = {"AllocatedAgentLoopManager": "manager", "Allocation": "settings", "SavedAllocation": "checkpoints"}


def __getattr__(name: str) -> object:
    """What takes verl and Ray, where the coordinator takes neither: loaded when it is first asked for."""
    if name in HOMES:
        return getattr(import_module(f"{__name__}.{HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
