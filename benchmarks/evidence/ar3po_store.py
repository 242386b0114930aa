"""AR3PO's store of responses at the size of a data set: memory, and the time to reuse and to keep responses."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from apportion import AR3PO, Plan, Prompt, Rollout

PROMPTS = (1_000, 10_000, 100_000)
TOKENS, STEP, ROLLOUTS, ENTRIES = 4096, 128, 8, 4
"""The paper's longest response, and prompts of a step."""
GIB, MIB = 2**30, 2**20
REPEATS = 20


@dataclass(frozen=True, eq=False)
class Response:
    """Token ids, and their log-probabilities if responses are trained on."""

    tokens: NDArray[np.int32]
    logprobs: NDArray[np.float32] | None = None


def memory():
    """Return MiB of 1,000 prompts with 4 responses of 4,096 tokens each, and how many prompts fit the default bound."""
    found = {}
    for name, logprobs in (("ids", False), ("ids and log-probabilities", True)):
        allocator = AR3PO(reuse="replay" if logprobs else "stop_gradient", entries_per_prompt=ENTRIES)
        rng = np.random.default_rng(0)
        for first in range(0, 1000, STEP):
            prompts = [Prompt(str(q)) for q in range(first, min(1000, first + STEP))]
            allocator.observe(_batch(allocator, prompts, rng, logprobs, right=True))
        counted = allocator.metrics(_batch(allocator, [Prompt("none")], rng, logprobs, right=False))["store_bytes"]
        found[name] = {"mib_per_1000_prompts": counted / MIB, "prompts_in_a_gib": int(1000 * GIB / counted)}
    return found


def lookup():
    """Return the CPU time of a step of 128 prompts without a correct response, by the prompts that the store holds."""
    rng, found = np.random.default_rng(0), {}
    for size in PROMPTS:
        allocator = AR3PO(entries_per_prompt=1)
        for first in range(0, size, 1000):
            batch = allocator.start([Prompt(str(q)) for q in range(first, first + 1000)])
            rollouts = [[Rollout(True, completion=f"{q} right")] for q in range(first, first + 1000)]
            allocator.observe(batch.add(Plan([1] * 1000), rollouts))
        prompts = [Prompt(str(q)) for q in rng.choice(size, STEP, replace=False)]
        long = _batch(allocator, prompts, rng, False, right=False)
        found[str(size)] = {
            "ms_a_step_4096_tokens": float(np.median([_milliseconds(allocator, long) for _ in range(REPEATS)]))
        }
    return found


def _milliseconds(allocator, batch):
    """Return the CPU time to make the groups of a batch. Raises ValueError if not every group reuses a response."""
    started = time.process_time()
    groups = allocator.groups(batch)
    seconds = time.process_time() - started
    if any(group.keep.all() for group in groups):
        raise ValueError("every group must reuse a response, got one that does not; fill the store first")
    return 1000 * seconds


def _batch(allocator, prompts, rng, logprobs, right):
    """Return a finished batch of distinct responses: 4 right ones a prompt, or 8 wrong ones."""
    each = ENTRIES if right else ROLLOUTS

    def written():
        tokens = rng.integers(0, 150_000, TOKENS, dtype=np.int32)
        return Response(tokens, -rng.exponential(size=TOKENS).astype(np.float32) if logprobs else None)

    rollouts = [[Rollout(right, completion=written()) for _ in range(each)] for _ in prompts]
    return allocator.start(prompts).add(Plan([each] * len(prompts)), rollouts)
