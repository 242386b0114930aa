"""The allocator's state in verl's checkpoints: one file beside those of the actor and the data loader."""

from pathlib import Path
from typing import Any

import ray
import torch
from omegaconf import DictConfig
from verl.trainer.ppo.checkpoint_callback import CheckpointCallback
from verl.utils.checkpoint.checkpoint_manager import find_latest_ckpt_path

from apportion.runs.whole_files import write_whole_by

FILE = "allocation.pt"


class SavedAllocation(CheckpointCallback):  # type: ignore[misc]
    """Saves the allocator's state with every checkpoint. Set it as ``trainer.checkpoint_callback_class``."""

    def on_save(self, trainer: Any, global_step: int, checkpoint_dir: str, async_save: bool = False, **_: Any) -> None:
        """Write the coordinator's state to ``checkpoint_dir``."""
        state = ray.get(trainer.agent_loop_manager.coordinator.state.remote())
        write_whole_by(Path(checkpoint_dir) / FILE, lambda file: torch.save(state, file))


def resumed_file(config: DictConfig) -> Path | None:
    """Return our file in the checkpoint that verl resumes under ``config``; None for a run from scratch.

    Raises ValueError if the checkpoint lacks it, or if ``config`` names no checkpoint and must.
    """
    trainer = config.trainer
    if trainer.resume_mode == "disable":
        return None
    folder = trainer.resume_from_path
    if trainer.resume_mode == "auto":
        folder = find_latest_ckpt_path(str(Path(trainer.default_local_dir).absolute()))
        if folder is None:
            return None
    if not folder:
        raise ValueError(
            f"trainer.resume_from_path must be the folder of a checkpoint with resume_mode={trainer.resume_mode}, got "
            f"{folder}; name it, or set resume_mode to auto or disable"
        )
    path = Path(folder).absolute() / FILE
    if not path.exists():
        raise ValueError(
            f"a checkpoint must hold the allocator's state, got {folder} without {FILE}; resume one that has it with "
            "trainer.resume_mode=resume_path, or start a new run from its weights"
        )
    return path
