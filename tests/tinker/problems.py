"""Problems for the tiny policy: a completion is correct if its first token is below a number, so some are easy."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from functools import partial

import chz
import tinker
from tinker_cookbook.rl.problem_env import ProblemGroupBuilder
from tinker_cookbook.rl.types import Env, RLDataset, RLDatasetBuilder, StepResult
from tinker_cookbook.utils import logtree

from apportion.lab.world.task import encode

EASE = (4, 16, 24, 32, 40, 44)
"""Correct first tokens, of 47."""


@dataclass
class Faults:
    """What goes wrong: ``broken`` returns an exception or None for a question and the number of its environment.

    Environments of a question for which ``hanging`` is true never answer. ``reward`` returns another reward.
    """

    broken: object = lambda question, number: None
    hanging: object = lambda question: False
    reward: object = lambda question, number, reward: reward
    made: Counter = field(default_factory=Counter)


class FirstToken(Env):
    """The question is a problem of the ledger. One token decides."""

    def __init__(self, question, below, faults, graded):
        self.question, self.below, self.faults, self.graded = question, below, faults, graded

    def get_question(self):
        return self.question

    async def initial_observation(self):
        self.faults.made[self.question] += 1
        error = self.faults.broken(self.question, self.faults.made[self.question])
        if error is not None:
            raise error
        if self.faults.hanging(self.question):
            await asyncio.Event().wait()
        return tinker.ModelInput.from_ints(encode(self.question)), []

    async def step(self, action, *, extra=None):
        logtree.log_text(f"about {self.question}")
        right = float(action[0] < self.below)
        right = self.faults.reward(self.question, self.faults.made[self.question], right)
        reward, metrics = (right, {}) if not self.graded else (right - 0.1 * (action[1] % 2), {"correct": right})
        return StepResult(
            reward=reward,
            episode_done=True,
            next_observation=tinker.ModelInput.empty(),
            next_stop_condition=[],
            metrics=metrics,
        )


def questions(count):
    return [f"{i % 10} a+{1 + i // 10} =" for i in range(count)]


class Questions(RLDataset):
    """``count`` questions in batches of ``size``."""

    def __init__(self, count, size, envs, faults, graded):
        self.size = size
        self.builders = [
            ProblemGroupBuilder(partial(FirstToken, text, EASE[i % len(EASE)], faults, graded), envs)
            for i, text in enumerate(questions(count))
        ]

    def get_batch(self, index):
        return self.builders[index * self.size : (index + 1) * self.size]

    def __len__(self):
        return len(self.builders) // self.size


@chz.chz
class QuestionsBuilder(RLDatasetBuilder):
    """The user's builder of data sets."""

    count: int = 12
    size: int = 4
    envs: int = 4
    faults: Faults = chz.field(default_factory=Faults)
    graded: bool = False
    test: int = 0

    async def __call__(self):
        test = Questions(self.test, self.test, 2, self.faults, self.graded) if self.test else None
        return Questions(self.count, self.size, self.envs, self.faults, self.graded), test
