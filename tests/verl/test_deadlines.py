"""Requests that are given up at the deadline, in verl with a server that generates until they are aborted."""

import json

import pytest

from tests.verl.runs import FAULTY, HORA, allocated

STALLED = ("stalls_0.0", "stalls_5.0")
"""One rollout in each of the two steps."""


def run_with_stalls(train, folder, *faults, mode=()):
    (folder / "records" / "faults").mkdir(parents=True)
    for fault in (*STALLED, *faults):
        (folder / "records" / "faults" / fault).touch()
    done = train(allocated(HORA, *FAULTY, *mode, deadline_seconds=3), folder=folder, seconds=150)
    assert done.status == 0, done.output[-5000:]
    return done


def sleeps(done):
    """Return what the server counted each time that the trainer put it to sleep."""
    lines = (done.folder / "records" / "sleeps_0.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def check(done):
    for metrics in done.metrics:
        assert metrics["allocation/expired"] == 1 and metrics["allocation/rows"] == 15
    assert [each["live"] for each in sleeps(done)] == [0] * len(sleeps(done)) and len(sleeps(done)) >= 2


def test_the_server_aborts_by_id_what_is_given_up_at_the_deadline(train, tmp_path):
    done = run_with_stalls(train, tmp_path)
    check(done)
    assert sleeps(done)[-1] == {"live": 0, "aborted": 2}
    assert [3 < metrics["timing_s/gen"] < 3 + 3 for metrics in done.metrics] == [True, True]


@pytest.mark.parametrize("fault", ["abort_raises", "abort_hangs", "abort_misses", "abort_missing"])
def test_the_call_is_cancelled_if_the_abort_fails(train, tmp_path, fault):
    done = run_with_stalls(train, tmp_path, fault)
    check(done)
    assert sleeps(done)[-1] == {"live": 0, "cancelled": 2}
    warned = done.output.count("A server did not abort a request that was given up")
    assert warned == (fault in ("abort_raises", "abort_hangs"))  # once, of two
