"""verl itself, without this package, on the platform that its tests run it on."""

import time
from pathlib import Path

import pytest
import torch

from tests.verl.cpu.assets import make_policy
from tests.verl.runs import STOCK, rloo


def test_a_stock_run_is_recorded_with_its_weights_and_the_advantages_of_each_group(train):
    done = train(STOCK)
    assert [step["step"] for step in done.metrics] == [0, 1, 2]
    assert all(step["actor/grad_norm"] > 0 for step in done.metrics[1:])
    # what the server says of its samples is what the trainer finds for them
    assert all(step["training/rollout_probs_diff_max"] < 1e-5 for step in done.metrics[1:])
    for step in (1, 2):
        rows = done.rows(step)
        assert len(rows) == len({row["key"] for row in rows}) == 16
        assert {sum(row["rm_scores"]) for row in rows} == {0.0, 1.0}
        for uid in {row["uid"] for row in rows}:
            group = [row for row in rows if row["uid"] == uid]
            for row, expected in zip(group, rloo([sum(row["rm_scores"]) for row in group]), strict=True):
                assert row["advantages"] == pytest.approx([expected] * len(row["responses"]), abs=1e-6)
    states = [torch.load(done.weights(step)) for step in (0, 1, 2)]
    first = make_policy().state_dict()
    assert all(torch.equal(states[0][name], first[name]) for name in first)
    assert not any(torch.equal(states[0]["lm_head.weight"], state["lm_head.weight"]) for state in states[1:])


def working_in(folder):
    """Return the processes whose working directory is ``folder``, as it is for all processes of a run."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found += [process.name] if (process / "cwd").readlink() == folder else []
        except OSError:  # it has ended, or is not ours
            continue
    return found


def assert_no_process_is_left(folder):
    deadline = time.monotonic() + 120  # on a busy machine Ray takes long to see that its driver is gone
    while left := working_in(folder):
        assert time.monotonic() < deadline, left
        time.sleep(0.2)
