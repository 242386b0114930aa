"""What is logged over several rounds, against one pass over everything that was sampled."""

import math
from collections import Counter

import numpy as np
import pandas as pd
import pytest

from apportion import AR3PO, DAPO, HORA, ReinforceAda, Voting
from apportion.integrations.spending import DIFFICULTIES
from apportion.integrations.trl import AllocatedGRPOTrainer, AllocatedRLOOTrainer
from apportion.integrations.trl.metrics import Metrics
from tests.integrations.trl.tiny import (
    EOS,
    PAD,
    Judge,
    Watch,
    group_advantages,
    make_tokenizer,
    trained,
)

TOKENIZER = make_tokenizer()
ALLOCATORS = {
    "ar3po": lambda: AR3PO(stages=4, rollouts_per_stage=2, reuse="none"),
    "hora": lambda: HORA(pre_rollouts=3, rollouts_per_prompt=8, high=16),
    "dapo": lambda: DAPO(rollouts_per_prompt=6, draw=3, max_draws=3),
    "reinforce_ada": lambda: ReinforceAda(rollouts_per_round=3, rounds=3, keep=4),
}
DROPS = ("dapo",)
"""Those whose groups are not all prompts."""


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


def deviation(values):
    return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


@pytest.mark.parametrize("trainer", [AllocatedGRPOTrainer, AllocatedRLOOTrainer])
@pytest.mark.parametrize("name", ALLOCATORS)
def test_trl_s_metrics_are_those_of_all_rounds_at_once(make, name, trainer):
    _built, history, steps = run(make, trainer, ALLOCATORS[name]())
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
def test_how_rollouts_were_spent_is_logged(make, name):
    _, history, steps = run(make, AllocatedGRPOTrainer, ALLOCATORS[name]())
    for logged, step in zip(history, steps, strict=True):
        own = list(step.by_prompt.values())
        counts = [len(calls) for calls in own]
        right = [sum(call.score for call in calls) for calls in own]
        shares = [hits / count for hits, count in zip(right, counts, strict=True)]
        kept = [share for share in shares if 0 < share < 1] if name in DROPS else shares
        kept = kept[:4] if name in DROPS else kept
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
            "spare": 0,
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
        if name != "hora":  # all but HORA believe the same of every prompt
            assert logged["allocation/predicted_success"] == 0.5
            error = np.mean([abs(0.5 - share) for share in shares])
            assert logged["allocation/prediction_error"] == pytest.approx(error)
        assert 0 < logged["allocation/seconds"] < 5


def test_what_an_allocator_says_of_itself_is_logged(make):
    _, history, steps = run(make, AllocatedGRPOTrainer, ALLOCATORS["dapo"]())
    for logged, step in zip(history, steps, strict=True):
        mixed = [0 < sum(call.score for call in calls) < len(calls) for calls in step.by_prompt.values()]
        assert logged["allocation/mixed"] == sum(mixed)
        assert logged["allocation/draws"] == len(step.rounds)


@pytest.mark.parametrize("name", ALLOCATORS)
def test_the_table_of_completions_has_the_rewards_and_advantages_of_its_rows(make, name, tmp_path):
    config = {"per_device_train_batch_size": 16}  # TRL's own table would hold a generation batch, 8 prompts of 8
    built, _history, steps = run(make, AllocatedGRPOTrainer, ALLOCATORS[name](), config=config)
    tables = [pd.read_parquet(path) for path in sorted((tmp_path / "completions").iterdir())]
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
                if call.prompt in trained_on[: 8 if name in DROPS else None]
                else 0.0
            )
            places[call.prompt] += 1
        assert shown["advantage"].tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("most", [5, 9])
def test_without_labels_the_reward_is_that_of_the_votes_and_the_functions_are_beside_it(make, tmp_path, most):
    """TRL's own table would hold 32 rows: with 5 of a prompt at the most some of the batch before, with 9 not all."""

    def read(text):
        return None if not text or text[0] in "+ " else "number" if text[0].isdigit() else "letter"

    _built, history, steps = run(make, AllocatedGRPOTrainer, Voting(max_samples=most, wave=3), extract=read)
    tables = [pd.read_parquet(path) for path in sorted((tmp_path / "completions").iterdir())]
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


def test_what_reward_functions_log_is_kept(make, tmp_path):
    """``log_metric`` is a mean over the rows, ``log_extra`` a column of the table."""
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
    (path,) = (tmp_path / "completions").iterdir()
    assert pd.read_parquet(path)["vowels_of"].tolist() == seen


def test_rewards_without_a_score_are_left_out_of_means_and_the_rollouts_count_as_failed(make):
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
        assert len(step.rows) == len(step.calls) == logged["allocation/rows"]
        expected = Counter()
        for calls in step.by_prompt.values():
            scored = [call.score for call in calls if call.score is not None]
            expected.update(round(a, 3) + 0.0 for a in group_advantages(built, scored))
        expected[0.0] += silent
        assert Counter(round(row.advantage, 3) + 0.0 for row in step.rows) == expected


def test_rounds_of_different_kinds_of_metrics_are_joined():
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
    whole = metrics.whole()
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
