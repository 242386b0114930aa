"""Files with the state of a run: the only place where the package writes and reads them.

A file is in the safetensors format, followed by the SHA-256 of these bytes, so that a damaged file is never loaded as
another state. The format is a table of tensors that covers its bytes exactly, so that no number in it can ask for more
memory than the file has bytes. One of the tensors is UTF-8 JSON with the kind of the file, its version, and the state
by ``plain_data``. Loading a file builds these values and nothing else. It never runs code.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from apportion.engines.plain_data import Records, decode, encode
from apportion.runs.whole_files import write_whole

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
    tensors: list[Tensor] = []
    head = json.dumps({"kind": kind, "version": VERSION, "state": encode(state, tensors)}).encode()
    numbered = {str(number): tensor for number, tensor in enumerate(tensors)}
    content = save({HEAD: torch.frombuffer(bytearray(head), dtype=torch.uint8), **numbered})
    write_whole(path, content + sha256(content).digest())


def load_state(path: Path, kind: str, *, remedy: str, records: Records = ()) -> Any:
    """Return the state of ``kind`` that ``save_state`` wrote to ``path``. Dataclasses in it must be among ``records``.

    Raises SavedStateError, which ends with ``remedy``, for any other file, and OSError if it cannot be read.
    """
    with restoring(path, remedy):
        return _read(path.read_bytes(), kind, records)


@contextmanager
def restoring(path: Path, remedy: str) -> Iterator[None]:
    """Raise a ValueError of the block as a SavedStateError that names the file ``path`` and the ``remedy``."""
    try:
        yield
    except SavedStateError:
        raise
    except ValueError as error:
        raise SavedStateError(f"{path}: {' '.join(str(error).split())}; {remedy}") from error


def _read(content: bytes, kind: str, records: Records) -> Any:
    what = f"the file must be the saved state of a {kind}"
    content, checksum = content[:-CHECKSUM_BYTES], content[-CHECKSUM_BYTES:]
    if sha256(content).digest() != checksum:
        pickled = content.startswith((b"PK\x03\x04", b"\x80"))
        got = "an archive or a pickle of an earlier version" if pickled else "a file that is damaged"
        raise ValueError(f"{what}, got {got} or of something else")
    try:
        tensors = load(content)
        head = tensors.pop(HEAD)
        found = json.loads(head.numpy().tobytes())
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{what}, got a file that is damaged or of something else") from error
    if not isinstance(found, Mapping) or found.keys() != {"kind", "version", "state"}:
        raise ValueError(f"{what}, got a file of something else")
    if found["kind"] != kind:
        raise ValueError(f"{what}, got that of a {found['kind']!r:.40}")
    if found["version"] != VERSION:
        raise ValueError(f"{what} of version {VERSION}, got version {found['version']!r:.40}")
    if tensors.keys() != {str(number) for number in range(len(tensors))}:
        raise ValueError(f"{what}, got one whose tensors are not numbered")
    numbered = {number: tensors[str(number)] for number in range(len(tensors))}
    try:
        return decode(found["state"], numbered, records)
    except ValueError as error:
        raise ValueError(f"{what}, got one that is damaged ({error})") from error
