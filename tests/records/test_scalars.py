"""Means of steps that frameworks log: read where they are all that there is, and refused where rollouts are needed."""

import json
import os
import struct

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


def write_events(folder, first=1, end=STEPS + 1):
    writer = pytest.importorskip("torch.utils.tensorboard").SummaryWriter(str(folder))
    for step in range(first, end):
        for name, value in values(step).items():
            writer.add_scalar(f"train/{name}", value, step)
    writer.close()


def test_events_of_tensorboard_are_read_as_it_writes_them(tmp_path):
    write_events(tmp_path / "runs")
    check(scalars_at(tmp_path), "TensorBoard events")
    [path] = (tmp_path / "runs").iterdir()
    path.write_bytes(path.read_bytes()[:-5])  # a run that was killed while it wrote
    assert len(scalars_at(path).series("kl")[0]) == STEPS - 1
    path.write_bytes(struct.pack("<Q", 2**40) + bytes(20))
    with pytest.raises(RecordError, match="must be events of TensorBoard, got an event of 1,099"):
        scalars_at(path)


def test_events_of_a_resumed_run_are_joined_and_those_of_another_run_are_not(tmp_path):
    for folder, *steps in (("a", 1, 12), ("a", 10), ("b", 1, 9)):
        write_events(tmp_path / folder, *steps)
    check(scalars_at(tmp_path / "a"), "TensorBoard events")
    for path in (tmp_path / "b").iterdir():
        os.utime(path, (0, 0))
    check(scalars_at(tmp_path), "TensorBoard events of a, the newest of 2 folders")


def test_an_exported_history_and_metrics_as_json_lines_are_read(tmp_path):
    rows = [
        {"Step": step, **{f"run-7 - train/{k}": v for k, v in values(step).items()}} for step in range(1, STEPS + 1)
    ]
    check(scalars_at(comma_separated(tmp_path / "wandb_export.csv", rows)), "W&B export")
    both = [row | {"run-8 - train/reward": 9.0} for row in rows]
    check(scalars_at(comma_separated(tmp_path / "both.csv", both)), "W&B export of run-7, the first of 2 runs")
    verl = [{"step": step, "data": {"critic/score/mean": 0.01 * step, "actor/entropy": 0.3}} for step in range(1, 9)]
    found = scalars_at(jsonl(tmp_path / "metrics.jsonl", verl))
    assert found.series("reward")[0].tolist() == list(range(1, 9)) and found.series("entropy") is not None


@pytest.mark.parametrize("more", [{}, {"prompt": "a", "kl": 0.1}, {"response_length": 9}])
def test_rollouts_are_no_means_of_steps(tmp_path, more):
    rows = [{"step": n // 8, "reward": 1.0} | more for n in range(80)]
    assert scalars_at(jsonl(tmp_path / "run.jsonl", rows)) is None


def metrics(tmp_path, **series):
    """Return what is read of these series, whose names have / for each double underscore."""
    rows = [{"step": s, **{name.replace("__", "/"): f(s) for name, f in series.items()}} for s in range(10)]
    return scalars_at(jsonl(tmp_path / "metrics.jsonl", rows))


def test_parts_of_a_reward_and_verdicts_are_known_under_the_names_of_other_tools(tmp_path):
    found = metrics(
        tmp_path,
        **{"reward": float, "rewards__format": float, "reward_std": float, "train__accuracy": float},
        **{"rewards__a__mean": lambda s: s / 10, "rewards__a__std": float},
        **{"val-core__gsm8k__acc__mean@1": float, "rewards__format__std": float, "eval__accuracy": float},
        **{"completion_length": float, "critic__score__max": float},
    )
    assert list(found.components) == ["format", "accuracy", "a", "val-core/gsm8k/acc/mean@1", "eval/accuracy"]
    assert np.allclose(found.components["a"][1], np.arange(10) / 10)
    assert found.series("length")[1].max() == 9 and found.series("spread") is not None


def test_the_dead_groups_of_tinker_cookbook_are_those_all_good_and_those_all_bad(tmp_path):
    share = "env__all__by_group__frac_"
    both = {f"{share}all_good": lambda s: 0.1 * s, f"{share}all_bad": lambda s: 0.1, "env__all__reward__total": float}
    assert metrics(tmp_path, **both).series("dead")[1].tolist() == pytest.approx([0.1 * s + 0.1 for s in range(10)])
    mixed = {f"{share}mixed": lambda s: 0.3, "env__all__reward__total": float}
    assert metrics(tmp_path, **mixed).series("dead")[1].tolist() == pytest.approx([0.7] * 10)


def test_the_divergence_between_sampler_and_trainer_is_not_that_from_the_reference(tmp_path):
    other = {"optim__kl_sample_train_v1": float, "actor__ppo_kl": float, "mismatch_kl__mean": float, "reward": float}
    assert metrics(tmp_path, **other, entropy=float).series("kl") is None
    assert metrics(tmp_path, **other, kl_policy_base=float).series("kl") is not None


def test_one_chart_exported_by_wandb_is_a_series(tmp_path):
    name = "run-a - train/reward"
    rows = [{"Step": s, name: 0.8, f"{name}__MIN": 0, f"{name}__MAX": 1} for s in range(10)]
    with pytest.raises(ScalarsOnlyError):
        open_run(comma_separated(tmp_path / "chart.csv", rows))
    found = scalars_at(tmp_path / "chart.csv")
    assert found.source == "W&B export" and list(found.found) == ["Step", "reward"]
    assert found.series("reward")[1].tolist() == [0.8] * 10


def test_one_chart_exported_by_tensorboard_is_a_series_of_the_name_in_that_of_its_file(tmp_path):
    rows = [{"Wall time": 1.7e9 + s, "Step": s, "Value": 0.8} for s in range(10)]
    found = scalars_at(comma_separated(tmp_path / "run-a-tag-train_reward.csv", rows))
    assert found.source == "TensorBoard export" and found.series("reward")[1].tolist() == [0.8] * 10
    assert scalars_at(comma_separated(tmp_path / "run-a-tag-critic_score_mean.csv", rows)).series("reward") is not None


def test_a_table_is_of_means_if_nothing_else_is_there_or_a_name_has_a_section(tmp_path):
    assert metrics(tmp_path, reward=float).series("reward") is not None
    assert metrics(tmp_path, reward=float, optim__lr=float).series("reward") is not None
    assert metrics(tmp_path, reward=float, difficulty=float) is None


def test_values_that_are_not_finite_stay_in_what_was_logged(tmp_path):
    found = metrics(tmp_path, reward=float, kl=lambda s: float("nan") if s > 6 else 0.1, entropy=lambda s: "Infinity")
    assert np.isnan(found.logged("kl")[1]).sum() == 3 and len(found.series("kl")[0]) == 7
    assert np.isinf(found.logged("entropy")[1]).all() and found.series("entropy") is None


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
    made = lambda _: (looked.append(n) or (n, row) for n, row in enumerate(rows))  # noqa: E731
    monkeypatch.setattr(scalars, "_with_steps", made)
    with pytest.raises(RecordError, match=r"reward must be a finite number .* line 4"):
        open_run(path)
    assert looked == [0]
