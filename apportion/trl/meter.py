"""A meter for TRL's own trainers, which changes nothing: what other rules would have done, and signs of sickness.

from apportion.trl import Meter

trainer = GRPOTrainer(...)
trainer.add_callback(Meter(trainer))
"""

import logging
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback

from apportion.checks import check_choice
from apportion.diagnosis.health import health_of
from apportion.diagnosis.meter import RolloutMeter
from apportion.diagnosis.phantoms import OUTCOME
from apportion.diagnosis.statements import health_statements
from apportion.engines.prompts import text_of
from apportion.records.scalars import scalars_of
from apportion.scheduler.shaping import REMEDY, ShapingAlarm, shaping_of
from apportion.trl.advantages import weighted_rewards
from apportion.types import Prompt

logger = logging.getLogger(__name__)

HEALTH_CHECKS = 50
"""The health of a run is checked again when its log has grown by this share, so that long runs do not pay for it."""


class Meter(TrainerCallback):
    """Logs ``apportion.diagnosis.meter.RolloutMeter`` under ``meter/`` with the metrics of TRL's trainer.

    It warns in one line when the log shows a sign of sickness. It reads what TRL logs, samples nothing, and draws no
    random number, so that the run stays the same to the last bit. Its belief begins anew if a run is resumed.

    ``outcome`` is the reward function that is above 0 for correct completions, by default the first of several with a
    name such as accuracy. With it phantom groups are logged, and one line names a run that they make sick.

    ``trainer`` is TRL's ``GRPOTrainer`` or ``RLOOTrainer``, or a subclass. Raises TypeError for a trainer with an
    allocator, whose metrics are under ``allocation/``, and for another kind.
    """

    def __init__(self, trainer: Any, outcome: str | None = None) -> None:
        if hasattr(trainer, "allocation") or not hasattr(trainer, "_logs"):
            raise TypeError(
                f"trainer must be TRL's GRPOTrainer or RLOOTrainer without an allocator, got {type(trainer).__name__}; "
                "trainers with one log allocation/ and selection/"
            )
        names = trainer.reward_func_names
        if outcome is not None:
            check_choice("outcome", outcome, names)
        named = next((name for name in names if OUTCOME.search(name)), None) if outcome is None else outcome
        self.outcome = named if len(names) > 1 else None
        self.trainer = trainer
        self.meter, self._alarm = RolloutMeter(), ShapingAlarm()
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
        found = self.meter.add(prompts, rewards.view(-1, size).tolist())
        if self.outcome is not None:
            outcomes = np.array(list(trainer._logs["rewards"][self.outcome]), np.float64)
            outcomes = np.where(np.isnan(outcomes), outcomes, outcomes > 0)
            shaping = shaping_of(outcomes, rewards.numpy(), np.arange(len(rewards)) // size)
            if shaping is not None:
                found |= {"phantom": shaping.groups, "phantom_gradient": float(np.nan_to_num(shaping.gradient))}
            if said := self._alarm.add(shaping, state.global_step):
                logger.warning("SICK (shaping): %s. %s", said, REMEDY)
        for name, value in found.items():
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
