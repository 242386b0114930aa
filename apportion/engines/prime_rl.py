"""prime-rl: which task is next, how many episodes it gets, and which groups train. prime-rl's orchestrator calls this.

``allocate`` puts a sampler and a gate into a ``TrainSource``, whose configuration knows no others. prime-rl gives every
group of an environment one size, in three places: two fields of the dispatcher's ``GroupState``, and the sink's
``_group_complete``. ``allocate_counts`` replaces these sizes by those of the allocator.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from apportion.engines.contract import EngineGroups, differ
from apportion.predictors.saved import SavedValues
from apportion.scheduler.decisions import TrainerAllocation
from apportion.scheduler.outcomes import read_reward
from apportion.selection import Selector
from apportion.types import Prompt, Rollout

GATE = "dead_groups"
"""The name of the gate in prime-rl's metrics and checkpoints."""


class ChosenTasks:
    """A ``TaskSampler`` that chooses by ``selection``.

    Args:
        tasks: of a finite taskset, with a key each; more than are sampled at once.
        group_size: the rollouts of a task, as ``group_size`` of its environment.
        decisions: the selection, and the rule; groups of a size of their own need ``allocate_counts``.
        seed: of the selection.
        lost_after: see ``EngineGroups``. prime-rl drops stale groups without a word to its sampler.

    Raises ValueError for tasks without an end or without keys, and for what ``EngineGroups`` refuses.
    """

    def __init__(
        self,
        tasks: Sequence[Any],
        group_size: int,
        decisions: TrainerAllocation,
        *,
        seed: int = 0,
        lost_after: int = 4096,
    ) -> None:
        if not isinstance(tasks, Sequence) or any(task.key is None for task in tasks):
            raise ValueError(
                "tasks must be a finite sequence of tasks with keys, because beliefs are about tasks that come again, "
                f"got {tasks!r:.80}; use prime-rl's own sampler for an endless taskset"
            )
        self._tasks = {task.key: task for task in tasks}
        rule, prompts = decisions.allocator.with_budget(group_size), [Prompt(task.key, id=task.key) for task in tasks]
        equal = rule.one_round and rule.separable and rule.size(1).asked == group_size
        own, size = replace(decisions, allocator=rule), group_size if equal else None
        self._equal, self._followed = equal, False
        self.groups = EngineGroups(own, prompts, group_size=size, seed=seed, lost_after=lost_after)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        """Return the next task. Raises ValueError if all are in flight, or if nothing follows counts that differ."""
        if not (self._equal or self._followed):
            raise ValueError(
                "the dispatcher must follow the counts of the allocator, got one of prime-rl's own; call "
                "allocate_counts(self.dispatcher, self.train_sink) after both are made"
            )
        self.latest = self.groups.next()
        return self._tasks[self.latest.prompt.id]

    def follow(self) -> None:
        """Learn from the dispatcher instead of ``observe``. It samples ``count`` episodes for the ``latest`` group."""
        self._followed = True

    def observe(self, group: Sequence[Any]) -> None:
        """Learn from the episodes of a finished group, unless the dispatcher tells of them."""
        if not self._followed:
            self.groups.observe(group[0].task.key, _rollouts(self.groups, group))

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the groups."""
        return self.groups.metrics()

    def state_dict(self) -> dict[str, Any]:
        """Return the state for prime-rl's checkpoint."""
        return self.groups.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore ``state_dict``. Tasks that were in flight come first."""
        self.groups.load_state_dict(state_dict)


class DeadGroups:
    """An ``AdmissionGate`` that rejects groups without a gradient, by default those of equal rewards."""

    def __init__(self, teaches: Callable[[Sequence[float]], bool] = differ) -> None:
        self._teaches = teaches
        self._seen = self._dead = 0

    def admit(self, group: Sequence[Any]) -> bool:
        """Return whether ``group`` has a gradient. Groups with fewer than two rewards are admitted."""
        admitted = self._teaches([reward for reward in _rewards(group) if reward is not None])
        self._seen, self._dead = self._seen + 1, self._dead + (not admitted)
        return admitted

    def metrics(self) -> dict[str, float]:
        """Return the share of groups that were rejected so far."""
        return {"rejected": self._dead / self._seen} if self._seen else {}

    def state_dict(self) -> dict[str, Any]:
        """Return the counts of groups."""
        return {"seen": self._seen, "dead": self._dead}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore ``state_dict``. Raise ValueError for anything else."""
        saved = SavedValues(state_dict, "the gate of dead groups", ["seen", "dead"])
        seen, dead = saved.count("seen"), saved.count("dead")
        if dead > seen:
            raise saved.refusal("dead", f"at most {seen}, the groups seen,")
        self._seen, self._dead = seen, dead


def allocate(
    source: Any,
    selection: Selector | str = "mixed",
    *,
    gate: bool = True,
    seed: int = 0,
    lost_after: int = 4096,
    **decisions: Any,
) -> None:
    """Let ``selection`` choose the tasks of every environment of ``source``, prime-rl's ``TrainSource``.

    Call it after the source is made, and before a checkpoint is loaded. ``gate`` rejects dead groups. ``decisions`` are
    others of ``TrainerAllocation``: with an ``allocator`` or a ``preset`` groups differ in size, and with an
    ``estimator`` advantages are its own. Then call ``allocate_counts`` too. A rule that is no name serves one
    environment. Raises ValueError for several, and for what ``EngineGroups`` refuses.
    """
    given: dict[str, Any] = ({} if "preset" in decisions else {"allocator": "uniform"}) | {"selection": selection}
    given |= decisions
    rules = [own for own in given.values() if own is not None and not isinstance(own, str)]
    if rules and len(source.envs) > 1:
        raise ValueError(
            f"rules must be given by name for several environments, because each learns its own, got {rules[0]!r:.80}; "
            "give names"
        )
    for env in source.envs:
        curriculum = source.curricula[env.name]
        tasks: Any = getattr(curriculum.sampler, "tasks", None)  # None if the taskset has no end
        own = TrainerAllocation(**given)
        sampler = ChosenTasks(tasks, env.config.group_size, own, seed=seed, lost_after=lost_after)
        curriculum.sampler = sampler
        if gate:
            curriculum.gates[GATE] = DeadGroups(sampler.groups.teaches)


def allocate_counts(dispatcher: Any, sink: Any) -> None:
    """Make ``dispatcher`` sample as many episodes of each task as its allocator says, and ``sink`` wait for that many.

    Call it after prime-rl's ``Dispatcher`` and ``TrainSink`` are made. A rule of several rounds gets the rewards of a
    round when its last episode arrives. A group that prime-rl drops counts as failed.
    """
    fresh, emit, drop, process = (
        dispatcher.next_fresh_group, dispatcher.emit_episode, dispatcher.drop_group, sink.process_group
    )  # fmt: skip
    states: dict[str, Any] = {}  # of the groups that the sink has heard of and not finished, by id

    def next_fresh_group(kind: str, envs: Any) -> Any:
        state = fresh(kind, envs)
        if kind == "train" and state is not None:
            state.sampler = dispatcher.train_source.curricula[state.env_name].sampler
            state.key, state.rollouts = state.sampler.latest.key, []
            state.missing = state.episodes_to_schedule = state.target_episodes = state.sampler.latest.count
        return state

    async def emit_episode(meta: Any, state: Any, episode: Any) -> None:
        if meta.kind == "train" and state is not None:
            states[str(meta.group_id)] = state
            state.rollouts += _rollouts(state.sampler.groups, [episode])
            state.missing -= 1
            if not state.missing:
                state.missing = state.sampler.groups.observe(state.key, state.rollouts)
                state.rollouts = []
                state.target_episodes += state.missing
                state.episodes_to_schedule += state.missing
        await emit(meta, state, episode)

    async def drop_group(group_id: Any, *, reason: Any) -> Any:
        state = dispatcher.groups.get(group_id)
        if state is not None and state.kind == "train":
            states[str(group_id)] = state
            while state.sampler.groups.observe(state.key, state.rollouts):  # later rounds have failed too
                state.rollouts = []
        return await drop(group_id, reason=reason)

    def group_complete(group_id: str, env_name: str) -> bool:
        cancelled = sink.pending_group_cancellations.get(group_id)
        arrived = len(sink.pending_groups[group_id]) + (0 if cancelled is None else cancelled.count)
        return bool(arrived >= states[group_id].target_episodes)

    async def process_group(group_id: str) -> None:
        await process(group_id)
        del states[group_id]

    dispatcher.next_fresh_group, dispatcher.emit_episode, dispatcher.drop_group = (
        next_fresh_group, emit_episode, drop_group
    )  # fmt: skip
    sink._group_complete, sink.process_group = group_complete, process_group
    for env in dispatcher.train_source.envs:
        sampler = dispatcher.train_source.curricula[env.name].sampler
        sampler.follow()
        if sampler.groups.decisions.estimator is not None:
            env.algorithm.finalize_group = partial(_score, env.algorithm.finalize_group, states)


async def _score(finalize: Any, states: Mapping[str, Any], group: Sequence[Any]) -> None:
    """Set the advantage of each episode of ``group`` on its traces, after prime-rl has set its own."""
    from prime_rl.orchestrator.algo.base import iter_trainable_traces  # noqa: PLC0415 - the engine
    from prime_rl.orchestrator.algo.routing import assign_advantages  # noqa: PLC0415 - the engine

    await finalize(group)
    state = states[group[0].group.id]
    groups = state.sampler.groups
    found = groups.advantages([state.key] * len(group), _rollouts(groups, group)).tolist()
    for episode, value in zip(group, found, strict=True):
        for _, trace in iter_trainable_traces([episode]):
            assign_advantages(trace, value)


def _rollouts(groups: EngineGroups, group: Sequence[Any]) -> list[Rollout | None]:
    """Return the rollout of each episode, None for one that failed."""
    found = []
    for episode, reward in zip(group, _rewards(group), strict=True):
        nodes = [node for trace in episode.traces if trace.agent.trainable for node in trace.nodes]
        tokens, logprobs = sum(sum(node.mask) for node in nodes), [each for node in nodes for each in node.logprobs]
        found.append(groups.rollout(reward, tokens, logprobs if len(logprobs) == tokens else None))
    return found


def _rewards(group: Sequence[Any]) -> list[float | None]:
    """Return the mean reward of each episode's traces that train; None without any, and if it is no finite number."""
    found: list[float | None] = []
    for episode in group:
        rewards = [trace.reward for trace in episode.traces if trace.agent.trainable and not trace.has_error]
        found.append(read_reward(sum(rewards) / len(rewards)).reward if rewards else None)
    return found
