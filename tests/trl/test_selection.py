"""A selection chooses the prompts of TRL's generation batches, in TRL's repetition, and learns from them."""

from collections import Counter

import numpy as np
import pytest
from datasets import Dataset, IterableDataset

from apportion import DAPO, VIP, OptPO, Uniform
from apportion.baselines import SPO, Predicted
from apportion.engines.prompts import prompt_of
from apportion.predictors import DiscountedCounts, EmpiricalBayes
from apportion.selection import Mixed
from apportion.trl import AllocatedGRPOTrainer, AllocatedRLOOTrainer, TRLAllocation
from tests.trl.tiny import make_questions


class Recorded(Mixed):
    """``Mixed`` that records the chosen rows, and how many batches were observed at each choice."""

    def prepare(self, *given, **more):
        super().prepare(*given, **more)
        self.choices, self.known, self.observed = [], [], []

    def choose(self, count, held=()):
        self.choices.append(super().choose(count, held))
        self.known.append(len(self.observed))
        return self.choices[-1]

    def observe(self, batch):
        super().observe(batch)
        self.observed.append([prompt.text for prompt in batch.prompts])


def row_numbers(texts):
    return {int(text[:3]) for text in texts}


SHAPES = {
    "one batch a step": {},
    "two steps a batch": {"num_iterations": 2},
    "two batches a step": {"steps_per_generation": 2, "per_device_train_batch_size": 16},
    "a loader that reads ahead": {"dataloader_num_workers": 1},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_batches_are_those_that_the_selector_chose_and_a_choice_knows_all_before_it(run, shape):
    selector, kind = Recorded(group_size=8), AllocatedRLOOTrainer if "two batches" in shape else AllocatedGRPOTrainer
    _, watch, history = run(kind, allocator=Uniform(8), selection=selector, config={"max_steps": 6} | SHAPES[shape])
    sampled = [Counter(call.prompt for call in step.calls) for step in watch.steps]
    assert all(set(counts.values()) == {8} for counts in sampled)
    chosen = [set(rows) for rows in selector.choices]
    assert list(map(row_numbers, sampled)) == chosen
    assert list(map(row_numbers, selector.observed)) == chosen
    assert selector.known == list(range(len(chosen))) and len(chosen) > 1
    logged = [step for step in history if "selection/never_chosen" in step]
    assert logged[-1]["selection/never_chosen"] < 1 and logged[-1]["selection/longest_wait"] > 0


def test_a_selector_shares_the_allocator_s_predictor_and_the_data_seed(make):
    predictor, selector = EmpiricalBayes(), Mixed()
    allocator = VIP(rollouts_per_prompt=8, predictor=predictor)
    make(AllocatedGRPOTrainer, allocator=allocator, selection=selector, config={"seed": 3, "data_seed": 0})
    assert selector._reader is predictor and selector._seed == 0
    make(AllocatedGRPOTrainer, allocator=Uniform(8), selection=selector, config={"seed": 3})
    assert selector._reader is not predictor and selector._seed == 3


def test_prompts_drawn_in_the_middle_of_a_batch_are_chosen_by_the_selection(run):
    selector, config = Recorded(group_size=4), {"num_generations": 4, "gradient_accumulation_steps": 2}
    trainer, _, _ = run(allocator=DAPO(rollouts_per_prompt=4, draw=3), selection=selector, config=config)
    assert sum(map(len, selector.observed)) > 4 * len(selector.observed) and trainer._fresh.drawn == 0
    assert {len(rows) for rows in selector.choices} == {3, 4}
    assert all(len(set(texts)) == len(texts) for texts in selector.observed)
    chosen = {row for rows in selector.choices for row in rows}
    assert {row for texts in selector.observed for row in row_numbers(texts)} <= chosen


def with_rates(rates):
    return make_questions(len(rates)).add_column("pass_rate", rates)


STREAM = IterableDataset.from_generator(lambda: iter([{"prompt": "000:", "k": 3}]))
ONE = Dataset.from_list([{"prompt": "000:", "k": 3}] * 8)
REFUSED = {
    "must know all prompts beforehand, got a IterableDataset without a length": {"questions": STREAM},
    "a selection must have 4 distinct prompts for a generation batch, got 1; give more, or lower": {"questions": ONE},
    "selection must be shuffled without labels": {"allocator": OptPO(min_samples=4, max_samples=8)},
    "the rate of a prompt must be a number between 0 and 1, got 87.5 for '.*'; divi": {"rate_column": "pass_rate"},
}


def test_a_selection_or_rates_that_cannot_work_are_refused_before_training(make):
    usual = {"allocator": Uniform(8), "selection": Mixed(), "questions": with_rates([0.5, None, 87.5, 0.0] * 2)}
    for message, given in REFUSED.items():
        with pytest.raises(ValueError, match=message):
            make(AllocatedGRPOTrainer, **usual | given)
    with pytest.raises(TypeError, match=r"selection must be a Selector or the name of one, got Uniform"):
        TRLAllocation(allocator=Uniform(8), selection=Uniform(8))


def test_known_rates_are_the_prior_of_every_predictor_that_takes_them(make):
    rates = [round(0.1 * (q % 10), 1) if q % 5 else None for q in range(48)]
    allocator, selector = VIP(rollouts_per_prompt=8, predictor=EmpiricalBayes()), Mixed(predictor=EmpiricalBayes())
    given = {"baseline": Predicted(EmpiricalBayes()), "estimator": "reinforce", "selection": selector}
    given |= {"questions": with_rates(rates), "rate_column": "pass_rate"}
    make(AllocatedGRPOTrainer, allocator=allocator, **given)
    known = [place for place, rate in enumerate(rates) if rate]
    prompts = [prompt_of(row) for row in with_rates(rates).select(known)]
    parts = (allocator.predictor, selector.predictor, given["baseline"].predictor)
    learnt = [part.predict(prompts).mean for part in parts]
    np.testing.assert_allclose(learnt, [[rates[place] for place in known]] * 3, atol=1e-6)


def test_rates_that_nothing_takes_are_said(make, caplog):
    said = "rate_column 'pass_rate' has no effect, because no predictor takes known rates; use empirical_bayes"
    counts = {"allocator": VIP(rollouts_per_prompt=8, predictor=DiscountedCounts()), "selection": Mixed()}
    history = {"allocator": Uniform(8), "estimator": "spo", "baseline": SPO()}
    for given, warned in ((counts, True), (history, False)):
        caplog.clear()
        make(AllocatedGRPOTrainer, questions=with_rates([0.5] * 8), rate_column="pass_rate", **given)
        assert (said in caplog.text) == warned, given


@pytest.mark.parametrize(("rows", "drawn"), [(12, False), (48, True)])
def test_a_second_stage_replaces_the_data_set_for_the_selection_and_for_fresh_prompts(make, rows, drawn):
    """TRL trains on a data set that replaces the first one, as in a curriculum."""
    second = Dataset.from_list([{**row, "prompt": row["prompt"].replace("0", "9", 1)} for row in make_questions(rows)])
    given = (
        {"allocator": DAPO(max_draws=3)} if drawn else {"allocator": Uniform(8), "selection": Recorded(group_size=8)}
    )
    seen = []

    def reward(prompts, completions, **columns):
        seen.extend(prompts)
        return [float(place % 2) for place, _ in enumerate(completions)]

    trainer = make(AllocatedGRPOTrainer, reward_funcs=[reward], config={"max_steps": 2}, **given)
    trainer.train()
    trainer.train_dataset = second
    seen.clear()
    trainer.train()
    assert seen and set(seen) <= set(second["prompt"])
