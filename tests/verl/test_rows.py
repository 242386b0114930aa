"""Rows that are written for the trainer and read by our estimators, in a real TransferQueue."""

import asyncio

import pytest
import torch
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from apportion.verl.coordinator.messages import CommitTask, TrainedGroup, TrainedRow, WrittenRollout
from apportion.verl.rows import columns_of, commit_rows

UID = "b2f1-40"


def test_rows_have_the_columns_of_their_group_and_a_uid_of_their_own_and_are_otherwise_unchanged(queue):
    """The rows of no group are cleared: of a rollout that is in none, and of session 2, which never arrived.

    ``test_failed_runs`` and ``test_fault_table`` have commits of every other kind.
    """
    lost, kept = (WrittenRollout(b"", UID, session, lengths) for session, lengths in enumerate([(3,), (4, 2)]))
    rows = [{"uid": UID, "responses": torch.arange(n), "rm_scores": torch.ones(n)} for n in (3, 4, 2)]
    tag = {"status": "success", "global_steps": 1}
    queue.kv_batch_put(keys=[UID], tags=[{"is_prompt": True, "status": "running"}], partition_id="train")
    queue.kv_batch_put(
        keys=lost.keys + kept.keys, fields=list_of_dict_to_tensordict(rows), tags=[tag] * 3, partition_id="train"
    )
    columns = {"group": UID, "rewards": [1.0, 0.0, 0.5], "weight": 2.0}
    commit = CommitTask(UID, (TrainedGroup(columns, (TrainedRow(2, kept),)),), "finished")
    asyncio.run(commit_rows(commit, [*lost.keys, f"{UID}_2_0"], by_row=True, rewarded=False))
    first, second = kept.keys
    tags = queue.kv_list("train")["train"]
    assert tags == {UID: {"is_prompt": True, "status": "finished"}, first: tag, second: tag}
    data = queue.kv_batch_get(keys=kept.keys, partition_id="train", select_fields=["uid", "responses", "rm_scores"])
    uids, *tensors = (data.pop(name) for name in ("uid", "responses", "rm_scores"))
    assert uids.tolist() == [first, second]
    found = [[each.tolist() for each in column] for column in tensors]
    assert found == [[[0, 1, 2, 3], [0, 1]], [[1.0] * 4, [1.0] * 2]]
    assert columns_of(kept.keys) == [{"position": 2, **columns}] * 2
    # verl also samples the rows of a failed prompt, under the uid of the prompt
    for wrong in (lost.keys, [*lost.keys, *kept.keys], [UID], [first, "gone_0_0"]):
        with pytest.raises(RuntimeError, match=rf"got \d of {len(wrong)}; allocation failed"):
            columns_of(wrong)
