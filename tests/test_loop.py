import asyncio
from dataclasses import dataclass

import numpy as np
import pytest

from apportion import Allocator, Plan, Rollout, Uniform, collect, collect_async
from tests.builders import bernoulli_sampler, make_prompts


@dataclass(frozen=True)
class UntilCorrect(Allocator):
    """Two rollouts at a time until a prompt has a correct one. Separable."""

    name = "until_correct"
    separable = True

    def plan(self, batch):
        return Plan(np.where((batch.successes == 0) & (batch.asked < 8), 2, 0))


@dataclass(frozen=True)
class TwoFresh(Allocator):
    """Draws two more prompts once, then one rollout each."""

    name = "two_fresh"

    def plan(self, batch):
        if len(batch.prompts) < 4:
            return Plan(np.zeros(len(batch.prompts)), fresh=2)
        return Plan(1 - batch.asked)


@pytest.mark.parametrize("given", [0, 1])
def test_a_source_that_runs_dry_is_an_error_and_not_a_loop(given):
    with pytest.raises(ValueError, match=f"must give the 2 fresh prompts that the allocator asks for, got {given}"):
        collect(TwoFresh(), make_prompts(2), bernoulli_sampler([1.0] * 4), source=lambda n: make_prompts(4)[:given])


def test_separable_prompts_do_not_wait_for_each_other():
    """The prompt that always fails needs four rounds; the other must finish before its second."""
    log = []
    slow_may_go_on = asyncio.Event()

    async def sample(prompt, count):
        log.append(prompt.text)
        if prompt.text == "prompt 0":
            if log.count("prompt 0") == 2:
                await asyncio.wait_for(slow_may_go_on.wait(), 5)
            return [Rollout(False)] * count
        if log.count("prompt 1") == 3:
            slow_may_go_on.set()
        return [Rollout(log.count("prompt 1") == 3)] * count

    batch = asyncio.run(collect_async(UntilCorrect(), make_prompts(2), sample))
    assert batch.asked.tolist() == [8, 6]
    assert batch.round == 4


def test_only_prompts_that_are_asked_are_sampled():
    asked = []

    async def sample(prompt, count):
        asked.append((prompt.text, count))
        return [Rollout(True)] * count

    class FirstOnly(TwoFresh):
        def plan(self, batch):
            return Plan(np.array([2, 0]) - batch.asked)

    asyncio.run(collect_async(FirstOnly(), make_prompts(2), sample))
    assert asked == [("prompt 0", 2)]


def test_fresh_prompts_join_before_anything_is_sampled():
    def source(count):
        return make_prompts(4)[2 : 2 + count]

    batch = collect(TwoFresh(), make_prompts(2), bernoulli_sampler([1.0] * 4), source=source)
    assert [prompt.text for prompt in batch.prompts] == [f"prompt {q}" for q in range(4)]
    assert batch.asked.tolist() == [1, 1, 1, 1]


def test_fresh_prompts_without_a_source_are_an_error():
    with pytest.raises(ValueError, match="asks for 2 fresh prompts, but there is no source"):
        collect(TwoFresh(), make_prompts(2), bernoulli_sampler([1.0] * 4))


@pytest.mark.parametrize("allocator", [Uniform(2), TwoFresh()], ids=["separable", "barrier"])
def test_a_sampler_that_raises_ends_the_batch_and_cancels_the_others(allocator):
    cancelled = []

    async def sample(prompt, count):
        if prompt.text == "prompt 1":
            raise ConnectionError("the engine is gone")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(prompt.text)
            raise

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(collect_async(allocator, make_prompts(4), sample))
    assert caught.group_contains(ConnectionError, match="the engine is gone")
    assert sorted(cancelled) == ["prompt 0", "prompt 2", "prompt 3"]
