"""The loop: plan, sample and add the rollouts until the plan is empty. All drivers give the same batch.

A sampler draws *and verifies*. It may return fewer rollouts than were asked for: failed rollouts are paid for. An
exception from it ends the batch.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from apportion.allocators import Allocator, check_rewards
from apportion.allocators.spending.price import Price
from apportion.checks import check_object
from apportion.types import Batch, Plan, Prompt, Rollout, prompt_list

Sampler = Callable[[Sequence[Prompt], Any], Sequence[Sequence[Rollout]]]
"""(prompts, number of rollouts of each [P]) -> one list of rollouts per prompt.

The numbers are an integer array. A sampler may annotate them as ``Counts`` or as ``Sequence[int]``.
"""

AsyncSampler = Callable[[Prompt, int], Awaitable[Sequence[Rollout]]]
"""(prompt, number of rollouts) -> an awaitable of its rollouts."""

T = TypeVar("T")

Source = Callable[[int], Sequence[Prompt]]
"""Number of fresh prompts -> that many prompts, none of them in the batch."""


def collect(allocator: Allocator, prompts: Sequence[Prompt], sample: Sampler, *, source: Source | None = None) -> Batch:
    """Return the finished batch, with one call of ``sample`` per round, for engines that generate a batch at a time.

    >>> from apportion import HORA
    >>> always_right = lambda prompts, counts: [[Rollout(True)] * int(n) for n in counts]
    >>> collect(HORA(pre_rollouts=2, rollouts_per_prompt=4), [Prompt("a"), Prompt("b")], always_right).trials.tolist()
    [4, 4]
    """
    check_object("allocator", allocator, "Allocator")
    draw = partial(_draw, source)
    batch, plan = next_round(allocator, allocator.start(prompts), draw)
    while plan:
        batch = batch.add(plan, _sampled(sample(batch.prompts, plan.counts)))
        batch, plan = next_round(allocator, batch, draw)
    return batch


async def collect_async(
    allocator: Allocator, prompts: Sequence[Prompt], sample: AsyncSampler, *, source: Source | None = None
) -> Batch:
    """Return the finished batch from an asynchronous sampler, with one task per prompt.

    With a separable allocator each prompt goes through its own rounds, without a barrier. If a task raises, the others
    are cancelled and the exception group is raised.
    """
    import asyncio  # noqa: PLC0415 - slow to import

    check_object("allocator", allocator, "Allocator")
    prompts = prompt_list(prompts)
    if allocator.separable:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(collect_alone(allocator, prompt, sample)) for prompt in prompts]
        return Batch.concatenate([task.result() for task in running])
    draw = partial(_draw, source)
    batch, plan = next_round(allocator, allocator.start(prompts), draw)
    while plan:
        batch = batch.add(plan, await _round(batch, plan, sample))
        batch, plan = next_round(allocator, batch, draw)
    return batch


async def collect_alone(planner: Allocator | Price, prompt: Prompt, sample: AsyncSampler) -> Batch:
    """Return the finished batch of one prompt, which ``planner`` plans without a batch of others."""
    draw = partial(_draw, None)
    batch, plan = next_round(planner, planner.start([prompt]), draw)
    while plan:
        batch = batch.add(plan, [await awaited(sample, prompt, int(plan.counts[0]))])
        batch, plan = next_round(planner, batch, draw)
    return batch


def next_round(
    planner: Allocator | Price, batch: Batch, draw: Callable[[int], Sequence[Prompt] | None]
) -> tuple[Batch, Plan]:
    """Check the latest round of ``batch``. Return it with the fresh prompts that it needs, and its next round.

    ``draw`` returns so many fresh prompts, or None if there are too few. Then the plan is empty: the batch is finished.
    """
    check_rewards(planner.rule if isinstance(planner, Price) else planner, batch)
    while (plan := planner.plan(batch)).fresh:
        if (prompts := draw(plan.fresh)) is None:
            return batch, Plan(np.zeros(len(batch.prompts), np.int64))
        batch = batch.join(planner.start(prompts))
    return batch, plan


async def _round(batch: Batch, plan: Plan, sample: AsyncSampler) -> list[Sequence[Rollout]]:
    import asyncio  # noqa: PLC0415 - slow to import

    async with asyncio.TaskGroup() as tasks:
        asked = zip(batch.prompts, plan.counts.tolist(), strict=True)
        running = [tasks.create_task(awaited(sample, *each)) if each[1] else None for each in asked]
    return [() if task is None else task.result() for task in running]


async def awaited(sample: Callable[..., Awaitable[T]], *asked: Any) -> T:
    """Return what ``sample(*asked)`` gives. Raise ValueError if it is a plain function."""
    pending = sample(*asked)
    if not inspect.isawaitable(pending):
        raise ValueError(
            f"sample must be asynchronous here, got {type(pending).__name__} from a plain function; define it with "
            "async def, or use collect"
        )
    return await pending


def _sampled(rollouts: Any) -> Sequence[Sequence[Rollout]]:
    """Return ``rollouts``. Raise ValueError if a sampler of ``collect`` is asynchronous or returns no list."""
    if inspect.isawaitable(rollouts):
        if inspect.iscoroutine(rollouts):
            rollouts.close()
        raise ValueError("sample must be a plain function for collect, got a coroutine; use collect_async")
    if isinstance(rollouts, (str, bytes, Mapping)) or not isinstance(rollouts, Iterable):
        raise ValueError(f"sample must return one list of rollouts per prompt, got {rollouts!r:.80}; list them")
    return list(rollouts)


def _draw(source: Source | None, fresh: int) -> Sequence[Prompt]:
    if source is None:
        raise ValueError(
            f"the allocator asks for {fresh} fresh prompts, but there is no source; pass source=, which draws them"
        )
    prompts = prompt_list(source(fresh))
    if len(prompts) != fresh:
        raise ValueError(
            f"the source must give the {fresh} fresh prompts that the allocator asks for, got {len(prompts)}; "
            "repeat the data set, or let the allocator draw fewer"
        )
    return prompts
