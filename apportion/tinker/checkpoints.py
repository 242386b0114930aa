"""What a run has learned, saved beside the cookbook's checkpoints: one file for each step that may be resumed."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinker_cookbook.checkpoint_utils import get_last_checkpoint, load_checkpoints_file

from apportion.engines.saved_state import load_state, restoring, save_state
from apportion.predictors.saved import SavedValues
from apportion.tinker.rewards import EarlierEpisode

KIND = "tinker-cookbook run"
REMEDY = "resume a run that was begun with apportion, or start a new one in another log_path"


@dataclass(frozen=True)
class StateFiles:
    """The states of a run in ``log_path``, for every step after which the cookbook may write a checkpoint.

    These are the multiples of ``save_every`` and of ``rolling_save_every`` (0 for none), and the ``last`` step. A state
    is written when the rollouts of its step are finished, which is before the checkpoint. So every checkpoint has its
    state, and a state without a checkpoint is never read.
    """

    log_path: str
    save_every: int
    rolling_save_every: int
    last: int

    def resumed(self) -> int:
        """Return the number of steps of the checkpoint that the cookbook resumes from; 0 if there is none."""
        record = get_last_checkpoint(self.log_path)
        return 0 if record is None else int(record.batch or 0)

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Write the state after ``step`` steps if a checkpoint may come, and delete those of rolling ones before it."""
        if not (
            step == self.last or _is_multiple(step, self.save_every) or _is_multiple(step, self.rolling_save_every)
        ):
            return
        path = self._path(step)
        path.parent.mkdir(parents=True, exist_ok=True)
        save_state(path, KIND, state)
        newest = max((record.batch or 0 for record in load_checkpoints_file(self.log_path)), default=0)
        for older in path.parent.glob("*.state"):
            if older.stem.isdigit() and int(older.stem) < newest and not _is_multiple(int(older.stem), self.save_every):
                older.unlink()

    def restore(self, step: int, names: list[str], load: Callable[[SavedValues], None]) -> None:
        """Have ``load`` take the state after ``step`` steps, which has these ``names``. Raises SavedStateError."""
        path = self._path(step)
        state = load_state(path, KIND, remedy=REMEDY, records=(EarlierEpisode,))
        with restoring(path, REMEDY):
            load(SavedValues(state, KIND, names))

    def _path(self, step: int) -> Path:
        return Path(self.log_path) / "apportion" / f"{step:06d}.state"


def _is_multiple(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
