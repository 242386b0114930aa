"""``check_allocator`` checks a rule of your own on simulated batches, as every driver would call it."""

from apportion.simulation.contract import SimulatedSampler, check_allocator

__all__ = ["SimulatedSampler", "check_allocator"]
