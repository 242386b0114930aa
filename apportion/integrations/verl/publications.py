"""What the trainer finds of prompts that are done: their groups, which rows are trained on, and which are cleared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from apportion.integrations.verl.messages import Publication, Row, TrainedGroup, Written, place_of, row_keys
from apportion.types import Batch, Group, Rollout


def publications(
    batch: Batch, groups: Sequence[Group], hosts: Sequence[str], sessions: Mapping[str, int], *, rewarded: bool = False
) -> list[Publication]:
    """One for each of ``hosts``: its groups and its guests', and the keys of all other rows that were written for it.

    ``sessions`` is how many of a place, by its name, were ordered so far: reused rollouts are written as later ones. Of
    a session that did not report one row is cleared, which is there or is not. A host has failed where rollouts were
    asked for and none is there; verl may put another in its place. One that nothing was asked of is done.
    """
    own: dict[str, list[TrainedGroup]] = {host: [] for host in hosts}
    for group in groups:
        place = place_of(group.prompt)
        own[place.host].append(_trained(group, place.offset + sessions[place.name], rewarded))
    written = written_keys(batch, hosts, sessions)
    places = [place_of(prompt).host for prompt in batch.prompts]
    asked = {host for host, count in zip(places, batch.asked, strict=True) if count}
    failed = asked - {host for host, rollouts in zip(places, batch.rollouts, strict=True) if rollouts}
    return [
        Publication(
            f"{host}:published",
            host,
            tuple(own[host]),
            tuple(sorted(written[host] - _kept_keys(own[host]))),
            "failure" if host in failed else "finished",
        )
        for host in hosts
    ]


def failure(host: str, cleared: Sequence[str] = ()) -> Publication:
    """Ends the wait of the trainer for a host of which there will be nothing; ``cleared`` was written for it."""
    return Publication(f"{host}:failed", host, (), tuple(sorted(cleared)), "failure")


def without_reused(publication: Publication) -> Publication:
    """``publication`` without the rows that had to be written anew, which takes the row of its host."""
    groups = (
        replace(group, rows=tuple(row for row in group.rows if row.session is None)) for group in publication.groups
    )
    return replace(publication, groups=tuple(groups))


def filler(batch: Batch) -> Group | None:
    """One rollout alone, which has no advantage: verl cannot train on a batch without any row. None where none is."""
    for prompt, rollouts in zip(batch.prompts, batch.rollouts, strict=True):
        if rollouts:
            reward = 0.0 if rollouts[0].reward is None else rollouts[0].reward
            return Group(prompt, (replace(rollouts[0], reward=reward),))
    return None


def _trained(group: Group, session: int, rewarded: bool) -> TrainedGroup:
    """``group`` as it is published; the first of its reused rollouts is written as ``session``."""
    rows = []
    for i in group.keep.nonzero()[0].tolist():
        reused = group.rollouts[i].step is not None
        rows.append(Row(i, _written(group.rollouts[i]), session if reused else None))
        session += reused
    return TrainedGroup(
        place_of(group.prompt).name,
        tuple(group.rewards.tolist()),
        tuple(rollout.tokens or 0 for rollout in group.rollouts),
        tuple(rollout.round for rollout in group.rollouts),
        tuple(rows),
        rewarded,
    )


def written_keys(batch: Batch, hosts: Sequence[str], sessions: Mapping[str, int]) -> dict[str, set[str]]:
    """Keys of all rows that were written, or may have been, for each of ``hosts``."""
    keys: dict[str, set[str]] = {host: set() for host in hosts}
    for prompt, rollouts in zip(batch.prompts, batch.rollouts, strict=True):
        place = place_of(prompt)
        for session in range(place.offset, place.offset + sessions[place.name]):
            keys[place.host].update(row_keys(place.host, session, 1))
        for rollout in rollouts:
            keys[place.host].update(_written(rollout).keys)
    return keys


def _kept_keys(groups: Sequence[TrainedGroup]) -> set[str]:
    return {key for group in groups for row in group.rows if row.session is None for key in row.written.keys}


def _written(rollout: Rollout) -> Written:
    written: Written = rollout.completion
    return written
