"""The metrics that verl logs of a step with an allocator, in a file written by its own ``Tracking``."""

import json

import pytest
from verl.trainer.ppo.v1 import trainer_base

from apportion.verl import tracking
from apportion.verl.tracking import AllocationTracking, PaddingCounter, log_metrics

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


def test_rows_and_padding_are_counted_over_all_updates_of_a_step():
    counter = PaddingCounter(lambda rows, padding: rows + padding)
    assert (counter("rows", "p"), counter("row", "pp")) == ("rowsp", "rowpp")
    assert [counter.take_counts() for _ in range(2)] == [{"rows": 7.0, "padding": 3.0}, {"rows": 0.0, "padding": 0.0}]
