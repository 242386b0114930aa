"""The allocator's state in verl's checkpoints: one file beside those of the actor and the data loader."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from verl.trainer.ppo.checkpoint_callback import CheckpointCallback
from verl.utils.checkpoint.checkpoint_manager import find_latest_ckpt_path

from apportion.engines.saved_state import load_state, restoring, save_state
from apportion.types import Batch, Belief, Prompt, Rollout
from apportion.verl.coordinator.messages import WrittenRollout
from apportion.verl.coordinator.service import Coordinator

FILE, KIND = "allocation.pt", "verl run"
REMEDY = "resume from another checkpoint with trainer.resume_mode=resume_path, or start a new run from its weights"


class SavedAllocation(CheckpointCallback):  # type: ignore[misc]
    """Saves the allocator's state with every checkpoint. Set it as ``trainer.checkpoint_callback_class``."""

    def on_save(self, trainer: Any, global_step: int, checkpoint_dir: str, async_save: bool = False, **_: Any) -> None:
        """Write the coordinator's state to ``checkpoint_dir``."""
        save_state(Path(checkpoint_dir) / FILE, KIND, trainer.agent_loop_manager.coordinator_state())


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


def load_into(coordinator: Coordinator, path: Path) -> None:
    """Have ``coordinator`` continue from the file ``path`` of a checkpoint. Raises SavedStateError."""
    state = load_state(path, KIND, remedy=REMEDY, records=(Batch, Belief, Prompt, Rollout, WrittenRollout))
    with restoring(path, REMEDY):
        coordinator.load(state)
