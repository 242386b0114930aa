"""prime-rl's own dispatcher, sink and checkpoints, with our sampler and gate. See CONTRIBUTING.md for how to run it.

The environment server and the inference pool are stand-ins, because they need GPUs. All that schedules, scores, admits
and saves is prime-rl's.
"""

import asyncio
import random
from collections import Counter
from functools import partial
from importlib import import_module
from types import SimpleNamespace

import pytest

from apportion import HORA, VIP
from apportion.advantages import advantages_of
from apportion.engines.prime_rl import ChosenTasks, DeadGroups, allocate, allocate_counts
from apportion.types import Group, Prompt, Rollout
from tests.engines.outside import engine

GROUP = 4
PARTS = {
    "GRPOAlgoConfig": "configs.algorithm", "CheckpointConfig": "configs.orchestrator",
    "GRPOAlgorithm": "orchestrator.algo.grpo", "CheckpointManager": "orchestrator.ckpt",
    "Dispatcher": "orchestrator.dispatcher", "TrainSink": "orchestrator.train_sink",
    "TrainSource": "orchestrator.train_source", "Policy": "orchestrator.types", "Progress": "orchestrator.types",
    "TaskSampler": "orchestrator.curriculum.samplers", "AdmissionGate": "orchestrator.curriculum.gates",
}  # fmt: skip
"""Names of prime-rl, and the modules that have them."""


@pytest.fixture(scope="module")
def prime():
    engine("PRIME_RL", "prime_rl.orchestrator.train_source")
    found = {name: getattr(import_module(f"prime_rl.{module}"), name) for name, module in PARTS.items()}
    return SimpleNamespace(vf=import_module("verifiers.v1"), **found)


class Envs(list):
    """The environments by name, as prime-rl's own container."""

    def get(self, name):
        return next(env for env in self if env.name == name)


def environment(prime, tasks, seed=0):
    """An environment whose task ``i`` of Q is solved with probability i / Q, after a random time."""
    vf, rng = prime.vf, random.Random(seed)

    async def run(client, model_name, cache_salt, task_data):
        await asyncio.sleep(rng.random() / 200)
        task = tasks[task_data["idx"]]
        node = vf.MessageNode(
            message=vf.AssistantMessage(content="x"), token_ids=[1, 2], mask=[True, True], logprobs=[-0.1, -0.2],
            sampled=True,
        )  # fmt: skip
        told = vf.TraceTask(type="Task", data=task.data, key=task.key, hash=task.hash)
        trace = vf.Trace(
            task=told, agent=vf.AgentInfo(config=vf.AgentConfig()), nodes=[node], ok=True,
            rewards={"reward": vf.Reward(score=float(rng.random() < task.data.idx / len(tasks)))},
        )  # fmt: skip
        return vf.Episode(env=vf.EnvInfo(id="sums", name="sums"), task=told, traces=[trace], ok=True)

    pool = SimpleNamespace(train_client=None, eval_client=None, model_name="policy")
    return SimpleNamespace(
        name="sums", tasks=iter(tasks), num_tasks=len(tasks), run=run, sampling_args={"temperature": 1.0},
        config=SimpleNamespace(ratio=1.0, curriculum=None, group_size=GROUP),
        generation_source=SimpleNamespace(uses_live_policy=True, pool=pool),
        algorithm=prime.GRPOAlgorithm(prime.GRPOAlgoConfig(), pool),
    )  # fmt: skip


def make_source(prime, envs, selection=None, **decisions):
    source = prime.TrainSource(envs)
    allocate(source, selection, seed=3, **decisions)
    return source


async def drive(prime, source, envs, groups, finished=None):
    """Let prime-rl finish ``groups`` groups. Return the tasks it dispatched, its batches, and the verdict on each.

    With a list ``finished`` groups have the sizes of the allocator. It gets every one, and one is dropped on the way.
    """
    progress, asked, admitted, batches = prime.Progress(), [], [], []
    next_task, on_result = source.next_task, source.on_result
    source.next_task = lambda *, step: asked.append(next_task(step=step)) or asked[-1]

    def result(group):
        if finished is not None:
            finished.append(group)
        admitted.append(({t.reward for episode in group for t in episode.traces}, on_result(group)))
        return admitted[-1][1]

    dispatcher = prime.Dispatcher(
        train_envs=envs, eval_envs=None, train_source=source, eval_source=None, progress=progress,
        policy_pool=envs[0].generation_source.pool, policy=prime.Policy(version=0), initial_max_inflight=12,
        max_inflight_ceiling=12, tasks_per_minute=None, max_off_policy_steps=8, run_id="run", run_name=None,
    )  # fmt: skip
    config = SimpleNamespace(max_off_policy_steps=8, seq_len=16, train=SimpleNamespace(filter_zero_advantages=False))
    sink = prime.TrainSink(
        config, tokenizer=None, train_envs=envs, mm_token_type_ids_mapping=None, progress=progress, batch_size=8,
        token_batch_size=None, on_result=result,
    )  # fmt: skip
    if finished is not None:
        allocate_counts(dispatcher, sink)
    loop, drop = asyncio.create_task(dispatcher.start()), None
    while len(admitted) < groups:
        if finished is not None and len(admitted) > groups // 2 and drop is None:
            drop = asyncio.create_task(dispatcher.drop_group(list(dispatcher.groups)[-1], reason="overload"))
        result_or_marker = await asyncio.wait_for(dispatcher.out_q.get(), 30)
        take = sink.cancel if hasattr(result_or_marker, "count") else sink.add
        batch = await asyncio.wait_for(take(result_or_marker), 30)
        batches += [batch] if batch else []
    assert drop is None or drop.result() > 0
    await dispatcher.stop()
    await asyncio.wait_for(loop, 30)
    source.next_task = next_task
    return [request.task.data.idx for request in asked], batches, admitted


@pytest.mark.parametrize("selection", ["mixed", "mopps", "shuffled"])
def test_prime_rl_dispatches_our_tasks_and_trains_on_what_our_gate_admits(prime, selection, tmp_path):
    tasks = [prime.vf.Task(prime.vf.TaskData(idx=i, prompt=f"task {i}")) for i in range(60)]
    envs = Envs([environment(prime, tasks)])
    source = make_source(prime, envs, selection)
    asked, batches, admitted = asyncio.run(drive(prime, source, envs, 20))
    assert len(asked) >= 20 and all(verdict == (len(rewards) > 1) for rewards, verdict in admitted)
    assert batches and all(len(batch.samples) == 8 for batch in batches)
    assert all(sample.advantages and any(sample.advantages) for batch in batches for sample in batch.samples)
    metrics = source.metrics()
    assert (
        metrics["curriculum/sums/sampler/opened"] == len(asked) and 0 < metrics["curriculum/sums/admission_rate"] <= 1
    )

    checkpoints = prime.CheckpointManager(tmp_path, prime.CheckpointConfig())
    checkpoints.save(prime.Progress(step=3), source, 3)
    lost = [group.prompt.id for group in source.curricula["sums"].sampler.groups.in_flight]
    envs = Envs([environment(prime, tasks, seed=1)])
    resumed = make_source(prime, envs, selection)
    checkpoints.load(prime.Progress(), resumed, 3)
    again, batches, _ = asyncio.run(drive(prime, resumed, envs, 20))
    assert lost and [tasks[i].key for i in again[: len(lost)]] == lost  # what was in flight comes first
    assert batches and resumed.metrics()["curriculum/sums/sampler/opened"] == len(asked) + len(again)


@pytest.mark.parametrize("allocator", [VIP, partial(HORA, pre_rollouts=2)], ids=["vip", "hora"])
def test_prime_rl_samples_trains_and_saves_groups_of_the_allocator_s_sizes(prime, allocator, tmp_path):
    tasks = [prime.vf.Task(prime.vf.TaskData(idx=i, prompt=f"task {i}")) for i in range(30)]
    envs, finished = Envs([environment(prime, tasks)]), []
    source = make_source(prime, envs, allocator=allocator(rollouts_per_prompt=8), estimator="rloo")
    groups, planned = source.curricula["sums"].sampler.groups, {}
    observe = groups.observe

    def observed(key, rollouts):
        planned[key] = planned.get(key, 0) + len(rollouts)
        return observe(key, rollouts)

    groups.observe = observed
    _, batches, _ = asyncio.run(drive(prime, source, envs, 90, finished))
    sizes = [len(group) for group in finished]
    assert len(set(sizes)) > 2
    assert len({episode.group.id for group in finished for episode in group}) == 90 <= len(planned)
    assert (Counter(sizes) - Counter(planned.values())).total() <= 1  # of the group that was dropped some had arrived
    assert abs(sum(sizes) / 90 - 8) < 1.5 and groups.metrics()["ignored"] == 0 == groups.metrics()["given_up"]
    assert all(len(batch.samples) == 8 for batch in batches)
    for group in finished:
        own = Group(Prompt("a"), tuple(Rollout(reward=episode.traces[0].reward) for episode in group))
        found = [episode.traces[0].nodes[0].advantages[0] for episode in group]
        assert found == pytest.approx(advantages_of([own], "rloo").tolist())

    checkpoints = prime.CheckpointManager(tmp_path, prime.CheckpointConfig())
    checkpoints.save(prime.Progress(step=3), source, 3)
    lost = [group.prompt.id for group in groups.in_flight]
    envs = Envs([environment(prime, tasks, seed=1)])
    resumed = make_source(prime, envs, allocator=allocator(rollouts_per_prompt=8), estimator="rloo")
    checkpoints.load(prime.Progress(), resumed, 3)
    again, *_ = asyncio.run(drive(prime, resumed, envs, 20, []))
    assert lost and sorted(tasks[i].key for i in again[: len(lost)]) == sorted(lost)  # second rounds by length


def test_counts_that_no_dispatcher_follows_are_refused(prime):
    tasks = [prime.vf.Task(prime.vf.TaskData(idx=i, prompt=f"task {i}")) for i in range(30)]
    source = make_source(prime, Envs([environment(prime, tasks)]), allocator="vip")
    with pytest.raises(ValueError, match="call allocate_counts"):
        source.next_task(step=1)


def test_prime_rl_s_interfaces_are_those_of_the_sampler_and_the_gate(prime):
    for theirs, ours in ((prime.TaskSampler, ChosenTasks), (prime.AdmissionGate, DeadGroups)):
        wanted = {name for name in vars(theirs) if callable(getattr(theirs, name)) and not name.startswith("_")}
        assert wanted and not wanted - set(dir(ours))
