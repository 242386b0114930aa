"""TOML onto dataclasses, strictly, and back: the dataclasses are the schema, so there is no second list of settings.

``load`` reads a file and applies ``key=value`` overrides, ``build`` makes the dataclass, ``dump`` and ``to_toml`` write
what was resolved: ``build(type(x), tomllib.loads(to_toml(dump(x)))) == x``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError

from apportion.allocators import ALLOCATORS, Allocator
from apportion.baselines import BASELINES, Baseline
from apportion.consensus import LABEL_FREE
from apportion.predictors import EMBEDDERS, PREDICTORS, Embedder, Predictor, SentenceTransformerEmbedder
from apportion.stopping import RULES, Rule
from apportion.toml import ConfigError, load, shown, to_toml

__all__ = ["REGISTRIES", "ConfigError", "build", "choices", "dump", "load", "to_toml"]

T = TypeVar("T")

REGISTRIES: dict[Any, dict[str, Any]] = {
    Allocator: ALLOCATORS | LABEL_FREE,
    Predictor: PREDICTORS,
    Embedder: EMBEDDERS,
    Baseline: BASELINES,
    Rule: RULES,
}
"""What a field may be annotated with to be chosen by ``name``, and what there is to choose from."""

LEAVES = {
    int: ("an integer", "3"),
    float: ("a number", "1.0"),
    bool: ("true or false", "true"),
    str: ("a string", '"text"'),
    Path: ("a path, as a string", '"folder/file"'),
}
STRICT = ConfigDict(strict=True)


def build(cls: type[T], table: Mapping[str, Any], where: str = "") -> T:
    """An instance of the dataclass ``cls`` with the settings of ``table``; ``where`` is its dotted path, for errors.

    Nested dataclasses are tables. What is in ``REGISTRIES``, such as an ``Allocator`` or a ``Rule``, is a table with a
    ``name``, or just that name; ``cls`` may be one of these itself. Tuples are arrays. A required embedder that is left
    out is the sentence transformer of arXiv 2602.01601. Integers are taken for floats; nothing else is converted.

    Raises ConfigError for an unknown or missing key, a wrong type, and a value that the dataclass refuses.

    >>> build(Allocator, {"name": "vip", "low": 4, "predictor": "counts"}).predictor
    DiscountedCounts(discount=0.9, prior_alpha=1.0, prior_beta=1.0)
    >>> build(Allocator, {"name": "vip", "predictor": {"name": "gp", "clib": 0.1}}, "arms.main")
    Traceback (most recent call last):
    apportion.toml.ConfigError: arms.main.predictor (gp) has no key 'clib'; did you mean 'clip'? There are ...
    """
    built: T = _value(cls, table, where)
    return built


def dump(instance: Any) -> dict[str, Any]:
    """The settings of a dataclass as plain tables: init fields, with ``name`` where the class is chosen by name.

    Raises ConfigError for a value that TOML cannot hold, such as an array, a function, or None where the default is
    something else.

    >>> from apportion.predictors import UniformPrior
    >>> dump(UniformPrior())
    {'name': 'uniform', 'alpha': 1.0, 'beta': 1.0}
    """
    plain: dict[str, Any] = _plain(instance, "")
    return plain


def choices(word: str, words: Iterable[str]) -> str:
    """The remedy for an unknown ``word``: the most similar of ``words``, if one is, and all of them.

    >>> choices("vpi", ["uniform", "vip"]), choices("x", ["uniform", "vip"])
    ("did you mean 'vip'? There are uniform, vip", 'use one of uniform, vip')
    """
    words = list(words)
    close = get_close_matches(word, words, n=1)
    return f"did you mean {close[0]!r}? There are {', '.join(words)}" if close else f"use one of {', '.join(words)}"


def _value(kind: Any, value: Any, where: str) -> Any:
    """``value`` as the annotation ``kind`` asks for."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _either(args, value, where)
    if any(kind is registered for registered in REGISTRIES):
        return _chosen(kind, value, where)
    if isinstance(kind, type) and is_dataclass(kind):
        return _dataclass(kind, _table(value, where), where)
    if origin in (dict, Mapping) and args[0] is str:
        return {key: _value(args[1], item, _path(where, key)) for key, item in _table(value, where).items()}
    if origin in (tuple, list, Sequence):
        return _array(origin, args, value, where)
    return Path(_leaf(str, value, where, Path)) if kind is Path else _leaf(kind, value, where, kind)


def _dataclass(cls: Any, table: Mapping[str, Any], where: str) -> Any:
    settings = {field.name: field for field in fields(cls) if field.init}
    given, name = dict(table), cls.__name__
    if _registered(cls):
        name = given.pop("name", cls.name)
        if name != cls.name:
            raise ConfigError(f"{_path(where, 'name')} must be {cls.name!r} here, got {name!r}; change or remove it")
    for key in given:
        if key not in settings:
            raise ConfigError(
                f"{where or 'the configuration'} ({name}) has no key {key!r}; "
                f"{choices(key, settings) if settings else 'remove it'}"
            )
    kinds = get_type_hints(cls, include_extras=True)
    missing = [key for key, field in settings.items() if key not in given and _required(field)]
    absent = [key for key in missing if kinds[key] is not Embedder]
    if absent:
        raise ConfigError(
            f"{where or 'the configuration'} must have {', '.join(absent)}, got {', '.join(given) or 'no keys'}; "
            f"add {absent[0]}, which has no default"
        )
    values = {key: _value(kinds[key], value, _path(where, key)) for key, value in given.items()}
    values |= {key: SentenceTransformerEmbedder() for key in missing}
    try:
        return cls(**values)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}" if where else str(error)) from error


def _chosen(kind: Any, value: Any, where: str) -> Any:
    """An entry of the registry of ``kind``, from its name or from a table with its name."""
    registry, what = REGISTRIES[kind], f"{where or 'the configuration'} ({kind.__name__.lower()})"
    table = {"name": value} if isinstance(value, str) else _table(value, where)
    if "name" not in table:
        raise ConfigError(
            f"{what} must have a name, got {', '.join(table) or 'no keys'}; add name, one of {', '.join(registry)}"
        )
    name = table["name"]
    if not isinstance(name, str) or name not in registry:
        raise ConfigError(f"{what} must have a known name, got {shown(name)}; {choices(str(name), registry)}")
    return _dataclass(registry[name], table, where)


def _either(kinds: Sequence[Any], value: Any, where: str) -> Any:
    """``value`` as the first of ``kinds`` that takes it. Functions are left to Python."""
    if value is None and NoneType in kinds:
        return None
    kinds = [kind for kind in kinds if kind is not NoneType and get_origin(kind) is not Callable]
    errors = []
    for kind in kinds:
        try:
            return _value(kind, value, where)
        except ConfigError as error:
            errors.append(error)
    unwritable = [error for error in errors if isinstance(error.__cause__, PydanticSchemaGenerationError)]
    if unwritable or len(errors) == 1:
        raise (unwritable or errors)[0]
    raise ConfigError(
        f"{where} must be {' or '.join(_noun(kind)[0] for kind in kinds)}, got {shown(value)}; "
        f"{_written(where, _noun(kinds[0])[1])}"
    ) from errors[-1]


def _array(origin: Any, kinds: Sequence[Any], value: Any, where: str) -> Any:
    if not isinstance(value, (list, tuple)):
        raise _wrong(origin, value, where)
    if origin is tuple and kinds[-1] is not Ellipsis:
        if len(value) != len(kinds):
            raise ConfigError(f"{where} must have {len(kinds)} entries, got {len(value)}; write all of them")
    else:
        kinds = [kinds[0]] * len(value)
    items = (_value(kind, item, f"{where}[{i}]") for i, (kind, item) in enumerate(zip(kinds, value, strict=True)))
    return tuple(items) if origin is tuple else list(items)


def _leaf(kind: Any, value: Any, where: str, wanted: Any) -> Any:
    try:
        return TypeAdapter(kind, config=STRICT).validate_python(value)
    except ValidationError as error:
        raise _wrong(wanted, value, where, error.errors()[0]["msg"]) from error
    except PydanticSchemaGenerationError as error:
        raise ConfigError(f"{where} cannot be set in TOML, got {shown(value)}; make it in Python") from error


def _table(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _wrong(dict, value, where)
    return value


def _wrong(kind: Any, value: Any, where: str, reason: str = "") -> ConfigError:
    place = where or "the configuration"
    if get_origin(kind) is Annotated:
        return ConfigError(f"{place} does not fit, got {shown(value)}; {reason}")
    noun, example = _noun(kind)
    if get_origin(kind) is Literal and isinstance(value, str):
        close = get_close_matches(value, [str(choice) for choice in get_args(kind)], n=1)
        example = json.dumps(close[0]) if close else example
    return ConfigError(f"{place} must be {noun}, got {shown(value)}; {_written(where, example)}")


def _noun(kind: Any) -> tuple[str, str]:
    """What the annotation ``kind`` asks for, in words, and an example."""
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


def _registered(cls: Any) -> bool:
    return any(cls is entry for registry in REGISTRIES.values() for entry in registry.values())


def _required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _path(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _written(where: str, example: str) -> str:
    """The remedy for a wrong type: how ``example`` is written at ``where``."""
    key = where.rsplit(".", 1)[-1]
    return f"write {key} = {example}" if key and not key.endswith("]") else f"write {example} there"


def _plain(value: Any, where: str) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        name = {"name": type(value).name} if _registered(type(value)) else {}  # type: ignore[attr-defined]
        return name | {field.name: _setting(value, field, where) for field in fields(value) if field.init}
    if isinstance(value, Mapping):
        return {str(key): _plain(item, _path(where, str(key))) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Path):
        return str(value)
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    raise ConfigError(f"{where} must be something that TOML can hold, got {shown(value)}; leave it to Python")


def _setting(instance: Any, field: Field[Any], where: str) -> Any:
    """One field of ``instance``. TOML says None by leaving a key out, which gives the default."""
    value, path = getattr(instance, field.name), _path(where, field.name)
    if value is None and field.default is not None:
        raise ConfigError(f"{path} must be something that TOML can hold, got None; its default is not None")
    return _plain(value, path)
