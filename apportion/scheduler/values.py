"""What a stream and its engine exchange: requests, decisions and updates."""

from dataclasses import dataclass, field

from apportion.types import Batch, Floats, Group, Prompt


@dataclass(frozen=True, slots=True)
class Ticket:
    """A request for one rollout.

    Args:
        number: of the request; each is answered once.
        unit: the number of the prompts that are planned together.
        prompt: what to sample.
        place: the place of the prompt in its unit.
        rollout: which rollout of the prompt it is, from 0.
        attempt: how often this rollout was requested before.
        version: the updates that the policy had when it was requested; a newer policy may sample it.
    """

    number: int
    unit: int
    prompt: Prompt
    place: int
    rollout: int
    attempt: int
    version: int


@dataclass(frozen=True, slots=True)
class Update:
    """What the trainer takes: finished groups, oldest first. Training on them makes the weights ``version``.

    Args:
        version: of the policy after the update.
        groups: what is trained on, [G].
        ages: of the groups at the start of the update, in updates, [G].
        batch: all that was sampled for it, also of prompts without a group.
        baselines: the baseline of each group, [G], from earlier updates alone; None without a baseline.
        advantages: of all rollouts of ``groups``, [N], weighted for the loss, and 0 for those outside it; None if the
            decisions have no estimator of their own (``RunDecisions``).
    """

    version: int
    groups: tuple[Group, ...]
    ages: tuple[int, ...]
    batch: Batch = field(compare=False, repr=False)
    baselines: Floats | None = field(default=None, compare=False, repr=False)
    advantages: Floats | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class SlotDecision:
    """The answer to free slots: requests to start, requests to cancel, and an update if one is due."""

    requests: tuple[Ticket, ...] = ()
    cancelled: tuple[Ticket, ...] = ()
    update: Update | None = None
