"""The weights that a trainer hands to a process that samples: a file, replaced in one step, with its version."""

import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

SHARED_MEMORY = Path("/dev/shm")


def weights_folder(size: int) -> Path:
    """Return a new folder, in memory if two files of ``size`` bytes fit there, and otherwise among temporary files."""
    in_memory = SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free > 3 * size
    return Path(tempfile.mkdtemp(prefix="apportion_weights_", dir=SHARED_MEMORY if in_memory else None))


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
