"""The metrics that verl logs of a step with an allocator, in a file written by its own ``Tracking``."""

import json

import numpy as np
import pytest
import torch
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import trainer_base
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from apportion.verl import tracking
from apportion.verl.estimators import GroupEstimator
from apportion.verl.tracking import AllocationTracking, log_metrics

TRAINED = {"training/global_step": 1, "actor/loss": 0.5}
VALIDATED = {"val-core/toy/acc/mean@1": 0.25}


@pytest.fixture(autouse=True)
def verls_own(monkeypatch):
    """Restore verl's names."""
    for name in ("Tracking", "upsample_batch_to_divisible_size"):
        monkeypatch.setattr(trainer_base, name, getattr(trainer_base, name))
    monkeypatch.setattr(AllocationTracking, "metrics", None)
    tracking.padding.take_counts()


@pytest.fixture
def written(tmp_path, monkeypatch):
    """``written(*logs)``: what is in the file of a tracker, made as the trainer makes it, that is given these logs."""

    def made(*logs):
        path = tmp_path / "metrics.jsonl"
        monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(path))
        tracker = trainer_base.Tracking(
            project_name="toy", experiment_name="run", default_backend=["file"], config={"trainer": {}}
        )
        for step, data in enumerate(logs):
            tracker.log(data=data, step=step)
        tracker.finish()
        return [json.loads(line) for line in path.read_text().splitlines()]

    return made


def test_a_training_step_is_logged_with_ours_beside_it_and_a_validation_unchanged(written):
    """Rounds that ended before a validation are logged with the next step. A later manager replaces an earlier one."""
    waiting = [{"rounds": 3.0, "selection/never_chosen": 0.5}]
    log_metrics(lambda: {"rounds": 1.0})
    log_metrics(lambda: waiting.pop())
    data = dict(VALIDATED | TRAINED)
    assert [line["data"] for line in written(VALIDATED, data)] == [
        VALIDATED,
        data
        | {"allocation/rounds": 3.0, "selection/never_chosen": 0.5, "allocation/rows": 0.0, "allocation/padding": 0.0},
    ]
    assert data == VALIDATED | TRAINED
    assert trainer_base.Tracking is AllocationTracking


def test_an_error_is_raised_when_the_trainer_logs(written):
    def failing():
        raise RuntimeError("allocation failed at step 1: no worker lives")

    log_metrics(failing)
    with pytest.raises(RuntimeError, match="no worker lives"):
        written(TRAINED)


def test_verl_alone_logs_nothing_of_ours(written):
    assert written(TRAINED) == [{"step": 0, "data": TRAINED}]


def batch(queue, rows):
    """Return a batch as the trainer samples it."""
    keys = [f"b{i}-f_0_0" for i in range(rows)]
    fields = [
        {"uid": key, "response_mask": torch.ones(3, dtype=torch.int64), "rm_scores": torch.ones(3)} for key in keys
    ]
    tags = [{"status": "success", "seq_len": 5}] * rows
    queue.kv_batch_put(keys=keys, fields=list_of_dict_to_tensordict(fields), tags=tags, partition_id="train")
    return KVBatchMeta(partition_id="train", keys=keys, tags=tags)


def test_rows_and_padding_are_counted_as_verl_pads_and_logged(queue, written):
    """The counts cover all updates of a step, and start at 0 in the next."""
    log_metrics(lambda: {})
    padded = [trainer_base.upsample_batch_to_divisible_size(batch(queue, rows), 4, 3) for rows in (5, 8, 3)]
    assert [len(each) for each in padded] == [8, 8, 4]
    counts = [
        (line["data"]["allocation/rows"], line["data"]["allocation/padding"]) for line in written(TRAINED, TRAINED)
    ]
    assert counts == [(16.0, 4.0), (0.0, 0.0)]


def test_our_estimators_know_the_rows_that_verl_pads_with(queue):
    """Padding rows have no group, although they are copies of a row that has one."""
    padded = trainer_base.upsample_batch_to_divisible_size(batch(queue, 3), 4, 3)
    data = queue.kv_batch_get(keys=padded.keys, partition_id="train", select_fields=["uid", "response_mask"])
    index = np.array(data.pop("uid").tolist(), dtype=object)
    asked = []

    def columns(keys):
        asked.extend(keys)
        return [
            {"group": "q", "position": i, "rewards": [1.0, 0.0, 0.0], "tokens": [3] * 3, "rounds": [0] * 3}
            for i in range(3)
        ]

    mask = data.to_padded_tensor()["response_mask"]
    found, _ = GroupEstimator("rloo", "prompt", "seq-mean-token-sum", columns=columns)(
        torch.zeros(mask.shape), mask, index
    )
    assert asked == padded.keys[:3]
    torch.testing.assert_close(found, torch.tensor([[4 / 3], [-2 / 3], [-2 / 3], [0.0]]) * mask)
