"""What was learnt, in verl's checkpoints: a file beside the actor's and the loader's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ray
import torch
from omegaconf import DictConfig
from verl.trainer.ppo.checkpoint_callback import CheckpointCallback
from verl.utils.checkpoint.checkpoint_manager import find_latest_ckpt_path

from apportion.files import write_whole_by

FILE = "allocation.pt"


class SavedAllocation(CheckpointCallback):  # type: ignore[misc]
    """Saves what the allocator learnt with every checkpoint: what ``trainer.checkpoint_callback_class`` names."""

    def on_save(self, trainer: Any, global_step: int, checkpoint_dir: str, async_save: bool = False, **_: Any) -> None:
        """Writes the coordinator's state to ``checkpoint_dir``."""
        state = ray.get(trainer.agent_loop_manager.coordinator.state.remote())
        write_whole_by(Path(checkpoint_dir) / FILE, lambda file: torch.save(state, file))


def resumed_file(config: DictConfig) -> Path | None:
    """The file in the checkpoint that verl resumes by ``config``; None for a run from scratch.

    Raises ValueError where the checkpoint has none, and where no checkpoint is named that should be.
    """
    trainer = config.trainer
    if trainer.resume_mode == "disable":
        return None
    if trainer.resume_mode == "auto":
        folder = find_latest_ckpt_path(str(Path(trainer.default_local_dir).absolute()))
        if folder is None:
            return None
    else:
        folder = trainer.resume_from_path
    if not folder:
        raise ValueError(
            f"trainer.resume_from_path must be the folder of a checkpoint with resume_mode={trainer.resume_mode}, got "
            f"{folder}; name it, or resume by auto or disable"
        )
    path = Path(folder).absolute() / FILE
    if not path.exists():
        raise ValueError(
            f"a checkpoint must hold what the allocator learnt, got {folder} without {FILE}; resume one that has it by "
            "trainer.resume_mode=resume_path, or start a new run from its weights"
        )
    return path
