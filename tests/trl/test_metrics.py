"""Metrics of batches of several rounds, compared with those of one pass over all completions."""

import functools
import math
from collections import Counter, defaultdict, deque

import numpy as np
import pandas as pd
import pytest

from apportion import AR3PO, DAPO, HORA, ReinforceAda, Voting
from apportion.engines.metrics import DIFFICULTIES
from apportion.trl import AllocatedGRPOTrainer, AllocatedRLOOTrainer
from apportion.trl.metrics import Metrics, whole_columns
from tests.trl.tiny import EOS, PAD, Judge, Watch, group_advantages, made, make_tokenizer, trained

TOKENIZER = make_tokenizer()
ALLOCATORS = {
    "ar3po": lambda: AR3PO(stages=4, rollouts_per_stage=2, reuse="none"),
    "hora": lambda: HORA(pre_rollouts=3, rollouts_per_prompt=8, high=16),
    "dapo": lambda: DAPO(rollouts_per_prompt=6, draw=3, max_draws=3),
    "reinforce_ada": lambda: ReinforceAda(rollouts_per_round=3, rounds=3, keep=4),
}
DROPS = ("dapo",)
"""Allocators that drop prompts."""
PROMPTS = 8


def run(make, trainer, allocator, *, reward_funcs=None, **given):
    judge = Judge()
    watch = Watch(judge)
    config = {"max_steps": 3, "log_completions": True} | given.pop("config", {})
    funcs = [judge, *(reward_funcs or [])]
    if len(funcs) > 1:
        given["verdict"] = judge.__name__
    built = make(trainer, config=config, reward_funcs=funcs, allocator=allocator, **given)
    history = [row for row in trained(watch.on(built)) if "loss" in row]
    return built, history, watch.steps


@pytest.fixture(scope="module")
def finished(policy, tmp_path_factory):
    """Return a function that gives the run of an allocator: its trainer, history, steps and tables of completions.

    Tests share the runs. TRL's own table would hold a generation batch, 8 prompts of 8.
    """

    @functools.cache
    def finish(name, trainer):
        folder = tmp_path_factory.mktemp("run")
        make = functools.partial(made, policy=policy, folder=folder)
        found = run(make, trainer, ALLOCATORS[name](), config={"per_device_train_batch_size": 2 * PROMPTS})
        return *found, tables_of(folder)

    return finish


def tables_of(folder):
    return [pd.read_parquet(path) for path in sorted((folder / "completions").glob("*"))]


def deviation(values):
    return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


@pytest.mark.parametrize("trainer", [AllocatedGRPOTrainer, AllocatedRLOOTrainer])
@pytest.mark.parametrize("name", ALLOCATORS)
def test_trl_s_metrics_cover_all_rounds(finished, name, trainer):
    _built, history, steps, _tables = finished(name, trainer)
    tokens = 0
    for logged, step in zip(history, steps, strict=True):
        calls = step.calls
        rewards, lengths = [call.score for call in calls], [len(call.ids) for call in calls]
        ended = [len(call.ids) for call in calls if call.ids[-1] in (EOS, PAD)]
        tokens += sum(lengths) + sum(len(TOKENIZER(call.prompt)["input_ids"]) for call in calls)
        expected = {
            "reward": np.mean(rewards),
            "reward_std": deviation(rewards),
            "rewards/judge/mean": np.mean(rewards),
            "rewards/judge/std": deviation(rewards),
            "completions/mean_length": np.mean(lengths),
            "completions/min_length": min(lengths),
            "completions/max_length": max(lengths),
            "completions/clipped_ratio": 1 - len(ended) / len(calls),
            "completions/mean_terminated_length": np.mean(ended) if ended else 0,
            "completions/min_terminated_length": min(ended, default=0),
            "completions/max_terminated_length": max(ended, default=0),
            "num_tokens": tokens,
        }
        groups = [{call.score for call in own} for own in step.by_prompt.values()]
        expected["frac_reward_zero_std"] = 0.0 if name in DROPS else np.mean([len(scores) == 1 for scores in groups])
        for metric, value in expected.items():
            assert logged[metric] == pytest.approx(value, rel=1e-5, abs=1e-6), metric
    assert any(len(step.rounds) > 1 for step in steps)


@pytest.mark.parametrize("name", ALLOCATORS)
def test_metrics_of_the_allocation_are_logged(finished, name):
    _, history, steps, _tables = finished(name, AllocatedGRPOTrainer)
    for logged, step in zip(history, steps, strict=True):
        own = list(step.by_prompt.values())
        counts = [len(calls) for calls in own]
        right = [sum(call.score for call in calls) for calls in own]
        shares = [hits / count for hits, count in zip(right, counts, strict=True)]
        kept = [share for share in shares if 0 < share < 1] if name in DROPS else shares
        kept = kept[:PROMPTS] if name in DROPS else kept
        expected = {
            "rollouts": len(step.calls),
            "failed": 0,
            "rounds": len(step.rounds),
            "prompts": len(own),
            "n_min": min(counts),
            "n_mean": np.mean(counts),
            "n_max": max(counts),
            "groups": len(kept),
            "informative": np.mean([0 < share < 1 for share in kept]) if kept else 0,
            "reused": 0,
            "reward_per_prompt": np.mean(shares),
            "observed_success": np.mean(shares),
            "surplus": 0,
            "padding": step.padding,
            "rows": len(step.rows),
        }
        difficulty = [
            "unsolved" if share == 0 else "solved" if share == 1 else "hard" if share <= 0.5 else "easy"
            for share in shares
        ]
        tokens = Counter()
        for label, calls in zip(difficulty, own, strict=True):
            tokens[label] += sum(len(call.ids) for call in calls)
        expected |= {f"tokens_{label}": tokens[label] / tokens.total() for label in DIFFICULTIES}
        for metric, value in expected.items():
            assert logged[f"allocation/{metric}"] == pytest.approx(value), metric
        if name != "hora":  # the others predict 0.5 for every prompt
            assert logged["allocation/predicted_success"] == 0.5
            error = np.mean([abs(0.5 - share) for share in shares])
            assert logged["allocation/prediction_error"] == pytest.approx(error)
        assert 0 < logged["allocation/seconds"] < 5


def test_metrics_of_the_allocator_are_logged(finished):
    _, history, steps, _tables = finished("dapo", AllocatedGRPOTrainer)
    for logged, step in zip(history, steps, strict=True):
        mixed = [0 < sum(call.score for call in calls) < len(calls) for calls in step.by_prompt.values()]
        assert logged["allocation/mixed"] == sum(mixed)
        assert logged["allocation/draws"] == len(step.rounds)


@pytest.mark.parametrize("name", ALLOCATORS)
def test_the_table_of_completions_has_the_rewards_and_advantages_of_its_rows(finished, name):
    built, _history, steps, tables = finished(name, AllocatedGRPOTrainer)
    for shown, step in zip(tables, steps, strict=True):
        calls = step.calls
        assert len(shown) == len(calls)
        assert shown["prompt"].tolist() == [call.prompt for call in calls]
        assert shown["completion"].tolist() == [call.text for call in calls]
        assert shown["judge"].tolist() == [call.score for call in calls]
        places = Counter()
        trained_on = [prompt for prompt, own in step.by_prompt.items() if len({call.score for call in own}) > 1]
        advantages = {
            prompt: group_advantages(built, [call.score for call in own]) for prompt, own in step.by_prompt.items()
        }
        expected = []
        for call in step.calls:
            expected.append(
                advantages[call.prompt][places[call.prompt]]
                if call.prompt in trained_on[: PROMPTS if name in DROPS else None]
                else 0.0
            )
            places[call.prompt] += 1
        assert shown["advantage"].tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("most", [5, 9])
def test_label_free_rewards_are_those_of_the_votes_and_functions_are_logged_beside_them(make, tmp_path, most):
    """TRL's own table would hold 32 rows: some of the batch before if ``most`` is 5, and not all of this one if 9."""

    def read(text):
        return None if not text or text[0] in "+ " else "number" if text[0].isdigit() else "letter"

    _built, history, steps = run(make, AllocatedGRPOTrainer, Voting(max_samples=most, wave=3), extract=read)
    tables = tables_of(tmp_path)
    for logged, step, table in zip(history, steps, tables, strict=True):
        rewards, of_row, zero = [], {}, []
        for prompt, calls in step.by_prompt.items():
            answers = [read(call.text) for call in calls]
            (_, first), (_, second) = [*Counter(a for a in answers if a).most_common(2), (None, 0), (None, 0)][:2]
            if first == second:
                of_row[prompt] = [math.nan] * len(calls)
                continue
            label = Counter(a for a in answers if a).most_common(1)[0][0]
            of_row[prompt] = [float(answer == label) for answer in answers]
            rewards += of_row[prompt]
            zero.append(len(set(of_row[prompt])) == 1)
        scores = [call.score for call in step.calls]
        expected = {
            "reward": np.mean(rewards),
            "reward_std": deviation(rewards),
            "rewards/agreement/mean": np.mean(rewards),
            "rewards/agreement/std": deviation(rewards),
            "frac_reward_zero_std": np.mean(zero),
            "rewards/judge/mean": np.mean(scores),
            "rewards/judge/std": deviation(scores),
        }
        for metric, value in expected.items():
            assert logged[metric] == pytest.approx(value, rel=1e-5), metric
        places, column = Counter(), []
        for call in step.calls:
            column.append(of_row[call.prompt][places[call.prompt]])
            places[call.prompt] += 1
        assert table["agreement"].tolist() == pytest.approx(column, nan_ok=True)
        assert table["completion"].tolist() == [call.text for call in step.calls]


def test_metrics_and_columns_of_reward_functions_are_logged(make, tmp_path):
    """``log_metric`` is averaged over rows, ``log_extra`` is a column of the table."""
    seen = []

    def noisy(completions, log_metric, log_extra, **columns):
        vowels = [float(sum(c in "aeiou" for c in text)) for text in completions]
        seen.extend(vowels)
        log_metric("vowels", float(np.mean(vowels)))
        log_metric("minutes", float(len(completions)))
        log_extra("vowels_of", vowels)
        return [None] * len(completions)

    allocator = AR3PO(stages=4, rollouts_per_stage=2, reuse="none")
    _, history, steps = run(make, AllocatedGRPOTrainer, allocator, reward_funcs=[noisy], config={"max_steps": 1})
    assert len(steps[0].rounds) > 1 and len(seen) < 32
    assert history[0]["vowels"] == pytest.approx(np.mean(seen))
    sizes = [len(calls) for calls in steps[0].rounds]
    assert history[0]["minutes"] == pytest.approx(np.average(sizes, weights=sizes))
    assert history[0]["rewards/noisy/mean"] is None and history[0]["reward"] == history[0]["rewards/judge/mean"]
    (table,) = tables_of(tmp_path)
    assert table["vowels_of"].tolist() == seen


def test_rollouts_without_a_score_count_as_failed_and_are_left_out_of_means(make):
    judge = Judge(none=lambda text: text[:1] in "05ag")
    watch = Watch(judge)
    allocator = HORA(pre_rollouts=3, rollouts_per_prompt=8, high=16)
    built = make(AllocatedGRPOTrainer, reward_funcs=[judge], allocator=allocator)
    history = [row for row in trained(watch.on(built)) if "loss" in row]
    for logged, step in zip(history, watch.steps, strict=True):
        scores = [call.score for call in step.calls if call.score is not None]
        silent = len(step.calls) - len(scores)
        assert silent and logged["allocation/failed"] == silent
        assert logged["reward"] == pytest.approx(np.mean(scores))
        assert logged["reward_std"] == pytest.approx(deviation(scores))
        assert len(step.rows) == len(scores) == logged["allocation/rows"] - logged["allocation/padding"]
        expected = Counter()
        for calls in step.by_prompt.values():
            scored = [call.score for call in calls if call.score is not None]
            expected.update(round(a, 3) + 0.0 for a in group_advantages(built, scored))
        assert Counter(round(row.advantage, 3) + 0.0 for row in step.rows) == expected


def test_metrics_of_rounds_are_combined_by_their_kind():
    metrics = Metrics()
    metrics.add(
        {
            "completions/clipped_ratio": [0.5],
            "completions/mean_terminated_length": [3.0],
            "completions/min_terminated_length": [2.0],
            "tools/call_frequency": [0.5],
            "tools/failure_frequency": [1.0],
            "sampling/importance_sampling_ratio/max": [1.5],
            "only/once": [7.0],
            "num_tokens": [10.0],
            "rewards/silent/mean": [math.nan],
        },
        4,
    )
    metrics.add(
        {
            "completions/clipped_ratio": [1.0],
            "completions/mean_terminated_length": [0.0],
            "completions/min_terminated_length": [0.0],
            "tools/call_frequency": [2.0],
            "tools/failure_frequency": [0.0],
            "sampling/importance_sampling_ratio/max": [1.25],
            "num_tokens": [25.0],
            "rewards/silent/mean": [math.nan],
        },
        2,
    )
    whole = metrics.combine()
    assert math.isnan(whole.pop("rewards/silent/mean"))
    assert whole == {
        "completions/clipped_ratio": pytest.approx(4 / 6),
        "completions/mean_terminated_length": 3.0,
        "completions/min_terminated_length": 2.0,
        "tools/call_frequency": 1.0,
        "tools/failure_frequency": pytest.approx(2 / 6),
        "sampling/importance_sampling_ratio/max": 1.5,
        "only/once": 7.0,
        "num_tokens": 25.0,
    }


def test_a_column_that_is_logged_in_some_rounds_has_a_value_for_each_row():
    logs = {"prompt": deque(), "extra": defaultdict(deque)}
    for rows, logged in ((2, {"first": [1, 2]}), (3, {"second": ["a", "b", "c"]}), (1, {}), (2, {"first": [3, 4]})):
        with whole_columns(logs):
            logs["prompt"].extend("p" * rows)
            for name, values in logged.items():
                logs["extra"][name].extend(values)
    assert {name: list(values) for name, values in logs["extra"].items()} == {
        "first": [1, 2, None, None, None, None, 3, 4],
        "second": [None, None, "a", "b", "c", None, None, None],
    }
    with whole_columns({"prompt": deque()}):  # TRL before 0.25 has no extra columns
        pass
