"""Updates by tinker-cookbook's own groups and advantages under an allocator, on environments that fail."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any

import chz
import numpy as np
import tinker
from tinker_cookbook.rl.data_processing import compute_advantages
from tinker_cookbook.rl.rollout_strategy import MinViableGroup
from tinker_cookbook.rl.rollouts import do_group_rollout_and_filter_constant_reward
from tinker_cookbook.rl.train import Config
from tinker_cookbook.rl.types import Env, EnvGroupBuilder, RLDataset, RLDatasetBuilder, StepResult

from apportion import Prompt, Uniform
from apportion.tinker import allocated

NOTHING = tinker.ModelInput.from_ints([0])


class Judged(Env):
    """One token, whose reward was drawn; None fails."""

    def __init__(self, reward):
        self.reward = reward

    async def initial_observation(self):
        return NOTHING, []

    async def step(self, action, *, extra=None):
        if self.reward is None:
            raise TimeoutError("the verifier did not answer")
        return StepResult(
            reward=self.reward, episode_done=True, next_observation=NOTHING, next_stop_condition=[], metrics={}
        )


@dataclass(frozen=True)
class Drawn(EnvGroupBuilder):
    """A group whose rewards ``draw`` returns; all draws are in ``made``."""

    number: int
    num_envs: int
    draw: Any
    made: list[Any]

    async def make_envs(self):
        self.made.append(self.draw())
        return [Judged(reward) for reward in self.made[-1].rewards()]


class Problems(RLDataset):
    """Batches of ``groups`` problems, without end."""

    def __init__(self, groups, size, draw):
        self.builders = [Drawn(number, size, draw, []) for number in range(groups)]

    def get_batch(self, index):
        return self.builders

    def __len__(self):
        return 10**9


@chz.chz
class Problem(RLDatasetBuilder):
    """The user's builder of data sets."""

    problems: Problems

    async def __call__(self):
        return self.problems, None


async def one_token(**settings):
    """Sample, in place of the service."""
    one = tinker.SampledSequence(
        stop_reason="length", sequence_id="", tokens_np=np.zeros(1, np.int32), logprobs_np=np.zeros(1, np.float32)
    )
    return tinker.SampleResponse(sequences=[one])


async def cookbook(failures, p, rng, *, groups, size):
    """Yield updates: their draws, rewards [N] and advantages [N]. Failed rollouts are tolerated, and not made again."""
    problems = Problems(groups, size, partial(failures.draw, p, rng))
    with tempfile.TemporaryDirectory() as folder:
        config = allocated(
            Config(
                dataset_builder=Problem(problems=problems),
                learning_rate=1e-3,
                model_name="none",
                recipe_name="failures",
                max_tokens=1,
                log_path=folder,
                rollout_error_tolerance=MinViableGroup(min_successful=1, max_retries=0),
                save_every=0,
            ),
            Uniform(size),
            estimator="rloo",
            prompt_of=lambda builder: Prompt(str(builder.number)),
        )
        dataset, _ = await config.dataset_builder()
        sample = partial(
            do_group_rollout_and_filter_constant_reward,
            SimpleNamespace(sample=one_token),
            max_tokens=1,
            temperature=1.0,
            do_remove_constant_reward_groups=False,
            strategy=config.rollout_error_tolerance,
            termination=config.termination,
        )
        for index in count():
            found = await asyncio.gather(*map(sample, dataset.get_batch(index)))
            trained = [group for group in found if group is not None]
            rewards = [each.transitions[0].reward for group in trained for each in group.trajectories_G]
            draws = [builder.made.pop() for builder in problems.builders]
            yield draws, np.array(rewards), np.concatenate(compute_advantages(trained))
