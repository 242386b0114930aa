"""How the rollouts were spent, in whatever verl logs to: under ``allocation/``, beside the metrics of the same step.

verl has no hook for metrics from outside. Two names of its trainer's module are replaced in the trainer's process: the
class that logs, by one that adds ours, and the function that pads, by one that counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from verl.trainer.ppo.v1 import trainer_base

from apportion.integrations.spending import PREFIX

STEP = "training/global_step"
"""What is in the metrics of a training step, and not in those of a validation alone."""

Metrics = Callable[[], dict[str, float]]


class Logged(trainer_base.Tracking):  # type: ignore[misc]
    """verl's ``Tracking``, which adds what ``metrics`` gives, and how many rows were trained on and were padding."""

    metrics: ClassVar[Metrics | None] = None

    def log(self, data: dict[str, Any], step: int, backend: Any = None) -> None:
        metrics = type(self).metrics
        if STEP in data and metrics is not None:
            ours = metrics() | padding.drained()
            data = data | {PREFIX + name: value for name, value in ours.items()}
        super().log(data, step, backend)


class Padding:
    """verl's ``upsample_batch_to_divisible_size``, counting rows."""

    def __init__(self, pad: Callable[..., Any]) -> None:
        self._pad, self._rows, self._padding = pad, 0, 0

    def __call__(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        padded = self._pad(batch, *args, **kwargs)
        self._rows += len(batch)
        self._padding += len(padded) - len(batch)
        return padded

    def drained(self) -> dict[str, float]:
        """The counts since the last call."""
        found = {"rows": float(self._rows), "padding": float(self._padding)}
        self._rows = self._padding = 0
        return found


padding = Padding(trainer_base.upsample_batch_to_divisible_size)


def through(metrics: Metrics) -> None:
    """Has verl's trainer, in this process, log what ``metrics`` gives; a later call takes the place of an earlier."""
    Logged.metrics = metrics
    trainer_base.Tracking = Logged
    trainer_base.upsample_batch_to_divisible_size = padding
