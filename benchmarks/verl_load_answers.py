"""What a trainer dispatches and what its workers report, drawn from a seed: no verl, no Ray, and no rollouts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

import numpy as np

from apportion import AR3PO, HORA, VIP, Allocator, Plan, Prompt, Rollout, Uniform, Voting
from apportion.integrations.verl.messages import Dispatch, Order, Place, Report, Task, Written
from apportion.predictors import DiscountedCounts

ROLLOUTS, SESSIONS = 8, 32
"""Rollouts of a prompt, on average or at the most, and sessions of one that are drawn."""

ALLOCATORS: dict[str, Callable[[], Allocator]] = {
    "uniform": lambda: Uniform(ROLLOUTS),
    "ar3po": lambda: AR3PO(stages=2, rollouts_per_stage=ROLLOUTS // 2),
    "voting": lambda: Voting(max_samples=ROLLOUTS, wave=ROLLOUTS // 2),
    "vip, counts": lambda: VIP(rollouts_per_prompt=ROLLOUTS, high=2 * ROLLOUTS, predictor=DiscountedCounts()),
    "hora": lambda: HORA(pre_rollouts=ROLLOUTS // 2, rollouts_per_prompt=ROLLOUTS, high=2 * ROLLOUTS),
}
"""The first three are separable, the last two plan all prompts together."""

SENTENCE = "A train leaves at {} and travels for {} hours at {} km/h, with a stop of {} minutes; how far does it get? "


@dataclass(frozen=True)
class Answers:
    """``prompts`` prompts of a data set, and what comes of each rollout of them; success rates are of Beta(.7, .9)."""

    prompts: int
    workers: int
    seed: int

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        object.__setattr__(self, "_success", rng.beta(0.7, 0.9, self.prompts).astype(np.float32))
        object.__setattr__(self, "_drawn", rng.random((self.prompts, SESSIONS), np.float32))

    def dispatch(self, step: int = 1) -> Dispatch:
        """All prompts, in texts of 300 letters, dealt out to the workers as verl does; hosts have uids like verl's."""
        prompts, owners = [], []
        for q in range(self.prompts):
            host = str(UUID(int=step << 96 | q << 64 | hash((step, q)) % 2**64))
            text = (SENTENCE.format(q, q % 24, q % 99, q % 60) * 3)[:300]
            prompts.append(Prompt(text, data=Place(host, host)))
            owners.append(self.worker_of(host))
        return Dispatch(step, tuple(prompts), tuple(owners))

    def report(self, task: Task) -> Report:
        """What a worker answers when it has carried out ``task``."""
        if not isinstance(task, Order):
            return Report(task.id)
        q = place_of_host(task.host)
        return Report(task.id, tuple(self._rollout(q, task.host, session) for session in task.sessions))

    def learnt(self, name: str) -> Allocator:
        """The allocator ``name`` after a step in which it saw four rollouts of every prompt."""
        allocator, sessions = ALLOCATORS[name](), range(SESSIONS - 4, SESSIONS)
        prompts = self.dispatch(0).prompts
        found = [
            [self._rollout(q, prompt.data.host, session) for session in sessions] for q, prompt in enumerate(prompts)
        ]
        allocator.observe(allocator.start(prompts).add(Plan(np.full(self.prompts, len(sessions))), found))
        return allocator

    def worker_of(self, host: str) -> str:
        """Who holds the rows of ``host``."""
        return worker_name(place_of_host(host) * self.workers // self.prompts)

    def _rollout(self, q: int, host: str, session: int) -> Rollout:
        drawn = float(self._drawn[q, session])
        right, tokens = bool(drawn < self._success[q]), 100 + int(1000 * drawn)
        written = Written(hash((q, session)).to_bytes(16, "big", signed=True), host, session, (tokens,))
        return Rollout(right, "42" if right else str(tokens % 3), float(right), written, tokens)


def worker_name(worker: int) -> str:
    """As long as verl's."""
    return f"agent_loop_worker_{worker}_{worker:08x}"


def place_of_host(host: str) -> int:
    """The place of ``host`` in its dispatch."""
    return UUID(host).int >> 64 & 2**32 - 1
