"""What the trainer finds of finished prompts: their groups, the rows that are trained on, and the rows to clear."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from apportion.types import Batch, Group
from apportion.verl.coordinator.messages import (
    CommitTask,
    TrainedGroup,
    TrainedRow,
    address_of,
    row_keys,
)


def commit_tasks(
    batch: Batch,
    groups: Sequence[Group],
    uids: Sequence[str],
    sessions: Mapping[str, int],
    *,
    rewarded: bool = False,
    baselines: Mapping[str, float] | None = None,
    weights: Mapping[str, float] | None = None,
) -> list[CommitTask]:
    """Return one commit for each of ``uids``: its groups, and the keys of all its rows that are in none of them.

    ``sessions`` is the number of sessions requested so far, by group; reused rollouts are written as later ones.
    ``baselines`` are those from history by prompt id, or None, and ``weights`` those in the loss by prompt id, by
    default all 1. A session without a result has at most one row, which is cleared. A uid has failed if rollouts were
    requested and none arrived; verl may then draw another prompt. A uid without requested rollouts is finished.
    """
    own: dict[str, list[TrainedGroup]] = {uid: [] for uid in uids}
    for group in groups:
        address = address_of(group.prompt)
        trained = _trained_group(
            group,
            address.first_session + sessions[address.group],
            rewarded,
            None if baselines is None else baselines[group.prompt.id],
            1.0 if weights is None else weights[group.prompt.id],
        )
        own[address.uid].append(trained)
    cleared = cleared_keys(batch, own, sessions)
    owners = [address_of(prompt).uid for prompt in batch.prompts]
    asked = {uid for uid, count in zip(owners, batch.asked.tolist(), strict=True) if count}
    failed = asked - {uid for uid, rollouts in zip(owners, batch.rollouts, strict=True) if rollouts}
    return [
        CommitTask(
            f"{uid}:commit",
            uid,
            tuple(own[uid]),
            tuple(sorted(cleared[uid])),
            "failure" if uid in failed else "finished",
        )
        for uid in uids
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


def cleared_keys(
    batch: Batch, groups: Mapping[str, Sequence[TrainedGroup]], sessions: Mapping[str, int]
) -> dict[str, list[str]]:
    """Return, for each uid of ``groups``, the keys of rows that were or may have been written and are not kept."""
    kept = {
        uid: {row.written.session for group in own for row in group.rows if row.session is None}
        for uid, own in groups.items()
    }
    keys: dict[str, list[str]] = {uid: [] for uid in groups}
    for prompt, rollouts in zip(batch.prompts, batch.rollouts, strict=True):
        address = address_of(prompt)
        first, uid = address.first_session, address.uid
        left = set(range(first, first + sessions[address.group])) - kept[uid]
        if left:
            fresh = (rollout.completion for rollout in rollouts if rollout.step is None)
            outputs = {written.session: len(written.lengths) for written in fresh}
            for session in left:
                keys[uid] += row_keys(uid, session, outputs.get(session, 1))
    return keys


def _trained_group(group: Group, session: int, rewarded: bool, baseline: float | None, weight: float) -> TrainedGroup:
    """Return ``group`` as it is committed. Its reused rollouts are written as ``session`` and the following."""
    rows = []
    for i in group.keep.nonzero()[0].tolist():
        reused = group.rollouts[i].step is not None
        rows.append(TrainedRow(i, group.rollouts[i].completion, session if reused else None))
        session += reused
    norms = tuple([rollout.score_norm for rollout in group.rollouts if rollout.score_norm is not None])
    return TrainedGroup(
        address_of(group.prompt).group,
        tuple(group.rewards.tolist()),
        tuple([rollout.tokens or 0 for rollout in group.rollouts]),
        tuple([rollout.round for rollout in group.rollouts]),
        tuple(rows),
        rewarded,
        norms if len(norms) == len(group.rollouts) else (),
        baseline,
        weight,
    )
