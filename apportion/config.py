"""Configurations: from TOML to dataclasses and back. The dataclasses are the schema, and conversion is strict.

``load`` reads a file and applies ``key=value`` overrides. ``build`` makes the dataclass. ``dump`` and ``to_toml`` write
it back: ``build(type(x), tomllib.loads(to_toml(dump(x)))) == x``.
"""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError

from apportion.allocators import ALLOCATORS, Allocator
from apportion.baselines import BASELINES, Baseline, Tracked
from apportion.checks import LARGEST_INTEGER, LONGEST_WORD, choices
from apportion.predictors import EMBEDDERS, PREDICTORS, Embedder, Predictor
from apportion.presets import PRESETS, Preset
from apportion.selection import SELECTORS, Selector
from apportion.stopping import RULES, Rule
from apportion.toml import ConfigError, load, to_toml
from apportion.untrusted import shown

__all__ = ["REGISTRIES", "ConfigError", "build", "choices", "dump", "load", "placed", "to_toml"]

T = TypeVar("T")

REGISTRIES: dict[Any, dict[str, Any]] = {
    Allocator: ALLOCATORS,
    Predictor: {**PREDICTORS, Tracked.name: Tracked},
    Embedder: EMBEDDERS,
    Baseline: BASELINES,
    Selector: SELECTORS,
    Preset: PRESETS,
    Rule: RULES,
}
"""The annotations of fields that are chosen by ``name``, each with its registry."""

LEAVES = {
    int: ("an integer", "3"),
    float: ("a number", "1.0"),
    bool: ("true or false", "true"),
    str: ("a string", '"text"'),
    Path: ("a path, as a string", '"folder/file"'),
}
STRICT = ConfigDict(strict=True)


def build(cls: type[T], table: Mapping[str, Any], where: str = "") -> T:
    """Build an instance of the dataclass ``cls`` from ``table``; ``where`` is its dotted path, for errors.

    Nested dataclasses are tables, tuples are arrays. A type in ``REGISTRIES``, such as ``Allocator`` or ``Rule``, is a
    table with a ``name``, or only that name; ``cls`` may be such a type. An integer is accepted for a float; nothing
    else is converted.

    Raises ConfigError for an unknown or missing key, a wrong type, or a value that the dataclass refuses.

    >>> build(Allocator, {"name": "vip", "low": 4, "predictor": "counts"}).predictor
    DiscountedCounts(discount=0.9, prior_alpha=1.0, prior_beta=1.0)
    >>> build(Allocator, {"name": "vip", "predictor": {"name": "gp", "clib": 0.1}}, "arms.main")
    Traceback (most recent call last):
    apportion.toml.ConfigError: arms.main.predictor (gp) has no key 'clib'; did you mean 'clip'? There are ...
    """
    return _convert(cls, table, where)


def dump(instance: Any) -> dict[str, Any]:
    """Return the init fields of a dataclass as plain tables, with ``name`` if the class is chosen by name.

    Raises ConfigError for a value that TOML cannot hold, such as an array or a function, and for None if the default is
    not None.

    >>> from apportion.predictors import UniformPrior
    >>> dump(UniformPrior())
    {'name': 'uniform', 'alpha': 1.0, 'beta': 1.0}
    """
    return _to_plain(instance, "")


def placed(message: str, cls: type[Any], where: str) -> str:
    """Return the error ``message`` with the full key: ``where`` is the dotted path of the dataclass ``cls``.

    >>> from apportion.allocators import VIP
    >>> placed("low must be at least 3, got 2; raise it", VIP, "allocation.allocator")
    'allocation.allocator.low must be at least 3, got 2; raise it'
    >>> placed("give one budget, got two; leave one out", VIP, "allocation.allocator")
    'allocation.allocator: give one budget, got two; leave one out'
    """
    if not where:
        return message
    is_key = message.partition(" ")[0] in _settings_of(cls)
    return f"{where}.{message}" if is_key else f"{where}: {message}"


def _convert(kind: Any, value: Any, where: str) -> Any:
    """Convert ``value`` to the annotation ``kind``."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _either(args, value, where)
    if any(kind is registered for registered in REGISTRIES):
        return _choose(kind, value, where)
    if isinstance(kind, type) and is_dataclass(kind):
        return _convert_dataclass(kind, _require_table(value, where), where)
    if origin in (dict, Mapping) and args[0] is str:
        table = _require_table(value, where)
        return {key: _convert(args[1], item, _join_path(where, key)) for key, item in table.items()}
    if origin in (tuple, list, Sequence):
        return _convert_array(origin, args, value, where)
    return Path(_convert_leaf(str, value, where, Path)) if kind is Path else _convert_leaf(kind, value, where, kind)


def _convert_dataclass(cls: Any, table: Mapping[str, Any], where: str) -> Any:
    settings = _settings_of(cls)
    given, name = dict(table), cls.__name__
    if _is_registered(cls):
        known = getattr(cls, "name", name)
        name = given.pop("name", known)
        if name != known:
            raise ConfigError(
                f"{_join_path(where, 'name')} must be {known!r} here, got {shown(name)}; change or remove it"
            )
    for key in given:
        if key not in settings:
            raise ConfigError(
                f"{where or 'the configuration'} ({name}) has no key {shown(key)}; "
                f"{choices(key, settings) if settings else 'remove it'}"
            )
    missing = [key for key, required in settings.items() if required and key not in given]
    if missing:
        raise ConfigError(
            f"{where or 'the configuration'} must have {', '.join(missing)}, got {', '.join(given) or 'no keys'}; "
            f"add {missing[0]}, which has no default"
        )
    kinds = get_type_hints(cls, include_extras=True)
    values = {key: _convert(kinds[key], value, _join_path(where, key)) for key, value in given.items()}
    try:
        return cls(**values)
    except (ValueError, OverflowError) as error:  # OverflowError: a class of another package makes inf an integer
        raise ConfigError(placed(str(error), cls, where)) from error


def _settings_of(cls: Any) -> dict[str, bool]:
    """Return each setting of a dataclass, or of a function that makes a preset, and whether it is required."""
    if is_dataclass(cls):
        return {field.name: field.default is field.default_factory is MISSING for field in fields(cls) if field.init}
    return {name: each.default is each.empty for name, each in inspect.signature(cls).parameters.items()}


def _choose(kind: Any, value: Any, where: str) -> Any:
    """Build an entry of the registry of ``kind`` from its name, or from a table with its name."""
    registry, what = REGISTRIES[kind], f"{where or 'the configuration'} ({kind.__name__.lower()})"
    table = {"name": value} if isinstance(value, str) else _require_table(value, where)
    if "name" not in table:
        raise ConfigError(
            f"{what} must have a name, got {', '.join(table) or 'no keys'}; add name, one of {', '.join(registry)}"
        )
    name = table["name"]
    if not isinstance(name, str) or name not in registry:
        raise ConfigError(f"{what} must have a known name, got {shown(name)}; {choices(str(name), registry)}")
    return _convert_dataclass(registry[name], table, where)


def _either(kinds: Sequence[Any], value: Any, where: str) -> Any:
    """Convert ``value`` to the first of ``kinds`` that accepts it. Functions cannot be set in TOML and are skipped."""
    if value is None and NoneType in kinds:
        return None
    kinds = [kind for kind in kinds if kind is not NoneType and get_origin(kind) is not Callable]
    errors = []
    for kind in kinds:
        try:
            return _convert(kind, value, where)
        except ConfigError as error:
            errors.append(error)
    unwritable = [error for error in errors if isinstance(error.__cause__, PydanticSchemaGenerationError)]
    if unwritable or len(errors) == 1:
        raise (unwritable or errors)[0]
    raise ConfigError(
        f"{where} must be {' or '.join(_describe(kind)[0] for kind in kinds)}, got {shown(value)}; "
        f"{_remedy(where, _describe(kinds[0])[1])}"
    ) from errors[-1]


def _convert_array(origin: Any, kinds: Sequence[Any], value: Any, where: str) -> Any:
    if not isinstance(value, (list, tuple)):
        raise _wrong_type(origin, value, where)
    if origin is tuple and kinds[-1] is not Ellipsis:
        if len(value) != len(kinds):
            raise ConfigError(f"{where} must have {len(kinds)} entries, got {len(value)}; write all of them")
    else:
        kinds = [kinds[0]] * len(value)
    items = (_convert(kind, item, f"{where}[{i}]") for i, (kind, item) in enumerate(zip(kinds, value, strict=True)))
    return tuple(items) if origin is tuple else list(items)


def _convert_leaf(kind: Any, value: Any, where: str, wanted: Any) -> Any:
    try:
        converted = TypeAdapter(kind, config=STRICT).validate_python(value)
    except ValidationError as error:
        raise _wrong_type(wanted, value, where, error.errors()[0]["msg"]) from error
    except PydanticSchemaGenerationError as error:
        raise ConfigError(f"{where} cannot be set in TOML, got {shown(value)}; make it in Python") from error
    if isinstance(converted, int) and abs(converted) > LARGEST_INTEGER:
        raise ConfigError(f"{where} must be an integer of 64 bits, got {shown(value)}; write a smaller one")
    if isinstance(converted, float) and converted != converted:
        raise ConfigError(f"{where} must be a number, got nan; write one")
    return converted


def _require_table(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _wrong_type(dict, value, where)
    return value


def _wrong_type(kind: Any, value: Any, where: str, reason: str = "") -> ConfigError:
    place = where or "the configuration"
    if get_origin(kind) is Annotated:
        return ConfigError(f"{place} does not fit, got {shown(value)}; {reason}")
    noun, example = _describe(kind)
    if get_origin(kind) is Literal and isinstance(value, str):
        close = get_close_matches(value[:LONGEST_WORD], [str(choice) for choice in get_args(kind)], n=1)
        example = json.dumps(close[0]) if close else example
    return ConfigError(f"{place} must be {noun}, got {shown(value)}; {_remedy(where, example)}")


def _describe(kind: Any) -> tuple[str, str]:
    """Return a description of the annotation ``kind``, and an example in TOML."""
    origin = get_origin(kind) or kind
    if origin is Literal:
        return f"one of {', '.join(map(repr, get_args(kind)))}", json.dumps(get_args(kind)[0])
    for registered, registry in REGISTRIES.items():
        if kind is registered:
            return f"a table with the name of a {kind.__name__.lower()}", f'{{name = "{next(iter(registry))}"}}'
    if origin in (tuple, list, Sequence):
        return "an array", "[1, 2]"
    if origin in (dict, Mapping) or is_dataclass(kind):
        return "a table", "{key = value}"
    return LEAVES.get(kind, (str(kind), "a value of that type"))


def _is_registered(cls: Any) -> bool:
    return any(cls is entry for registry in REGISTRIES.values() for entry in registry.values())


def _join_path(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _remedy(where: str, example: str) -> str:
    """Return the remedy for a wrong type: how to write ``example`` at ``where``."""
    key = where.rsplit(".", 1)[-1]
    return f"write {key} = {example}" if key and not key.endswith("]") else f"write {example} there"


def _to_plain(value: Any, where: str) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        plain: dict[str, Any] = {"name": type(value).name} if _is_registered(type(value)) else {}  # type: ignore[attr-defined]
        for field in (field for field in fields(value) if field.init):
            item, path = getattr(value, field.name), _join_path(where, field.name)
            if item is None and field.default is not None:  # None is left out in TOML, so it must be the default
                raise ConfigError(f"{path} must be something that TOML can hold, got None; its default is not None")
            plain[field.name] = _to_plain(item, path)
        return plain
    if isinstance(value, Mapping):
        return {str(key): _to_plain(item, _join_path(where, str(key))) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Path):
        return str(value)
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    raise ConfigError(f"{where} must be something that TOML can hold, got {shown(value)}; leave it to Python")
