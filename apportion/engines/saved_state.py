"""Files with the state of a run: the only place where the package writes and reads them.

A file is in the safetensors format, followed by the SHA-256 of these bytes, so that a damaged file is never loaded as
another state. The format is a table of tensors that covers its bytes exactly, so that no number in it can ask for more
memory than the file has bytes. One of the tensors is UTF-8 JSON with the kind of the file, its version, the state by
``scheduler.plain``, and the type and shape of each tensor in it. Those of one type follow one another in one tensor,
because the format has room for about a million names. Loading a file builds these values and nothing else. It never
runs code.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from apportion.runs.whole_files import is_file, write_whole
from apportion.scheduler.plain import Records, decode, encode

VERSION = 2
"""Version of all files."""
CHECKSUM_BYTES = 32
HEAD = "apportion"
"""Name of the tensor that holds the JSON. The others are named by their type."""


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
        if not is_file(path):
            raise ValueError("a checkpoint must hold the state of its run, got no such file")
        return _unpacked(path.read_bytes(), kind, records)


@contextmanager
def restoring(path: Path, remedy: str) -> Iterator[None]:
    """Raise a ValueError of the block as a SavedStateError that names the file ``path`` and the ``remedy``."""
    try:
        yield
    except SavedStateError:
        raise
    except ValueError as error:
        raise SavedStateError(f"{path}: {' '.join(str(error).split())}; {remedy}") from error


def packed(kind: str, state: Any) -> bytes:
    """Return the content of a file with a ``state`` of ``kind``."""
    kept, by_type = list[Any](), dict[str, list[Tensor]]()
    encoded = encode(state, kept)
    tensors = [_tensor(value) for value in kept]
    shapes = [(str(tensor.dtype), list(tensor.shape)) for tensor in tensors]
    for (name, _), tensor in zip(shapes, tensors, strict=True):
        by_type.setdefault(name, []).append(tensor.flatten())
    found = json.dumps({"kind": kind, "version": VERSION, "state": encoded, "shapes": shapes})
    head = torch.frombuffer(bytearray(found.encode()), dtype=torch.uint8)
    content = save({HEAD: head, **{name: torch.cat(own) for name, own in by_type.items()}})
    return content + sha256(content).digest()


def _tensor(value: Any) -> Tensor:
    """Return a tensor, an array or a scalar as a tensor on the CPU. Raise TypeError for text and objects."""
    return value.detach().cpu() if isinstance(value, Tensor) else torch.tensor(np.asarray(value))


def _unpacked(content: bytes, kind: str, records: Records) -> Any:
    """Return the state in what ``packed`` returned. Raise ValueError for anything else."""
    what = f"the file must be the saved state of a {kind}"
    if sha256(content[:-CHECKSUM_BYTES]).digest() != content[-CHECKSUM_BYTES:]:
        raise ValueError(f"{what}, got a file that is damaged or of something else")
    try:
        tensors = load(content[:-CHECKSUM_BYTES])
        head = json.loads(tensors.pop(HEAD).numpy().tobytes())
        found, version, state = head["kind"], head["version"], head["state"]
        numbered = _apart(tensors, head["shapes"])
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{what}, got a file that is damaged or of something else") from error
    if found != kind:
        raise ValueError(f"{what}, got that of a {found!r:.40}")
    if version != VERSION:
        raise ValueError(f"{what} of version {VERSION}, got version {version!r:.40}")
    try:
        return decode(state, numbered, records)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{what}, got one that is damaged ({error})") from error


def _apart(joined: Mapping[str, Tensor], shapes: Any) -> dict[int, Tensor]:
    """Return the tensors by number. Those of one type are stored one after the other."""
    found, starts = dict[int, Tensor](), Counter[str]()
    for number, (name, shape) in enumerate(shapes):
        start = starts[name]
        starts[name] += math.prod(shape)
        found[number] = joined[name][start : starts[name]].reshape(shape).clone()
    return found
