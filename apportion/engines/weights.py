"""The weights that a trainer hands to a process that samples: a file, replaced in one step, with its version."""

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from apportion.runs.folder import LOCK, hold_lock

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "apportion_weights_"


@contextmanager
def weights_folder(size: int) -> Iterator[Path]:
    """Make a folder for a block, in memory if two files of ``size`` bytes fit there, else among temporary files.

    Folders of processes that were killed in their block are removed first, because they fill the memory.
    """
    with tempfile.TemporaryFile() as own:
        user = os.fstat(own.fileno()).st_uid
    for place in filter(Path.is_dir, (SHARED_MEMORY, Path(tempfile.gettempdir()))):
        for left in place.glob(f"{PREFIX}*"):
            with suppress(OSError):  # its process lives, or it goes at this moment
                if left.lstat().st_uid == user and (left / LOCK).exists():
                    with hold_lock(left / LOCK):
                        shutil.rmtree(left)
    in_memory = SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free > 3 * size
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=SHARED_MEMORY if in_memory else None))
    with hold_lock(folder / LOCK):
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def save_weights(path: Path, version: int, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Write ``weights`` by name to ``path``. A reader finds the old file or the new one, never a part of one."""
    unfinished = path.with_name(f".{path.name}")
    own = {name: weight.detach().cpu().contiguous() for name, weight in weights}
    save_file(own, unfinished, metadata={"version": str(version)})
    os.replace(unfinished, path)


def load_weights(path: Path, model: nn.Module, version: int | None) -> int:
    """Copy the weights at ``path`` into ``model``, unless it has ``version`` already. Return their version.

    A weight of the model that is not in the file stays as it is. Raises ValueError for one that the model lacks.
    """
    with safe_open(path, framework="pt") as file:
        found = int(file.metadata()["version"])
        if found == version:
            return found
        own = dict(model.named_parameters(remove_duplicate=False))
        for name in file.keys():  # noqa: SIM118 - it is no dict
            if name not in own:
                raise ValueError(f"a weight must be one of the sampler's model, got {name}; report this model")
            with torch.no_grad():
                own[name].copy_(file.get_tensor(name))
        return found
