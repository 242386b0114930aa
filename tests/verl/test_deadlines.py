"""Requests that are given up at the deadline, in verl with a server that generates until they are aborted."""

import json

import pytest

from apportion.verl.worker import ENDING_SECONDS
from tests.verl.runs import FAULTY, HORA, allocated
from tests.verl.test_modes import STOCK_BUFFER

STALLED = ("stalls_0.0", "stalls_5.0")
"""One rollout in each of the two steps."""


DEADLINE = 3
BOUND = DEADLINE + ENDING_SECONDS + 10
"""Seconds in which a round ends. The last 10 are for everything else, on a slow machine."""


def run_with_faults(train, folder, *faults, mode=()):
    (folder / "records" / "faults").mkdir(parents=True)
    for fault in faults:
        (folder / "records" / "faults" / fault).touch()
    done = train(allocated(HORA, *FAULTY, *mode, deadline_seconds=DEADLINE), folder=folder, seconds=150)
    assert done.status == 0, done.output[-5000:]
    return done


def sleeps(done):
    """Return what the server counted each time that the trainer put it to sleep."""
    lines = (done.folder / "records" / "sleeps_0.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def check(done):
    for metrics in done.metrics:
        assert metrics["allocation/expired"] == 1 and metrics["allocation/rows"] == 15
        assert DEADLINE < metrics["timing_s/gen"] < BOUND
    assert [each["live"] for each in sleeps(done)] == [0] * len(sleeps(done)) and len(sleeps(done)) >= 2


def test_the_server_aborts_by_id_what_is_given_up_at_the_deadline(train, tmp_path):
    done = run_with_faults(train, tmp_path, *STALLED)
    check(done)
    assert sleeps(done)[-1] == {"live": 0, "aborted": 2}


@pytest.mark.soak  # test_server_calls has servers without an abort
@pytest.mark.parametrize("fault", ["abort_raises", "abort_hangs", "abort_misses", "abort_missing"])
def test_the_call_is_cancelled_if_the_abort_fails(train, tmp_path, fault):
    done = run_with_faults(train, tmp_path, *STALLED, fault)
    check(done)
    assert sleeps(done)[-1] == {"live": 0, "cancelled": 2}
    warned = done.output.count("A server did not abort a request that was given up")
    assert warned == (fault in ("abort_raises", "abort_hangs"))  # once, of two


def test_a_session_that_ignores_its_cancellation_holds_up_neither_the_round_nor_the_commit(train, tmp_path):
    """It is cancelled again when its prompt is committed."""
    done = run_with_faults(train, tmp_path, "clings_0.0")
    first, second = done.metrics
    assert first["allocation/expired"] == 1 and first["allocation/rows"] == 15
    assert DEADLINE + ENDING_SECONDS < first["timing_s/gen"] < BOUND
    assert second["allocation/expired"] == 0 and second["allocation/rows"] == 16
    assert "1 of the sessions of " in done.output
    records = tmp_path / "records"
    assert (records / "clung").stat().st_mtime < (records / "rows_2.jsonl").stat().st_mtime


@pytest.mark.soak  # the asynchronous trainer and the deadline have tests of their own
def test_aborts_at_the_deadline_go_along_with_those_of_an_asynchronous_trainer(train, tmp_path):
    """verl aborts all requests after each step, and its client then asks for the rest of the responses."""
    mode = (*STOCK_BUFFER, "trainer.v1.trainer_mode=colocate_async")
    done = run_with_faults(train, tmp_path, *STALLED, mode=mode)
    assert sum(metrics["allocation/expired"] for metrics in done.metrics) >= 1
    assert sleeps(done)[-1].get("aborted", 0) >= 1
