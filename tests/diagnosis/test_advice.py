"""Advice on simulated runs whose truth is known: nothing where nothing can be gained, and the gain where it is."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from apportion.diagnosis.advice import LEARNED, LEAST_SAVING, advice_of
from apportion.diagnosis.walks import best_half, choose_mixed, choose_unmastered, vip_variances, walk_batches
from apportion.predictors import PrecomputedEmbeddings
from tests.diagnosis.builders import record_of, run_of

HALF_DEAD = np.where(np.arange(200) % 2, 0.5, 0.0)


def shuffled_ids(record, seed=0):
    """Return ``record`` with its outcomes at other prompts of the same step."""
    rng, prompt = np.random.default_rng(seed), record.prompt.copy()
    for step in np.unique(record.step):
        own = np.flatnonzero(record.step == step)
        prompt[own] = rng.permutation(record.prompt[own])
    return replace(record, prompt=prompt)


def shuffled_outcomes(record, seed=0):
    """Return ``record`` with its outcomes at any prompt and any time."""
    order = np.random.default_rng(seed).permutation(len(record.step))
    return replace(record, reward=record.reward.reshape(len(order), -1)[order].reshape(-1))


def change_of(found, words):
    """Return the change that begins with these words."""
    return next(each for each in (*found.recommended, *found.considered) if each.change.startswith(words))


def measured(found):
    """Return the changes that would have helped this run. The effect of a baseline is that of the lab."""
    return [each for each in found.recommended if np.isfinite(each.saving.value)]


@pytest.mark.parametrize(("rate", "group"), [(0.5, 2), (0.5, 8), (0.1, 4)])
def test_nothing_helps_if_all_prompts_are_alike(rate, group):
    found = advice_of(run_of(np.full(200, rate), group=group))
    assert not measured(found) and not found.problem
    told = [each.text.split(": ")[1] for each in found.considered if "baseline" not in each.change]
    assert all(each.startswith(("no saving beyond noise", "cannot be measured")) for each in told)
    assert [each.startswith("cannot be measured") for each in told].count(True) == (group < 3)


def test_nothing_can_be_known_if_every_prompt_is_seen_once():
    found = advice_of(run_of(HALF_DEAD, visits=1))
    assert not found.recommended and "visited once, so nothing could have been known" in found.problem


@pytest.mark.parametrize("group", [4, 8])
def test_half_dead_prompts_are_found(group):
    found = advice_of(run_of(HALF_DEAD, visits=8, group=group))
    assert found.recommended[0].change.startswith("Give each prompt a baseline")
    best = change_of(found, "Choose half of the candidates")
    assert LEAST_SAVING < best.saving.low <= best.saving.value <= best.saving.high < 0.5
    assert best.after > best.before + 0.2
    assert f"{best.after:.2f} in place of {best.before:.2f}" in best.text and f"{best.saving.value:.0%}" in best.text
    areas = [each.learning.area or 0.0 for each in found.recommended]
    assert areas == sorted(areas, reverse=True) and "did not gain" in best.learning.text


@pytest.mark.parametrize("of_mixed", [8, 80])
def test_a_share_of_mixed_groups_counts_groups_of_any_size_once(of_mixed):
    record = run_of(HALF_DEAD, visits=4)
    unequal = replace(record, asked=np.where(record.prompt % 2, of_mixed, 88 - of_mixed))
    found = advice_of(unequal)
    choice = change_of(found, "Choose half")
    chosen = choose_mixed(unequal, walk_batches(unequal))
    assert choice.after == pytest.approx(unequal.mixed[chosen].mean())
    assert choice.before == pytest.approx(unequal.mixed.mean())


def test_shuffled_ids_kill_the_advice():
    record = run_of(HALF_DEAD, visits=8)
    assert measured(advice_of(record))
    assert not measured(advice_of(shuffled_outcomes(record)))
    by_visit = replace(record, step=np.arange(len(record.step)) // 200, visits=True)
    assert measured(advice_of(by_visit))
    assert not measured(advice_of(shuffled_ids(by_visit)))


def test_a_small_run_says_what_it_lacks():
    found = advice_of(run_of(np.full(20, 0.5)))
    assert found.problem == "advice needs 30 prompts that were visited twice with two rewards or more, this run has 20"
    single = advice_of(run_of(HALF_DEAD, group=1))
    assert single.problem == "advice needs groups with two rewards or more, this run has none"


def test_known_rates_help_at_the_first_visit():
    record = run_of(HALF_DEAD, visits=1, seed=1)
    rates = dict(zip(record.ids, HALF_DEAD.tolist(), strict=True))
    found = advice_of(record, rates=rates)
    assert "Give the belief known rates" in [each.change for each in found.recommended]
    wrong = dict(zip(record.ids, np.random.default_rng(0).permutation(HALF_DEAD).tolist(), strict=True))
    assert not measured(advice_of(record, rates=wrong))


def test_embeddings_that_say_nothing_are_not_recommended():
    record = run_of(HALF_DEAD, visits=4)
    vectors = np.random.default_rng(0).normal(size=(200, 8))
    found = advice_of(record, PrecomputedEmbeddings(dict(zip(record.ids, vectors, strict=True))))
    assert "Give the belief embeddings" in [each.change for each in found.considered]


def test_no_decision_knows_a_later_outcome():
    record = run_of(HALF_DEAD, visits=4)
    batches = walk_batches(record)
    later = replace(record, reward=np.where(np.arange(len(record.reward)) < 4000, record.reward, 1 - record.reward))
    early = np.arange(len(record.step)) < 500
    for choose in (choose_mixed, choose_unmastered):
        np.testing.assert_array_equal(choose(record, batches)[early], choose(later, batches)[early])
    own = [vip_variances(each, batches)[0][:500] for each in (record, later)]
    np.testing.assert_array_equal(*own)


def test_half_of_each_batch_is_chosen_and_a_tenth_of_it_explores():
    rng = np.random.default_rng(0)
    scores, last = np.linspace(0, 1, 40), np.r_[-1, np.arange(39)]
    chosen = best_half(scores, last, rng)
    assert sorted(chosen.tolist()) == [0, 1, *range(22, 40)]
    record = run_of(HALF_DEAD, visits=4)
    assert choose_mixed(record, walk_batches(record)).sum() == len(record.step) // 2


def test_mastered_prompts_rest_and_are_tested_again():
    steps = np.arange(250)
    record = record_of(np.ones((250, 4)), np.zeros(250, int), steps)
    chosen = choose_unmastered(record, [np.array([step]) for step in steps])
    assert np.flatnonzero(chosen).tolist() == [0, 100, 200]


def test_a_choice_gains_nothing_by_taking_less_when_all_prompts_are_easy():
    rising = run_of(np.linspace(0.2, 0.95, 6)[:, None] * np.ones(200), group=4)
    retire = change_of(advice_of(rising), "Retire")
    assert abs(retire.saving.value) < 0.05


def test_small_steps_are_joined_to_offer_a_choice():
    record = record_of(np.zeros((20, 4)), step=np.arange(20))
    assert [len(each) for each in walk_batches(record)] == [8, 8, 4]


def test_vip_saves_nothing_beside_vip():
    """Counts that are already VIP's, at the same belief, have the same variance."""
    record = run_of(np.full(64, 0.3), visits=3)
    planned, recorded = vip_variances(record, walk_batches(record))
    assert planned.sum() == pytest.approx(recorded.sum(), rel=0.01)


def test_graded_rewards_have_advice_too():
    record = run_of(HALF_DEAD, visits=6)
    graded = replace(record, reward=np.where(record.reward == 1, 0.7, 0.2))
    found = advice_of(graded)
    assert measured(found)[-1].change.startswith("Choose half of the candidates")


def test_a_run_of_one_prompt_a_step_is_not_told_to_split_and_hears_that_steps_were_joined():
    record = run_of(HALF_DEAD, visits=6)
    found = advice_of(replace(record, step=np.arange(len(record.step))))
    split = change_of(found, "Split the rollouts")
    assert found.joined and "a step has 1 prompt, so nothing can be split" in split.text
    assert not advice_of(record).joined


def test_figures_of_the_lab_are_those_of_the_documents():
    page = (Path(__file__).parents[2] / "docs" / "results.md").read_text().replace("\n", " ")
    for each in LEARNED.values():
        assert all(figure in page for figure in re.findall(r"[+-]?[0-9.]+ ± [0-9.]+", each.text)), each.text
