"""AReaL's own executor, staleness manager and task runner, with our workflow. See CONTRIBUTING.md for how to run it.

The policy is a stand-in. All that submits, limits staleness, filters and batches is AReaL's.
"""

import asyncio
import random
from types import SimpleNamespace

import pytest

from apportion.engines.areal import allocated
from apportion.scheduler.decisions import TrainerAllocation
from tests.engines.outside import engine

PROMPTS, BATCH = 24, 5
ROWS = [{"messages": [{"role": "user", "content": str(i)}], "number": i} for i in range(PROMPTS)]
CASES = {
    "counts by price": {"allocator": "vip", "estimator": "rloo"},
    "two rounds": {"allocator": "hora", "selection": "mopps"},
    "from history": {"allocator": "uniform", "baseline": "spo", "estimator": "reinforce"},
}
UPDATES = {"counts by price": 12}
"""In the first epoch beliefs are equal, and so are counts: it ends with update 5 or so."""


class Pace(list):
    """A data loader whose rows nobody reads."""

    batch_size = BATCH


@pytest.fixture(scope="module")
def executor():
    return engine("AREAL", "areal.infra.workflow_executor")


def make_executor(executor):
    from areal.api.cli_args import InferenceEngineConfig

    config = InferenceEngineConfig(consumer_batch_size=BATCH, max_concurrent_rollouts=8, max_head_offpolicyness=4)
    config.check_trajectory_format = True
    own = executor.WorkflowExecutor(config, SimpleNamespace(get_version=lambda: 0))
    own.initialize(train_data_parallel_size=1)
    return own


def make_workflow(case, seed):
    import torch
    from areal.api import RolloutWorkflow

    class Sums(RolloutWorkflow):
        """Solves row i of Q with probability i / Q, after a random time."""

        rng = random.Random(seed)

        async def arun_episode(self, engine, data):
            await asyncio.sleep(self.rng.random() / 200)
            reward = float(self.rng.random() < data["number"] / PROMPTS)
            seq = {
                "input_ids": torch.tensor([data["number"], 1, 2]), "loss_mask": torch.tensor([0, 1, 1]),
                "logprobs": torch.tensor([0.0, -0.1, -0.2]), "versions": torch.tensor([-1, 0, 0]),
                "attention_mask": torch.ones(3, dtype=torch.bool), "rewards": torch.tensor(reward),
            }  # fmt: skip
            return {name: value.unsqueeze(0) for name, value in seq.items()}

    return allocated(Sums(), ROWS, TrainerAllocation(**CASES[case]), seed=2)


def trained(executor, workflow, updates):
    """Return the batches that AReaL prepares."""
    own, loader = make_executor(executor), Pace([[{}] * BATCH])
    try:
        batches = []
        for version in range(updates):
            own.inference_engine.get_version = lambda version=version: version
            batches.append(own.prepare_batch(loader, workflow, workflow.informative))
        return batches
    finally:
        own.destroy()


@pytest.mark.parametrize("case", CASES)
def test_areal_batches_our_groups_and_our_state_goes_on(executor, case, tmp_path):
    workflow, asked = make_workflow(case, 0), []
    opens = workflow.groups.next
    workflow.groups.next = lambda: asked.append(opens()) or asked[-1]
    batches = trained(executor, workflow, UPDATES.get(case, 4))
    assert all(len(batch) == BATCH for batch in batches) and workflow.groups.counts["opened"] >= 20
    groups = [group for batch in batches for group in batch]
    assert all(len(set(group["input_ids"][:, 0].tolist())) == 1 for group in groups)
    assert all(map(workflow.informative, groups))
    sizes = {len(group["rewards"]) for group in groups}
    assert (len(sizes) > 1) == (case != "from history")
    if case == "counts by price":
        known = [(abs(group.prompt.data["number"] / PROMPTS - 0.5), group.count) for group in asked[PROMPTS:]]
        near, far = ([count for at, count in known if (at < 1 / 6) == is_near] for is_near in (True, False))
        assert sum(near) / len(near) > sum(far) / len(far)  # the more certain the outcome, the fewer rollouts
        assert all(abs(float(group["rewards"].sum())) < 1e-4 for group in groups)  # the advantages of RLOO

    workflow.save(tmp_path)
    lost, again = [group.key for group in workflow.groups.in_flight], make_workflow(case, 1)
    again.load(tmp_path)
    assert [again.groups.next().key for _ in lost] == lost  # what was in flight comes first
    again = make_workflow(case, 1)
    again.load(tmp_path)
    assert len(trained(executor, again, 2)) == 2
    assert again.groups.counts["opened"] >= workflow.groups.counts["opened"] + 2 * BATCH
