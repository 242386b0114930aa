"""Comments for the YAML that ``--cfg`` prints: above each setting of an allocation, what its docstring says of it."""

import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any, get_args, get_type_hints

import yaml  # type: ignore[import-untyped]

from apportion.config import REGISTRIES
from apportion.described import described_fields, summary
from apportion.verl.coordinator.settings import VerlAllocation

ROOT = "allocation"
WIDTH = 120
PACKAGE = re.compile(r"^# @package (?!_global_)(?P<path>\S+)$", re.MULTILINE)
KEY = re.compile(r"^(?P<indent> *)(?P<key>\w+):(?: |$)")

Path = tuple[str, ...]


def with_comments(text: str) -> str:
    """Return ``text``, the YAML of a configuration of verl, with a comment above each setting of its allocation.

    A line ``# @package PATH``, which Hydra prints with ``--package``, says which part of the configuration it is. Text
    without an allocation, and text that is not YAML, is returned as it is.

    >>> print(with_comments("# @package allocation.baseline\\nname: predicted\\n"))
    # @package allocation.baseline
    # b = p, the expected reward that predictor predicts.
    name: predicted
    <BLANKLINE>
    """
    package = PACKAGE.search(text)
    above: Path = tuple(package["path"].split(".")) if package else ()
    try:
        table = yaml.safe_load(text)
    except yaml.YAMLError:  # Hydra prints other things too, such as what it cannot find
        return text
    for key in reversed(above):
        table = {key: table}
    comments = dict(_comments(VerlAllocation, table.get(ROOT), (ROOT,))) if isinstance(table, Mapping) else {}
    lines: list[str] = []
    open_keys: list[tuple[int, str]] = []
    for line in text.splitlines(keepends=True):
        if found := KEY.match(line):
            indent = len(found["indent"])
            open_keys = [(column, key) for column, key in open_keys if column < indent] + [(indent, found["key"])]
            comment = comments.get((*above, *(key for _, key in open_keys)), "")
            prefix = f"{found['indent']}# "
            wrapped = textwrap.wrap(comment, WIDTH - len(prefix), break_long_words=False, break_on_hyphens=False)
            lines += [f"{prefix}{each}\n" for each in wrapped]
        lines.append(line)
    return "".join(lines)


def _comments(hint: Any, table: Any, path: Path) -> Iterator[tuple[Path, str]]:
    """Yield the comments on a ``table`` of settings annotated with ``hint`` and on those within it, by path."""
    kind = _kind_of(hint, table) if isinstance(table, Mapping) else None
    if kind is None:
        return
    described, hints = described_fields(kind), get_type_hints(kind)
    for name, value in table.items():
        if name in hints:
            yield (*path, name), described.get(name, "")
            yield from _comments(hints[name], value, (*path, name))
    yield (*path, "name"), summary(kind)


def _kind_of(hint: Any, table: Mapping[str, Any]) -> type[Any] | None:
    """Return the dataclass of a ``table`` annotated with ``hint``; None for anything else."""
    for each in (hint, *get_args(hint)):
        if each in REGISTRIES:
            found = REGISTRIES[each].get(str(table.get("name")))
            return found if isinstance(found, type) else None  # a preset is a function
        if isinstance(each, type) and is_dataclass(each):
            return each
    return None
