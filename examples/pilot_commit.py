"""Pilot-Commit, a rule of your own: a few pilots for every prompt, then commits for those of middling difficulty.

Reference: W. Kim, Z. Yang, J. N. Yan, J. Liu, "Spend Your Rollouts Where It Counts: Rollout Allocation for Group-Based
RL Post-Training", arXiv 2605.26606. A prompt passes if the mean reward of its pilots is between ``min_rate`` and
``max_rate``. Its group is its pilots and its commits. The commits of prompts that passed in one round and the pilots of
fresh prompts share the next round, so that no engine waits for pilots alone. The defaults are the paper's: 16 pilots,
48 commits, 0.125 to 0.75, at most 10 rounds. It starts a round with 3 times as many prompts as it trains on.

Note: the paper keeps the pilots of prompts that passed when enough others had, and trains on them in a later step. Here
they are lost.
Note: fresh prompts are drawn only while the prompts that passed are too few, and commits go to the first that passed.
The published code runs pilots in every round, and draws the commits at random. It raises an error if the rounds do not
suffice; this rule trains on the groups found, because the rollouts are paid for.
Note: pilots are in the group that they let pass, which biases its gradient. With these defaults and RLOO the expected
gradient of a group that passed is 1.14 times the true one at p = .1, 1.00 at .3 and .5, 1.02 at .7 and 1.37 at .9.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from apportion.allocators import ALLOCATORS, Allocator, Size
from apportion.types import Needs, Plan


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
    """

    pilots: int = 16
    commits: int = 48
    min_rate: float = 0.125
    max_rate: float = 0.75
    target: int | None = None
    draw: int | None = None
    max_rounds: int = 10

    name: ClassVar[str] = "pilot_commit"
    needs: ClassVar[Needs] = Needs(binary=True)

    def __post_init__(self):
        super().__post_init__()  # refuses nan, texts and fractions by the annotations
        for name, least in {"pilots": 1, "commits": 1, "target": 1, "draw": 1, "max_rounds": 2}.items():
            given = getattr(self, name)
            if given is not None and given < least:
                raise ValueError(f"{name} must be at least {least} for pilot_commit, got {given}; raise it")
        shares = [right / self.pilots for right in range(self.pilots + 1)]
        if not any(0 <= self.min_rate <= share <= self.max_rate <= 1 for share in shares):
            raise ValueError(
                f"min_rate and max_rate must be in [0, 1] with a share of {self.pilots} pilots between them, got "
                f"{self.min_rate} and {self.max_rate}; the paper has 0.125 and 0.75"
            )

    def size(self, prompts):
        target, draw = self.target or prompts, self.draw or prompts
        fresh = (self.max_rounds - 2) * draw
        asked = self.pilots * (prompts + fresh) + self.commits * target
        kept = (self.pilots + self.commits) * target
        return Size(asked, kept, fresh=fresh, least=self.pilots * prompts, rounds=self.max_rounds)

    def plan(self, batch):
        nothing, begun = np.zeros(len(batch.prompts), int), batch.asked > self.pilots
        if batch.round >= self.max_rounds:
            return Plan(nothing)
        wanted, waiting = (self.target or batch.started) - begun.sum(), self._waiting(batch)
        chosen = waiting & (np.cumsum(waiting) <= wanted)
        commits = np.where(begun | chosen, self.pilots + self.commits - batch.asked, 0)
        if chosen.sum() >= wanted or batch.round == self.max_rounds - 1:
            return Plan(commits)
        pilots = np.where(begun | chosen, 0, np.maximum(self.pilots - batch.asked, 0))
        fresh = self.draw or batch.started
        return Plan(commits + pilots) if pilots.any() or not fresh else Plan(nothing, fresh=fresh)

    def final(self, batch, plan):
        """Return all prompts in the round with the last commits wanted or allowed, and none before."""
        begun = (batch.asked + plan.counts > self.pilots).sum()
        last = begun >= (self.target or batch.started) or batch.round + 1 >= self.max_rounds
        return np.full(len(batch.prompts), bool(last))

    def groups(self, batch):
        """Return the groups of the prompts that were asked for commits."""
        begun = {batch.prompts[q].id for q in np.flatnonzero(batch.asked > self.pilots)}
        return [group for group in super().groups(batch) if group.prompt.id in begun]

    def _waiting(self, batch):
        """Return which prompts [P] passed and have no commits yet."""
        rate = batch.successes / np.maximum(batch.trials, 1)
        passed = (batch.trials > 0) & (self.min_rate <= rate) & (rate <= self.max_rate)
        return (batch.asked == self.pilots) & passed


ALLOCATORS[PilotCommit.name] = PilotCommit  # only for use by name

if __name__ == "__main__":
    from apportion import Prompt, collect
    from apportion.simulation import SimulatedSampler, check_allocator

    check_allocator(lambda: PilotCommit(pilots=4, commits=8, max_rounds=4))  # raises ValueError for an unmet demand

    members = (Prompt(f"p{q}", id=f"p{q}") for q in range(400))

    def source(count):
        return [next(members) for _ in range(count)]

    rule = PilotCommit()
    batch = collect(rule, source(24), SimulatedSampler(step=0), source=source)
    groups = rule.groups(batch)
    trained = sum(len(group.rollouts) for group in groups)
    print(f"{len(groups)} groups of {len(batch.prompts)} prompts, {trained} of {batch.asked.sum()} rollouts")
