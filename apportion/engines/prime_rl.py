"""prime-rl: which task is next, and which groups train. Its orchestrator asks the sampler and the gate made here.

prime-rl samples groups of one size, and its algorithms compute the advantages. So the rules here choose tasks, and give
dead groups no place in a batch. ``allocate`` puts them into a ``TrainSource``, whose configuration knows no others.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from apportion.allocators import Uniform
from apportion.engines.contract import EngineGroups, differ
from apportion.predictors.saved import SavedValues
from apportion.scheduler.decisions import TrainerAllocation
from apportion.scheduler.outcomes import read_reward
from apportion.selection import Selector
from apportion.types import Prompt

GATE = "dead_groups"
"""The name of the gate in prime-rl's metrics and checkpoints."""


class ChosenTasks:
    """A ``TaskSampler`` that chooses by ``selection``.

    Args:
        tasks: of a finite taskset, with a key each; more than are sampled at once.
        group_size: the rollouts of a task, as ``group_size`` of its environment.
        selection: the rule, or its name.
        seed: of the selection.
        lost_after: see ``EngineGroups``. prime-rl drops stale groups without a word to its sampler.

    Raises ValueError for tasks without an end or without keys, and for what ``EngineGroups`` refuses.
    """

    def __init__(
        self,
        tasks: Sequence[Any],
        group_size: int,
        selection: Selector | str = "mixed",
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
        prompts = [Prompt(task.key, id=task.key) for task in tasks]
        # Names are read by the decisions, which type fields as the rules they become.
        decisions = TrainerAllocation(allocator=Uniform(), selection=selection)  # type: ignore[arg-type]
        self.groups = EngineGroups(decisions, prompts, group_size=group_size, seed=seed, lost_after=lost_after)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        """Return the next task. Raises ValueError if all are in flight."""
        return self._tasks[self.groups.next().prompt.id]

    def observe(self, group: Sequence[Any]) -> None:
        """Learn from the episodes of a finished group."""
        self.groups.observe(group[0].task.key, [self.groups.rollout(reward) for reward in _rewards(group)])

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
    """An ``AdmissionGate`` that rejects groups of equal rewards, which have no group-relative gradient."""

    def __init__(self) -> None:
        self._seen = self._dead = 0

    def admit(self, group: Sequence[Any]) -> bool:
        """Return whether the rewards of ``group`` differ. Groups with fewer than two rewards are admitted."""
        admitted = differ([reward for reward in _rewards(group) if reward is not None])
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
    source: Any, selection: Selector | str = "mixed", *, gate: bool = True, seed: int = 0, lost_after: int = 4096
) -> None:
    """Let ``selection`` choose the tasks of every environment of ``source``, prime-rl's ``TrainSource``.

    Call it after the source is made, and before a checkpoint is loaded. ``gate`` rejects dead groups. A rule that is no
    name serves one environment. Raises ValueError for several, and for what ``ChosenTasks`` refuses.
    """
    if not isinstance(selection, str) and len(source.envs) > 1:
        raise ValueError(
            f"selection must be the name of a rule for several environments, because each learns its own, got "
            f"{selection!r:.80}; give a name"
        )
    for env in source.envs:
        curriculum = source.curricula[env.name]
        tasks: Any = getattr(curriculum.sampler, "tasks", None)  # None if the taskset has no end
        curriculum.sampler = ChosenTasks(tasks, env.config.group_size, selection, seed=seed, lost_after=lost_after)
        if gate:
            curriculum.gates[GATE] = DeadGroups()


def _rewards(group: Sequence[Any]) -> list[float | None]:
    """Return the mean reward of each episode's traces that train; None without any, and if it is no finite number."""
    found: list[float | None] = []
    for episode in group:
        rewards = [trace.reward for trace in episode.traces if trace.agent.trainable and not trace.has_error]
        found.append(read_reward(sum(rewards) / len(rewards)).reward if rewards else None)
    return found
