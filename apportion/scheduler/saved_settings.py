"""The settings of a checkpoint's allocator, baseline and selection: a resumed run must have the same.

The settings are the init fields that are compared, by dotted name. A part with a state of its own, such as a predictor,
is left out, because its state has its settings. A function is known by its name. The settings of a part that is not a
dataclass are not known.
"""

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from apportion.predictors.saved import OtherSettingsError
from apportion.untrusted import shown

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
"""The memory address in the repr of an object. It differs between processes."""


def settings_of(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of all ``parts``, which may be None, by the name of the part and of the setting.

    >>> from apportion import DAPO
    >>> settings_of({"allocator": DAPO(rollouts_per_prompt=8, target=2), "baseline": None})["allocator.target"]
    2
    """
    found: dict[str, Any] = {}
    for name, part in parts.items():
        if part is not None:
            found |= _settings(name, part)
    return found


def check_same_settings(saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raise OtherSettingsError for the first setting that differs. Settings that only one of the two has are ignored.

    >>> check_same_settings({"allocator.high": 16}, {"allocator.high": 24})
    Traceback (most recent call last):
    apportion.predictors.saved.OtherSettingsError: allocator.high must be 16, as in the run that wrote ..., got 24; ...
    """
    for name in sorted(saved.keys() & own.keys()):
        if saved[name] != own[name]:
            raise OtherSettingsError(
                f"{name} must be {shown(saved[name])}, as in the run that wrote the checkpoint, got "
                f"{shown(own[name])}; set it to {shown(saved[name])}, or start a new run from its weights"
            )


def _settings(name: str, part: Any) -> dict[str, Any]:
    found: dict[str, Any] = {name: getattr(part, "name", type(part).__name__)}
    for field in fields(part) if is_dataclass(part) else ():
        if not (field.init and field.compare):
            continue
        value, where = getattr(part, field.name), f"{name}.{field.name}"
        if hasattr(value, "load_state_dict"):
            continue
        own = is_dataclass(value) and not isinstance(value, type)
        found |= _settings(where, value) if own else {where: _plain(value)}
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return _ADDRESS.sub("", str(getattr(value, "__qualname__", None) or repr(value)))
