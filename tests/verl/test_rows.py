"""Rows that are written for the trainer and read by our estimators, in a real TransferQueue."""

import asyncio

import pytest
import torch
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from apportion.verl.coordinator.messages import CommitTask, TrainedGroup, TrainedRow, WrittenRollout
from apportion.verl.rows import columns_of, commit_rows

UID = "b2f1-40"


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


def group(rewards, written, name=UID):
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
    return TrainedGroup(columns, rows)


def committed(queue, uid, groups, cleared=(), by_row=True, rewarded=False):
    commit = CommitTask(uid, tuple(groups), "finished")
    asyncio.run(commit_rows(commit, cleared, by_row=by_row, rewarded=rewarded))
    return queue.kv_list("train")["train"]


def fields_of(queue, keys, *names):
    data = queue.kv_batch_get(keys=keys, partition_id="train", select_fields=list(names))
    return [data.pop(name) for name in names]


def test_rows_have_the_columns_of_their_group_and_a_uid_of_their_own_and_are_otherwise_unchanged(queue):
    """The rows of no group are cleared: of a rollout that is in none, and of session 3, which never arrived."""
    first, second, third = sampled(queue, UID, [(3,), (4, 2), (5,)])
    rest = [*first.keys, f"{UID}_3_0"]
    tags = committed(queue, UID, [group((1.0, 0.0, 0.5), {0: third, 2: second})], cleared=rest)
    keys = third.keys + second.keys
    assert set(tags) == {UID, *keys} and tags[keys[0]] == {"status": "success", "global_steps": 1}
    assert tags[UID] == {"is_prompt": True, "status": "finished", "global_steps": 1}
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
