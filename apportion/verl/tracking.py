"""Log how the rollouts were spent wherever verl logs: under ``allocation/``, beside verl's metrics of the same step.

verl has no hook for this. Two names in the module of its trainer are replaced in the trainer's process: the class that
logs, by one that adds our metrics, and the function that pads batches, by one that counts rows.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

from verl.trainer.ppo.v1 import trainer_base

from apportion.engines.metrics import PREFIX
from apportion.verl.seam import replace

STEP = "training/global_step"
"""A metric that training steps have and validations lack."""

COUNTED = ("rows", "padding")
counts = Counter[str]()
"""The rows and the padding rows of all updates since the last step was logged."""

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
            ours = metrics() | {name: float(counts.pop(name, 0)) for name in COUNTED}
            data = data | {name if "/" in name else PREFIX + name: value for name, value in ours.items()}
        super().log(data, step, backend)


def counted(pad: Callable[..., Any]) -> Callable[..., Any]:
    """Return verl's ``upsample_batch_to_divisible_size``, which also counts rows."""

    def padded(batch: Any, *args: Any, **kwargs: Any) -> Any:
        found = pad(batch, *args, **kwargs)
        counts.update(rows=len(batch), padding=len(found) - len(batch))
        return found

    return padded


def log_metrics(metrics: Metrics) -> None:
    """Have verl's trainer in this process log the result of ``metrics``, which replaces that of an earlier call."""
    AllocationTracking.metrics = metrics
    trainer_base.Tracking = AllocationTracking
    replace(trainer_base, "upsample_batch_to_divisible_size", counted)
