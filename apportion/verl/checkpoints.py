"""The allocator's state in verl's checkpoints, and how a run resumes from them.

verl calls the callback of a checkpoint after its tracker names the checkpoint as the latest. A kill in between would
leave a latest checkpoint without our file. So the file is written before verl's own, by a wrapper of the trainer's
``_save_checkpoint``. With an asynchronous trainer it is written again by the callback, because rounds may have ended
in the meantime.

verl always resumes the weights and the data loader of the checkpoint that it is told to. If our file of that checkpoint
cannot be used, the allocator's state is that of a new run. A new belief costs rollouts until it has caught up, and no
rollout is wrong because of it.
"""

import copy
import logging
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from verl.trainer.ppo.checkpoint_callback import CheckpointCallback
from verl.trainer.ppo.v1 import trainer_base
from verl.utils.checkpoint.checkpoint_manager import find_latest_ckpt_path

from apportion.engines.saved_state import SavedStateError, load_state, restoring, save_state
from apportion.predictors.saved import OtherSettingsError, SavedValues
from apportion.scheduler.saved_settings import check_same_settings
from apportion.types import Batch, Belief, Prompt, Rollout
from apportion.verl.coordinator.messages import WrittenRollout
from apportion.verl.coordinator.service import Coordinator
from apportion.verl.seam import call_before

logger = logging.getLogger(__name__)

FILE, KIND = "allocation.pt", "verl run"
REMEDY = "resume from another checkpoint with trainer.resume_mode=resume_path, or start a new run from its weights"
FOLDER = "global_step_"
RECORDS = (Batch, Belief, Prompt, Rollout, WrittenRollout)


class SavedAllocation(CheckpointCallback):  # type: ignore[misc]
    """Saves the allocator's state with every checkpoint. Set it as ``trainer.checkpoint_callback_class``.

    Making one has the trainers of this process write the state before their own files.
    """

    def __init__(self, config: Any = None) -> None:
        super().__init__(config=config)
        call_before(trainer_base.PPOTrainer, "_save_checkpoint", write_before_weights)

    def on_save(self, trainer: Any, global_step: int, checkpoint_dir: str, async_save: bool = False, **_: Any) -> None:
        """Write the coordinator's state to ``checkpoint_dir`` again, if it can have changed meanwhile."""
        if trainer.trainer_mode != "sync":
            self.write(trainer, Path(checkpoint_dir))

    def write(self, trainer: Any, folder: Path) -> None:
        """Write the coordinator's state to ``folder``."""
        manager = trainer.agent_loop_manager
        state = manager.coordinator_state()
        folder.mkdir(parents=True, exist_ok=True)
        save_state(folder / FILE, KIND, {"settings": manager.allocation.settings, "coordinator": state})


def write_before_weights(trainer: Any) -> None:
    """Write our file of the checkpoint that ``trainer`` begins to save."""
    folder = Path(trainer.config.trainer.default_local_dir) / f"{FOLDER}{trainer.global_steps}"
    trainer.checkpoint_callback.write(trainer, folder)


def resumed_file(config: DictConfig, *, strict: bool = False) -> Path | None:
    """Return our file in the checkpoint that verl resumes under ``config``; None for a run from scratch.

    Raises ValueError if ``config`` names no checkpoint and must, if verl's tracker is damaged, and with ``strict`` if
    there is no such file.
    """
    trainer = config.trainer
    if trainer.resume_mode == "disable":
        return None
    folder = trainer.resume_from_path
    if trainer.resume_mode == "auto":
        folder = _latest(Path(trainer.default_local_dir).absolute())
        if folder is None:
            return None
    if not folder:
        raise ValueError(
            f"trainer.resume_from_path must be the folder of a checkpoint with resume_mode={trainer.resume_mode}, got "
            f"{folder}; name it, or set resume_mode to auto or disable"
        )
    path = Path(folder).absolute() / FILE
    if strict and not path.exists():
        raise ValueError(
            f"a checkpoint must hold the allocator's state, got {path.parent} without {path.name}; {REMEDY}"
        )
    return path


def load_into(coordinator: Coordinator, path: Path) -> None:
    """Have ``coordinator`` continue from the file ``path`` of a checkpoint, which may be missing or damaged.

    Then it continues as a new run, and a warning says so. With ``resume="strict"`` SavedStateError is raised instead.

    Raises OtherSettingsError if the file is of another allocator, baseline or selection, or of other settings.
    """
    new_run = copy.deepcopy(coordinator.state())
    try:
        _load(coordinator, path)
    except OtherSettingsError:
        raise
    except (ValueError, OSError) as error:
        if coordinator.allocation.resume == "strict":
            raise
        coordinator.load(new_run)  # because a part of a damaged state may have been loaded
        fault = " ".join(str(error).removesuffix(f"; {REMEDY}").split())
        logger.warning(
            "The weights are those of %s, but the allocator's state is that of a new run: %s; set "
            "allocation.resume=strict to stop instead",
            path.parent.name,
            fault,
        )


def _load(coordinator: Coordinator, path: Path) -> None:
    """Have ``coordinator`` continue from ``path``. Raises SavedStateError, OtherSettingsError or OSError."""
    parts = load_state(path, KIND, remedy=REMEDY, records=RECORDS)
    try:
        with restoring(path, REMEDY):
            saved = SavedValues(parts, KIND, ["settings", "coordinator"])
            check_same_settings(saved.state("settings"), coordinator.allocation.settings)
            coordinator.load(saved.state("coordinator"))
    except SavedStateError as error:
        if isinstance(error.__cause__, OtherSettingsError):
            raise OtherSettingsError(f"{path}: {error.__cause__}") from error
        raise


def _latest(folder: Path) -> str | None:
    """Return the folder of the checkpoint that verl's tracker names; None if there is none."""
    try:
        found: str | None = find_latest_ckpt_path(str(folder))
    except ValueError as error:
        raise ValueError(
            f"verl's tracker in {folder} must hold the step of the latest checkpoint, got something else; write that "
            "step to latest_checkpointed_iteration.txt, or set trainer.resume_mode=resume_path"
        ) from error
    return found
