"""Pilot-Commit: a few pilots for every prompt, then many commits for prompts that are neither too hard nor too easy.

Reference: W. Kim, Z. Yang, J. N. Yan, J. Liu, "Spend Your Rollouts Where It Counts: Rollout Allocation for Group-Based
RL Post-Training", arXiv 2605.26606. A prompt passes if the mean reward of its pilots is between ``min_rate`` and
``max_rate``. Its group is its pilots and its commits. The commits of prompts that passed in one round and the pilots of
fresh prompts share the next round, so that no engine waits for pilots alone. The defaults are the paper's: 16 pilots,
48 commits, 0.125 to 0.75, at most 10 rounds. It starts a round with 3 times as many prompts as it trains on.

A prompt that passed when enough others had passed stays in a buffer, and its pilots count if it comes again within
``max_age`` steps. They are then reused rollouts, which enter the loss with the log-probabilities of the current policy,
as in the published code.
Note: the paper draws commits from the buffer by itself, at random. A driver of this package only gives an allocator the
prompts of a batch, so that a buffered prompt waits until it is drawn again. ``buffered`` names these prompts, for a
rule that chooses prompts. Prompts whose pilots are all correct are left to such a rule, too; the paper drops them for
the next epoch.
Note: fresh prompts are drawn only while the prompts that passed are too few, and commits go to the first that passed.
The published code runs pilots in every round, and draws the commits at random.
Note: the published code raises an error if the rounds do not suffice. We train on the groups found and log a warning,
because the rollouts are paid for.
Note: pilots are in the group that they let pass, which biases its gradient; see docs/allocators.md for the others.
With these defaults and RLOO the expected gradient of a group that passed is 1.14 times the true one at p = .1, 1.00 at
.3 and .5, 1.02 at .7 and 1.37 at .9. A prompt passes with probability .49, .97, .99, .75 and .07 at these p.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from apportion.allocators.base import Allocator, Size, check_rewards
from apportion.allocators.stored_rollouts import for_reuse, plain_rollout, restored_rollout, saved_by_prompt
from apportion.checks import check_least
from apportion.predictors.saved import SavedValues
from apportion.types import Batch, Counts, Group, Mask, Needs, Plan, Prompt, Rollout

logger = logging.getLogger(__name__)


@dataclass
class _Buffer:
    """Pilots by prompt id, oldest first, and the current step."""

    step: int = 0
    pilots: dict[str, tuple[Rollout, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PilotCommit(Allocator):
    """Pilots for every prompt, and commits for those that pass, until ``target`` have both; needs binary rewards.

    Drivers need a source of fresh prompts.

    Args:
        pilots: rollouts of every prompt at first.
        commits: further rollouts of a prompt that passed.
        min_rate: the smallest share of correct pilots with which a prompt passes.
        max_rate: the largest share of correct pilots with which a prompt passes.
        target: groups wanted, by default as many as the batch started with.
        draw: fresh prompts in each further draw, by default as many as the batch started with.
        max_rounds: the most rounds of a batch, at least one for pilots and one for commits.
        max_age: the steps for which the pilots of a prompt that passed too late are kept; 0 keeps none.

    >>> from apportion import Prompt, Rollout
    >>> allocator = PilotCommit(pilots=2, commits=6, target=2, draw=3)
    >>> batch = allocator.start([Prompt("a"), Prompt("b")])
    >>> batch = batch.add(allocator.plan(batch), [[Rollout(True), Rollout(False)], [Rollout(False)] * 2])
    >>> allocator.plan(batch)
    Plan(counts=array([0, 0]), fresh=3)
    >>> batch = batch.join(allocator.start([Prompt("c"), Prompt("d"), Prompt("e")]))
    >>> allocator.plan(batch).counts.tolist()
    [6, 0, 2, 2, 2]
    """

    pilots: int = 16
    commits: int = 48
    min_rate: float = 0.125
    max_rate: float = 0.75
    target: int | None = None
    draw: int | None = None
    max_rounds: int = 10
    max_age: int = 4

    name: ClassVar[str] = "pilot_commit"
    _buffer: _Buffer = field(default_factory=_Buffer, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        remedy = "leave it out, or raise it"
        check_least(self, remedy, pilots=1, commits=1, target=1, draw=1, max_rounds=2, max_age=0)
        if not 0 <= self.min_rate <= self.max_rate <= 1:
            raise ValueError(
                "min_rate and max_rate must be in [0, 1] and in this order for pilot_commit, got "
                f"{self.min_rate} and {self.max_rate}; the paper has 0.125 and 0.75"
            )
        if not any(self.min_rate <= right / self.pilots <= self.max_rate for right in range(self.pilots + 1)):
            raise ValueError(
                f"a share of {self.pilots} pilots must be able to lie between min_rate and max_rate, got "
                f"{self.min_rate} and {self.max_rate}; raise pilots, or widen the bounds"
            )

    @property
    def needs(self) -> Needs:
        return Needs(binary=True, reused_rollouts=self.max_age > 0, reused_incorrect=self.max_age > 0)

    @property
    def buffered(self) -> dict[str, int]:
        """The ids of prompts whose pilots wait for commits, oldest first, with the step of the pilots."""
        return {prompt_id: int(own[0].step or 0) for prompt_id, own in self._buffer.pilots.items()}

    def size(self, prompts: int) -> Size:
        target = prompts if self.target is None else self.target
        draw = prompts if self.draw is None else self.draw
        at_once = self.max_age > 0 and target > prompts  # if all prompts are buffered, and too few
        draws = self.max_rounds - 2 + at_once
        drawn = max(prompts, draw) + (self.max_rounds - 2) * draw
        asked = self.pilots * drawn + self.commits * target
        kept = (self.pilots + self.commits) * target
        return Size(asked, kept, fresh=draws * draw, least=self.pilots * prompts, rounds=self.max_rounds)

    def start(self, prompts: Sequence[Prompt]) -> Batch:
        """Return a batch without rollouts, but for the pilots of buffered prompts."""
        batch = super().start(prompts)
        ids = [prompt.id for prompt in batch.prompts]
        first = dict(zip(reversed(ids), reversed(range(len(ids))), strict=True))
        kept = tuple(self._buffer.pilots.get(own, ()) if first[own] == q else () for q, own in enumerate(ids))
        return replace(batch, rollouts=kept)

    def plan(self, batch: Batch) -> Plan:
        nothing, begun = np.zeros(len(batch.prompts), np.int64), self._begun(batch)
        if batch.round >= self.max_rounds:
            return Plan(nothing)
        asked_first = self._pilots_of(batch)
        wanted = self._wanted(batch) - int(begun.sum())
        waiting = self._waiting(batch)
        chosen = waiting & (np.cumsum(waiting) <= wanted)
        commits = np.where(begun | chosen, asked_first + self.commits - batch.asked, 0)
        if chosen.sum() >= wanted or batch.round == self.max_rounds - 1:
            return Plan(commits)
        pilots = np.where(begun | chosen, 0, np.maximum(asked_first - batch.asked, 0))
        fresh = batch.started if self.draw is None else self.draw
        if pilots.any() or not fresh:
            return Plan(commits + pilots)
        return Plan(nothing, fresh=fresh)

    def final(self, batch: Batch, plan: Plan) -> Mask:
        """Return none before the last round, which has the last commits wanted or allowed, and then all prompts."""
        begun = batch.asked + plan.counts > self._pilots_of(batch)
        last = begun.sum() >= self._wanted(batch) or batch.round + 1 >= self.max_rounds
        return np.full(len(batch.prompts), bool(last))

    def groups(self, batch: Batch) -> list[Group]:
        """Return the groups that have commits, in prompt order: at most ``target``, or fewer if the rounds ended."""
        check_rewards(self, batch)
        begun = [(batch.prompts[q], batch.rollouts[q]) for q in np.flatnonzero(self._begun(batch))]
        return [
            Group(prompt, own, recompute=np.array([rollout.step is not None for rollout in own]))
            for prompt, own in begun
            if own
        ]

    def metrics(self, batch: Batch) -> dict[str, float]:
        """Return the numbers of prompts by what became of them, of those buffered before, and whether it was capped."""
        begun, piloted = self._begun(batch), (batch.asked > 0) & (self._pilots_of(batch) > 0)
        return {
            "piloted": float(piloted.sum()),
            "passed": float((piloted & (begun | self._waiting(batch))).sum()),
            "committed": float(begun.sum()),
            "buffered": float(len(self._buffer.pilots)),
            "capped": float(self._capped(batch)),
        }

    def observe(self, batch: Batch) -> None:
        """Buffer the pilots of prompts that passed too late, drop old ones, and warn of a batch that is too small."""
        buffer, begun = self._buffer, self._begun(batch)
        for q in np.flatnonzero(begun):
            buffer.pilots.pop(batch.prompts[q].id, None)
        for q in np.flatnonzero(self._waiting(batch) & (self._pilots_of(batch) > 0)):
            self._keep(batch.prompts[q].id, batch.rollouts[q])
        buffer.step += 1
        for prompt_id in [own for own, step in self.buffered.items() if buffer.step - step > self.max_age]:
            del buffer.pilots[prompt_id]
        if self._capped(batch):
            logger.warning(
                "pilot_commit found %d prompts of the %d wanted, among %d prompts in %d rounds, the most allowed; "
                "raise max_rounds or draw, or train on prompts that are neither solved nor hopeless",
                begun.sum(),
                self._wanted(batch),
                len(batch.prompts),
                batch.round,
            )

    def _memory(self) -> dict[str, Any]:
        kept = [(prompt_id, list(map(plain_rollout, own))) for prompt_id, own in self._buffer.pilots.items()]
        return {"buffer": {"step": self._buffer.step, "pilots": kept}}

    def _restore(self, saved: SavedValues) -> None:
        buffer = SavedValues(saved.state("buffer"), "the buffer of pilots", ["step", "pilots"])
        step, pilots = buffer.count("step"), saved_by_prompt(buffer, "pilots", list)
        restored = {id: tuple(restored_rollout(values, step) for values in own) for id, own in pilots}
        self._buffer.step, self._buffer.pilots = step, restored

    def _wanted(self, batch: Batch) -> int:
        return batch.started if self.target is None else self.target

    def _pilots_of(self, batch: Batch) -> Counts:
        """Return how many pilots each prompt [P] is asked for: none if it came with those of the buffer."""
        reused = [bool(own) and own[0].step is not None for own in batch.rollouts]
        return np.where(np.array(reused, bool), 0, self.pilots)

    def _begun(self, batch: Batch) -> Mask:
        """Return which prompts [P] were asked for commits."""
        return batch.asked > self._pilots_of(batch)

    def _waiting(self, batch: Batch) -> Mask:
        """Return which prompts [P] passed and have no commits yet: the mean of all their pilots is within bounds."""
        piloted = (batch.asked == self._pilots_of(batch)) & (batch.trials > 0)
        rate = batch.successes / np.maximum(batch.trials, 1)
        return piloted & (self.min_rate <= rate) & (rate <= self.max_rate)

    def _capped(self, batch: Batch) -> bool:
        """Return whether a finished batch is too small. Its last round was not needed if no prompt waited for it."""
        return batch.round >= self.max_rounds - 1 and bool(self._begun(batch).sum() < self._wanted(batch))

    def _keep(self, prompt_id: str, pilots: tuple[Rollout, ...]) -> None:
        """Put ``pilots`` into the buffer, unless one has no completion to train on, or no verdict."""
        usable = all(rollout.completion is not None and rollout.correct is not None for rollout in pilots)
        if self.max_age and usable:
            self._buffer.pilots.pop(prompt_id, None)
            self._buffer.pilots[prompt_id] = tuple(for_reuse(rollout, self._buffer.step) for rollout in pilots)
