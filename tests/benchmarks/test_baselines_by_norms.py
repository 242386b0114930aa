"""Tests of the comparison of baselines: what was recorded, what a rule may see, and the headline figures."""

import numpy as np
import pytest
import torch

from apportion.advantages.weighted_means import batch_optimal, group_optimal
from apportion.lab.policy.sampler import LedgerCompletion
from benchmarks import baselines_measured
from benchmarks.baselines import LAB_SCORES, MODEL_SCORES, gains, recorded, recorded_lab
from benchmarks.baselines_lab import measures
from benchmarks.baselines_measured import MEASURES, PROMPTS, TASKS, load, scores
from benchmarks.baselines_rules import (
    FAMILIES,
    RLOO,
    SHIPPED,
    WEIGHTS,
    Samples,
    constant,
    group,
    halves,
    leave_one_out,
    moments,
    ratio,
    rules,
    shipped,
)
from benchmarks.common import RESULTS, cells_of
from tests.benchmarks.llama import make_llama


def made(prompts=6, number=8, seed=0):
    """Return samples with random rewards and measures."""
    rng = np.random.default_rng(seed)
    rewards = (rng.random((prompts, number)) < rng.random((prompts, 1))).astype(float)
    return Samples(rewards, {name: rng.gamma(1.0, size=rewards.shape) for name in WEIGHTS} | {"equal": rewards * 0 + 1})


def test_the_recorded_norms_are_small_whole_and_possible():
    """|e_a - pi|^2 lies between (1 - pi_a)^2 and twice that, and (1 - pi)^2 <= 1 - pi <= -log pi."""
    assert MODEL_SCORES.stat().st_size + LAB_SCORES.stat().st_size < 350_000
    assert {task: each.rewards.shape for task, each in recorded().items()} == dict.fromkeys(
        ["a + b", "a * b", "sort"], (40, 16)
    )
    everything = [*recorded().values(), *(each for seeds in recorded_lab().values() for each in seeds)]
    assert len(everything) == 3 + 2 * 3 * 8
    for each in everything:
        m = each.measures
        assert (m["parameters"] > 0).all() and (m["tokens"] >= 1).all()
        slack = 1e-4
        assert (m["squared"] <= m["logits"] + slack).all() and (m["logits"] <= 2 * m["squared"] + slack).all()
        assert (m["squared"] <= m["linear"] + slack).all() and (m["linear"] <= m["surprise"] + slack).all()


def test_the_recorded_verdicts_are_those_of_the_recorded_texts():
    file = np.load(MODEL_SCORES)
    for t, operation in enumerate(("+", "*", "sort")):
        for prompt, completions, right in zip(
            file["prompts"][t], file["completions"][t], file["right"][t], strict=True
        ):
            question = str(prompt).splitlines()[-1].removesuffix(" =")
            if operation == "sort":
                answer = " ".join(sorted(question.split()[1:]))
            else:
                a, b = map(int, question.split(f" {operation} "))
                answer = str(a + b if operation == "+" else a * b)
            assert [text.split("\n")[0].strip() == answer for text in completions.tolist()] == right.tolist()


def test_prompts_are_as_many_at_each_level_and_none_of_the_examples():
    for task in TASKS:
        questions = task.questions(seed=3)
        assert len({question for question, _ in questions}) == PROMPTS
        assert not any(question in example for question, _ in questions for example in task.examples)
        assert task.questions(seed=3) == questions
        assert task.prompt(questions[0][0]).splitlines()[:3] == [*task.examples]
    assert all(len(question.split()) == 2 + 2 for question, _ in TASKS[2].questions(seed=3)[:10])  # two digits to sort


def test_the_measures_of_a_completion_are_those_of_autograd():
    model = make_llama(initializer_range=0.02)
    prompt, completion = torch.tensor([[1, 2, 3]]), (4, 5)
    found = dict(zip(MEASURES, scores(model, prompt, completion), strict=True))
    logits = model(torch.tensor([[1, 2, 3, 4, 5]])).logits[0, 2:4]
    logprob = logits.log_softmax(-1)[[0, 1], [4, 5]]
    pi = logprob.exp().detach()
    for name, over in (("parameters", list(model.parameters())), ("logits", [logits])):
        parts = torch.autograd.grad(logprob.sum(), over, retain_graph=True, allow_unused=True)
        assert found[name] == pytest.approx(
            sum(part.square().sum().item() for part in parts if part is not None), rel=1e-4
        )
    assert found["squared"] == pytest.approx((1 - pi).square().sum().item(), rel=1e-4)
    assert found["linear"] == pytest.approx((1 - pi).sum().item(), rel=1e-4)
    assert found["surprise"] == pytest.approx(-logprob.sum().item(), rel=1e-4)
    assert found["tokens"] == 2


def test_the_lab_has_the_same_measures():
    completion = LedgerCompletion((3, 4), np.log(np.array([0.5, 0.2], np.float32)), True, score_norm=1.5)
    expected = [7.0, 1.5, 0.25 + 0.64, 0.5 + 0.8, -np.log(0.1), 2]
    assert measures(completion, 7.0) == pytest.approx(expected)


def test_a_missing_wheel_is_named(monkeypatch):
    monkeypatch.setattr(baselines_measured, "MODEL", "no_such_wheel")
    with pytest.raises(SystemExit, match="no_such_wheel is not installed; see the commands"):
        load()


@pytest.mark.parametrize("name", rules() | SHIPPED, ids=" by ".join)
def test_no_baseline_sees_the_reward_of_its_own_rollout(name):
    history, present = halves(made(), np.random.default_rng(0), resample=False)
    rule = (rules() | SHIPPED)[name]
    before = np.broadcast_to(rule(history, present), present.rewards.shape)
    for place in np.ndindex(present.rewards.shape):
        rewards = present.rewards.copy()
        rewards[place] = 1 - rewards[place]
        after = np.broadcast_to(rule(history, Samples(rewards, present.measures)), rewards.shape)
        assert after[place] == pytest.approx(before[place], abs=1e-12)


def test_leave_one_out_is_the_weighted_mean_of_the_others():
    rewards, weights = np.array([[1.0, 0.0, 1.0]]), np.array([[1.0, 2.0, 3.0]])
    np.testing.assert_allclose(leave_one_out(rewards, weights, axis=1), [[3 / 5, 1.0, 1 / 3]])
    assert leave_one_out(np.ones((1, 1)), np.ones((1, 1)), axis=1).tolist() == [[0.0]]  # a group of one has no others


def test_the_rules_without_history_are_the_package_s_estimators():
    samples = made()
    ids, norms = np.repeat(np.arange(6), 8), samples.measures["squared"].ravel()
    sums = samples.measures["squared"].sum(axis=1, keepdims=True)
    means = (samples.measures["squared"] * samples.rewards).sum(axis=1, keepdims=True) / sums
    others = leave_one_out(means, sums, axis=0)
    for estimator, baseline in ((group_optimal, group("squared")(samples, samples)), (batch_optimal, others)):
        ours = (samples.rewards - baseline).ravel()
        np.testing.assert_allclose(estimator(samples.rewards.ravel(), ids, score_norms=norms), ours, atol=1e-12)


def test_the_shipped_constant_is_the_rule_s_but_for_its_discount():
    samples = made(prompts=40)
    [once] = np.unique(
        shipped("constant")(Samples(samples.rewards[:, :1], {"squared": samples.measures["squared"][:, :1]}), samples)
    )
    w, r = samples.measures["squared"][:, 0], samples.rewards[:, 0]
    assert once == pytest.approx((w * r).sum() / w.sum())


def test_history_and_present_share_no_completion():
    samples = made()
    places = np.arange(48.0).reshape(6, 8)
    history, present = halves(Samples(places, samples.measures), np.random.default_rng(1), resample=False)
    assert sorted([*history.rewards.ravel(), *present.rewards.ravel()]) == places.ravel().tolist()


def test_the_constant_by_norms_is_the_least_moment_of_any_constant():
    samples = made()
    best = float(constant("parameters")(samples, samples))
    assert all(samples.moment(best) <= samples.moment(b) for b in np.linspace(0, 1, 101))


@pytest.mark.slow
def test_the_table_is_remade_from_the_recorded_norms():
    columns, *rows = cells_of((RESULTS / "baselines.md").read_text(encoding="utf-8").split("\n\n")[1])
    remade = {tuple(row[:2]): row[2:] for row in gains(recorded())}
    assert len(rows) >= 5 and columns[2:] == [*recorded()]
    for row in rows:
        assert remade[tuple(row[:2])] == row[2:], row


@pytest.mark.slow
def test_the_sum_of_squares_comes_within_a_tenth_of_the_parameter_norms():
    for samples in recorded().values():
        found = moments(samples, draws=50)
        for family in FAMILIES:
            loss = float(np.median(ratio(found[family, "squared"], found[family, "parameters"])))
            assert loss <= 1.1, family


def test_rloo_is_the_reference():
    found = moments(made(), draws=3)
    assert ratio(found[RLOO], found[RLOO]).tolist() == [1.0, 1.0, 1.0]
