"""Two ranks do the same as one by the same plans, and if one fails all end."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from apportion.records import read_log
from tests import warm
from tests.trl.scripts.failing import FAILED, FAILURES
from tests.trl.scripts.ranks import PARITY, REUSING, RUNS

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("commands")]  # one xdist worker, so that each launch runs once

ROOT = Path(__file__).parents[2]


def start(ranks, script, *arguments):
    """Start a script on ``ranks`` processes, as a user does."""
    launcher = [warm.python(), "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
    said = {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*launcher, "-m", f"tests.trl.scripts.{script}", *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | said,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    """The folders of the script on one rank and on two, and what each rank saw."""
    folders = {ranks: tmp_path_factory.mktemp(f"on-{ranks}") for ranks in (1, 2)}
    running = {ranks: start(ranks, "ranks", folder) for ranks, folder in folders.items()}
    saw = {}
    for ranks, process in running.items():
        said, _ = process.communicate(timeout=400)
        assert process.returncode == 0, said
        saw[ranks] = [json.loads((folders[ranks] / f"rank-{rank}.json").read_text()) for rank in range(ranks)]
    return folders, saw


def rescored(log):
    """Return (prompt, completion, advantage times weight) of the rows of a log in the loss of the last step."""
    rows = log.to_pylist()
    last = max(row["step"] for row in rows)
    kept = [row for row in rows if row["step"] == last and row["kept"]]
    return sorted((row["prompt"], row["completion"], row["advantage"] * row["weight"]) for row in kept)


@pytest.mark.parametrize("kind", PARITY)
def test_uniform_is_trl_to_the_last_bit(launched, kind):
    for saw in launched[1][2]:
        stock, ours = saw["parity"][kind]
        assert ours["weights"] == stock["weights"]
        assert len(stock["history"]) == 3
        for theirs, step in zip(stock["history"], ours["history"], strict=True):
            without = {name: value for name, value in step.items() if not name.startswith("allocation/")}
            assert json.dumps(without, sort_keys=True) == json.dumps(theirs, sort_keys=True)


@pytest.mark.parametrize("name", RUNS)
def test_two_ranks_plan_and_log_as_one_and_end_with_its_weights(launched, name):
    folders, saw = launched
    one, two = (read_log(folders[ranks] / name / "log").drop_columns("written") for ranks in (1, 2))
    assert one.num_rows > 20 and two.equals(one)
    first, second = (each["scripted"][name] for each in saw[2])
    assert first["weights"] == second["weights"] and first["history"] == second["history"]
    ends = [torch.load(folders[ranks] / name / "weights-0.pt") for ranks in (1, 2)]
    begun = load_file(folders[1] / name / "policy-0" / "model.safetensors")
    moved = max(float((ends[0][key] - value).abs().max()) for key, value in begun.items())
    apart = max(float((ends[0][key] - ends[1][key]).abs().max()) for key in ends[0])
    assert moved > 1e-3 and apart < 1e-5 * moved


@pytest.mark.parametrize("name", RUNS)
def test_the_loss_sees_the_rows_of_the_log_and_equally_many_on_every_rank(launched, name):
    folders, saw = launched
    for ranks in (1, 2):
        wanted = rescored(read_log(folders[ranks] / name / "log"))
        rows = sorted(tuple(row) for each in saw[ranks] for row in each["scripted"][name]["rows"])
        assert [row[:2] for row in rows] == [row[:2] for row in wanted]
        np.testing.assert_allclose([row[2] for row in rows], [row[2] for row in wanted], rtol=1e-6, atol=1e-7)
    sizes = [each["scripted"][name]["sizes"] for each in saw[2]]
    assert sizes[0] == sizes[1] and len(set(sizes[0])) == 1 and sizes[0][0] > 0
    logged = saw[2][0]["scripted"][name]["history"][-1]
    assert 2 * sum(sizes[0]) == logged["allocation/rows"] + logged["allocation/padding"]


def test_some_rounds_have_surplus_rows_and_some_rows_are_reused(launched):
    runs = launched[1][2][0]["scripted"]
    total = {
        (name, metric): sum(step.get(f"allocation/{metric}", 0) for step in run["history"])
        for name, run in runs.items()
        for metric in ("surplus", "reused", "prompts")
    }
    for name in ("ar3po", "voting", "dapo, with a reference"):
        assert total[name, "surplus"] > 0, name
    assert total[REUSING, "reused"] > 0
    assert total["dapo, with a reference", "prompts"] > 3 * 4


def test_a_run_resumed_in_the_middle_of_a_batch_ends_like_the_whole(launched):
    folders, saw = launched
    whole, again = (read_log(folders[2] / "resumed" / name).drop_columns("written") for name in ("whole", "again"))
    assert again.equals(whole)
    for each in saw[2]:
        first, second = each["resumed"]
        assert second == first
        assert any(step.get("allocation/reused") for step in first["history"][6:])


# each costs 15 s of imports: a verdict on rank 0 and a death on rank 1 are the two ways in which a rank learns of it
@pytest.mark.parametrize("how", FAILURES)
def test_if_one_rank_fails_all_end_and_say_why(tmp_path, how):
    process = start(2, "failing", how, tmp_path)
    try:
        said, _ = process.communicate(timeout=120)  # most of it is imports
    finally:
        process.kill()
    assert process.returncode != 0
    if how == "graded rewards":
        reason = "rewards must be 0 or 1 for hora, which counts correct rollouts, got 0.5"
        assert f"MainRankError: rank 0 failed in this batch: ValueError: {reason}" in said
        assert said.count(reason) == 2
    else:
        assert f"exitcode: {FAILED}" in said


def test_ranks_wait_for_work_on_rank_0_for_longer_than_their_timeout():
    process = start(2, "waiting")
    try:
        said, _ = process.communicate(timeout=200)
    finally:
        process.kill()
    assert process.returncode == 0, said
    failed = "no embedding"
    for line in (
        *(f"a result on rank {rank}: embedded" for rank in (0, 1)),
        *(f"a ValueError on rank {rank}: ValueError: {failed}" for rank in (0, 1)),
        f"a KeyError on rank 0: KeyError: '{failed}'",
        f"a KeyError on rank 1: MainRankError: rank 0 failed: KeyError: '{failed}'",
    ):
        assert line in said
