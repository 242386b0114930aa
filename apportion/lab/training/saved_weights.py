"""Checks of saved weights and optimiser states, which torch itself does not make."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

ADAM = ("step", "exp_avg", "exp_avg_sq")


def check_weights(saved: Mapping[str, Any], model: nn.Module, name: str) -> None:
    """Raise ValueError unless ``saved`` has the weights of ``model`` by name, all finite."""
    own = model.state_dict()
    if saved.keys() != own.keys():
        raise _error(name, f"the {len(own)} tensors of this model", f"{len(saved)} others")
    for key, tensor in own.items():
        _check_tensor(saved[key], tensor, f"{key} of {name}")


def check_adam(saved: Mapping[str, Any], optimizer: torch.optim.Optimizer, name: str) -> None:
    """Raise ValueError unless ``saved`` is a state of the Adam ``optimizer`` with the same settings."""
    groups = optimizer.state_dict()["param_groups"]
    if saved.keys() != {"state", "param_groups"} or saved["param_groups"] != groups:
        raise _error(name, "the settings of this run", "others")
    state, weights = saved["state"], [weight for group in optimizer.param_groups for weight in group["params"]]
    if not isinstance(state, dict) or not set(state) <= set(range(len(weights))):
        raise _error(name, f"moments of {len(weights)} tensors", "others")
    for number, moments in state.items():
        if not isinstance(moments, dict) or moments.keys() != set(ADAM):
            raise _error(name, " and ".join(ADAM), "others")
        for key in ADAM:
            like = torch.zeros((), dtype=torch.float32) if key == "step" else weights[number]
            _check_tensor(moments[key], like, f"{key} of {name}", positive=key != "exp_avg")


def _check_tensor(saved: Any, like: Tensor, name: str, positive: bool = False) -> None:
    if not isinstance(saved, Tensor) or saved.shape != like.shape or saved.dtype != like.dtype:
        got = f"{list(saved.shape)} of {saved.dtype}" if isinstance(saved, Tensor) else type(saved).__name__
        raise _error(name, f"a tensor {list(like.shape)} of {like.dtype}", got)
    if not torch.isfinite(saved).all() or (positive and bool((saved < 0).any())):
        raise _error(name, f"finite{' and at least 0' if positive else ''}", "other numbers")


def _error(name: str, wanted: str, got: str) -> ValueError:
    return ValueError(f"{name} must be {wanted} in a saved state of the learner, got {got}; load one that is unchanged")
