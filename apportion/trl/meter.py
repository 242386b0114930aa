"""A meter for TRL's own trainers, which changes nothing: what other rules would have done, and signs of sickness.

from apportion.trl import Meter

trainer = GRPOTrainer(...)
trainer.add_callback(Meter(trainer))
"""

import logging
from typing import Any

import torch
from transformers import TrainerCallback

from apportion.diagnosis.health import health_of
from apportion.diagnosis.meter import RolloutMeter
from apportion.diagnosis.statements import health_statements
from apportion.engines.prompts import text_of
from apportion.records.scalars import scalars_of
from apportion.trl.advantages import weighted_rewards
from apportion.types import Prompt

logger = logging.getLogger(__name__)

HEALTH_CHECKS = 50
"""The health of a run is looked at again once its log has grown by a fiftieth, so that long runs do not pay for it."""


class Meter(TrainerCallback):
    """Logs ``apportion.diagnosis.meter.RolloutMeter`` under ``meter/`` with the metrics of TRL's trainer.

    It warns in one line when the log shows a sign of sickness. It reads what TRL logs, samples nothing, and draws no
    random number, so that the run stays the same to the last bit. Its belief begins anew if a run is resumed.

    ``trainer`` is TRL's ``GRPOTrainer`` or ``RLOOTrainer``, or a subclass. Raises TypeError for a trainer with an
    allocator, whose metrics are under ``allocation/``, and for another kind.
    """

    def __init__(self, trainer: Any) -> None:
        if hasattr(trainer, "allocation") or not hasattr(trainer, "_logs"):
            raise TypeError(
                f"trainer must be TRL's GRPOTrainer or RLOOTrainer without an allocator, got {type(trainer).__name__}; "
                "trainers with one log allocation/ and selection/"
            )
        self.trainer = trainer
        self.meter = RolloutMeter()
        self._seen: Any = None
        self._looked, self._told = 0, set[str]()

    def on_step_end(self, args: Any, state: Any, *rest: Any, **settings: Any) -> None:
        """Measure the generation batch if it is a new one."""
        trainer = self.trainer
        if not state.is_world_process_zero or trainer._buffered_inputs is self._seen:
            return
        self._seen, size = trainer._buffered_inputs, trainer.num_generations
        prompts = [Prompt(text_of(prompt)) for prompt in list(trainer._logs["prompt"])[::size]]
        scores = torch.tensor([list(column) for column in trainer._logs["rewards"].values()], dtype=torch.float64).T
        rewards = weighted_rewards(scores, trainer.reward_weights.detach().cpu())
        for name, value in self.meter.add(prompts, rewards.view(-1, size).tolist()).items():
            trainer._metrics["train"][f"meter/{name}"].append(value)

    on_substep_end = on_step_end  # a generation batch may be shorter than an optimizer step

    def on_log(self, args: Any, state: Any, *rest: Any, **settings: Any) -> None:
        """Look for signs of sickness, and tell each kind once."""
        rows = state.log_history
        if not state.is_world_process_zero or len(rows) < self._looked + max(1, len(rows) // HEALTH_CHECKS):
            return
        self._looked = len(rows)
        found = health_of(None, scalars_of("run", "TRL", [(row["step"], row) for row in rows if "step" in row]))
        for sign, line in zip(found.signs, health_statements(found), strict=False):
            if sign.kind not in self._told:
                self._told.add(sign.kind)
                logger.warning("%s", line)
