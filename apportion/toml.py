"""Configuration files as plain tables: read with overrides, and written back."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class ConfigError(ValueError):
    """A configuration that cannot be used: where, what was found, and what to write instead, in one line."""


def load(path: Path | None, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The TOML file at ``path`` (nothing for None) with each ``a.b.c=value`` of ``overrides`` applied, in order.

    Values are TOML, and a word that is not is a string. Tables on the way are made; only a table replaces a table.

    Raises ConfigError where the file cannot be read or parsed, or an override is no such pair.

    >>> load(None, ["steps=3", "arms.main.name=vip", "arms.main.low=4"])
    {'steps': 3, 'arms': {'main': {'name': 'vip', 'low': 4}}}
    """
    table = {} if path is None else _read(path)
    for override in overrides:
        _override(table, override)
    return table


def to_toml(table: Mapping[str, Any]) -> str:
    """``table`` as TOML: strings, numbers, booleans, lists and tables; None is left out.

    >>> print(to_toml({"arms": {"main": {"name": "vip", "budget": None}}, "steps": 3}), end="")
    steps = 3
    [arms]
    [arms.main]
    name = "vip"
    """
    return "".join(f"{line}\n" for line in _lines(table, ()))


def shown(value: Any) -> str:
    """``value`` as an error quotes it: on one line, and not a long one."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"the configuration cannot be read, got {path} ({reason}); give a TOML file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the configuration must be UTF-8, got {path} ({error.reason}); save it as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the configuration must be TOML, got {path}: {error}; correct that line") from error


def _override(table: dict[str, Any], override: str) -> None:
    """Sets one ``a.b.c=value`` in ``table``."""
    dotted, equals, text = (part.strip() for part in override.partition("="))
    keys = _keys(dotted)
    if not equals or not text or not keys:
        raise ConfigError(f"an override must be key=value, got {override!r}; write for example arms.main.low=4")
    value = _parse(text, override)
    for depth, key in enumerate(keys[:-1], start=1):
        inner = table.setdefault(key, {})
        if not isinstance(inner, dict):
            raise ConfigError(
                f"{'.'.join(keys[:depth])} must be a table to set {dotted}, got {shown(inner)}; "
                f"override it first with a table in braces, such as {{name = ...}}"
            )
        table = inner
    if isinstance(table.get(keys[-1]), dict) and not isinstance(value, dict):
        raise ConfigError(
            f"{dotted} is a table, got {shown(value)} to replace it; set its keys one by one, or give a table in braces"
        )
    table[keys[-1]] = value


def _keys(dotted: str) -> list[str]:
    """The parts of a dotted key, quoted ones included; empty where it is none."""
    try:
        node: Any = tomllib.loads(f"{dotted} = 0")
    except tomllib.TOMLDecodeError:
        return []
    keys = []
    while isinstance(node, dict) and len(node) == 1:
        ((key, node),) = node.items()
        keys.append(key)
    return keys if node == 0 and "\n" not in dotted else []


def _parse(text: str, override: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError as error:
        if text[0] in "[{\"'":
            raise ConfigError(f"the value must be TOML, got {override!r}: {error}; close and quote it") from error
        return text
    return parsed["value"] if len(parsed) == 1 else text


def _lines(table: Mapping[str, Any], prefix: tuple[str, ...]) -> list[str]:
    """Plain settings first, for those after a header would belong to it; then the tables."""
    present = {key: value for key, value in table.items() if value is not None}
    lines = [f"[{'.'.join(map(_toml_key, prefix))}]"] if prefix else []
    lines += [f"{_toml_key(k)} = {_toml(v)}" for k, v in present.items() if not isinstance(v, Mapping)]
    for key, value in present.items():
        if isinstance(value, Mapping):
            lines += _lines(value, (*prefix, key))
    return lines


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml(key)


def _toml(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return (int if isinstance(value, int) else float).__repr__(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_toml_key(k)} = {_toml(v)}' for k, v in value.items() if v is not None)}}}"
    raise ConfigError(f"TOML holds strings, numbers, booleans, lists and tables, got {shown(value)}; convert it")
