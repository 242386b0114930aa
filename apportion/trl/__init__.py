"""TRL 1.x with any allocator: ``AllocatedGRPOTrainer`` and ``AllocatedRLOOTrainer`` replace TRL's trainers."""

from apportion.trl.settings import TRLAllocation
from apportion.trl.trainer import AllocatedGRPOTrainer, AllocatedRLOOTrainer

__all__ = ["AllocatedGRPOTrainer", "AllocatedRLOOTrainer", "TRLAllocation"]
