"""A warning with the cause, if several generation batches in a row have no gradient.

A run goes on if all rewards are equal: its loss is 0 and so are its gradients, which is easily overlooked in a log. The
warning names the cause, because each cause has another remedy.
"""

import logging
from dataclasses import dataclass, field

import torch

from apportion.trl.planner import FinishedBatch

logger = logging.getLogger(__name__)

PATIENCE = 5
"""Number of batches in a row without a gradient that causes the warning."""


@dataclass
class NoSignal:
    """Counts the batches in a row without a gradient. Warns of the latest batch's cause, and of each cause once.

    ``extract`` is the name of what finds answers in label-free training, None if rewards come from functions.
    """

    extract: str | None = None
    _batches: int = 0
    _said: set[str] = field(default_factory=set)

    def add(self, finished: FinishedBatch) -> None:
        """Count a batch, and warn if it is the last of ``PATIENCE`` without a gradient."""
        cause = self.cause(finished)
        self._batches = 0 if cause is None else self._batches + 1
        if self._batches >= PATIENCE and cause is not None and cause not in self._said:
            self._said.add(cause)
            logger.warning("%d generation batches in a row had no gradient: %s", PATIENCE, cause)

    def cause(self, finished: FinishedBatch) -> str | None:
        """Return why ``finished`` has no gradient, and what to do; None if it has one."""
        if self.extract is not None:
            return self._cause_of_votes(finished)
        of_groups = (group.rollouts for group in finished.groups)  # with responses of earlier steps
        rewards = {rollout.reward for own in (*finished.batch.rollouts, *of_groups) for rollout in own}
        if not rewards:
            return "no completion got a reward; look at what the reward functions return"
        if _trains(finished) and not torch.as_tensor(finished.grouped.penalties).any():
            return None  # a baseline from history gives equal rewards an advantage too
        if rewards == {0.0}:
            return (
                "every reward was 0; look at completions (log_completions=True) and at the reward function, raise "
                "max_completion_length if they are cut off, or train on easier prompts"
            )
        if len(rewards) == 1:
            return (
                f"every reward was {rewards.pop():g}; train on harder prompts, or look at the reward function, which "
                "tells nothing apart"
            )
        if _trains(finished):
            return None
        return (
            "rewards were equal within every group, so that all advantages were 0; train on prompts that are neither "
            "solved nor hopeless, or give each more rollouts"
        )

    def _cause_of_votes(self, finished: FinishedBatch) -> str | None:
        if not any(rollout.answer for rollouts in finished.batch.rollouts for rollout in rollouts):
            return (
                f"no answer was found in any completion by extract={self.extract}; name another extractor or a "
                "function, or raise max_completion_length if completions are cut off"
            )
        if not finished.groups:
            return "no vote had a winner; raise the number of samples per prompt"
        if _trains(finished):
            return None
        return "all answers to a prompt agreed, so that all advantages were 0; train on harder prompts"


def _trains(finished: FinishedBatch) -> bool:
    """Return whether any rollout has an advantage and a weight in the loss."""
    return bool((finished.advantages * finished.weights != 0).any())
