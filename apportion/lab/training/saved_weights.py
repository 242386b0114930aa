"""Checks of saved weights and optimiser states, which torch itself does not make."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

SIGNED = "exp_avg"
"""The only tensor of Adam's that may be below 0."""


def check_weights(saved: Mapping[str, Any], model: nn.Module, name: str) -> None:
    """Raise ValueError unless ``saved`` has the weights of ``model`` by name, all finite."""
    _check_tensors(saved, model.state_dict(), name)


def check_adam(saved: Mapping[str, Any], optimizer: torch.optim.Optimizer, name: str) -> None:
    """Raise ValueError unless ``saved`` is a state of the Adam ``optimizer`` with the same settings."""
    groups = optimizer.state_dict()["param_groups"]
    if saved.keys() != {"state", "param_groups"} or saved["param_groups"] != groups:
        raise _error(name, "the settings of this run", "others")
    state, weights = saved["state"], [weight for group in optimizer.param_groups for weight in group["params"]]
    if not isinstance(state, dict) or not set(state) <= set(range(len(weights))):
        raise _error(name, f"moments of {len(weights)} tensors", "others")
    for number, moments in state.items():
        weight = weights[number]
        _check_tensors(moments, {"step": torch.zeros(()), SIGNED: weight, "exp_avg_sq": weight}, name)
        if any((moment < 0).any() for key, moment in moments.items() if key != SIGNED):
            raise _error(f"what is not {SIGNED} of {name}", "at least 0", "other numbers")


def _check_tensors(saved: Any, own: Mapping[str, Tensor], name: str) -> None:
    """Raise ValueError unless ``saved`` has tensors of the names, shapes and types of ``own``, all finite."""
    if not isinstance(saved, Mapping) or saved.keys() != own.keys():
        raise _error(name, f"the {len(own)} tensors {', '.join(own):.40}", "others")
    for key, like in own.items():
        found = saved[key]
        if not isinstance(found, Tensor) or found.shape != like.shape or found.dtype != like.dtype:
            got = f"{list(found.shape)} of {found.dtype}" if isinstance(found, Tensor) else type(found).__name__
            raise _error(f"{key} of {name}", f"a tensor {list(like.shape)} of {like.dtype}", got)
        if not torch.isfinite(found).all():
            raise _error(f"{key} of {name}", "finite", "other numbers")


def _error(name: str, wanted: str, got: str) -> ValueError:
    return ValueError(f"{name} must be {wanted} in a saved state of the learner, got {got}; load one that is unchanged")
