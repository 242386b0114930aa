"""Log how the rollouts were spent wherever verl logs: under ``allocation/``, beside verl's metrics of the same step.

verl has no hook for this. Two names in the module of its trainer are replaced in the trainer's process: the class that
logs, by one that adds our metrics, and the function that pads batches, by one that counts rows.
"""

from collections.abc import Callable
from typing import Any, ClassVar

from verl.trainer.ppo.v1 import trainer_base

from apportion.engines.metrics import PREFIX

STEP = "training/global_step"
"""A metric that training steps have, and validations do not."""

Metrics = Callable[[], dict[str, float]]


class AllocationTracking(trainer_base.Tracking):  # type: ignore[misc]
    """verl's ``Tracking``, which adds the result of ``metrics`` and the numbers of trained and padding rows.

    They are logged under ``allocation/``, unless their name has a prefix of its own.
    """

    metrics: ClassVar[Metrics | None] = None

    def log(self, data: dict[str, Any], step: int, backend: Any = None) -> None:
        """Log ``data``, with our metrics if it is of a training step."""
        metrics = type(self).metrics
        if STEP in data and metrics is not None:
            ours = metrics() | padding.take_counts()
            data = data | {name if "/" in name else PREFIX + name: value for name, value in ours.items()}
        super().log(data, step, backend)


class PaddingCounter:
    """verl's ``upsample_batch_to_divisible_size``, which also counts rows."""

    def __init__(self, pad: Callable[..., Any]) -> None:
        self._pad, self._rows, self._padding = pad, 0, 0

    def __call__(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Return ``batch`` as verl pads it."""
        padded = self._pad(batch, *args, **kwargs)
        self._rows += len(batch)
        self._padding += len(padded) - len(batch)
        return padded

    def take_counts(self) -> dict[str, float]:
        """Return the counts since the last call."""
        found = {"rows": float(self._rows), "padding": float(self._padding)}
        self._rows = self._padding = 0
        return found


padding = PaddingCounter(trainer_base.upsample_batch_to_divisible_size)


def log_metrics(metrics: Metrics) -> None:
    """Have verl's trainer in this process log the result of ``metrics``, which replaces that of an earlier call."""
    AllocationTracking.metrics = metrics
    trainer_base.Tracking = AllocationTracking
    trainer_base.upsample_batch_to_divisible_size = padding
