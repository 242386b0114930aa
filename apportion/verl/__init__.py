"""verl 0.9 with any allocator: ``AllocatedAgentLoopManager`` runs it on Ray, ``SavedAllocation`` saves its state."""

from importlib import import_module
from typing import TYPE_CHECKING

from apportion.verl.coordinator.settings import VerlAllocation

if TYPE_CHECKING:
    from apportion.verl.checkpoints import SavedAllocation
    from apportion.verl.manager import AllocatedAgentLoopManager

__all__ = ["AllocatedAgentLoopManager", "SavedAllocation", "VerlAllocation"]

HOMES = {"AllocatedAgentLoopManager": "manager", "SavedAllocation": "checkpoints"}


def __getattr__(name: str) -> object:
    """Import a name that needs verl and Ray when it is first used, because the coordinator needs neither."""
    if name in HOMES:
        return getattr(import_module(f"{__name__}.{HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
