"""Files with the state of a run: the only place where the package writes and reads them.

A file is in the safetensors format, followed by the SHA-256 of these bytes, so that a damaged file is never loaded as
another state. The format is a table of tensors that covers its bytes exactly, so that no number in it can ask for more
memory than the file has bytes. One of the tensors is UTF-8 JSON with the kind of the file, its version, and the state
by ``plain_data``. Loading a file builds these values and nothing else. It never runs code.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from apportion.engines.plain_data import PartNamed, Records, decode, encode
from apportion.runs.declared_types import fits
from apportion.runs.whole_files import is_file, write_whole

VERSION = 2
"""Version of all files; 1 were pickles."""
CHECKSUM_BYTES = 32
HEAD = "apportion"
"""Name of the tensor that holds the JSON. The others are numbered from 0."""


class SavedStateError(ValueError):
    """A file that should hold a saved state cannot be loaded. The message is one line: file, problem, remedy."""


def save_state(path: Path, kind: str, state: Any) -> None:
    """Write ``state`` to ``path`` in one step. ``kind`` says whose state it is, for example "lab run".

    Raises TypeError if a value is neither plain data, a tensor, an array nor a dataclass of these.
    """
    write_whole(path, packed(kind, state))


def load_state(path: Path, kind: str, *, remedy: str, records: Records = ()) -> Any:
    """Return the state of ``kind`` that ``save_state`` wrote to ``path``. Dataclasses in it must be among ``records``.

    Raises SavedStateError, which ends with ``remedy``, for any other file or none, and OSError if it cannot be read.
    """
    with restoring(path, remedy):
        return unpack(read_saved(path), kind).decode(records)


def read_saved(path: Path) -> bytes:
    """Return the content of a file of a checkpoint. Raise ValueError if there is none."""
    if not is_file(path):
        raise ValueError("a checkpoint must hold the state of its run, got no such file")
    return path.read_bytes()


@contextmanager
def restoring(path: Path, remedy: str) -> Iterator[None]:
    """Raise a ValueError of the block as a SavedStateError that names the file ``path`` and the ``remedy``."""
    try:
        yield
    except SavedStateError:
        raise
    except ValueError as error:
        raise SavedStateError(f"{path}: {' '.join(str(error).split())}; {remedy}") from error


@dataclass(frozen=True)
class PackedState:
    """The content of a file: the encoded ``state``, its ``tensors`` by number, and the parts in each of its ``files``.

    ``what`` says what the file must be. ``files`` maps names of files to the names and sizes in bytes of their parts.
    """

    what: str
    state: Any
    tensors: dict[int, Tensor]
    files: Mapping[str, Mapping[str, int]]

    def decode(self, records: Records, part_named: PartNamed | None = None) -> Any:
        """Return the state. Raise ValueError if it is damaged."""
        try:
            return decode(self.state, self.tensors, records, part_named)
        except ValueError as error:
            raise ValueError(f"{self.what}, got one that is damaged ({error})") from error


def packed(kind: str, state: Any) -> bytes:
    """Return the content of a file with a ``state`` of ``kind`` that is complete by itself."""
    tensors: list[Tensor] = []
    return pack(kind, encode(state, tensors), tensors)


def pack(
    kind: str, state: Any, tensors: Sequence[Tensor], files: Mapping[str, Mapping[str, int]] = MappingProxyType({})
) -> bytes:
    """Return the content of a file with an encoded ``state`` of ``kind`` and its ``tensors``."""
    found = {"kind": kind, "version": VERSION, "state": state} | ({"files": dict(files)} if files else {})
    head = torch.frombuffer(bytearray(json.dumps(found).encode()), dtype=torch.uint8)
    content = save({HEAD: head, **{str(number): tensor for number, tensor in enumerate(tensors)}})
    return content + sha256(content).digest()


def checksum_of(content: bytes | memoryview) -> bytes | None:
    """Return the checksum at the end of what ``pack`` returned; None if it does not fit."""
    own = bytes(content[-CHECKSUM_BYTES:])
    return own if sha256(content[:-CHECKSUM_BYTES]).digest() == own else None


def unpack(content: bytes, kind: str) -> PackedState:
    """Return the parts of what ``pack`` returned. Raise ValueError for anything else."""
    what = f"the file must be the saved state of a {kind}"
    if checksum_of(content) is None:
        pickled = content.startswith((b"PK\x03\x04", b"\x80"))
        got = "an archive or a pickle of an earlier version" if pickled else "a file that is damaged"
        raise ValueError(f"{what}, got {got} or of something else")
    try:
        tensors = load(content[:-CHECKSUM_BYTES])
        head = tensors.pop(HEAD)
        found = json.loads(head.numpy().tobytes())
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{what}, got a file that is damaged or of something else") from error
    if not isinstance(found, Mapping) or found.keys() - {"files"} != {"kind", "version", "state"}:
        raise ValueError(f"{what}, got a file of something else")
    if found["kind"] != kind:
        raise ValueError(f"{what}, got that of a {found['kind']!r:.40}")
    if found["version"] != VERSION:
        raise ValueError(f"{what} of version {VERSION}, got version {found['version']!r:.40}")
    if tensors.keys() != {str(number) for number in range(len(tensors))}:
        raise ValueError(f"{what}, got one whose tensors are not numbered")
    files = found.get("files", {})
    if not fits(files, dict[str, dict[str, int]]):
        raise ValueError(f"{what}, got one whose files are not named")
    return PackedState(what, found["state"], {number: tensors[str(number)] for number in range(len(tensors))}, files)
