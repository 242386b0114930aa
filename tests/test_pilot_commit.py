"""The example of a rule that draws fresh prompts: pilots, then commits, and the bias that its docstring states."""

import runpy

import pytest

from apportion import Plan, Rollout, collect
from apportion.allocators import ALLOCATORS
from tests.allocators.builders import source_of
from tests.builders import bernoulli_sampler, finished, make_batch, make_prompts
from tests.test_docs import ROOT


@pytest.fixture(scope="module", name="PilotCommit")
def rule():
    """The class of the example, which is not left in the registry."""
    found = runpy.run_path(str(ROOT / "examples" / "pilot_commit.py"))["PilotCommit"]
    del ALLOCATORS[found.name]
    return found


def rollouts(*outcomes, name="r"):
    """Return rollouts with these 0/1 outcomes and distinct completions."""
    return [Rollout(bool(outcome), completion=f"{name} {i}") for i, outcome in enumerate(outcomes)]


def test_a_prompt_passes_if_the_mean_of_the_pilots_that_arrived_is_within_bounds_that_count(PilotCommit):
    batch = make_batch([[1] * k + [0] * (16 - k) for k in (0, 1, 2, 12, 13, 16)])
    assert PilotCommit(target=2).plan(batch) == Plan([0, 0, 48, 48, 0, 0])
    batch = finished(make_prompts(3), [rollouts(1, 0), rollouts(1, 1), []], [16] * 3)
    assert PilotCommit(target=1).plan(batch) == Plan([48, 0, 0])
    assert PilotCommit().plan(make_batch([[1, 0] * 3, [1, 0] * 8])) == Plan([10, 48])  # an interrupted round


def test_commits_and_the_pilots_of_fresh_prompts_share_a_round(PilotCommit):
    """Batch of two, one passes; two fresh prompts, both fail; two more, one passes."""
    success = [0.5, 0.0, 1.0, 0.0, 0.5, 1.0]
    allocator = PilotCommit(pilots=16, commits=8)
    source, draws = source_of(make_prompts(6)[2:])
    sample, counted = bernoulli_sampler(success), []

    def counting(prompts, counts):
        counted.append(counts.tolist())
        return sample(prompts, counts)

    batch = collect(allocator, make_prompts(2), counting, source=source)
    assert counted == [[16, 16], [8, 0, 16, 16], [0, 0, 0, 0, 16, 16], [0, 0, 0, 0, 8, 0]]
    assert draws == [2, 2] and batch.round == 4
    groups = allocator.groups(batch)
    assert [group.prompt.text for group in groups] == ["prompt 0", "prompt 4"]
    assert [group.rollouts for group in groups] == [batch.rollouts[0], batch.rollouts[4]]
    assert [len(group.rollouts) for group in groups] == [24, 24]
