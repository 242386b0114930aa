"""What every driver expects of an allocator, as a check that a user can run on a rule of their own."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from apportion.allocators import Allocator
from apportion.loop import collect, collect_async
from apportion.types import Batch, Counts, Plan, Prompt, Rollout

FAILURES = (0.0, 0.3, 1.0)
"""The shares of rollouts that fail: none, some, and all, as when an engine is down."""

MOST_ROUNDS = 1_000
WRONG_ANSWERS = 8


@dataclass
class SimulatedSampler:
    """Samples prompts whose success rates it alone knows, at one ``step``; a share of ``failures`` has no result.

    Rollout i of a prompt at a step is the same in any order of requests, so rules and drivers can be compared.
    """

    step: int
    failures: float = 0.0
    _streams: dict[str, np.random.Generator] = field(default_factory=dict, init=False, repr=False)

    def __call__(self, prompts: Sequence[Prompt], counts: Counts) -> list[list[Rollout]]:
        """Return the next ``counts`` [P] rollouts of each of ``prompts`` [P], without those that failed."""
        return [self._next(prompt, int(count)) for prompt, count in zip(prompts, counts, strict=True)]

    def _next(self, prompt: Prompt, count: int) -> list[Rollout]:
        if prompt.id not in self._streams:
            self._streams[prompt.id] = np.random.default_rng([self.step, *prompt.id.encode()])
        success = np.random.default_rng([*prompt.id.encode()]).beta(0.4, 0.8)
        rollouts = []
        for outcome, answer, length, failed in self._streams[prompt.id].random((count, 4)).tolist():
            right, tokens = outcome < success, 20 + int(20 * length)
            name = f"a{0 if right else 1 + int(WRONG_ANSWERS * answer)}"
            if failed >= self.failures:
                rollouts.append(Rollout(right, answer=name, tokens=tokens, score_norm=float(tokens)))
        return rollouts


def check_allocator(make: Callable[[], Allocator], prompts: int = 16, steps: int = 3) -> None:
    """Check what drivers expect of the allocator that ``make`` returns, on simulated batches of ``prompts`` prompts.

    ``make`` must return a new allocator with the same settings at each call. It learns from ``steps`` batches, once
    for each share in ``FAILURES``. These demands are checked:

    - ``plan`` and ``groups`` give the same answer for the same batch, and change nothing that is saved.
    - A batch ends, also if every rollout fails.
    - No batch asks for more rollouts, or trains on more, than ``size`` says. One with an exact size asks for as many.
    - Prompts that ``final`` names get nothing more.
    - An allocator that loaded the saved state asks for the same as the one that was saved.
    - ``collect`` and ``collect_async`` get the same batch. A separable rule plans a prompt alone as in a batch.
    - A batch without prompts is finished at once.

    Raises ValueError at the first demand that is not met.

    >>> from apportion import HORA
    >>> check_allocator(lambda: HORA(rollouts_per_prompt=4))
    """
    for failures in FAILURES:
        members, allocator = [Prompt(f"p{q}", id=f"p{q}") for q in range(8 * prompts)], make()
        for step in range(steps):
            allocator.observe(_finished(allocator, members, prompts, SimulatedSampler(step, failures)))
        restored = make()
        restored.load_state_dict(copy.deepcopy(allocator.state_dict()))
        own, other = (
            _finished(each, members, prompts, SimulatedSampler(steps, failures)) for each in (allocator, restored)
        )
        _demand(
            _same(own, other), "an allocator must plan as before after load_state_dict, got other counts", allocator
        )
        _check_drivers(allocator, members, prompts, lambda: SimulatedSampler(steps, failures))  # noqa: B023
    if collect(make(), [], SimulatedSampler(0)).round:
        raise ValueError(
            f"a batch without prompts must be finished, got a round of {allocator.name}; plan nothing for it"
        )


def _finished(allocator: Allocator, members: Sequence[Prompt], prompts: int, sample: SimulatedSampler) -> Batch:
    """Return a finished batch of the first ``prompts`` members. Raise ValueError if it violates a demand."""
    fresh = iter(members[prompts:])
    batch, state = allocator.start(members[:prompts]), copy.deepcopy(allocator.state_dict())
    final = np.zeros(prompts, bool)
    for _ in range(MOST_ROUNDS):
        plan = allocator.plan(batch)
        _demand(allocator.plan(batch) == plan, "plan must be a pure function of the batch, got two plans", allocator)
        if not plan:
            break
        batch, final = _next(allocator, batch, plan, final, sample, fresh)
    else:
        raise ValueError(
            f"a batch must end, got {MOST_ROUNDS} rounds of {allocator.name}; count batch.asked, which includes "
            "rollouts that failed"
        )
    groups = allocator.groups(batch)
    again = allocator.groups(batch)
    _demand(
        [g.rollouts for g in groups] == [g.rollouts for g in again], "groups must not change, got others", allocator
    )
    _demand(_equal(allocator.state_dict(), state), "only observe may learn, got another state_dict", allocator)
    size, asked = allocator.size(prompts), int(batch.asked.sum())
    kept = sum(int(group.keep.sum()) for group in groups)
    for name, found, most in (("asked", asked, size.asked), ("kept", kept, size.kept)):
        _demand(most is None or found <= most, f"{name} must be at most {most} by size, got {found}", allocator)
    least, rounds = size.least, size.rounds
    _demand(size.exact or asked >= least, f"asked must be at least {least} by size, got {asked}", allocator)
    _demand(
        rounds is None or batch.round <= rounds,
        f"rounds must be at most {rounds} by size, got {batch.round}",
        allocator,
    )
    _demand(not size.exact or asked == size.asked, f"asked must be {size.asked} by size, got {asked}", allocator)
    return batch


def _next(
    allocator: Allocator,
    batch: Batch,
    plan: Plan,
    final: Any,
    sample: SimulatedSampler,
    fresh: Any,
) -> tuple[Batch, Any]:
    """Return the batch after ``plan``, and which of its prompts are final."""
    if plan.fresh:
        joined = batch.join(allocator.start(list(islice(fresh, plan.fresh))))
        return joined, np.append(final, np.zeros(plan.fresh, bool))
    _demand(not plan.counts[final].any(), "a final prompt must get nothing more, got rollouts for one", allocator)
    now = allocator.final(batch, plan)
    _demand(now.shape == final.shape, f"final must be [{len(final)}], got {list(now.shape)}", allocator)
    return batch.add(plan, sample(batch.prompts, plan.counts)), final | now


def _check_drivers(
    allocator: Allocator, members: Sequence[Prompt], prompts: int, sampler: Callable[[], SimulatedSampler]
) -> None:
    some = members[:prompts]

    def source() -> Callable[[int], list[Prompt]]:
        fresh = iter(members[prompts:])
        return lambda count: list(islice(fresh, count))

    sample = sampler()

    async def one(prompt: Prompt, count: int) -> Sequence[Rollout]:
        return sample([prompt], np.array([count]))[0]

    whole = collect(allocator, some, sampler(), source=source())
    concurrent = asyncio.run(collect_async(allocator, some, one, source=source()))
    _demand(_same(whole, concurrent), "collect_async must get the batch of collect, got another", allocator)
    if allocator.separable:
        alone = [collect(allocator, [prompt], sampler()) for prompt in some]
        _demand(
            [batch.rollouts[0] for batch in alone] == list(whole.rollouts),
            "a separable allocator must plan a prompt alone as in a batch, got other rollouts",
            allocator,
        )


def _same(one: Batch, other: Batch) -> bool:
    return one.asked.tolist() == other.asked.tolist() and one.rollouts == other.rollouts


def _equal(one: Any, other: Any) -> bool:
    try:
        np.testing.assert_equal(one, other)
    except AssertionError:
        return False
    return True


def _demand(met: bool, problem: str, allocator: Allocator) -> None:
    if not met:
        raise ValueError(f"{problem}; correct {type(allocator).__name__}")
