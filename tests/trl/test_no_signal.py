"""The warning that several generation batches in a row had no gradient names the cause, once."""

import numpy as np
import pytest
import torch

from apportion import HORA, TTRL, Prompt, Rollout, Uniform
from apportion.allocators.base import Allocator
from apportion.trl.advantages import Grouped
from apportion.trl.no_signal import PATIENCE, NoSignal
from apportion.trl.planner import FinishedBatch
from apportion.types import Plan
from tests.trl.tiny import Judge, make_questions

VOTES = TTRL(max_samples=4, min_samples=4)


def finished(allocator: Allocator, rollouts, advantages=0.0, penalty=0.0):
    """Return the batch in which each prompt has got ``rollouts``, with these advantages and weights of 1."""
    batch = allocator.start([Prompt(str(place)) for place in range(len(rollouts))])
    batch = batch.add(Plan([len(own) for own in rollouts]), rollouts)
    groups = allocator.groups(batch)
    size = sum(len(group.rollouts) for group in groups)
    zeros = torch.zeros(size)
    grouped = Grouped(zeros, torch.zeros(0), zeros.unsqueeze(1), torch.ones(1), torch.full((size,), penalty))
    return FinishedBatch(batch, groups, grouped, np.full(size, advantages), np.ones(size))


def scored(*rewards, allocator=None, advantages=0.0, penalty=0.0):
    allocator = Uniform(4) if allocator is None else allocator
    rollouts = [[Rollout(reward == 1, reward=reward) for reward in own] for own in rewards]
    return finished(allocator, rollouts, advantages, penalty)


def voted(*answers, advantages=0.0):
    return finished(VOTES, [[Rollout(answer=answer) for answer in own] for own in answers], advantages)


CAUSES = {
    "all wrong": (None, scored([0.0] * 4, [0.0] * 4), "every reward was 0; look at completions"),
    "all right": (None, scored([1.0] * 4, [1.0] * 4), "every reward was 1; train on harder prompts, or"),
    "all wrong under RLOO's penalty": (None, scored([0.0] * 4, advantages=0.1, penalty=0.1), "every reward was 0; "),
    "no reward": (None, scored([], []), "no completion got a reward; look at what the reward functions return"),
    "none mixed": (None, scored([0.0] * 4, [1.0] * 4), "rewards were equal within every group, so that all advantages"),
    "no answer": ("'boxed'", voted([None] * 4, [None] * 4), "no answer was found in any completion by extract='boxed'"),
    "all agree": ("'auto'", voted(["7"] * 4, ["8"] * 4), "all answers to a prompt agreed, so that all advantages were"),
}
TAUGHT = scored([0.0, 1.0, 0.0, 0.0], advantages=0.5)


@pytest.mark.parametrize("name", CAUSES)
def test_the_cause_is_named_once(caplog, name):
    extract, batch, message = CAUSES[name]
    watch = NoSignal(extract)
    for _ in range(PATIENCE - 1):
        watch.add(batch)
    assert not caplog.records
    for _ in range(3 * PATIENCE):
        watch.add(batch)
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith(f"{PATIENCE} generation batches in a row had no gradient: {message}")


def test_a_batch_that_teaches_begins_the_count_anew(caplog):
    """Equal rewards that a baseline turns into advantages teach, too."""
    watch, wrong, learnt = NoSignal(), CAUSES["all wrong"][1], scored([1.0] * 4, [1.0] * 4, advantages=0.5)
    for batch in [*([wrong] * (PATIENCE - 1) + [TAUGHT]) * 3, *[learnt] * PATIENCE]:
        watch.add(batch)
    assert not caplog.records
    assert NoSignal("'auto'").cause(voted(["7", "7", "8", "7"], advantages=0.5)) is None


def test_a_run_of_wrong_completions_warns(run, caplog):
    given = {"judge": Judge(lambda text, k: 0.0), "questions": make_questions(32)}
    run(config={"max_steps": PATIENCE + 2, "beta": 0.1}, allocator=HORA(), **given)
    (said,) = [record.getMessage() for record in caplog.records if "had no gradient" in record.getMessage()]
    assert "every reward was 0; look at completions" in said
