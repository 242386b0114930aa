"""Means of steps that frameworks log: read where they are all that there is, and refused where rollouts are needed."""

import json
import os
import struct
import subprocess
import sys

import numpy as np
import pytest

from apportion.records import RecordError, ScalarsOnlyError, open_run, scalars, scalars_at
from tests.records.importing.tables import comma_separated, jsonl

STEPS = 30


def values(step):
    return {"reward": 0.01 * step, "frac_reward_zero_std": 0.5, "kl": 0.001}


def check(found, source):
    assert found.source == source
    steps, rewards = found.series("reward")
    assert steps.tolist() == list(range(1, STEPS + 1)) and rewards == pytest.approx(0.01 * steps, rel=1e-6)
    assert found.series("dead")[1].mean() == 0.5 and found.series("entropy") is None


def test_the_trainer_state_of_trl_is_read(tmp_path):
    rows = [{"step": step, "epoch": 1, **values(step)} for step in range(1, STEPS + 1)]
    content = json.dumps({"log_history": [*rows, {"step": STEPS, "train_runtime": 1.0}]})
    (tmp_path / "checkpoint-30").mkdir()
    for place in (tmp_path / "trainer_state.json", tmp_path / "checkpoint-30" / "trainer_state.json"):
        place.write_text(content)
        check(scalars_at(place), "TRL's trainer state")
    (tmp_path / "trainer_state.json").unlink()
    (tmp_path / "checkpoint-4").mkdir()  # an earlier one that was copied later
    (tmp_path / "checkpoint-4" / "trainer_state.json").write_text(json.dumps({"log_history": rows[:4]}))
    check(scalars_at(tmp_path), "TRL's trainer state")
    with pytest.raises(ScalarsOnlyError, match=r"a run must have rollouts, got TRL's trainer state .*; single prompts"):
        open_run(tmp_path / "checkpoint-30" / "trainer_state.json")


def test_events_of_tensorboard_are_read_as_it_writes_them(tmp_path):
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    writer = tensorboard.SummaryWriter(str(tmp_path / "runs"))
    for step in range(1, STEPS + 1):
        for name, value in values(step).items():
            writer.add_scalar(f"train/{name}", value, step)
    writer.close()
    check(scalars_at(tmp_path), "TensorBoard events")
    [path] = (tmp_path / "runs").iterdir()
    path.write_bytes(path.read_bytes()[:-5])  # a run that was killed while it wrote
    assert len(scalars_at(path).series("kl")[0]) == STEPS - 1
    path.write_bytes(struct.pack("<Q", 2**40) + bytes(20))
    with pytest.raises(RecordError, match="must be events of TensorBoard, got an event of 1,099"):
        scalars_at(path)


def test_events_of_a_resumed_run_are_joined_and_those_of_another_run_are_not(tmp_path):
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    for folder, steps in (("a", range(1, 12)), ("a", range(10, STEPS + 1)), ("b", range(1, 9))):
        writer = tensorboard.SummaryWriter(str(tmp_path / folder))
        for step in steps:
            for name, value in values(step).items():
                writer.add_scalar(f"train/{name}", value, step)
        writer.close()
    check(scalars_at(tmp_path / "a"), "TensorBoard events")
    for path in (tmp_path / "b").iterdir():
        os.utime(path, (0, 0))
    check(scalars_at(tmp_path), "TensorBoard events of a, the newest of 2 folders")


WANDB = """
import wandb
run = wandb.init(dir={folder!r}, project="p", mode="offline", settings=wandb.Settings(silent=True))
for step in range(1, {steps} + 1):
    values = {{"train/reward": 0.01 * step, "train/frac_reward_zero_std": 0.5, "kl": 0.001}}
    run.log({{**values, "text": "x" * 4000}}, step=step)
run.finish()
"""


@pytest.mark.slow
def test_a_local_run_of_wandb_is_read_as_it_writes_it(tmp_path):
    pytest.importorskip("wandb")
    code = WANDB.format(folder=str(tmp_path), steps=STEPS)
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"WANDB_MODE": "offline"}, timeout=120)
    check(scalars_at(tmp_path), "W&B run")


def test_an_exported_history_and_metrics_as_json_lines_are_read(tmp_path):
    rows = [
        {"Step": step, **{f"run-7 - train/{k}": v for k, v in values(step).items()}} for step in range(1, STEPS + 1)
    ]
    check(scalars_at(comma_separated(tmp_path / "wandb_export.csv", rows)), "exported history")
    both = [row | {"run-8 - train/reward": 9.0} for row in rows]
    check(scalars_at(comma_separated(tmp_path / "both.csv", both)), "exported history of run-7, the first of 2 runs")
    verl = [{"step": step, "data": {"critic/score/mean": 0.01 * step, "actor/entropy": 0.3}} for step in range(1, 9)]
    found = scalars_at(jsonl(tmp_path / "metrics.jsonl", verl))
    assert found.series("reward")[0].tolist() == list(range(1, 9)) and found.series("entropy") is not None


@pytest.mark.parametrize("row", [{"step": 1, "reward": 1.0}, {"step": 1, "prompt": "a", "reward": 1.0, "kl": 0.1}])
def test_rollouts_are_no_means_of_steps(tmp_path, row):
    assert scalars_at(jsonl(tmp_path / "run.jsonl", [row] * 3)) is None


def test_the_components_of_a_reward_are_known(tmp_path):
    rows = [
        {"step": s, "reward": 1.0, "rewards/a/mean": s / 10, "rewards/b/mean": 1.0, "rewards/a/std": 0.1}
        for s in range(9)
    ]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": rows}))
    found = scalars_at(tmp_path)
    assert list(found.components) == ["a", "b"] and np.allclose(found.components["a"][1], np.arange(9) / 10)


def test_numbers_and_steps_of_any_size_are_left_out(tmp_path):
    text = "step,reward,kl\n1,0.5,0.1\ninf,0.5,0.1\n2,inf,0.1\n3,0.5,1e999\n"
    (tmp_path / "history.csv").write_text(text)
    assert scalars_at(tmp_path / "history.csv").series("reward")[0].tolist() == [1, 3]
    rows = [{"step": s, "reward": 10**400 if s == 2 else 0.5, "kl": 0.1} for s in (1, 2, 10**30, 4)]
    assert scalars_at(jsonl(tmp_path / "metrics.jsonl", rows)).series("reward")[0].tolist() == [1, 4]


def test_a_wrong_cell_among_rollouts_is_named_and_the_rest_is_not_read_as_metrics(tmp_path, monkeypatch):
    rows = [{"step": 1, "prompt": "a", "reward": "x" if n == 3 else 1.0} for n in range(5)]
    path = jsonl(tmp_path / "run.jsonl", rows)
    looked = []
    monkeypatch.setattr(scalars, "_metrics", lambda path: (looked.append(n) or (n, row) for n, row in enumerate(rows)))
    with pytest.raises(RecordError, match=r"reward must be a finite number .* line 4"):
        open_run(path)
    assert looked == [0]
