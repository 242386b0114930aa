"""What the trainer finds of finished prompts: their groups, the rows that are trained on, and the rows to clear."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from apportion.types import Batch, Group
from apportion.verl.coordinator.messages import CommitTask, TrainedGroup, TrainedRow, address_of, row_keys
from apportion.verl.coordinator.rounds import FinishedPrompts


def commit_tasks(finished: FinishedPrompts, sessions: Mapping[str, int], *, rewarded: bool = False) -> list[CommitTask]:
    """Return one commit for each uid of ``finished``: its groups, and the keys of all its rows that are in none.

    ``sessions`` is the number of sessions requested so far, by group; reused rollouts are written as later ones.
    A session without a result has at most one row, which is cleared. A uid has failed if rollouts were requested and
    none arrived; verl may then draw another prompt. A uid without requested rollouts is finished.
    """
    own, rows = defaultdict[str, list[TrainedGroup]](list), defaultdict[str, set[str]](set)
    for group in finished.groups:
        address = address_of(group.prompt)
        later = address.first_session + sessions[address.group]
        own[address.uid].append(_trained_group(group, later, rewarded, *finished.history[group.prompt.id]))
    asked, arrived, batch = Counter[str](), Counter[str](), finished.batch
    for prompt, rollouts, count in zip(batch.prompts, batch.rollouts, batch.asked.tolist(), strict=True):
        address = address_of(prompt)
        uid, first = address.uid, address.first_session
        asked[uid] += count
        arrived[uid] += len(rollouts)
        fresh = (rollout.completion for rollout in rollouts if rollout.step is None)
        outputs = {written.session: len(written.lengths) for written in fresh}
        for session in range(first, first + sessions[address.group]):
            rows[uid].update(row_keys(uid, session, outputs.get(session, 1)))
    return [
        CommitTask(
            f"{uid}:commit",
            uid,
            tuple(own[uid]),
            tuple(sorted(rows[uid].difference(*(group.kept_keys for group in own[uid])))),
            "failure" if count and not arrived[uid] else "finished",
        )
        for uid, count in asked.items()
    ]


def single_rollout_group(batch: Batch) -> Group | None:
    """Return a group of the first rollout alone, which has advantage 0; None without any rollout.

    It is for rounds with nothing to train on, because verl cannot train on a batch without rows.
    """
    for prompt, rollouts in zip(batch.prompts, batch.rollouts, strict=True):
        if rollouts:
            reward = 0.0 if rollouts[0].reward is None else rollouts[0].reward
            return Group(prompt, (replace(rollouts[0], reward=reward),))
    return None


def _trained_group(group: Group, session: int, rewarded: bool, baseline: float | None, weight: float) -> TrainedGroup:
    """Return ``group`` as it is committed. Its reused rollouts are written as ``session`` and the following."""
    rows = []
    for i in group.keep.nonzero()[0].tolist():
        reused = group.rollouts[i].step is not None
        rows.append(TrainedRow(i, group.rollouts[i].completion, session if reused else None))
        session += reused
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
    return TrainedGroup(columns, tuple(rows), rewarded)
