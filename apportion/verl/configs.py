"""Hydra's config group ``allocation``, made from the registries: allocators, presets, predictors and rules by name.

``hydra_plugins.apportion`` offers it to verl's configuration.
"""

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Any

from apportion.allocators import ALLOCATORS
from apportion.predictors import PREDICTORS
from apportion.presets import PRESETS, Preset, preset_of
from apportion.selection import SELECTORS
from apportion.stopping import RULES
from apportion.verl.coordinator.settings import PREFIX, VerlAllocation


@dataclass(frozen=True)
class ConfigGroup:
    """A config group: its ``path`` on the command line, the ``key`` of its settings, and its choices by name.

    ``presets`` are further choices, which set more than this key.
    """

    path: str
    key: str
    kinds: Mapping[str, Any]
    presets: tuple[str, ...] = ()

    @property
    def choices(self) -> list[str]:
        """The names of all choices."""
        return [*self.kinds, *self.presets]

    @property
    def field(self) -> str:
        """The field that the group sets."""
        return self.key.rpartition(".")[2]


def settings_of(path: str) -> dict[str, Any]:
    """Return the config with this path, such as "allocation/predictor/gp". Raises KeyError for an unknown one."""
    group, _, name = path.rpartition("/")
    if is_preset(path):
        return _preset(name)
    if group == ALLOCATION.path:
        return _allocation(ALLOCATION.kinds[name])
    return _settings({each.path: each for each in (SELECTION, *GROUPS)}[group].kinds[name])


def is_preset(path: str) -> bool:
    """Return whether the config with this path is a preset's, whose settings are also outside ``allocation``."""
    group, _, name = path.rpartition("/")
    return group == ALLOCATION.path and name in PRESETS


def _preset(name: str) -> dict[str, Any]:
    """Return the name and all settings of a preset, and verl's estimator if the preset has one."""
    preset: Preset = preset_of(name)
    parts = {name: _settings(type(part), part) for name, part in preset.arguments().items() if name != "estimator"}
    estimator = {"algorithm": {"adv_estimator": f"{PREFIX}{preset.estimator}"}} if preset.estimator else {}
    free = [] if preset.selection else [{f"{SELECTION.field}@{SELECTION.key}": None}]
    return {"defaults": ["_self_", *free], "allocation": _others() | {"preset": name} | parts, **estimator}


def _others() -> dict[str, Any]:
    """Return the defaults of all settings but the allocator."""
    return {field.name: field.default for field in fields(VerlAllocation) if field.name != "allocator"}


def _allocation(kind: Any) -> dict[str, Any]:
    """Return an allocator's settings without those that groups set, and the other settings of an allocation."""
    own = {field.name: field for field in fields(kind)}
    chosen = [group for group in GROUPS if group.field in own]
    defaults: list[Any] = [{group.path.rpartition("/")[2]: _default(own[group.field]).name} for group in chosen]
    allocator = {name: value for name, value in _settings(kind).items() if name not in {each.field for each in chosen}}
    return {"defaults": ["_self_", *defaults, {SELECTION.field: None}], "allocator": allocator, **_others()}


def _settings(kind: Any, instance: Any = None) -> dict[str, Any]:
    """Return the settings of the dataclass ``kind`` as they are in ``instance``, or their defaults."""
    found = {"name": kind.name} if hasattr(kind, "name") else {}
    for field in (field for field in fields(kind) if field.init):
        value = _default(field) if instance is None else getattr(instance, field.name)
        found[field.name] = _settings(type(value), value) if is_dataclass(value) else value
    return found


def _default(field: Field[Any]) -> Any:
    """Return the default of ``field``, or "???", which Hydra requires the user to replace."""
    if field.default is not MISSING:
        return field.default
    if field.default_factory is not MISSING:
        return field.default_factory()
    return "???"


ALLOCATION = ConfigGroup("allocation", "allocation.allocator", ALLOCATORS, tuple(PRESETS))

SELECTION = ConfigGroup("allocation/selection", "allocation.selection", SELECTORS)
"""The group of selectors, of which none is the default."""

GROUPS = (
    ConfigGroup("allocation/predictor", "allocation.allocator.predictor", PREDICTORS),
    ConfigGroup("allocation/rule", "allocation.allocator.rule", RULES),
)
"""The groups within an allocator."""
