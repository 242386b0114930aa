"""States whose large parts are in files of their own, so that a checkpoint writes only parts that are new.

A part is a dataclass that never changes, such as a rollout that a later step may train on again. It is packed as a
state of its own. Its name is its checksum. The parts follow one another in files beside that of the state, which lists
them. A file of parts never changes either. The next checkpoint has a hard link to it, so that each checkpoint folder
is complete by itself, whichever others are deleted. Where hard links fail, the parts are written again.

Small files are merged with new parts, and files of which less than half is still in use are written again. So there
are few files, they take at most twice the bytes in use, and a part is written O(log) times.
"""

import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

from torch import Tensor

from apportion.engines.plain_data import Records, encode
from apportion.engines.saved_state import CHECKSUM_BYTES, checksum_of, pack, packed, read_saved, restoring, unpack
from apportion.runs.whole_files import UNFINISHED, is_file, write_whole

logger = logging.getLogger(__name__)

SUFFIX = ".parts"
PART = "part of a run"
FILE_BYTES = 64 * 2**20
"""A file of parts takes no more, unless a single part does."""


@dataclass
class SharedParts:
    """Saves the states of one run, and remembers which parts are in which files. ``is_part`` says what is a part.

    The memory in use while saving is that of the parts which are written.
    """

    is_part: Callable[[Any], bool]
    _files: dict[Path, Mapping[str, int]] = field(default_factory=dict, init=False)
    _names: dict[int, tuple[Any, str]] = field(default_factory=dict, init=False)

    def adopt(self, path: Path, kind: str) -> bool:
        """Use those files of the state at ``path`` that are whole. Return False if the state cannot be read."""
        try:
            whole = unpack(path.read_bytes(), kind)
            own = {_file_beside(path, name): parts for name, parts in whole.files.items()}
            self._files = {file: parts for file, parts in own.items() if _is_whole(file, parts)}
        except (OSError, ValueError) as error:
            logger.info("The parts of %s are not used again: %s", path, error)
            return False
        return True

    def save(self, path: Path, kind: str, state: Any) -> None:
        """Write ``state`` to ``path`` in one step, and what is new of its parts to files beside it.

        Raises TypeError if a value is neither plain data, a tensor, an array nor a dataclass of these.
        """
        parts = _Parts(self.is_part, self._names)
        tensors: list[Tensor] = []
        encoded = encode(state, tensors, parts.name_of)
        files = self._place(path, parts)
        write_whole(path, pack(kind, encoded, tensors, {file.name: sizes for file, sizes in files.items()}))
        for file in path.parent.glob(f"{path.stem}.*{SUFFIX}"):
            if file not in files:
                file.unlink(missing_ok=True)
        self._files, self._names = files, parts.names

    def _place(self, path: Path, parts: "_Parts") -> dict[Path, Mapping[str, int]]:
        """Link the files that are used again, and write those of all other parts. Return the files beside ``path``."""
        left, known = set(parts.values), {name for sizes in self._files.values() for name in sizes}
        new_bytes = sum(len(parts.pack(name)) for name in left - known)
        in_use = {
            file: sum(size for name, size in sizes.items() if name in left) for file, sizes in self._files.items()
        }
        found: dict[Path, Mapping[str, int]] = {}
        for file in sorted(in_use, key=lambda each: (in_use[each], each)):
            sizes, target = self._files[file], path.with_name(file.name)
            if in_use[file] <= new_bytes or 2 * in_use[file] < sum(sizes.values()):
                new_bytes += in_use[file]
            elif _link(file, target, sum(sizes.values())):
                found[target] = sizes
                left -= sizes.keys()
        for batch in _batches(parts, sorted(left)):
            target = path.with_name(f"{path.stem}.{sha256(''.join(batch).encode()).hexdigest()[:16]}{SUFFIX}")
            write_whole(target, b"".join(batch.values()))
            found[target] = {name: len(content) for name, content in batch.items()}
        return found


@dataclass
class _Parts:
    """The parts of one state: their ``values`` by name, and the ``names`` by the id of the value."""

    is_part: Callable[[Any], bool]
    known: Mapping[int, tuple[Any, str]]
    values: dict[str, Any] = field(default_factory=dict)
    names: dict[int, tuple[Any, str]] = field(default_factory=dict)
    _packed: dict[str, bytes] = field(default_factory=dict)

    def name_of(self, value: Any) -> str | None:
        """Return the name of a part, and None for another value."""
        if not self.is_part(value):
            return None
        found = self.known.get(id(value)) or self.names.get(id(value))
        if found is None:
            content = packed(PART, value)
            found = value, content[-CHECKSUM_BYTES:].hex()
            self._packed[found[1]] = content
        self.names[id(value)] = found  # with the value, so that no other gets its id
        self.values[found[1]] = value
        return found[1]

    def pack(self, name: str) -> bytes:
        """Return the bytes of a part."""
        if name not in self._packed:
            self._packed[name] = packed(PART, self.values[name])
        return self._packed[name]


def load_with_parts(path: Path, kind: str, *, remedy: str, records: Records = ()) -> Any:
    """Return the state of ``kind`` at ``path``, with the parts that are in files beside it.

    Raises SavedStateError, which ends with ``remedy``, if a file is missing, damaged or of something else, and OSError
    if one cannot be read.
    """
    with restoring(path, remedy):
        whole = unpack(read_saved(path), kind)
        files = [_read_parts(_file_beside(path, file), sizes) for file, sizes in whole.files.items()]
        contents = {name: part for file in files for name, part in file.items()}
        decoded: dict[str, Any] = {}

        def part_named(name: str) -> Any:
            if name not in decoded:
                if name not in contents:
                    raise ValueError(f"no file has the part {name!r:.80}")
                decoded[name] = unpack(contents.pop(name), PART).decode(records)
            return decoded[name]

        return whole.decode(records, part_named)


def _read_parts(file: Path, sizes: Mapping[str, int]) -> dict[str, bytes]:
    """Return the bytes of the parts in ``file`` by name. Raise ValueError if it is missing or damaged."""
    if not is_file(file):
        raise ValueError(f"{file.name}, a file of its parts, is missing")
    content, start = file.read_bytes(), 0
    found: dict[str, bytes] = {}
    for name, size in sizes.items():
        found[name], start = content[start : start + size], start + size
    if start != len(content) or any((checksum_of(part) or b"").hex() != name for name, part in found.items()):
        raise ValueError(f"{file.name}, a file of its parts, is damaged")
    return found


def _is_whole(file: Path, sizes: Mapping[str, int]) -> bool:
    try:
        _read_parts(file, sizes)
    except (OSError, ValueError) as error:
        logger.info("%s is not used again: %s", file, error)
        return False
    return True


def _file_beside(path: Path, name: str) -> Path:
    if not re.fullmatch(rf"{re.escape(path.stem)}\.[0-9a-f]{{16}}{re.escape(SUFFIX)}", name):
        raise ValueError(f"a file of parts must have its own kind of name, got {name!r:.80}")
    return path.with_name(name)


def _batches(parts: _Parts, names: Sequence[str]) -> Iterator[dict[str, bytes]]:
    """Yield the bytes of parts by name, for one file after the other."""
    batch: dict[str, bytes] = {}
    size = 0
    for name in names:
        content = parts.pack(name)
        if batch and size + len(content) > FILE_BYTES:
            yield batch
            batch, size = {}, 0
        batch[name] = content
        size += len(content)
    if batch:
        yield batch


def _link(source: Path, target: Path, size: int) -> bool:
    """Make ``target`` a hard link to ``source``. Return False if that fails, or if the file has another size."""
    unfinished = target.with_name(f".{target.name}.{uuid4().hex}{UNFINISHED}")
    try:
        if source.stat().st_size != size:
            return False
        if source != target:
            os.link(source, unfinished)
            os.replace(unfinished, target)
    except OSError as error:
        logger.info("%s is written again, because it cannot be linked: %s", target, error)
        return False
    finally:
        unfinished.unlink(missing_ok=True)  # it remains if the target was the same file
    return True
