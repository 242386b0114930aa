"""Metrics of batches of several rounds, compared with those of one pass over all completions."""

import math

import numpy as np
import pandas as pd
import pytest

from apportion import AR3PO, DAPO
from apportion.records import open_run
from apportion.trl.metrics import Logs, combined
from tests.trl.tiny import EOS, PAD, group_advantages, ids_of, make_questions

PROMPTS = 8


def tables_of(folder):
    """Return the tables of completions by step."""
    return [pd.read_parquet(path) for path in sorted((folder / "completions").glob("*"))]


def deviation(values):
    return float(np.std(values, ddof=1))


def assert_logged(logged, expected, prefix=""):
    for metric, value in expected.items():
        assert logged[prefix + metric] == pytest.approx(value, rel=1e-5, abs=1e-6), metric


def test_metrics_and_tables_cover_all_rounds(run, tmp_path):
    """TRL's own table would hold 8 prompts of 8. ``tests/engines`` has metrics of the allocation."""
    config = {"per_device_train_batch_size": 2 * PROMPTS, "log_completions": True, "max_steps": 2}
    rule = DAPO(rollouts_per_prompt=6, draw=3, max_draws=3)  # drops prompts
    built, watch, history = run(config=config, allocator=rule)
    tokens = 0
    for logged, step in zip(history, watch.steps, strict=True):
        tokens += sum(len(call.ids) + len(ids_of(call.prompt)) for call in step.calls)
        assert_logged(logged, expected_of_trl(step) | {"num_tokens": tokens})
        own = {"rollouts": len(step.calls), "rounds": len(step.rounds), "prompts": len(step.by_prompt), "surplus": 0}
        assert_logged(logged, own | {"padding": step.padding, "rows": len(step.rows)}, "allocation/")
        assert logged["allocation/mixed"] >= logged["allocation/groups"] and 0 < logged["allocation/seconds"] < 5
    assert any(len(step.rounds) > 1 for step in watch.steps)
    for shown, step in zip(tables_of(tmp_path), watch.steps, strict=True):
        assert shown["prompt"].tolist() == [call.prompt for call in step.calls]
        assert shown["completion"].tolist() == [call.text for call in step.calls]
        assert shown["judge"].tolist() == [call.score for call in step.calls]
        assert shown["advantage"].tolist() == pytest.approx(shown_advantages(built, step), abs=1e-5)
    read = open_run(tmp_path)
    assert read.source == "TRL completions" and read.reward.sum() == sum(c.score for s in watch.steps for c in s.calls)


def expected_of_trl(step):
    rewards, lengths = [call.score for call in step.calls], [len(call.ids) for call in step.calls]
    ended = [len(call.ids) for call in step.calls if call.ids[-1] in (EOS, PAD)]
    return {
        "reward": np.mean(rewards),
        "reward_std": deviation(rewards),
        "rewards/judge/mean": np.mean(rewards),
        "rewards/judge/std": deviation(rewards),
        "completions/mean_length": np.mean(lengths),
        "completions/min_length": min(lengths),
        "completions/max_length": max(lengths),
        "completions/clipped_ratio": 1 - len(ended) / len(lengths),
        "completions/mean_terminated_length": np.mean(ended),
        "frac_reward_zero_std": 0.0,
    }


def shown_advantages(built, step):
    groups = {prompt: [call.score for call in calls] for prompt, calls in step.by_prompt.items()}
    learnt = [prompt for prompt, scores in groups.items() if len(set(scores)) > 1][:PROMPTS]
    left = {prompt: iter(group_advantages(built, scores)) for prompt, scores in groups.items()}
    return [next(left[call.prompt]) if call.prompt in learnt else 0.0 for call in step.calls]


def test_metrics_and_columns_of_reward_functions_are_logged(run, tmp_path):
    """``log_metric`` is averaged over rows, ``log_extra`` is a column of the table. Each row has cells of its own."""
    seen, rounds = [], []

    def noisy(completions, log_metric, log_extra, gold, **columns):
        assert [own.pop() for own in gold] == ["a"] * len(completions)
        vowels = [float(sum(c in "aeiou" for c in text)) for text in completions]
        seen.extend(vowels)
        log_metric("vowels", float(np.mean(vowels)))
        log_metric("minutes", float(len(completions)))
        log_extra("vowels_of", vowels)
        rounds.append(len(vowels))
        if len(rounds) == 2:
            log_extra("second", vowels)
        return [None] * len(completions)

    given = {"allocator": AR3PO(stages=8, rollouts_per_stage=1, reuse="none"), "others": [noisy], "verdict": "judge"}
    given["questions"] = make_questions().add_column("gold", [["a"]] * 48)
    _, watch, (logged,) = run(config={"max_steps": 1, "log_completions": True}, **given)
    sizes = [len(calls) for calls in watch.steps[0].rounds]
    assert len(sizes) > 2 and len(seen) < 32
    assert_logged(logged, {"vowels": np.mean(seen), "minutes": np.average(sizes, weights=sizes)})
    assert logged["rewards/noisy/mean"] is None and logged["reward"] == logged["rewards/judge/mean"]
    (table,) = tables_of(tmp_path)
    first, second, *_ = sizes
    logged = [None] * first + seen[first : first + second] + [None] * sum(sizes[2:])
    assert table["vowels_of"].tolist() == seen and table["second"].replace(np.nan, None).tolist() == logged


ROUNDS = {
    "completions/clipped_ratio": (0.5, 1.0, 4 / 6),
    "completions/mean_length": (2.0, 5.0, 3.0),
    "kl": (0.3, 0.1, (0.3 * 8 + 0.1 * 10) / 18),  # a mean over tokens
    "completions/mean_terminated_length": (3.0, 0.0, 3.0),
    "completions/min_terminated_length": (2.0, 0.0, 2.0),
    "tools/call_frequency": (0.5, 2.0, 1.0),
    "tools/failure_frequency": (1.0, 0.0, 2 / 6),
    "sampling/importance_sampling_ratio/max": (1.5, 1.25, 1.5),
    "num_tokens": (10.0, 25.0, 25.0),
    "rewards/silent/mean": (math.nan, math.nan, math.nan),
}
"""Each metric in a round of 4 rows and one of 2, and in both."""


def test_metrics_of_rounds_are_combined_by_their_kind():
    first, second = ({name: [each[place]] for name, each in ROUNDS.items()} for place in (0, 1))
    expected = {name: both for name, (*_, both) in ROUNDS.items()} | {"only/once": 7.0}
    assert combined([Logs(first | {"only/once": [7.0]}, {}, 4), Logs(second, {}, 2)]) == pytest.approx(
        expected, nan_ok=True
    )
