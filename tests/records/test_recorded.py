"""Recorded rollouts through the drivers give the same as replaying the answers themselves."""

import asyncio

import numpy as np
import pytest

from apportion import Prompt, Rollout, Uniform, collect, collect_async
from apportion.allocators import Voting
from apportion.records.recorded import Recorded
from apportion.stopping import RULES, decide, make_rule

MAXIMUM = 24
SETTINGS = {"optpo": {"min_samples": 8, "exceedances": 2}}


def make_streams(questions=12, samples=24, seed=0):
    """Return answers to questions from hopeless to easy, some of them None."""
    rng = np.random.default_rng(seed)
    streams = {}
    for q in range(questions):
        right = rng.random(samples) < 0.15 + 0.8 * q / questions
        others = rng.integers(6, size=samples)
        streams[f"question {q}"] = [
            None if rng.random() < 0.05 else ("right" if yes else f"wrong {other}")
            for yes, other in zip(right, others, strict=True)
        ]
    return streams


def make_recorded(streams):
    prompts = [Prompt(text) for text in streams]
    return prompts, Recorded({p.id: [Rollout(answer=a) for a in streams[p.text]] for p in prompts})


def waves(batch):
    """Return the number of rounds in which each prompt got rollouts."""
    return [len({rollout.round for rollout in rollouts}) for rollouts in batch.rollouts]


@pytest.mark.parametrize("curtail", [False, True])
@pytest.mark.parametrize("wave", [1, 4, 5, "free"])
@pytest.mark.parametrize("name", RULES)
def test_both_drivers_decide_as_the_replay_does(name, wave, curtail):
    rule, streams = make_rule(name, **SETTINGS.get(name, {})), make_streams()
    replayed = decide(list(streams.values()), rule, MAXIMUM, wave=wave, curtail=curtail)
    voting = Voting(rule, max_samples=MAXIMUM, wave=wave, curtail=curtail)
    prompts, recorded = make_recorded(streams)
    batch = collect(voting, prompts, recorded)
    recorded.restart()
    apart = asyncio.run(collect_async(voting, prompts, recorded.sample))
    for found in (batch, apart):
        assert found.asked.tolist() == replayed.samples.tolist()
        assert [voting.winner(found, q) for q in range(len(prompts))] == list(replayed.answer)
        assert waves(found) == replayed.waves.tolist()


def test_rollouts_missing_at_the_end_of_a_stream_are_charged():
    streams = {"short": ["a", "b", "a"], "long": ["a"] * 9}
    prompts, recorded = make_recorded(streams)
    batch = collect(Uniform(8), prompts, recorded)
    assert batch.asked.tolist() == [8, 8]
    assert [[rollout.answer for rollout in rollouts] for rollouts in batch.rollouts] == [["a", "b", "a"], ["a"] * 8]
    assert [list(rest) for rest in recorded(prompts, np.array([2, 2]))] == [[], [Rollout(answer="a")]]


def test_a_prompt_without_a_recording_is_refused():
    _, recorded = make_recorded({"question": ["a"]})
    with pytest.raises(ValueError, match=r"must be recorded, got 'another'"):
        collect(Uniform(2), [Prompt("another")], recorded)
    with pytest.raises(ExceptionGroup):
        asyncio.run(collect_async(Uniform(2), [Prompt("another")], recorded.sample))
