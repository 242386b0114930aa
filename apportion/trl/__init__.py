"""TRL 1.x with any allocator: ``AllocatedGRPOTrainer`` and ``AllocatedRLOOTrainer`` replace TRL's trainers.

``allocated`` does the same for a subclass of one of them. ``AllocatedAsyncGRPOTrainer`` is TRL's asynchronous one.
``Meter`` is a callback for TRL's own, and ``EvaluationAtK`` one for the evaluation of any of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from apportion.trl.at_k import EvaluationAtK
    from apportion.trl.failures import FailedRewards
    from apportion.trl.meter import Meter
    from apportion.trl.settings import TRLAllocation
    from apportion.trl.stream import AllocatedAsyncGRPOTrainer
    from apportion.trl.trainer import AllocatedGRPOTrainer, AllocatedRLOOTrainer, allocated

__all__ = [
    "AllocatedAsyncGRPOTrainer",
    "AllocatedGRPOTrainer",
    "AllocatedRLOOTrainer",
    "EvaluationAtK",
    "FailedRewards",
    "Meter",
    "TRLAllocation",
    "allocated",
]
MODULES = {
    "AllocatedAsyncGRPOTrainer": "stream",
    "EvaluationAtK": "at_k",
    "FailedRewards": "failures",
    "Meter": "meter",
    "TRLAllocation": "settings",
}
"""The modules of the names that are not in ``trainer``."""


def __getattr__(name: str) -> object:
    """Import a name on first use, because some need versions of TRL that others do not."""
    if name in __all__:
        return getattr(import_module(f"apportion.trl.{MODULES.get(name, 'trainer')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
