"""Comments for the YAML that ``--cfg`` prints: above each setting of an allocation, what its docstring says of it."""

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_type_hints

import yaml  # type: ignore[import-untyped]

from apportion.config import REGISTRIES
from apportion.described import described_fields, summary
from apportion.verl.configs import ALLOCATION, GROUPS, SELECTION
from apportion.verl.coordinator.settings import VerlAllocation

ROOT = "allocation"
WIDTH = 120
PACKAGE = re.compile(r"^# @package (?P<path>\S+)$", re.MULTILINE)
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
    above: Path = tuple(package["path"].split(".")) if package and package["path"] != "_global_" else ()
    try:
        table = yaml.safe_load(text)
    except yaml.YAMLError:  # Hydra prints other things too, such as what it cannot find
        return text
    comments = dict(_comments_of(table, above))
    return "".join(_commented_lines(text.splitlines(keepends=True), above, comments))


def _commented_lines(lines: Sequence[str], above: Path, comments: Mapping[Path, str]) -> Iterator[str]:
    """Yield ``lines``, which are below the keys ``above``, and before each setting its comment."""
    open_keys: list[tuple[int, str]] = []
    for line in lines:
        if found := KEY.match(line):
            indent = len(found["indent"])
            open_keys = [(column, key) for column, key in open_keys if column < indent] + [(indent, found["key"])]
            comment = comments.get((*above, *(key for _, key in open_keys)), "")
            prefix = f"{found['indent']}# "
            for each in textwrap.wrap(comment, WIDTH - len(prefix), break_long_words=False, break_on_hyphens=False):
                yield f"{prefix}{each}\n"
        yield line


def _comments_of(table: Any, above: Path) -> Iterator[tuple[Path, str]]:
    """Yield the comments on ``table``, which is below the keys ``above``."""
    for group in (ALLOCATION, SELECTION, *GROUPS):  # printed alone it does not say in which allocator it is
        if ".".join(above) == group.key and isinstance(table, Mapping) and table.get("name") in group.kinds:
            yield from _comments(group.kinds[table["name"]], table, above)
            return
    for key in reversed(above):
        table = {key: table}
    found = table.get(ROOT) if isinstance(table, Mapping) else None
    if isinstance(found, Mapping):
        yield from _comments(VerlAllocation, found, (ROOT,))


def _comments(kind: type[Any], table: Mapping[str, Any], path: Path) -> Iterator[tuple[Path, str]]:
    """Yield the comments on a ``table`` of settings of ``kind`` and on those within it, by path."""
    described, hints = described_fields(kind), get_type_hints(kind)
    yield (*path, "name"), summary(kind)
    for field in (field for field in fields(kind) if field.init and field.name in table):
        own, value = (*path, field.name), table[field.name]
        yield own, described.get(field.name, "")
        inner = _kind_of(hints[field.name], value)
        if inner is not None:
            yield from _comments(inner, value, own)


def _kind_of(hint: Any, value: Any) -> type[Any] | None:
    """Return the dataclass of the table ``value`` of a field annotated with ``hint``; None for anything else."""
    if not isinstance(value, Mapping):
        return None
    for each in (hint, *get_args(hint)):
        if each in REGISTRIES:
            found = REGISTRIES[each].get(str(value.get("name")))
            return found if isinstance(found, type) else None  # a preset is a function
        if isinstance(each, type) and is_dataclass(each):
            return each
    return None
