"""What a run has learned, saved beside the cookbook's checkpoints: one file for each step from which a run may resume.

These are all steps after which the cookbook may write a checkpoint: the multiples of ``save_every`` and of
``rolling_save_every`` (0 for none), and the last one. A state is written when the rollouts of its step are finished,
which is before the checkpoint. So every checkpoint has its state, and a state without a checkpoint is never read.
"""

from pathlib import Path
from typing import Any

from tinker_cookbook.checkpoint_utils import load_checkpoints_file
from tinker_cookbook.rl.train import Config

from apportion.engines.saved_state import save_state

KIND = "tinker-cookbook run"
REMEDY = "resume a run that was begun with apportion, or start a new one in another log_path"


def state_file(config: Config, step: int) -> Path:
    """Return the file with the state after ``step`` steps."""
    return Path(config.log_path) / "apportion" / f"{step:06d}.state"


def save(config: Config, step: int, last: int, state: dict[str, Any]) -> None:
    """Save the state after ``step`` of ``last`` steps if a checkpoint may follow.

    Delete the files of rolling checkpoints.
    """
    kept, rolling = (range(0, last + 1, every or last + 1) for every in (config.save_every, config.rolling_save_every))
    if not (step in kept or step in rolling or step == last):
        return
    path = state_file(config, step)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_state(path, KIND, state)
    newest = max((record.batch or 0 for record in load_checkpoints_file(config.log_path)), default=0)
    for older in path.parent.glob("[0-9]*.state"):
        if int(older.stem) < newest and int(older.stem) not in kept:
            older.unlink(missing_ok=True)
