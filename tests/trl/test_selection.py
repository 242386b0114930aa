"""A selection chooses the prompts of TRL's generation batches, in TRL's repetition, and learns from them."""

from collections import Counter

import numpy as np
import pytest
from datasets import Dataset, IterableDataset
from trl.trainer.utils import RepeatSampler

from apportion import DAPO, VIP, OptPO, Uniform
from apportion.baselines import SPO, Predicted
from apportion.engines.prompts import prompt_of
from apportion.predictors import DiscountedCounts, EmpiricalBayes
from apportion.presets import spo
from apportion.selection import GRESO, LargestVariance, Mixed, Retire, ShuffledEpochs, SPOWeights
from apportion.trl import AllocatedGRPOTrainer, AllocatedRLOOTrainer, TRLAllocation
from apportion.trl.sampler import SelectedRows
from tests.trl.tiny import Judge, Watch, make_questions, trained


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
    return [int(text[:3]) for text in texts]


@pytest.mark.parametrize(("rows", "count", "generations", "repeats"), [(13, 4, 3, 2), (8, 4, 1, 1), (3, 4, 2, 2)])
def test_an_epoch_has_the_length_and_the_repetition_of_trl_s(rows, count, generations, repeats):
    stock = RepeatSampler(range(rows), generations, count, repeats, seed=0)
    selector = ShuffledEpochs()
    selector.prepare([prompt_of(row) for row in make_questions(rows)])
    sampler = SelectedRows(
        selector.choose, batches=rows // count, count=count, generations=generations, repeats=repeats
    )
    theirs, ours = list(stock), list(sampler)
    assert len(sampler) == len(stock) == len(ours) == len(theirs)
    number = {row: place for place, row in enumerate(dict.fromkeys(ours))}  # the rows differ, their pattern does not
    other = {row: place for place, row in enumerate(dict.fromkeys(theirs))}
    assert [number[row] for row in ours] == [other[row] for row in theirs]
    assert sampler.chosen == []  # the epoch is over


def test_replayed_batches_come_first_and_are_not_chosen_again():
    asked = []

    def choose(count):
        asked.append(count)
        return [9, 8]

    sampler = SelectedRows(choose, batches=3, count=2, generations=1, repeats=1)
    sampler.replay([[0, 1], [2, 3]], rows=10)
    assert list(sampler) == [0, 1, 2, 3, 9, 8] and asked == [2]
    assert list(sampler) == [9, 8] * 3


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ([[0, 1], [2]], "must be resumed with batches of 1, 2 prompts, got 2, and 2 of them in an epoch; keep"),
        ([[0, 1]] * 3, "must be resumed with batches of 2 prompts, got 2, and 2 of them"),
        ([[0, 10]], "chosen rows must be of the data set with 10 rows; resume with the same data set"),
        ([[-1, 0]], "chosen rows must be of the data set with 10 rows"),
    ],
)
def test_batches_of_another_run_are_not_replayed(chosen, message):
    sampler = SelectedRows(lambda count: [], batches=2, count=2, generations=1, repeats=1)
    with pytest.raises(ValueError, match=message):
        sampler.replay(chosen, rows=10)


SHAPES = {
    "one batch a step": ({}, 1),
    "two steps a batch": ({"num_iterations": 2}, 0),
    "two batches a step": ({"steps_per_generation": 2, "per_device_train_batch_size": 16}, 2),
}
"""Settings, and the number of batches that were chosen and not observed at the first choice of an optimizer step."""


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", [AllocatedGRPOTrainer, AllocatedRLOOTrainer])
def test_batches_are_those_that_the_selector_chose_and_a_choice_knows_all_but_the_last(make, kind, shape):
    settings, lag = SHAPES[shape]
    judge, selector = Judge(), Recorded(group_size=8)
    trainer = make(
        kind, allocator=Uniform(8), selection=selector, reward_funcs=[judge], config={"max_steps": 6} | settings
    )
    watch = Watch(judge)
    watch.on(trainer)
    history = trained(trainer)
    sampled = [Counter(call.prompt for call in step.calls) for step in watch.steps]
    assert all(set(counts.values()) == {8} for counts in sampled)
    chosen = [set(rows) for rows in selector.choices]
    assert [set(row_numbers(counts)) for counts in sampled] == chosen[: len(sampled)]
    assert [set(row_numbers(texts)) for texts in selector.observed] == chosen[: len(selector.observed)]
    waiting = [number - known for number, known in enumerate(selector.known)]
    assert max(waiting) == lag and selector.known[-1] > 0
    for number, known in enumerate(selector.known):
        assert not chosen[number] & set().union(*chosen[known:number])  # what waits for its outcome is not chosen
    logged = [step for step in history if "selection/never_chosen" in step]
    assert logged[-1]["selection/never_chosen"] < 1 and logged[-1]["selection/longest_wait"] > 0


def test_a_rule_that_learns_prefers_what_was_mixed(make):
    """Half of the questions are always wrong or right. Exploration aside, they lose their places."""
    questions = Dataset.from_list([{"prompt": f"{i:03d}:", "k": 12 if i < 12 else 0} for i in range(24)])
    selector = Mixed(explore=0.25)
    trainer = make(
        AllocatedGRPOTrainer,
        allocator=Uniform(8),
        selection=selector,
        questions=questions,
        config={"max_steps": 24, "learning_rate": 0.0},
    )
    judge = trainer.reward_funcs[0]
    trainer.train()
    late = [{call.prompt for call in calls} for calls in judge.rounds[12:]]
    useful = np.mean([int(prompt[:3]) < 12 for prompts in late for prompt in prompts])
    assert useful >= 0.65
    assert selector.metrics()["never_chosen"] == 0


def test_a_selector_shares_the_allocator_s_predictor_and_the_data_seed(make):
    predictor, selector = EmpiricalBayes(), Mixed()
    make(
        AllocatedGRPOTrainer,
        allocator=VIP(rollouts_per_prompt=8, predictor=predictor),
        selection=selector,
        config={"seed": 3, "data_seed": 0},
    )
    assert selector._reader is predictor and selector._seed == 0
    make(AllocatedGRPOTrainer, allocator=Uniform(8), selection=selector, config={"seed": 3})
    assert selector._reader is not predictor and selector._seed == 3


def test_prompts_drawn_in_the_middle_of_a_batch_are_chosen_by_the_selection(make):
    selector = Recorded(group_size=4)
    trainer = make(
        AllocatedGRPOTrainer,
        allocator=DAPO(rollouts_per_prompt=4, draw=3),
        selection=selector,
        config={"max_steps": 3, "num_generations": 4, "gradient_accumulation_steps": 2},
    )
    trainer.train()
    drawn = sum(len(texts) for texts in selector.observed) - 4 * len(selector.observed)
    assert drawn > 0 and trainer._fresh.drawn == 0
    assert {len(rows) for rows in selector.choices} == {3, 4}
    for texts in selector.observed:
        assert len(set(texts)) == len(texts)
    assert {row for texts in selector.observed for row in row_numbers(texts)} <= {
        row for rows in selector.choices for row in rows
    }


class Weighted(ShuffledEpochs):
    """Shuffled epochs with a weight for each prompt: 1 + the number in its text."""

    def weights(self, prompts):
        return np.array([1.0 + int(prompt.text[:3]) for prompt in prompts])


def test_weights_of_the_selection_multiply_those_of_the_groups(make):
    seen = {}
    for selection in (ShuffledEpochs(), Weighted()):
        judge = Judge()
        trainer = make(
            AllocatedGRPOTrainer,
            allocator=Uniform(8),
            selection=selection,
            reward_funcs=[judge],
            config={"max_steps": 1},
        )
        watch = Watch(judge)
        watch.on(trainer)
        trainer.train()
        seen[type(selection)] = watch.steps[0].rows
    plain, weighted = seen[ShuffledEpochs], seen[Weighted]
    assert len({row.prompt for row in plain}) == 4 and any(row.advantage for row in plain)
    for before, after in zip(plain, weighted, strict=True):
        assert (before.prompt, before.ids) == (after.prompt, after.ids)
        number = int(trainer.processing_class.decode(after.prompt)[:3])
        assert after.advantage == pytest.approx((1 + number) * before.advantage, rel=1e-5)


@pytest.mark.parametrize("selector", [SPOWeights(importance_weights=True), GRESO(importance_weights=True), Retire()])
def test_every_kind_of_rule_trains(make, selector):
    trainer = make(
        AllocatedGRPOTrainer,
        allocator=Uniform(8),
        selection=selector,
        questions=make_questions(8),
        config={"max_steps": 4},
    )
    history = trained(trainer)
    assert sum("selection/never_chosen" in step for step in history) == 4


def test_the_preset_of_spo_trains_with_its_prompts_baseline_and_estimator(make):
    preset = spo()
    trainer = make(
        AllocatedGRPOTrainer,
        questions=with_rates([round(0.1 * (q % 10), 1) for q in range(48)]),
        rate_column="pass_rate",
        config={"max_steps": 4, "num_generations": 2, "learning_rate": 1e-2},
        **preset.arguments(),
    )
    prompts = [prompt_of(row, rate_column="pass_rate") for row in trainer.train_dataset]
    started = preset.baseline.predict(prompts)
    assert started[0] < 0.1 and started[9] > 0.8
    judge = trainer.reward_funcs[0]
    trainer.train()
    assert all(len({call.prompt for call in calls}) == len(calls) == 32 for calls in judge.rounds)
    assert preset.selection.metrics()["never_chosen"] < 1 and (preset.baseline.predict(prompts) != started).any()


def test_votes_go_with_shuffled_epochs(make):
    selector = ShuffledEpochs()
    trainer = make(
        AllocatedGRPOTrainer,
        allocator=OptPO(min_samples=4, max_samples=8),
        selection=selector,
        reward_funcs=[],
        extract=lambda text: text[:1] or None,
        questions=make_questions(12),
        config={"max_steps": 3},
    )
    trainer.train()
    assert selector.steps >= 3 and selector.metrics()["never_chosen"] == 0


STREAM = IterableDataset.from_generator(lambda: iter([{"prompt": "000:", "k": 3}]))
REFUSED = {
    "workers": (
        {"config": {"dataloader_num_workers": 2}},
        "dataloader_num_workers must be 0 with a selection, got 2: workers ask for batches long before",
    ),
    "split batches": (
        {"config": {"accelerator_config": {"split_batches": True}}},
        r"accelerator_config\.split_batches must be False with a selection, got True: .*; leave it out",
    ),
    "dispatched batches": (
        {"config": {"accelerator_config": {"dispatch_batches": True}}},
        r"accelerator_config\.dispatch_batches must be False with a selection, got True",
    ),
    "a stream": ({"questions": STREAM}, "must know all prompts beforehand, got a IterableDataset without a length"),
    "too few prompts": (
        {"questions": Dataset.from_list([{"prompt": "000:", "k": 3}] * 8)},
        "a selection must have 4 distinct prompts for a generation batch, got 1; give more, or lower",
    ),
    "rules that learn without labels": (
        {"allocator": OptPO(min_samples=4, max_samples=8)},
        "selection must be shuffled without labels",
    ),
    "a belief that counts and two rewards": (
        {"selection": LargestVariance(predictor=DiscountedCounts()), "reward_funcs": [Judge(), Judge(name="other")]},
        "verdict must name a reward function for variance, which counts correct rollouts, got 2 reward functions",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_selection_that_cannot_work_is_refused_before_training(make, name):
    given, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        make(AllocatedGRPOTrainer, **{"allocator": Uniform(8), "selection": Mixed()} | given)


def test_a_selection_must_be_a_selector():
    with pytest.raises(TypeError, match=r"selection must be a Selector or the name of one, got Uniform"):
        TRLAllocation(allocator=Uniform(8), selection=Uniform(8))


def test_without_a_selection_the_sampler_is_trl_s(make):
    trainer = make(AllocatedGRPOTrainer, allocator=Uniform(8))
    assert type(trainer._get_train_sampler()) is RepeatSampler


def with_rates(rates):
    return make_questions(len(rates)).add_column("pass_rate", rates)


def test_known_rates_are_the_prior_of_every_predictor_that_takes_them(make):
    rates = [round(0.1 * (q % 10), 1) if q % 5 else None for q in range(48)]
    allocator, selector = VIP(rollouts_per_prompt=8, predictor=EmpiricalBayes()), Mixed(predictor=EmpiricalBayes())
    baseline = Predicted(EmpiricalBayes())
    trainer = make(
        AllocatedGRPOTrainer,
        allocator=allocator,
        selection=selector,
        baseline=baseline,
        estimator="reinforce",
        questions=with_rates(rates),
        rate_column="pass_rate",
        config={"max_steps": 2},
    )
    known = [place for place, rate in enumerate(rates) if rate]
    prompts = [prompt_of(row) for row in trainer.train_dataset]
    for predictor in (allocator.predictor, selector.predictor, baseline.predictor):
        found = predictor.predict([prompts[place] for place in known]).mean
        np.testing.assert_allclose(found, [rates[place] for place in known], atol=1e-6)
    trainer.train()
    assert all(0 < step["allocation/predicted_success"] < 1 for step in trainer.state.log_history if "loss" in step)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rate_column": "rates"}, "rate_column must be one of prompt, k, pass_rate, got 'rates'; leave it out for no"),
        (
            {"rate_column": "pass_rate"},
            "the rate of a prompt must be a number between 0 and 1, got 87.5 for '.*'; divi",
        ),
    ],
)
def test_wrong_rates_are_refused_before_training(make, given, message):
    with pytest.raises(ValueError, match=message):
        make(AllocatedGRPOTrainer, allocator=Uniform(8), questions=with_rates([0.5, None, 87.5, 0.0] * 2), **given)


@pytest.mark.parametrize(
    ("given", "warned"),
    [
        ({"allocator": Uniform(8)}, True),
        ({"allocator": VIP(rollouts_per_prompt=8, predictor=DiscountedCounts()), "selection": Mixed()}, True),
        ({"allocator": VIP(rollouts_per_prompt=8, predictor=EmpiricalBayes())}, False),
        ({"allocator": Uniform(8), "selection": Mixed()}, False),
        ({"allocator": Uniform(8), "estimator": "spo", "baseline": SPO()}, False),
    ],
)
def test_rates_that_nothing_takes_are_said(make, caplog, given, warned):
    make(AllocatedGRPOTrainer, questions=with_rates([0.5] * 8), rate_column="pass_rate", **given)
    said = "rate_column 'pass_rate' has no effect, because no predictor takes known rates; use empirical_bayes"
    assert (said in caplog.text) == warned


def test_needs_are_those_of_all_parts():
    given = {"allocator": Uniform(8), "selection": Mixed(predictor=DiscountedCounts())}
    assert TRLAllocation(**given).needs.binary and not TRLAllocation(allocator=Uniform(8)).needs.binary


@pytest.mark.parametrize("rows", [48, 12])
def test_a_second_stage_replaces_the_data_set_for_the_selection_and_for_fresh_prompts(make, rows):
    """TRL trains on a data set that replaces the first one, as in a curriculum."""
    second = Dataset.from_list([{**row, "prompt": row["prompt"].replace("0", "9", 1)} for row in make_questions(rows)])
    later = set(second["prompt"])
    for given in ({"allocator": DAPO(max_draws=3)}, {"allocator": Uniform(8), "selection": Recorded(group_size=8)}):
        seen = []

        def reward(prompts, completions, seen=seen, **columns):
            seen.extend(prompts)
            return [float(place % 2) for place, _ in enumerate(completions)]

        trainer = make(AllocatedGRPOTrainer, reward_funcs=[reward], config={"max_steps": 2}, **given)
        trainer.train()
        trainer.train_dataset = second
        seen.clear()
        trainer.train()
        assert seen and set(seen) <= later
