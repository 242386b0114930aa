"""Configuration files as plain tables, read with overrides and written back."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from apportion.untrusted import MAX_DEPTH, check_depth, read_config, shown

_TEXT = re.compile(r'''"""(?s:.*?)"""|\'{3}(?s:.*?)\'{3}|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|#[^\n]*''')
_LONG_KEY = re.compile(rf"(?:\.[ \t]*[\w-]+[ \t]*){{{MAX_DEPTH}}}")

NAME_BYTES = 200
"""The longest name of a run's folder. File systems have 255, and suffixes are added to it."""


class ConfigError(ValueError):
    """An unusable configuration. The message says where, what was found and what to write instead, in one line."""


def load(path: Path | None, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Read the TOML file at ``path`` and apply each ``a.b.c=value`` of ``overrides`` in order. No path: an empty table.

    A value is TOML; a word that is not valid TOML is a string. Missing tables are created. Only a table may replace a
    table.

    Raises ConfigError if the file cannot be read or parsed, or if an override is invalid.

    >>> load(None, ["steps=3", "arms.main.name=vip", "arms.main.low=4"])
    {'steps': 3, 'arms': {'main': {'name': 'vip', 'low': 4}}}
    """
    table = {} if path is None else _read(path)
    for override in overrides:
        _override(table, override)
    return table


def to_toml(table: Mapping[str, Any]) -> str:
    """Write ``table`` as TOML. It may hold strings, numbers, booleans, lists and tables. Keys with None are left out.

    Raises ConfigError for any other value, and for None in a list.

    >>> print(to_toml({"arms": {"main": {"name": "vip", "budget": None}}, "steps": 3}), end="")
    steps = 3
    <BLANKLINE>
    [arms.main]
    name = "vip"
    """
    import tomli_w  # noqa: PLC0415 - comes with the extra "cli"

    return tomli_w.dumps(_without_none(table))


def check_folder_name(name: str, parent: Path) -> None:
    """Raise ConfigError unless ``name`` names a folder directly under ``parent``."""
    plain = bool(name) and Path(name).name == name and name != ".." and name.isprintable()
    if not plain or len(name.encode(errors="replace")) > NAME_BYTES:
        raise ConfigError(
            f"name must be a plain folder name of at most {NAME_BYTES} bytes, got {shown(name)}; "
            f"results go to {parent}/NAME"
        )


def _read(path: Path) -> dict[str, Any]:
    try:
        return _parse(read_config(path))
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"the configuration cannot be read, got {path} ({reason}); give a TOML file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the configuration must be UTF-8, got {path} ({error.reason}); save it as UTF-8") from error
    except ValueError as error:
        raise ConfigError(f"the configuration must be TOML, got {path}: {error}; correct that line") from error


def _parse(text: str) -> dict[str, Any]:
    """Return the table that the TOML ``text`` states. Raise ValueError for other text, and for text nested too deep."""
    if _LONG_KEY.search(_TEXT.sub("text", text)):  # tomllib takes quadratic time for long keys
        raise ValueError(f"a key of more than {MAX_DEPTH} parts")
    try:
        table = tomllib.loads(text.replace("\r\n", "\n"))
    except RecursionError:
        raise ValueError(f"more than {MAX_DEPTH} levels of nesting") from None
    except ValueError as error:
        raise ValueError("an integer of thousands of digits" if "digits" in str(error) else str(error)) from error
    check_depth(table)
    return table


def _override(table: dict[str, Any], override: str) -> None:
    """Set one ``a.b.c=value`` in ``table``."""
    dotted, equals, text = (part.strip() for part in override.partition("="))
    keys = _split_key(dotted)
    if not equals or not text or not keys:
        raise ConfigError(f"an override must be key=value, got {shown(override)}; write for example arms.main.low=4")
    value = _parse_value(text, override)
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


def _split_key(dotted: str) -> list[str]:
    """Return the parts of a dotted key, which may be quoted; an empty list for an invalid key."""
    try:
        node: Any = _parse(f"{dotted} = 0")
    except ValueError:
        return []
    keys = []
    while isinstance(node, dict) and len(node) == 1:
        ((key, node),) = node.items()
        keys.append(key)
    return keys if node == 0 and "\n" not in dotted else []


def _parse_value(text: str, override: str) -> Any:
    try:
        parsed = _parse(f"value = {text}")
    except ValueError as error:
        if text[0] in "[{\"'" or text.isdecimal():
            raise ConfigError(f"the value must be TOML, got {shown(override)}: {error}; close and quote it") from error
        return text
    return parsed["value"] if len(parsed) == 1 else text


def _without_none(value: Any) -> Any:
    """Return ``value`` without keys whose value is None. Raise ConfigError for a value that TOML cannot hold."""
    if isinstance(value, Mapping):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [_without_none(item) for item in value]
    if isinstance(value, (str, int, float)):
        return value
    raise ConfigError(f"TOML holds strings, numbers, booleans, lists and tables, got {shown(value)}; convert it")
