"""Settings that cannot work are refused before anything is generated, with problem, value and remedy."""

import re

import pytest
from datasets import Dataset
from transformers import TrainingArguments
from trl import GRPOConfig, RLOOConfig

from apportion import AR3PO, DAPO, HORA, TTRL, VIP, Even, OptPO, PilotCommit, Uniform
from apportion.baselines import Predicted
from apportion.predictors import DiscountedCounts, UniformPrior
from apportion.presets import singles
from apportion.trl import AllocatedGRPOTrainer, AllocatedRLOOTrainer, TRLAllocation
from apportion.trl.settings import LOSSES
from apportion.types import Plan
from tests.trl.tiny import Judge, configured, make_questions, trained

VOTES = OptPO(min_samples=4, max_samples=8)

ALLOCATION = {
    "an unknown weighting": ({"weighting": "group"}, "weighting must be one of prompt, rollout, token, got 'group'; "),
    "an unknown estimator": (
        {"estimator": "ppo"},
        "estimator must be one of grpo, dr_grpo, .*, got 'ppo'; leave it out",
    ),
    "a baseline without its estimator": (
        {"baseline": Predicted()},
        "a baseline goes with the estimators 'reinforce' and 'spo', got .* with None; set both, or neither",
    ),
    "an estimator without its baseline": (
        {"estimator": "reinforce"},
        "a baseline goes with the estimators 'reinforce' and 'spo', got None with 'reinforce'; set both, or neither",
    ),
    "an unknown extractor": ({"extract": "last"}, "extract must be one of .*, got 'last'; or a function"),
    "an unknown equivalence": (
        {"equivalence": "same"},
        "equivalence must be one of .*, got 'same'; check the spelling",
    ),
    "a verdict without labels": (
        {"allocator": VOTES, "verdict": "judge"},
        "without labels rewards come from the votes, got verdict 'judge' and baseline None with optpo; leave both out",
    ),
    "a baseline without labels": (
        {"allocator": VOTES, "estimator": "reinforce", "baseline": Predicted()},
        "without labels rewards come from the votes, got verdict None and baseline .* with optpo; leave both out",
    ),
}


@pytest.mark.parametrize("name", ALLOCATION)
def test_an_allocation_that_cannot_work_is_refused(name):
    settings, message = ALLOCATION[name]
    with pytest.raises(ValueError, match=message):
        TRLAllocation(**{"allocator": Uniform(8)} | settings)


def test_an_allocator_must_be_one():
    with pytest.raises(TypeError, match=r"allocator must be an Allocator or the name of one, got 8; the names are uni"):
        TRLAllocation(allocator=8)


def with_column(name):
    rows = make_questions(8)
    return rows.add_column(name, [None] * len(rows))


CONSTRUCTED = {
    "an image": (
        {"questions": with_column("image")},
        "prompts must be text, got a column 'image'; remove it, or train without an allocator",
    ),
    "images": ({"questions": with_column("images")}, "prompts must be text, got a column 'images'; remove it"),
    "an id column that is not there": (
        {"id_column": "number"},
        "id_column must be one of prompt, k, got 'number'; leave it out for hashes",
    ),
    "several rewards and no verdict": (
        {"allocator": AR3PO(), "reward_funcs": [Judge(), Judge(name="other")]},
        "verdict must name a reward function for ar3po, which counts correct rollouts, got 2 reward functions and no "
        "verdict; name the one that is positive for correct completions",
    ),
    "several rewards and a baseline that counts": (
        {
            "estimator": "reinforce",
            "baseline": Predicted(DiscountedCounts()),
            "reward_funcs": [Judge(), Judge(name="other")],
        },
        "verdict must name a reward function for predicted",
    ),
    "a verdict that no function has": (
        {"verdict": "wright"},
        "verdict must be one of the reward functions, judge, got 'wright'; check the spelling",
    ),
    "a fixed total that is more than the batches hold": (
        {"allocator": Uniform(10)},
        "uniform must train on no more than TRL's batches hold, 32 rollouts of 4 prompts, got 40; have it keep 8 "
        "per prompt on average, or raise num_generations",
    ),
    "such a total without labels": (
        {"allocator": TTRL(max_samples=16, min_samples=12), "reward_funcs": []},
        "ttrl must train on no more than TRL's batches hold, 32 rollouts of 4 prompts, got 48; ",
    ),
    "a budget that cannot be planned": (
        {"allocator": VIP(rollouts_per_prompt=None, budget=500, high=16, predictor=UniformPrior())},
        "budget must be between ",
    ),
    "evaluation without anything to judge by": (
        {"allocator": VOTES, "reward_funcs": [], "eval_dataset": make_questions(4)},
        "an eval_dataset needs reward_funcs, got none; give some, which are never trained on, or leave the "
        "eval_dataset out",
    ),
}


@pytest.mark.parametrize("name", CONSTRUCTED)
@pytest.mark.parametrize("trainer", [AllocatedGRPOTrainer, AllocatedRLOOTrainer])
def test_a_trainer_that_cannot_work_is_not_made(make, trainer, name):
    given, message = CONSTRUCTED[name]
    with pytest.raises(ValueError, match=message):
        make(trainer, **{"allocator": Uniform(8)} | given)


@pytest.mark.parametrize("name", sorted(CONSTRUCTED.keys() - {"a verdict that no function has"}))
def test_it_is_refused_before_a_model_is_loaded(make, name):
    given, message = CONSTRUCTED[name]
    with pytest.raises(ValueError, match=message):
        make(AllocatedGRPOTrainer, **{"allocator": Uniform(8)} | given, policy="no/such-model")


def test_vip_must_minimise_the_variance_of_the_estimator_that_trains(make, caplog):
    message = r'vip must minimise .* the estimator that trains, dr_grpo, got rloo; give it estimator="dr_grpo"'
    vip, rloo = (VIP(estimator=given, rollouts_per_prompt=8, predictor=UniformPrior()) for given in (None, "rloo"))
    with pytest.raises(ValueError, match=message):
        make(AllocatedGRPOTrainer, config={"scale_rewards": "none"}, allocator=rloo)
    with pytest.raises(ValueError, match=r"the estimator that trains, rloo, got dr_grpo"):
        make(AllocatedRLOOTrainer, allocator=VIP(estimator="dr_grpo", predictor=UniformPrior()))
    make(AllocatedGRPOTrainer, allocator=vip)
    said = "vip minimises the variance of rloo, and the run trains grpo, for which it has no formula"
    assert caplog.text.count(said) == 1
    gdpo = {"scale_rewards": "none", "multi_objective_aggregation": "normalize_then_sum"}
    make(AllocatedGRPOTrainer, config=gdpo, allocator=vip)
    assert caplog.text.count(said) == 2  # each function is scaled, whatever scale_rewards says


def test_vip_takes_the_estimator_that_trains(make, caplog):
    for trainer, settings, estimator in (
        (AllocatedGRPOTrainer, {"config": {"scale_rewards": "none"}}, "dr_grpo"),
        (AllocatedGRPOTrainer, {"estimator": "dr_grpo"}, "dr_grpo"),
        (AllocatedGRPOTrainer, {"estimator": "rloo"}, "rloo"),
        (AllocatedRLOOTrainer, {}, "rloo"),
    ):
        given = VIP(predictor=UniformPrior())
        built = make(trainer, allocator=given, **settings)
        assert built.allocation.allocator.needs.estimator == estimator and given.estimator is None
        assert built.allocation.settings["allocator.estimator"] == estimator  # as earlier versions saved it
    assert "minimises the variance of" not in caplog.text


def test_every_prompt_has_equal_weight_by_default():
    assert TRLAllocation(allocator=Uniform(8)).loss_weighting == "prompt"
    assert TRLAllocation(allocator=Uniform(8), estimator="sequential").loss_weighting == "rollout"
    assert TRLAllocation(allocator=Uniform(8), weighting="token").loss_weighting == "token"


@pytest.mark.parametrize("estimator", ["maxrl", "sft"])
def test_rloos_penalty_is_refused_under_an_estimator_that_divides_by_the_mean(make, estimator):
    message = (
        rf"beta must be 0 with the estimator {estimator}, which divides by the mean reward, got 0.05: .*; set beta"
    )
    with pytest.raises(ValueError, match=message):
        make(AllocatedRLOOTrainer, config={"beta": 0.05}, allocator=Uniform(8), estimator=estimator)
    make(AllocatedRLOOTrainer, allocator=Uniform(8), estimator=estimator)
    make(AllocatedGRPOTrainer, config={"beta": 0.05}, allocator=Uniform(8), estimator=estimator)


@pytest.mark.parametrize(
    ("trainer", "given", "wanted"),
    [
        (AllocatedGRPOTrainer, TrainingArguments, "GRPOConfig"),
        (AllocatedRLOOTrainer, TrainingArguments, "RLOOConfig"),
        (AllocatedGRPOTrainer, RLOOConfig, "GRPOConfig"),
        (AllocatedRLOOTrainer, GRPOConfig, "RLOOConfig"),
    ],
)
def test_settings_of_another_kind_are_refused(tmp_path, trainer, given, wanted):
    args = given(output_dir=str(tmp_path), use_cpu=True, bf16=False)
    message = f"args must be a trl.{wanted} for {trainer.__name__}, got a {given.__name__}, which lacks its settings; "
    with pytest.raises(ValueError, match=message):
        trainer("no/such-model", Judge(), args, make_questions(), allocator=Uniform())


@pytest.mark.parametrize("policy", ["no/such-model"])
def test_a_data_set_smaller_than_a_batch_is_refused(make, policy):
    """TRL itself would train no step, and say so in a log line alone."""
    message = "train_dataset must have the 4 prompts of a generation batch, got 3; TRL would train no step: give more, "
    with pytest.raises(ValueError, match=message):
        make(AllocatedGRPOTrainer, policy=policy, questions=make_questions(3), allocator=Uniform())


@pytest.mark.parametrize(
    ("allocator", "needed", "fresh"),
    [
        (DAPO(max_draws=4), 16, 12),
        (DAPO(max_draws=4, draw=5), 19, 15),
        (PilotCommit(pilots=4, commits=4, max_rounds=4), 12, 8),
        (PilotCommit(pilots=4, commits=4, max_rounds=4, target=5), 16, 12),
        (PilotCommit(pilots=4, commits=4, max_rounds=4, target=5, max_age=0), 12, 8),
    ],
)
def test_too_few_distinct_prompts_for_the_draws_are_refused(make, allocator, needed, fresh):
    rows = make_questions(needed - 1).to_list()
    message = (
        f"the data set must have {needed} distinct prompts, the 4 of a generation batch and the {fresh} that "
        f"{allocator.name} may draw beside them, got {needed - 1}; give more, let the allocator draw fewer, or name"
    )
    with pytest.raises(ValueError, match=message):
        make(AllocatedGRPOTrainer, questions=Dataset.from_list(rows + rows), allocator=allocator)
    make(AllocatedGRPOTrainer, questions=make_questions(needed), allocator=allocator)


def test_an_unknown_loss_is_refused(make):
    with pytest.raises(
        ValueError, match=r"loss_type must be one of grpo, .*, got 'new'; it must be known how the loss treats"
    ):
        make(AllocatedGRPOTrainer, config={"loss_type": "new"}, allocator=Uniform(8))
    assert {kind for kind, (_, by) in LOSSES.items() if by == "row"} == {"grpo", "sapo", "luspo", "dr_grpo", "rloo"}


@pytest.mark.parametrize("reuse", ["recompute", "replay"])
def test_a_moving_reference_is_refused_with_rows_of_earlier_steps(make, reuse):
    config = {"beta": 0.1, "sync_ref_model": True}
    with pytest.raises(ValueError, match=r'sync_ref_model must be False if ar3po .*; set it to False, or reuse="stop'):
        make(AllocatedGRPOTrainer, config=config, allocator=AR3PO(reuse=reuse))
    make(AllocatedGRPOTrainer, config=config, allocator=AR3PO(reuse="stop_gradient"))
    make(AllocatedGRPOTrainer, config={"beta": 0.1}, allocator=AR3PO(reuse=reuse))


@pytest.mark.parametrize("allocator", [DAPO(rollouts_per_prompt=16), AR3PO(stages=3, rollouts_per_stage=4)])
def test_a_rule_that_trains_on_more_rows_than_a_batch_has_is_warned_of_its_cost_alone(make, caplog, allocator):
    """Micro-batches never have more rows than ``per_device_train_batch_size``, see ``test_memory``."""
    make(AllocatedGRPOTrainer, allocator=allocator)
    (said,) = [record.getMessage() for record in caplog.records if record.name.startswith("apportion")]
    assert "times the 32 that are sampled without it" in said


def test_a_warning_says_that_different_rows_share_a_prompt(make, caplog):
    """They share a belief. They are refused if the allocator trains on responses of earlier steps."""
    rows = [{"prompt": "one task:", "k": k} for k in (1, 3)] + make_questions(14).to_list()
    make(AllocatedGRPOTrainer, questions=Dataset.from_list(rows), allocator=HORA(rollouts_per_prompt=8))
    (said,) = [record.getMessage() for record in caplog.records if record.name.startswith("apportion")]
    assert said.startswith("rows with one prompt must be the same question, got 1 whose other columns differ")
    with pytest.raises(ValueError, match=r"got 1 whose other columns differ .*; name an id_column that tells them"):
        make(AllocatedGRPOTrainer, questions=Dataset.from_list(rows), allocator=AR3PO(reuse="replay"))
    caplog.clear()
    make(AllocatedGRPOTrainer, questions=Dataset.from_list(rows[:1] * 16), allocator=HORA(rollouts_per_prompt=8))
    assert not [record for record in caplog.records if record.name.startswith("apportion")]


def test_a_plan_without_a_rollout_is_refused(make):
    class Nothing(Uniform):
        def plan(self, batch):
            return Plan([0] * len(batch.prompts))

    with pytest.raises(ValueError, match=r"uniform must plan rollouts for a batch of 4 prompts, got none; raise its"):
        make(AllocatedGRPOTrainer, allocator=Nothing(8)).train()


def test_a_warning_says_that_a_fixed_total_is_below_the_batch(make, caplog):
    """It is allowed because single rollouts need it: TRL's ``num_generations`` is at least 2."""
    make(AllocatedGRPOTrainer, allocator=Uniform(6))
    assert [record.getMessage() for record in caplog.records if record.name.startswith("apportion")] == [
        "uniform trains on 24 rollouts of 4 prompts, and micro-batches are sized for 32; lower num_generations to "
        "what a prompt gets, or raise the batch size"
    ]


def test_messages_name_the_problem_the_value_and_the_remedy():
    for _, message in (*ALLOCATION.values(), *CONSTRUCTED.values()):
        if len(message) > 60:
            assert re.search("got ", message) and ";" in message


def test_label_free_and_the_name_of_rewards_from_votes():
    assert TRLAllocation(allocator=VOTES).label_free and not TRLAllocation(allocator=Uniform(8)).label_free
    assert TRLAllocation(allocator=VOTES).vote_reward_name == "agreement"

    def lengths(rollouts, label):
        return [0.0] * len(rollouts)

    assert TRLAllocation(allocator=OptPO(min_samples=4, max_samples=8, reward=lengths)).vote_reward_name == "lengths"


@pytest.mark.parametrize("rewards", [1, 2, None])
def test_an_id_column_is_not_checked_if_columns_are_unknown(rewards, tmp_path):
    args = configured(tmp_path, AllocatedGRPOTrainer)
    TRLAllocation(allocator=Uniform(8), id_column="number").check(args, [], rewards)


@pytest.mark.parametrize("rows", [8, 32])
def test_single_rollouts_fill_a_batch_that_trl_has_for_groups(make, rows):
    """TRL refuses ``num_generations=1``. With 8 only 4 of 32 rows were trained on."""
    config = {"per_device_train_batch_size": rows // 4, "max_steps": 2, "num_generations": 8}
    built = make(
        AllocatedGRPOTrainer, config=config, questions=make_questions(40), **singles().arguments(), weighting=None
    )
    history = trained(built)[:2]
    for name, value in {"rows": rows, "prompts": rows, "rollouts": rows, "padding": 0, "informative": 1}.items():
        assert [logged[f"allocation/{name}"] for logged in history] == [value] * 2
    assert all(logged["grad_norm"] > 0 for logged in history)


def test_a_budget_of_as_many_rollouts_as_rows_is_not_taken_for_single_ones(make):
    for allocator in (Even(budget=32), Uniform(8), Uniform()):
        assert make(AllocatedGRPOTrainer, allocator=allocator).num_generations == 8


def test_names_stand_for_objects_with_their_defaults(make):
    built = make(
        AllocatedGRPOTrainer, allocator="uniform", estimator="reinforce", baseline="optimal", selection="mixed"
    )
    allocation = built.allocation
    assert (allocation.allocator, allocation.baseline.name) == (Uniform(8), "optimal")
    assert allocation.selection.name == "mixed"
    other = make(AllocatedGRPOTrainer, allocator="uniform", estimator="reinforce", baseline="optimal")
    assert other.allocation.baseline is not allocation.baseline
    with pytest.raises(ValueError, match=r"baseline must be one of .*, got 'optimum'; did you mean 'optimal'\?"):
        make(AllocatedGRPOTrainer, allocator="uniform", estimator="reinforce", baseline="optimum")
    with pytest.raises(TypeError, match=r"baseline must be a Baseline or the name of one, got 0.5; the names are"):
        make(AllocatedGRPOTrainer, allocator="uniform", estimator="reinforce", baseline=0.5)
