"""Draw from a seed what a trainer requests and what its workers report, without verl, Ray and generation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

import numpy as np

from apportion import HORA, Allocator, Plan, Prompt, Rollout, Uniform, Voting
from apportion.verl.coordinator.messages import RolloutTask, RowAddress, TaskResult, TrainerRequest, WrittenRollout

ROLLOUTS, SESSIONS = 8, 32
"""Rollouts a prompt, on average or at most, and the number of sessions a prompt that are drawn."""

ALLOCATORS: dict[str, Callable[[], Allocator]] = {
    "uniform": lambda: Uniform(ROLLOUTS),
    "voting": lambda: Voting(max_samples=ROLLOUTS, wave=ROLLOUTS // 2),
    "hora": lambda: HORA(pre_rollouts=ROLLOUTS // 2, rollouts_per_prompt=ROLLOUTS, high=2 * ROLLOUTS),
}
"""Under the first two a prompt does not wait for others. The last plans all prompts together."""

SENTENCE = "A train leaves at {} and travels for {} hours at {} km/h, with a stop of {} minutes; how far does it get? "


@dataclass(frozen=True)
class Answers:
    """The outcome of every rollout of ``prompts`` prompts, whose success rates are drawn from Beta(.7, .9)."""

    prompts: int
    workers: int
    seed: int

    def __post_init__(self):
        rng = np.random.default_rng(self.seed)
        object.__setattr__(self, "_success", rng.beta(0.7, 0.9, self.prompts).astype(np.float32))
        object.__setattr__(self, "_drawn", rng.random((self.prompts, SESSIONS), np.float32))

    def request(self, step=1):
        """Return all prompts, 300 letters each, dealt to the workers as verl does, with uids like verl's."""
        prompts, owners = [], []
        for q in range(self.prompts):
            uid = str(UUID(int=step << 96 | q << 64 | hash((step, q)) % 2**64))
            text = (SENTENCE.format(q, q % 24, q % 99, q % 60) * 3)[:300]
            prompts.append(Prompt(text, data=RowAddress(uid, uid)))
            owners.append(self.worker_of(uid))
        return TrainerRequest(step, tuple(prompts), tuple(owners))

    def report(self, task):
        """Return the report of a worker that has carried out ``task``."""
        if not isinstance(task, RolloutTask):
            return TaskResult(task.id)
        q = index_of_uid(task.uid)
        return TaskResult(task.id, tuple(self._rollout(q, task.uid, session) for session in task.sessions))

    def learnt(self, name):
        """Return the allocator ``name`` after a step in which it saw four rollouts of every prompt."""
        allocator, sessions = ALLOCATORS[name](), range(SESSIONS - 4, SESSIONS)
        prompts = self.request(0).prompts
        found = [
            [self._rollout(q, prompt.data.uid, session) for session in sessions] for q, prompt in enumerate(prompts)
        ]
        allocator.observe(allocator.start(prompts).add(Plan(np.full(self.prompts, len(sessions))), found))
        return allocator

    def worker_of(self, uid):
        """Return the worker that holds the rows of ``uid``."""
        return worker_name(index_of_uid(uid) * self.workers // self.prompts)

    def _rollout(self, q, uid, session):
        drawn = float(self._drawn[q, session])
        right, tokens = bool(drawn < self._success[q]), 100 + int(1000 * drawn)
        written = WrittenRollout(hash((q, session)).to_bytes(16, "big", signed=True), uid, session, (tokens,))
        return Rollout(right, "42" if right else str(tokens % 3), float(right), written, tokens)


def worker_name(worker):
    """Return a name as long as verl's."""
    return f"agent_loop_worker_{worker}_{worker:08x}"


def index_of_uid(uid):
    """Return the index of ``uid`` in its request."""
    return UUID(uid).int >> 64 & 2**32 - 1
