"""Runs of TRL, verl and prime-rl, and group counts per visit."""

import json
from pathlib import Path

import numpy as np
import pytest

from apportion.records import RecordError, open_run
from apportion.records.importing import import_run
from tests.cases import lines
from tests.records.importing.tables import jsonl, parquet, renamed, rollouts, said, without

ROOT = Path(__file__).parents[3]


def trl_tables(folder, steps=2, **more):
    for step in range(1, steps + 1):
        rows = rollouts(steps=1, completion=f"so {step}", step=step, advantage=0.5, **more)
        rows = renamed(without("tokens", rows), reward="accuracy_reward")
        parquet(folder / "completions" / f"completions_{step:05d}.parquet", rows)


def test_trl_tables_are_read_from_the_output_folder_or_their_own(tmp_path):
    trl_tables(tmp_path)
    found, summary = import_run([tmp_path])
    assert found.source == "TRL completions" and found.step.tolist() == [1, 1, 1, 2, 2, 2]
    assert summary.ignored == () and np.isnan(found.tokens).all()
    assert open_run(tmp_path / "completions").totals.tolist() == found.totals.tolist()


def test_several_rewards_of_trl_are_named_or_weighed(tmp_path):
    trl_tables(tmp_path, format_reward=0.5)
    found = open_run(tmp_path)
    assert "the reward is accuracy_reward; equal in every group: format_reward" in found.doubts
    accuracy = open_run(tmp_path, rewards=["accuracy_reward"]).reward
    assert open_run(tmp_path, rewards=["format_reward"]).reward.tolist() == [0.5] * 24
    both = open_run(tmp_path, rewards=["accuracy_reward", "format_reward=0.2"]).reward
    np.testing.assert_allclose(both, accuracy + 0.1)
    with pytest.raises(RecordError, match="must have the reward column speed, got step, prompt"):
        open_run(tmp_path, rewards=["speed"])


TABLE = "completions_00001.parquet"
WEIGHTS = """
    a + b        => [1, 1]    => true
    a            => [1, 0]    => true
    b            => [0, 1]    => false
    a + 0.2 * b  => [1, 0.2]  => true
    a + -0.3 * b => [1, -0.3] => false
    0.5 * a + c  => [0.5, 0, 1] => true
    a + b + c + d + e + f => [1, 1, 1, 1, 1, 1] => true
"""
"""Rewards that trained, their weights, and whether advantages are divided by the standard deviation."""


@pytest.mark.parametrize(("name", "weights", "scaled"), lines(WEIGHTS))
def test_the_advantages_of_trl_say_which_rewards_trained(opened, refuse, name, weights, scaled):
    weights, scaled = json.loads(weights), json.loads(scaled)
    parts = np.random.default_rng(0).random((12, 8, len(weights))).round(3)
    parts[:6, :, 0] = np.round(parts[:6, :1, 0])  # equal within half of the groups
    rows, total = rows_of_trl(parts, weights, scaled)
    run = opened(rows, TABLE)
    np.testing.assert_allclose(run.reward, total.reshape(-1), atol=1e-6)
    assert run.doubts[0].startswith(f"the reward is {name}, whose advantages were recorded")
    other = [row | {"advantage": float(k % 2)} for k, row in enumerate(rows)]
    refuse(r"several columns may be the reward, .* got a, b.*; name one by", other, TABLE)


def test_weights_of_columns_that_are_sums_of_others_are_found_and_said_not_to_be_the_only_ones(opened):
    parts = np.random.default_rng(0).random((12, 8, 4)).round(3)
    parts[..., 2], parts[..., 3] = parts[..., 1], parts[..., 0] + 2 * parts[..., 1] + 5
    for weights, name in (([1, 0.2, 0, 0], "a + 0.2 * b"), ([1, 0.1, 0.1, 0], "a + 0.2 * b"), ([0, 1, 0, 0], "b")):
        rows, total = rows_of_trl(parts, weights, True)
        run = opened(rows, TABLE)
        np.testing.assert_allclose(run.reward, total.reshape(-1), atol=1e-6)
        assert run.doubts[0].startswith(f"the reward is {name}, whose advantages were recorded")
        assert run.doubts[0].endswith("; sums of others within groups: c, d, so other weights fit, too")


def test_a_reward_of_some_tasks_alone_is_not_taken_for_the_whole(opened):
    parts = np.random.default_rng(0).integers(2, size=(12, 8, 2)).astype(float)
    parts[::2, :, 0] = parts[1::2, :, 1] = np.nan
    some = np.where(np.arange(8) % 3, 1.0, np.nan)[None, :, None]  # b has one value, and TRL adds 0 where it has none
    for values in (parts, np.where([True, False], np.nan_to_num(parts), some)):
        rows, total = rows_of_trl(values, [1, 1])
        run = opened(rows, TABLE)
        assert run.reward.tolist() == total.reshape(-1).tolist() and run.doubts[0].startswith("the reward is a + b")


def test_what_differs_where_no_advantage_does_is_no_reward(opened):
    rows = [row | {"tools": place % 3} for place, row in enumerate(rows_of_trl(np.ones((6, 4, 1)), [1])[0])]
    run = opened(rows, TABLE)
    assert run.dead.all() and said(run, "the reward is a (100%", "by tools 0%")


def rows_of_trl(parts, weights, scaled=True):
    """Return a table of TRL with reward functions a, b, ..., whose values are ``parts`` [P, G, n], and the reward."""
    total = np.nansum(parts * weights, axis=2)
    advantage = total - total.mean(axis=1, keepdims=True)
    advantage = advantage / (total.std(axis=1, keepdims=True) + 1e-4) if scaled else advantage
    rows = [
        {"step": 1, "prompt": f"q{q}", "completion": "so", **dict(zip("abcdef", each, strict=False)), "advantage": a}
        for q, own in enumerate(zip(parts.tolist(), advantage.tolist(), strict=True))
        for each, a in zip(*own, strict=True)
    ]
    return rows, total


def test_rewards_that_trl_leaves_out_are_missing(tmp_path):
    trl_tables(tmp_path, steps=1, format_reward=float("nan"))
    assert np.isnan(open_run(tmp_path, rewards=["format_reward", "accuracy_reward=0"]).reward).sum() == 0
    rows = rollouts(steps=1, completion="a", advantage=0.0)
    rows[0]["reward"] = float("nan")
    found, summary = import_run([parquet(tmp_path / "nan" / TABLE, rows)])
    assert summary.without_reward == 1 and found.trials.tolist() == [3, 4, 4]


def test_rollouts_that_trl_writes_again_are_counted_once(tmp_path):
    """TRL writes its last generation at every logged step, so steps that share one write it several times."""
    rows = renamed(rollouts(steps=1, completion="a", advantage=0.25), reward="accuracy_reward")
    for step in (1, 2, 3):
        made = [row | {"step": step} | ({"completion": "b"} if step == 3 else {}) for row in rows]
        parquet(tmp_path / f"completions_{step:05d}.parquet", made)
    found, summary = import_run([tmp_path])
    assert found.step.tolist() == [1, 1, 1, 3, 3, 3] and summary.repeated == 12 and summary.rows == 24


@pytest.mark.slow  # it imports verl
def test_a_dump_of_verl_is_read_as_verl_writes_it(tmp_path):
    trainer = pytest.importorskip("verl.trainer.ppo.ray_trainer").RayPPOTrainer
    rows = rollouts(steps=2)
    for step in (0, 1):
        own = [row for row in rows if row["step"] == step]
        columns = [[row["prompt"] for row in own], ["so"] * 12, ["7"] * 12, [row["reward"] for row in own]]
        trainer._write_generations(*columns, {"acc": [1.0] * 12, "short": [1]}, str(tmp_path), step)
    found, summary = import_run([tmp_path])
    assert found.source == "verl rollout dump" and summary.ignored == () and summary.files == 2
    assert found.reward.tolist() == [row["reward"] for row in rows] and found.trials.tolist() == [4] * 6


def test_keys_of_verl_tell_groups_of_a_repeated_prompt_apart(opened):
    rows = renamed(rollouts(steps=1, prompts=1, output="so", gts="1"), prompt="input", reward="score")
    rows = [row | {"uid": f"sample_{place // 2}_{place % 2}_0"} for place, row in enumerate(rows)]
    assert opened(rows, "1.jsonl").trials.tolist() == [2, 2]


def trace(reward, key="t", **more):
    rewards = {"right": {"score": reward, "weight": 2.0}, "late": None}
    return {"task": {"type": "Sum", "key": key, "data": {"prompt": "1 + 1?"}}, "rewards": rewards} | more


def test_traces_of_prime_rl_are_read_by_their_folders(tmp_path):
    steps = tmp_path / "rollouts"
    calls = [{"usage": {"completion_tokens": 5}}, {"usage": {"completion_tokens": 7}}]
    jsonl(steps / "step_2/train/all/traces.jsonl", [trace(1.0, calls=calls), trace(0.0), trace(1.0, "u")])
    jsonl(steps / "step_2/train/effective/traces.jsonl", [trace(1.0)])
    jsonl(steps / "step_2/eval/all/traces.jsonl", [trace(1.0)])
    jsonl(steps / "step_10/train/effective/traces.jsonl", [trace(0.5)])
    found, summary = import_run([tmp_path])
    assert found.step.tolist() == [2, 2, 10] and found.totals.tolist() == [2.0, 2.0, 1.0] and found.ids == ["t", "u"]
    assert found.texts == ["1 + 1?"] * 2 and found.tokens[0] == 12 and len(summary.left) == 2


def test_episodes_of_prime_rl_hold_the_trained_traces(tmp_path):
    episode = {"group": {"id": "g"}, "task": {"key": "t", "data": {}}}
    solver, judge = ([trace(reward, agent={"name": "one", "trainable": bool(reward)})] for reward in (1.0, 0.0))
    episodes = [episode | {"traces": traces} for traces in (solver, judge, [])]
    found, summary = import_run([jsonl(tmp_path / "step_1/train/all/traces.jsonl", episodes)])
    assert found.asked.tolist() == [2] and found.trials.tolist() == [1] and summary.without_reward == 1


def test_flat_rows_of_prime_rl_are_grouped_by_their_group(tmp_path):
    rows = [
        {"example_id": 3, "env_name": "sums", "reward": float(n % 2), "group_id": f"g{n // 2}", "prompt": "1 + 1?"}
        for n in range(4)
    ]
    rows[3]["error"] = {"type": "Timeout"}
    found, summary = import_run([jsonl(tmp_path / "step_5/train_rollouts.jsonl", rows)])
    assert found.ids == ["sums/3"] and found.step.tolist() == [0, 0] and found.trials.tolist() == [2, 1]
    assert summary.without_reward == 1
    evaluation = open_run(jsonl(tmp_path / "results.jsonl", rows))  # of verifiers, without a step
    assert evaluation.step.tolist() == [0, 0] and evaluation.doubts[0].startswith("no column is a step")


def test_summaries_of_tinker_cookbook_are_read_without_its_evaluations(tmp_path):
    for step in (1, 2):
        rows = [
            {"split": "train", "iteration": step, "group_idx": place // 4, "traj_idx": place % 4}
            | {"total_reward": row["reward"], "final_reward": 0.0, "steps": [{"reward": row["reward"]}]}
            for place, row in enumerate(rollouts(steps=1))
        ]
        folder = tmp_path / f"iteration_{step:06d}"
        jsonl(folder / "train_rollout_summaries.jsonl", rows)
        jsonl(folder / "eval_sums_rollout_summaries.jsonl", rows)
    jsonl(tmp_path / "metrics.jsonl", [{"progress/batch": 1, "env/all/reward/total": 0.5}])
    found, summary = import_run([tmp_path])
    assert found.step.tolist() == [1] * 3 + [2] * 3 and found.trials.tolist() == [4] * 6
    assert summary.files == 2 and found.reward.sum() == 2 * sum(row["reward"] for row in rollouts(steps=1))


def test_the_recorded_run_is_read_as_group_counts_per_visit():
    found = open_run(ROOT / "examples" / "data" / "grpo_run.jsonl.gz")
    assert len(found.step) == 64_000 and found.totals.sum() == 216_520 and found.visits and found.name == "grpo_run"


def test_lists_of_counts_are_visits_in_any_table_and_an_index_is_an_id(opened):
    found = opened([{"index": q, "question": "one text", "correct_of_8": [0, 1, q][: q + 1]} for q in range(3)])
    assert found.visits and found.source == "group counts per visit" and not found.ordered
    assert found.ids == ["0", "1", "2"] and found.step.tolist() == [0, 0, 0, 1, 1, 2]
    assert found.totals.tolist() == [0, 0, 0, 1, 1, 2] and set(found.trials.tolist()) == {8}
    assert all(doubt.startswith("read as") for doubt in found.doubts)


def test_a_training_folder_without_a_log_is_told_how_to_get_one(tmp_path):
    (tmp_path / "checkpoint-5").mkdir()
    (tmp_path / "trainer_state.json").write_text("{}")
    with pytest.raises(RecordError, match=r"TRL by log_completions=True, verl by trainer\.rollout_data_dir"):
        open_run(tmp_path)
