"""Rows that are written for the trainer and read by our estimators, in a real TransferQueue."""

import asyncio

import pytest
import torch
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from apportion.verl.coordinator.messages import CommitTask, TrainedGroup, TrainedRow, WrittenRollout
from apportion.verl.rows import columns_of, commit_rows

UID, OTHER = "b2f1-40", "c7d0-41"


def sampled(queue, uid, lengths, step=1):
    """Write a prompt's rows as verl does: session i has outputs of ``lengths[i]`` and score i + 1.

    Return what the worker knows of them.
    """
    queue.kv_batch_put(
        keys=[uid], tags=[{"is_prompt": True, "status": "running", "global_steps": step}], partition_id="train"
    )
    written = []
    for session, outputs in enumerate(lengths):
        rows = [
            {
                "uid": uid,
                "responses": torch.arange(length),
                "response_mask": torch.ones(length, dtype=torch.int64),
                "rm_scores": torch.nn.functional.one_hot(torch.tensor(length - 1), length) * (session + 1.0),
                "extra_fields": {"turns": session},
            }
            for length in outputs
        ]
        written.append(WrittenRollout(bytes([session]), uid, session, tuple(outputs)))
        tags = [{"status": "success", "global_steps": step}] * len(rows)
        queue.kv_batch_put(
            keys=written[-1].keys, fields=list_of_dict_to_tensordict(rows), tags=tags, partition_id="train"
        )
    return written


def group(rewards, written, name=UID, rewarded=False):
    """A group of ``rewards``, whose rows are those ``written``, by position."""
    size = len(rewards)
    rows = tuple(TrainedRow(position, one) for position, one in written.items())
    columns = {
        "group": name,
        "rewards": tuple(rewards),
        "tokens": tuple(range(5, 5 + size)),
        "rounds": (0,) * size,
        "weight": 2.0,
        "score_norms": tuple(0.5 + position for position in range(size)),
        "baseline": (0.25,) * size,
    }
    return TrainedGroup(columns, rows, rewarded)


def committed(queue, uid, groups, cleared=(), status="finished", by_row=True):
    asyncio.run(commit_rows(CommitTask(f"{uid}:commit", uid, tuple(groups), tuple(cleared), status), by_row=by_row))
    return queue.kv_list("train")["train"]


def fields_of(queue, keys, *names):
    data = queue.kv_batch_get(keys=keys, partition_id="train", select_fields=list(names))
    return [data.pop(name) for name in names]


def test_rows_have_the_columns_of_their_group_and_a_uid_of_their_own_and_are_otherwise_unchanged(queue):
    first, second, third = sampled(queue, UID, [(3,), (4, 2), (5,)])
    committed(queue, UID, [group((1.0, 0.0, 0.5), {0: third, 2: second})], cleared=first.keys)
    keys = third.keys + second.keys
    uids, scores, responses, extra = fields_of(queue, keys, "uid", "rm_scores", "responses", "extra_fields")
    assert uids.tolist() == keys == [f"{UID}_2_0", f"{UID}_1_0", f"{UID}_1_1"]
    whole = {"group": UID, "rewards": [1.0, 0.0, 0.5], "tokens": [5, 6, 7], "rounds": [0, 0, 0], "weight": 2.0}
    whole |= {"score_norms": [0.5, 1.5, 2.5], "baseline": [0.25] * 3}
    assert columns_of(keys) == [{"position": 0} | whole, {"position": 2} | whole, {"position": 2} | whole]
    assert scores[1].tolist() == [0, 0, 0, 2] and responses[1].tolist() == [0, 1, 2, 3]
    assert extra.tolist() == [{"turns": 2}, {"turns": 1}, {"turns": 1}]
    # verl also samples the rows of a failed prompt, under the uid of the prompt
    for wrong in ([first.keys[0]], [*first.keys, *keys], [UID], [keys[0], "gone_0_0"]):
        with pytest.raises(RuntimeError, match=rf"got \d of {len(wrong)}; allocation failed"):
            columns_of(wrong)


def test_rewards_of_the_allocator_replace_scores(queue):
    for i, lengths in enumerate(([(3,), (4, 2), (5,)], [(4,), (4,)])):
        written = sampled(queue, f"h{i}", lengths)
        rewards = [0.5 * position - 0.25 for position in range(len(written))]
        committed(queue, f"h{i}", [group(rewards, dict(enumerate(written)), name=f"h{i}", rewarded=True)])
        for position, one in enumerate(written):
            (scores,) = fields_of(queue, one.keys, "rm_scores")
            assert [row.tolist() for row in scores] == [[0.0] * (n - 1) + [rewards[position]] for n in one.lengths]
        (scores,) = fields_of(queue, [key for one in written for key in one.keys], "rm_scores")
        assert scores.dtype == torch.float32 and scores.is_nested  # as the trainer takes them


def test_rows_of_no_group_are_cleared_and_the_trainer_finds_the_others(queue):
    """Session 3 never arrived. A prompt that an allocator leaves out has no rows, and the trainer waits for none."""
    first, second, third = sampled(queue, UID, [(3,), (4, 2), (5,)])
    (beside,), _ = sampled(queue, OTHER, [(2,)]), sampled(queue, "failed", [])
    cleared = [*first.keys, *third.keys, f"{UID}_3_0"]
    tags = committed(queue, UID, [group((1.0, 0.0, 0.5), {1: second})], cleared=cleared)
    assert set(tags) == {UID, *second.keys, OTHER, *beside.keys, "failed"}
    assert tags[UID] == {"is_prompt": True, "status": "finished", "global_steps": 1}
    assert tags[second.keys[0]] == {"status": "success", "global_steps": 1}
    committed(queue, OTHER, [], cleared=beside.keys)
    buffer = ReplayBuffer("sync", {}, None, "drop", {}, poll_interval=0.01, train_batch_size=1, gen_batch_size=1)
    batch, _ = buffer.sample(global_steps=1, partition_id="train", batch_size=2)
    assert sorted(batch.keys) == second.keys
    assert committed(queue, "failed", [], status="failure")["failed"]["status"] == "failure"


@pytest.mark.parametrize("name", ["async_kv_batch_put", "async_kv_clear"])
def test_the_status_is_written_last(queue, monkeypatch, name):
    """The trainer reads the rows of a finished prompt as they are at that moment."""
    first, second = sampled(queue, UID, [(3,), (4,)])

    async def failing(*_, **__):
        raise OSError("storage is gone")

    monkeypatch.setattr(queue, name, failing)
    with pytest.raises(OSError, match="storage is gone"):
        committed(queue, UID, [group((1.0, 0.0), {0: first})], cleared=second.keys)
    assert queue.kv_list("train")["train"][UID]["status"] == "running"


def test_without_keys_as_uids_rows_of_a_group_share_its_name(queue):
    """As verl's own estimators find them. An extra prompt's group has its own name, and keys of the uid."""
    first, second, third = sampled(queue, UID, [(3,), (4, 2), (5,)])
    groups = [group((1.0, 0.0), {0: first, 1: second}), group((2.0,), {0: third}, name=f"{UID}.1")]
    committed(queue, UID, groups, by_row=False)
    (uids,) = fields_of(queue, first.keys + second.keys + third.keys, "uid")
    assert uids.tolist() == [UID, UID, UID, f"{UID}.1"]
