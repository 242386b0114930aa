"""tinker-cookbook with any allocator: ``allocated(config, allocator)`` returns the configuration to train with."""

from apportion.tinker.config import allocated
from apportion.tinker.settings import TinkerAllocation

__all__ = ["TinkerAllocation", "allocated"]
