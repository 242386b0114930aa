"""Settings that cannot work are refused before anything is generated, with problem, value and remedy."""

import pytest
from datasets import Dataset
from transformers import TrainingArguments
from trl import GRPOConfig, GRPOTrainer, RLOOConfig

from apportion import ALLOCATORS, AR3PO, DAPO, HORA, VIP, OptPO, Uniform
from apportion.predictors import UniformPrior
from apportion.presets import singles
from apportion.trl import AllocatedGRPOTrainer, AllocatedRLOOTrainer, FailedRewards, TRLAllocation, allocated
from apportion.trl.settings import IMAGE_COLUMNS, LOSSES
from apportion.types import Plan
from tests.cases import refuse_lines, settings_of
from tests.trl.tiny import Judge, allocated_by, hora, make_questions, trained

VOTES = OptPO(min_samples=4, max_samples=8)


def test_an_allocation_that_cannot_work_is_refused():
    refuse_lines(
        allocated_by,
        """
        extract = "last" => extract must be one of .*, got 'last'; or a function
        equivalence = "same" => equivalence must be one of .*, got 'same'; check the spelling
        allocator = "optpo", verdict = "judge" => rewards come from the votes, got verdict 'judge' and baseline None
        allocator = "optpo", estimator = "reinforce", baseline = "predicted" => got verdict None and baseline .*; leave
        estimator = "reinforce", baseline = "optimum" => must have a known name, got 'optimum'; did you mean 'optimal'
        failed_rewards = "ignore" => failed_rewards must be one of stop, drop, retry, abort, got 'ignore'
        """,
    )
    refuse_lines(
        lambda text: FailedRewards(**settings_of(text)),
        """
        retries = -1 => retries must be an integer of at least 0, got -1
        share = 1.5 => share must be between 0 and 1, got 1.5
        number = -1 => number must be an integer of at least 0, got -1
        wait = inf => wait must be 0 or more seconds, got inf
        """,
    )
    with pytest.raises(TypeError, match=r"allocator must be an Allocator or the name of one, got 8; the names are uni"):
        TRLAllocation(allocator=8)


def test_settings_without_effect_are_said(caplog):
    args = GRPOConfig("out", use_cpu=True, bf16=False)
    for allocator, told in (("uniform", True), ("optpo", False)):
        caplog.clear()
        TRLAllocation(allocator=allocator, extract="boxed", rollout_log_text="hashes").check(args, ["prompt"], 1)
        assert ("extract has no effect" in caplog.text) == told and "rollout_log_text has no effect" in caplog.text


def with_column(name):
    return make_questions(8).add_column(name, [None] * 8)


TWO = {"reward_funcs": [Judge(), Judge(name="other")]}
CONSTRUCTED = (
    (
        {},
        """
        allocator = "vip", config = {num_generations = 2} => num_generations must suit vip, .*, got 2 .*; raise num_gen
        id_column = "number" => id_column must be one of prompt, k, got 'number'; leave it out for hashes
        rate_column = "rates" => rate_column must be one of prompt, k, got 'rates'; leave it out for no
        allocator = {name = "uniform", rollouts_per_prompt = 10} => 32 rollouts of 4 prompts, got 40; have it
        allocator = {name = "uniform", rollouts_per_prompt = 1} => at least 2 rollouts for .*, got 1
        config = {loss_type = "new"} => one of TRL's, grpo, .*, got 'new'; check the spelling, or
        allocator = {name = "ar3po", reuse = "replay"}, config = {beta = 0.1, sync_ref_model = true} => False if ar3po
        """,
    ),
    (
        TWO,
        """
        allocator = "ar3po" => verdict must name a reward function for ar3po, .* got 2 reward functions and no verdict
        estimator = "reinforce", baseline = {name = "predicted", predictor = "counts"} => reward function for predicted
        selection = {name = "variance", predictor = "counts"} => verdict must name a reward function for variance, which
        """,
    ),
    ({"reward_funcs": []}, 'allocator = {name = "ttrl", max_samples = 16, min_samples = 12} => ttrl must train on no'),
    (
        {"reward_funcs": [], "eval_dataset": make_questions(4)},
        'allocator = "optpo" => an eval_dataset needs reward_funcs, got none; give some',
    ),
    # TRL itself would train no step, and say so in a log line alone
    ({"questions": make_questions(3)}, "=> the data must have the 4 prompts of a generation batch, got 3; TRL would"),
    *(({"questions": with_column(name)}, f"=> prompts must be text, got a column '{name}'") for name in IMAGE_COLUMNS),
)


def test_a_trainer_that_cannot_work_is_not_made_and_no_model_is_loaded(make):
    for own, table in CONSTRUCTED:

        def construct(text, own=own):
            make(AllocatedGRPOTrainer, policy="no/such-model", **own, **allocated_by(text))

        refuse_lines(construct, table)


def test_a_verdict_is_one_of_the_reward_functions(make):
    """Their names are known when models have been loaded."""
    with pytest.raises(ValueError, match="verdict must be one of the reward functions, judge, got 'wright'; check the"):
        make(AllocatedGRPOTrainer, verdict="wright", allocator=Uniform(8))


def test_vip_minimises_the_variance_of_the_estimator_that_trains(make, caplog):
    """``tests/engines/test_faults.py`` has one that minimises another."""
    vip = VIP(rollouts_per_prompt=8, predictor=UniformPrior())
    gdpo = {"scale_rewards": "none", "multi_objective_aggregation": "normalize_then_sum"}
    for trainer, settings, estimator in (
        (AllocatedGRPOTrainer, {"config": {"scale_rewards": "none"}}, "dr_grpo"),
        (AllocatedGRPOTrainer, {"estimator": "rloo"}, "rloo"),
        (AllocatedRLOOTrainer, {}, "rloo"),
        (AllocatedGRPOTrainer, {"config": gdpo}, "rloo"),  # each function is scaled, whatever scale_rewards says
    ):
        caplog.clear()
        built = make(trainer, allocator=vip, **settings)
        assert built.allocation.allocator.needs.estimator == estimator and vip.estimator is None
        said = "vip minimises the variance of rloo, and the run trains grpo, for which it has no formula"
        assert (said in caplog.text) == (settings == {"config": gdpo})


def test_rloos_penalty_is_refused_under_an_estimator_that_divides_by_the_mean(make):
    estimator = "maxrl"
    message = f"beta must be 0 with the estimator {estimator}, which divides by the mean reward, got 0.05: .*; set beta"
    with pytest.raises(ValueError, match=message):
        make(AllocatedRLOOTrainer, config={"beta": 0.05}, allocator=Uniform(8), estimator=estimator)
    make(AllocatedGRPOTrainer, config={"beta": 0.05}, allocator=Uniform(8), estimator=estimator)


def test_settings_of_another_kind_are_refused(tmp_path):
    for args in (kind(output_dir=str(tmp_path), use_cpu=True, bf16=False) for kind in (TrainingArguments, RLOOConfig)):
        with pytest.raises(ValueError, match=r"args must be a trl.GRPOConfig for Alloc.*, got a .*, which lacks its"):
            AllocatedGRPOTrainer("no/such-model", Judge(), args, make_questions(), allocator=Uniform())


def test_too_few_distinct_prompts_for_the_draws_are_refused(make):
    rows, allocator = make_questions(18).to_list(), DAPO(max_draws=4, draw=5)
    with pytest.raises(
        ValueError, match=r"must have 19 distinct prompts, .* the 15 that dapo may draw .* got 18; give"
    ):
        make(AllocatedGRPOTrainer, questions=Dataset.from_list(rows + rows), allocator=allocator)
    make(AllocatedGRPOTrainer, questions=make_questions(19), allocator=allocator)


def test_a_trainer_with_a_loss_of_its_own_may_call_it_as_it_likes(make):
    assert {kind for kind, (_, by) in LOSSES.items() if by == "row"} == {"grpo", "sapo", "luspo", "dr_grpo", "rloo"}
    own = allocated(type("OwnLoss", (GRPOTrainer,), {}), loss="grpo")
    assert make(own, config={"loss_type": "new"}, allocator=Uniform(8))._loss == "grpo"


def test_columns_that_a_transform_makes_are_known(make):
    rows = Dataset.from_list([{"question": f"{i:03d}:", "image": None, "k": 1} for i in range(8)])
    made = rows.with_transform(lambda of: {"prompt": of["question"], "k": of["k"], "name": of["question"]})
    built = make(AllocatedGRPOTrainer, config={"max_steps": 1}, questions=made, id_column="name", allocator=hora())
    trained(built)
    with pytest.raises(ValueError, match="id_column must be one of prompt, k, name, got 'question'"):
        make(AllocatedGRPOTrainer, questions=made, id_column="question", allocator=hora())


@pytest.mark.parametrize("given", [{"allocator": Uniform(8), "id_column": "number"}, {"allocator": DAPO(max_draws=2)}])
def test_a_reward_function_gets_the_same_columns_in_all_rounds_without_the_unused_ones(make, given):
    columns = set()

    def none(completions, **rest):
        columns.add(tuple(sorted(rest.keys() & {"number", "k"})))
        return [0.0] * len(completions)

    rows = make_questions(16).add_column("number", list(range(16)))
    config = {"max_steps": 1, "remove_unused_columns": True}
    trained(make(AllocatedGRPOTrainer, config=config, questions=rows, reward_funcs=[none], **given))
    assert columns == {("number",) if "id_column" in given else ()}


def test_further_prompts_come_in_the_order_of_the_data_if_it_is_not_shuffled(make):
    seen = []

    def none(prompts, **rest):
        seen.extend(int(prompt[:3]) for prompt in prompts)
        return [0.0] * len(prompts)

    config = {"max_steps": 1, "shuffle_dataset": False}
    trained(make(AllocatedGRPOTrainer, config=config, reward_funcs=[none], allocator=DAPO(max_draws=3)))
    assert sorted(set(seen)) == list(range(12))


def test_without_a_data_set_rules_that_compare_rollouts_of_a_prompt_are_refused():
    rules = {name: TRLAllocation(allocator=rule()) for name, rule in ALLOCATORS.items()}
    equal = {"uniform", "even", "ttrl"}
    for name in equal:
        rules[name].check_without_data()
    for name in rules.keys() - equal:
        with pytest.raises(ValueError, match=f"train_dataset must have the tasks as prompts with {name}, "):
            rules[name].check_without_data()


def said(caplog):
    return [record.getMessage() for record in caplog.records if record.name.startswith("apportion")]


def test_a_fixed_total_below_the_batch_is_warned_of(make, caplog):
    """It is allowed, because single rollouts need it: TRL's ``num_generations`` is at least 2."""
    make(AllocatedGRPOTrainer, allocator=Uniform(6))
    assert said(caplog) == [
        "uniform trains on 24 rollouts of 4 prompts, and micro-batches are sized for 32; lower num_generations to "
        "what a prompt gets, or raise the batch size"
    ]


def test_a_warning_says_that_different_rows_share_a_prompt(make, caplog):
    """They share a belief. They are refused if the allocator trains on responses of earlier steps."""
    rows = [{"prompt": "one task:", "k": k} for k in (1, 3)] + make_questions(14).to_list()
    make(AllocatedGRPOTrainer, questions=Dataset.from_list(rows), allocator=HORA(rollouts_per_prompt=8))
    (line,) = said(caplog)
    assert line.startswith("rows with one prompt must be the same question, got 1 whose other columns differ")
    with pytest.raises(ValueError, match=r"got 1 whose other columns differ .*; name an id_column that tells them"):
        make(AllocatedGRPOTrainer, questions=Dataset.from_list(rows), allocator=AR3PO(reuse="replay"))
    caplog.clear()
    make(AllocatedGRPOTrainer, questions=Dataset.from_list(rows[:1] * 16), allocator=HORA(rollouts_per_prompt=8))
    assert not said(caplog)


def test_what_the_rule_learns_is_learned_by_the_users_own(make):
    vip = VIP()
    trainer = make(AllocatedGRPOTrainer, config={"max_steps": 1}, allocator=vip)
    assert trainer.allocation.allocator is not vip and trainer.allocation.allocator.predictor is vip.predictor
    before = repr(vip.state_dict())
    trainer.train()
    assert repr(vip.state_dict()) != before


def test_a_plan_without_a_rollout_is_refused(make):
    class Nothing(Uniform):
        def plan(self, batch):
            return Plan([0] * len(batch.prompts))

    with pytest.raises(ValueError, match=r"uniform must plan rollouts for a batch of 4 prompts, got none; raise its"):
        make(AllocatedGRPOTrainer, allocator=Nothing(8)).train()


def test_rewards_from_votes_have_the_name_of_their_rule():
    def lengths(rollouts, label):
        return [0.0] * len(rollouts)

    own = OptPO(min_samples=4, max_samples=8, reward=lengths)
    assert [TRLAllocation(allocator=each).vote_reward_name for each in (VOTES, own)] == ["agreement", "lengths"]


@pytest.mark.parametrize("rows", [8, 32])
def test_single_rollouts_fill_a_batch_that_trl_has_for_groups(make, rows):
    """TRL refuses ``num_generations=1``. With 8 only 4 of 32 rows were trained on."""
    given = {"questions": make_questions(40), **singles().arguments(), "weighting": None}
    built = make(AllocatedGRPOTrainer, config={"per_device_train_batch_size": rows // 4, "max_steps": 2}, **given)
    for logged in trained(built)[:2]:
        wanted = {"rows": rows, "prompts": rows, "rollouts": rows, "padding": 0, "informative": 1}
        assert {name: logged[f"allocation/{name}"] for name in wanted} == wanted and logged["grad_norm"] > 0


def test_the_presets_that_are_grpo_train_by_it_in_the_rloo_trainer_too():
    for name in ("hora_as_printed", "ar3po_as_printed", "ttrl_as_printed", "optpo_as_printed"):
        settings = TRLAllocation(preset=name).with_defaults(
            RLOOConfig(
                output_dir="unused", num_generations=16, per_device_train_batch_size=16, bf16=False, use_cpu=True
            )
        )
        assert settings.trained_estimator == "grpo"
