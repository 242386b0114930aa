"""What the trainer gets for finished prompts: their groups, and the rows to train on."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from apportion.advantages import OutcomeGate, gated
from apportion.types import Batch, Group
from apportion.verl.coordinator.messages import CommitTask, TrainedGroup, TrainedRow, address_of, uids_of

History = tuple[float | None, float]
"""A prompt's baseline from earlier rounds (or None), and its weight in the loss."""


@dataclass(eq=False)
class FinishedPrompts:
    """All prompts under some uids, with all their rollouts, their ``groups``, and the ``history`` by prompt id."""

    batch: Batch
    groups: list[Group]
    history: dict[str, History]

    @property
    def uids(self) -> tuple[str, ...]:
        """The uids of the prompts."""
        return uids_of(self.batch.prompts)

    @property
    def trainable(self) -> bool:
        """Whether a row of them is trained on."""
        return any(group.keep.any() for group in self.groups)

    def add_single(self, group: Group) -> None:
        """Add a group of one rollout, which has no signal: a baseline from history would give it one."""
        baseline, weight = self.history[group.prompt.id]
        self.groups.append(group)
        self.history[group.prompt.id] = (None if baseline is None else float(group.rewards[0]), weight)


def commit_tasks(finished: FinishedPrompts, sessions: Mapping[str, int], gate: OutcomeGate = False) -> list[CommitTask]:
    """Return one commit for each uid of ``finished``, with the rewards that train under ``gate``.

    ``sessions`` is the number of sessions requested so far, by group; reused rollouts are written as later ones. A uid
    has failed if rollouts were requested and none arrived; verl may then draw another prompt. A uid without requested
    rollouts is finished.
    """
    groups = defaultdict[str, list[TrainedGroup]](list)
    for group in finished.groups:
        address = address_of(group.prompt)
        later = address.first_session + sessions[address.group]
        groups[address.uid].append(_trained_group(gated(group, gate), later, finished.history[group.prompt.id]))
    asked, arrived, batch = Counter[str](), Counter[str](), finished.batch
    for prompt, rollouts, count in zip(batch.prompts, batch.rollouts, batch.asked.tolist(), strict=True):
        asked[address_of(prompt).uid] += count
        arrived[address_of(prompt).uid] += len(rollouts)
    return [
        CommitTask(uid, tuple(groups[uid]), "failure" if count and not arrived[uid] else "finished")
        for uid, count in asked.items()
    ]


def single_rollout_group(batch: Batch) -> Group | None:
    """Return a group of the first rollout alone, which has advantage 0; None without any rollout.

    It is for rounds with nothing to train on, because verl cannot train on a batch without rows.
    """
    for prompt, rollouts in zip(batch.prompts, batch.rollouts, strict=True):
        if rollouts:
            return Group(prompt, (replace(rollouts[0], reward=rollouts[0].reward or 0.0),))
    return None


def _trained_group(group: Group, session: int, history: History) -> TrainedGroup:
    """Return ``group`` as it is committed.

    Its reused rollouts are written under ``session`` and the numbers after it.
    """
    rows = []
    for i in group.keep.nonzero()[0].tolist():
        reused = group.rollouts[i].step is not None
        rows.append(TrainedRow(i, group.rollouts[i].completion, session if reused else None))
        session += reused
    baseline, weight = history
    columns: dict[str, Any] = {
        "group": address_of(group.prompt).group,
        "rewards": tuple(group.rewards.tolist()),
        "tokens": tuple([rollout.tokens or 0 for rollout in group.rollouts]),
        "rounds": tuple([rollout.round for rollout in group.rollouts]),
        "weight": weight,
    }
    norms = tuple([rollout.score_norm for rollout in group.rollouts])
    if norms and None not in norms:
        columns["score_norms"] = norms
    if baseline is not None:
        columns["baseline"] = (baseline,) * len(norms)
    return TrainedGroup(columns, tuple(rows))
