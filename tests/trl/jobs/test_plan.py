"""The plan of a job agrees with what TRL and the allocators then do."""

from pathlib import Path

import pytest

from apportion.records import read_log
from apportion.trl.jobs.plan import plan_lines
from apportion.trl.jobs.prepared import prepare
from tests.trl.jobs.small import job_of, make_job, prepared, train


@pytest.mark.parametrize(
    "training",
    [
        {"num_train_epochs": 0.4},
        {"num_train_epochs": 0.5, "steps_per_generation": 2, "gradient_accumulation_steps": 4, "num_iterations": 3},
        {"max_steps": 5, "steps_per_generation": 4, "gradient_accumulation_steps": 3},
        # an epoch has two micro-batches, so its only step has no four
        {
            "max_steps": 2,
            "per_device_train_batch_size": 192,
            "steps_per_generation": 1,
            "gradient_accumulation_steps": 4,
        },
    ],
)
def test_steps_and_batches_are_those_of_the_run(folder, policy, training):
    training = {
        "max_steps": None,
        "save_strategy": "no",
        "logging_steps": 1,
        "per_device_train_batch_size": 8,
    } | training
    config = make_job(folder, policy, training=training)
    plan = prepare(job_of(config))
    assert train(config) == 0
    log = read_log(Path("runs/job/rollouts")).to_pylist()
    assert len({row["step"] for row in log}) == plan.batches
    assert len(log) == plan.batches * plan.rows
    assert len({row["prompt_id"] for row in log if row["step"] == 0}) == plan.prompts


SIZES = (
    ({"name": "hora", "pre_rollouts": 2, "rollouts_per_prompt": 6}, {}, (32, 6)),
    ({"name": "ttrl", "max_samples": 20, "min_samples": 5}, {}, (32, 5)),
    ({"name": "ar3po", "stages": 3, "rollouts_per_stage": 4}, {}, (32, 12)),
    ({"name": "uniform", "rollouts_per_prompt": 4}, {"gradient_accumulation_steps": 3}, (6, 4)),
    ({"name": "uniform", "rollouts_per_prompt": 8}, {"generation_batch_size": 80}, (10, 8)),
    ({"name": "ttrl", "min_samples": 5}, {"per_device_train_batch_size": 24}, (24, 5)),  # in whole micro-batches
    ({"name": "hora"}, {"num_generations": 6}, (32, 6)),  # the allocator follows
    ({"name": "uniform", "rollouts_per_prompt": 16}, {"num_generations": 16}, (32, 16)),
)


def test_the_batch_size_follows_from_the_rollouts_that_the_allocator_keeps(folder, policy):
    open_sizes = {"num_generations": None, "gradient_accumulation_steps": None, "per_device_train_batch_size": None}
    for allocator, given, (prompts, each) in SIZES:
        plan = prepared(folder, policy, allocator=allocator, extract=None, training=open_sizes | given)
        assert (plan.prompts, plan.arguments.num_generations, plan.rows) == (prompts, each, prompts * each), allocator


def test_rloo_has_the_penalty_of_trl(folder, policy):
    assert prepared(folder, policy, algorithm="rloo").arguments.beta == 0.05


def test_a_plan_has_a_line_for_everything(folder, policy):
    lora, evaluation = {"r": 4, "target_modules": ["q_proj"]}, {"path": "questions.jsonl", "limit": 5}
    plan = prepared(folder, policy, lora=lora, evaluation=evaluation, training={"save_steps": None})
    assert plan_lines(plan)[:13] == [
        "job          job, under runs/job",
        f"model        {policy}, LoRA of rank 4",
        "prompts      48 questions from questions.jsonl, 48 rows. The template is plain; the median prompt has 5 "
        "characters.",
        "             As text, because the model has no chat template; 6 tokens at most.",
        "evaluation   5 questions from questions.jsonl, 48 rows. Cut to 5 of 48. The template is plain; the median "
        "prompt has 5 characters.",
        "verifier     Function(function='verifier.py:judged', needs_gold=True)",
        f"allocator    {plan.allocation.allocator}",
        "algorithm    grpo, every prompt counts the same",
        "a batch      4 prompts, 32 rollouts",
        "a run        4 batches, 4 optimizer steps",
        "rollouts     128 rollouts; 5 tokens each at most, 640 in all",
        "processes    1",
        "checkpoints  every 10% of the run, of which the last 2 are kept",
    ]
    defaults = {line.split()[0] for line in plan_lines(plan)[14:]}
    assert defaults == set(plan.defaults) and not defaults & {"learning_rate", "num_generations", "use_cpu"}


VOTES = {"name": "ttrl", "max_samples": 9, "min_samples": 8}
LINES = {
    "verifier     none; rewards come from votes": {"allocator": VOTES, "verifier": None},
    "rollouts     144 rollouts; 5 tokens each at most, 720 in all": {"allocator": VOTES},
    "rollouts     at most 128 rollouts; 5 tokens each at most, 640 in all": {
        "allocator": {"name": "ar3po", "stages": 2, "rollouts_per_stage": 4}
    },
    "algorithm    grpo, every prompt counts the same, estimator reinforce, baseline Predicted(predictor=": {
        "estimator": "reinforce",
        "baseline": "predicted",
    },
    "selection    Mixed(predictor=None, explore=0.1, group_size=4)": {"selection": {"name": "mixed", "group_size": 4}},
    "checkpoints  none, so a run that is stopped cannot be resumed": {"training": {"save_strategy": "no"}},
    "checkpoints  every epoch, of which the last 2 are kept": {"training": {"save_strategy": "epoch"}},
}


def test_a_plan_names_special_settings(folder, policy):
    for line, settings in LINES.items():
        lines = plan_lines(prepared(folder, policy, **settings))
        assert any(each.startswith(line) for each in lines), "\n".join(lines)
