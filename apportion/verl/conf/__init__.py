"""Hydra's configurations of ``python -m apportion.verl``: verl's own, with an allocator."""
