"""tinker-cookbook with any allocator: ``allocated(config, allocator)`` returns the configuration to train with."""

from importlib.util import find_spec

if find_spec("tinker_cookbook") is None or find_spec("chz") is None:
    raise ImportError("apportion.tinker needs tinker-cookbook: pip install 'apportion[tinker]'")

from apportion.tinker.config import allocated
from apportion.tinker.settings import TinkerAllocation

__all__ = ["TinkerAllocation", "allocated"]
