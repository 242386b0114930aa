"""Hydra's config group ``allocation``, made from the registries: every allocator, predictor and rule, with defaults.

``hydra_plugins.apportion`` offers it to verl's configuration.
"""

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Any

from apportion.allocators import ALLOCATORS
from apportion.allocators.votes import ConsensusAllocator
from apportion.predictors import PREDICTORS
from apportion.stopping import RULES
from apportion.verl.coordinator.settings import VerlAllocation
from apportion.verl.settings import PER_PROMPT

PROMPT_ROLLOUTS = "${actor_rollout_ref.rollout.n}"
"""The default budget of a prompt: as many rollouts as verl draws without an allocator."""


@dataclass(frozen=True)
class ConfigGroup:
    """A config group: its ``path`` on the command line, the ``key`` of its settings, and its choices by name."""

    path: str
    key: str
    kinds: Mapping[str, Any]

    @property
    def field(self) -> str:
        """The allocator's field that the group sets."""
        return self.key.rpartition(".")[2]


def settings_of(path: str) -> dict[str, Any]:
    """Return the config with this path, such as "allocation/predictor/gp". Raises KeyError for an unknown one."""
    group, _, name = path.rpartition("/")
    if group == ALLOCATION.path:
        return _allocation(ALLOCATION.kinds[name])
    return _settings({each.path: each for each in GROUPS}[group].kinds[name])


def _allocation(kind: Any) -> dict[str, Any]:
    """Return an allocator's settings without those that groups set, and the other settings of an allocation."""
    own = {field.name: field for field in fields(kind)}
    chosen = [group for group in GROUPS if group.field in own]
    defaults = [{group.path.rpartition("/")[2]: _default(own[group.field]).name} for group in chosen]
    allocator = {name: value for name, value in _settings(kind).items() if name not in {each.field for each in chosen}}
    others = {field.name: field.default for field in fields(VerlAllocation) if field.name != "allocator"}
    return {"defaults": ["_self_", *defaults], "allocator": allocator, **others}


def _settings(kind: Any, instance: Any = None) -> dict[str, Any]:
    """Return the settings of the dataclass ``kind`` as they are in ``instance``, or their defaults."""
    found = {"name": kind.name} if hasattr(kind, "name") else {}
    for field in (field for field in fields(kind) if field.init):
        value = _default(field) if instance is None else getattr(instance, field.name)
        value = PROMPT_ROLLOUTS if field.name == PER_PROMPT else value
        found[field.name] = _settings(type(value), value) if is_dataclass(value) else value
    return found


def _default(field: Field[Any]) -> Any:
    """Return the default of ``field``, or "???", which Hydra requires the user to replace."""
    if field.default is not MISSING:
        return field.default
    if field.default_factory is not MISSING:
        return field.default_factory()
    return "???"


def usable(kinds: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of ``kinds`` that do not need score norms of rollouts, which verl does not compute."""
    return {name: kind for name, kind in kinds.items() if not _needs_score_norms(kind)}


def _needs_score_norms(kind: Any) -> bool:
    required = any(_default(field) == "???" for field in fields(kind) if field.init)
    return not required and bool(kind().needs.score_norms)


ALLOCATION = ConfigGroup("allocation", "allocation.allocator", usable(ALLOCATORS))
INNER = {
    name: kind
    for name, kind in ALLOCATION.kinds.items()
    if name != "select" and not issubclass(kind, ConsensusAllocator)
}
"""The allocators that ``select`` can wrap."""

GROUPS = (
    ConfigGroup("allocation/predictor", "allocation.allocator.predictor", usable(PREDICTORS)),
    ConfigGroup("allocation/rule", "allocation.allocator.rule", RULES),
    ConfigGroup("allocation/inner", "allocation.allocator.allocator", INNER),
)
"""The groups within an allocator."""
