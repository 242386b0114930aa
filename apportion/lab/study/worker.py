"""One process of a study: it trains a run on one thread, reports each step, and stops after a step when asked."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from apportion.allocators import Allocator
from apportion.lab.training.pool import Pool
from apportion.lab.training.settings import Training
from apportion.lab.training.trainer import Trainer
from apportion.records import ROLLOUTS
from apportion.runs.children import Parent, RunError
from apportion.runs.folder import LOCK, hold_lock
from apportion.runs.whole_files import remove_unfinished

SHOWN = ("step", "rollouts", "tokens", "mean_16", "success", "informative", "counts")
"""Keys of a step's record that the display shows."""
LOCK_SECONDS = 20.0
"""How many seconds a run waits for the lock of an earlier study, whose processes end shortly after it."""


def train(parent: Parent, directory: Path, training: Training, allocator: Allocator, seed: int, pool: Pool) -> None:
    """Train one run, from its checkpoint in ``directory`` if there is one, until it is finished or must stop.

    Raises RunError if another process trains it, or if what it has saved is damaged.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(hold_lock(directory / LOCK, LOCK_SECONDS))
            remove_unfinished(directory)
            remove_unfinished(directory / ROLLOUTS)
            trainer = Trainer(training, allocator, seed, directory, pool)
        except BlockingIOError as error:
            raise RunError(
                f"one process trains a run at a time, got {directory}, which another still trains; wait until it ends"
            ) from error
        except ValueError as error:  # a checkpoint or metrics that cannot be used
            raise RunError(str(error)) from error

        def show(record: dict[str, Any]) -> bool:
            parent.tell({key: record[key] for key in SHOWN if key in record})
            return not parent.wants_to_stop

        if show(trainer.spent):
            trainer.run(show)
