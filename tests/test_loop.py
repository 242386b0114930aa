import asyncio
from dataclasses import dataclass

import numpy as np
import pytest

from apportion import HORA, Allocator, Plan, Rollout, Uniform, collect, collect_async
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


def test_a_plain_function_is_refused_by_the_asynchronous_driver():
    for allocator in (UntilCorrect(), HORA(pre_rollouts=1)):
        with pytest.raises(ExceptionGroup) as raised:
            asyncio.run(collect_async(allocator, make_prompts(2), lambda prompt, count: [Rollout(True)] * count))
        assert "sample must be asynchronous here, got list from a plain" in str(raised.value.exceptions[0])


def test_an_asynchronous_function_is_refused_by_the_plain_driver():
    async def sample(prompts, counts):
        return [[Rollout(True)] * n for n in counts]

    with pytest.raises(ValueError, match="sample must be a plain function for collect, got a coroutine; use collect_a"):
        collect(Uniform(), make_prompts(2), sample)


def test_a_sampler_that_returns_no_lists_is_refused():
    for returned in (None, "text", 5, {"prompt 0": []}):
        with pytest.raises(ValueError, match="sample must return one list of rollouts per prompt"):
            collect(Uniform(), make_prompts(2), lambda prompts, counts, returned=returned: returned)


def test_generators_are_listed_once():
    def sample(prompts, counts):
        return ((Rollout(True) for _ in range(n)) for n in counts)

    batch = collect(Uniform(2), (prompt for prompt in make_prompts(3)), sample)
    assert batch.trials.tolist() == [2, 2, 2]

    async def one(prompt, count):
        return (Rollout(True) for _ in range(count))

    again = asyncio.run(collect_async(Uniform(2), (prompt for prompt in make_prompts(3)), one))
    assert again.trials.tolist() == [2, 2, 2]


USER_SCRIPT = """
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from apportion import HORA, Prompt, Rollout, collect, collect_async
from apportion.loop import AsyncSampler, Sampler


def with_integers(prompts: Sequence[Prompt], counts: Sequence[int]) -> list[list[Rollout]]:
    return [[Rollout(correct=True)] * count for count in counts]


def with_an_array(prompts: Sequence[Prompt], counts: NDArray[np.int64]) -> Sequence[Sequence[Rollout]]:
    return [[Rollout(correct=True)] * int(count) for count in counts]


async def one(prompt: Prompt, count: int) -> list[Rollout]:
    return [Rollout(correct=True)] * count


samplers: list[Sampler] = [with_integers, with_an_array]
awaited: AsyncSampler = one
batch = collect(HORA(), [Prompt("a")], with_integers)
coroutine = collect_async(HORA(), [Prompt("a")], one)
"""


@pytest.mark.slow
def test_samplers_of_users_pass_strict_type_checks(tmp_path):
    api = pytest.importorskip("mypy.api")
    script, wrong = tmp_path / "user.py", tmp_path / "wrong.py"
    script.write_text(USER_SCRIPT)
    wrong.write_text(USER_SCRIPT.replace("prompt: Prompt, count: int", "prompt: Prompt, count: str"))
    options = ["--strict", "--no-warn-return-any", "--cache-dir", str(tmp_path), "--follow-imports", "silent"]
    report, errors, _ = api.run([*options, str(script), str(wrong)])
    *found, _ = report.splitlines()
    assert found and not [line for line in found if not line.startswith(f"{wrong}:")], report + errors
