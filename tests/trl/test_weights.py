"""Weightings and our own estimators in TRL's loss, compared with gradients computed from the definitions."""

from itertools import chain

import numpy as np
import pytest

from apportion import AR3PO, Prompt, Rollout
from apportion.advantages import ESTIMATORS, needs
from apportion.baselines import SPO
from apportion.records import read_log
from apportion.trl import AllocatedGRPOTrainer, AllocatedRLOOTrainer
from tests.builders import finished
from tests.trl.tiny import (
    TERMS,
    Row,
    assert_gradient,
    assert_rows,
    direct_gradient,
    hora,
    ids_of,
    make_questions,
    whole_groups,
)

QUESTIONS = make_questions(8)
LOGGED = {"tokens": "tokens", "rounds": "round", "score_norms": "score_norm"}
LOSSES = {
    "grpo": {"beta": 2.0},
    "dr_grpo": {"beta": 2.0},
    "dapo": {"beta": 2.0},
    "sapo": {},
    "luspo": {"importance_sampling_level": "sequence"},
    "vespo": {},
    "cispo": {"epsilon_high": 5.0},  # its ratios are cut there, and are 1 here
    "rloo": {},
}
"""Settings of each loss where rollouts have equal weights."""


def means(rows, weighting, loss):
    """Return c_i by definition: a mean over rollouts, over prompts of means of their rollouts, or over tokens."""
    prompts, all_tokens = len({row.prompt for row in rows}), sum(len(row.ids) for row in rows)
    of = {row.prompt: sum(other.prompt == row.prompt for other in rows) for row in rows}
    terms = TERMS[loss](rows)
    if weighting == "prompt":
        return [term * len(rows) / prompts / of[row.prompt] for term, row in zip(terms, rows, strict=True)]
    return [1 / all_tokens] * len(rows) if (loss, weighting) == ("grpo", "token") else terms


@pytest.mark.parametrize(
    ("loss", "weighting"),
    [
        *((loss, "rollout") for loss in LOSSES),
        *((loss, "prompt") for loss in ("grpo", "dr_grpo", "dapo", "rloo")),
        *((loss, "token") for loss in ("grpo", "rloo")),
    ],
)
def test_the_gradient_is_the_mean_of_the_weighting_and_masked_rows_change_none(run, loss, weighting):
    """It is checked at the second update, because the reference then differs from the policy."""
    settings = LOSSES[loss] if weighting == "rollout" else {}
    trainer = AllocatedRLOOTrainer if loss == "rloo" else AllocatedGRPOTrainer
    config = {"learning_rate": 3e-2, "max_steps": 2, "max_grad_norm": 0.0} | settings
    config |= {} if loss == "rloo" else {"loss_type": loss, "use_bias_correction_kl": False}
    allocator = AR3PO(stages=3, rollouts_per_stage=3, reuse="none")
    built, watch, _ = run(trainer, config=config, weighting=weighting, allocator=allocator)
    (before, _), (weights, gradient) = watch.updates
    step, beta = watch.steps[1], settings.get("beta", 0.0)
    rows = whole_groups(built, step)
    assert step.padding and len({len(calls) for calls in step.by_prompt.values()}) > 1
    assert len({len(row.ids) for row in rows}) > 1
    if weighting == "rollout":
        assert_rows(step.rows, rows)
    expected = direct_gradient(weights, rows, lambda rows: means(rows, weighting, loss), before, beta)
    assert_gradient(gradient, expected)
    if beta:
        without = direct_gradient(weights, rows, lambda rows: means(rows, weighting, loss))
        assert (without - expected).norm() > 0.02 * expected.norm()


@pytest.mark.parametrize(
    ("trainer", "name"),
    [(AllocatedRLOOTrainer, "maxrl"), *((AllocatedGRPOTrainer, name) for name in ("sequential", "batch_optimal"))],
)
def test_our_estimators_replace_trl_s_formula(run, tmp_path, trainer, name):
    """One of each kind of columns, which are those of the log. ``test_reinforce_...`` has a baseline."""
    given = {"estimator": name, "rollout_log": tmp_path / "log", "questions": QUESTIONS.select(range(4, 8))}
    built, watch, _ = run(trainer, config={"max_steps": 2, "max_grad_norm": 0.0}, allocator=hora(), **given)
    ends = {built.processing_class.eos_token_id, built.processing_class.pad_token_id}
    log = read_log(tmp_path / "log").to_pylist()
    for number, step in enumerate(watch.steps):
        rows, calls = [row for row in log if row["step"] == number], list(chain(*step.by_prompt.values()))
        seen = [(row["prompt"], row["completion"], row["reward"], row["tokens"]) for row in rows]
        assert seen == [(call.prompt, call.text, call.score, len(call.ids)) for call in calls]
        assert [row["truncated"] for row in rows] == [call.ids[-1] not in ends for call in calls]
        columns = {column: [row[LOGGED[column]] for row in rows] for column in needs(name)}
        advantages = ESTIMATORS[name](*([row[each] for row in rows] for each in ("reward", "prompt")), **columns)
        assert np.abs(advantages).max() > 0
        assert_rows(step.rows, [Row(ids_of(c.prompt), c.ids, float(a)) for c, a in zip(calls, advantages, strict=True)])


def test_reinforce_subtracts_the_baseline_of_before_the_batch(run):
    given = {"estimator": "reinforce", "baseline": SPO(), "questions": QUESTIONS.select(range(4, 8))}
    _, watch, _ = run(config={"max_steps": 2}, allocator=hora(), **given)
    baseline = SPO()
    for step in watch.steps:
        prompts, groups = list(map(Prompt, step.by_prompt)), list(step.by_prompt.values())
        pairs = zip(groups, baseline.predict(prompts), strict=True)
        expected = [Row(ids_of(c.prompt), c.ids, float(c.score - before)) for own, before in pairs for c in own]
        assert_rows(step.rows, expected)
        baseline.update(finished(prompts, [[Rollout(call.score > 0) for call in own] for own in groups]))
