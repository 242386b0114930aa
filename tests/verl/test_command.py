"""``python -m apportion.verl``, as a user types it."""

import os
import subprocess
import sys

import pytest
from omegaconf import OmegaConf, open_dict
from verl.utils.import_utils import load_class_from_fqn

from apportion.config import ConfigError
from apportion.verl import AllocatedAgentLoopManager, SavedAllocation
from apportion.verl.spelling import check_overrides
from tests.verl.composed import command, stock
from tests.verl.runs import allocated, groups_of

MAIN = "apportion.verl"
COUNTS = ("allocation=vip", "allocation/predictor=counts", "allocation.allocator.high=8")
STARTED = "ray init kwargs"
"""What verl writes as it starts Ray."""


def test_all_else_is_verls_own_configuration():
    config, theirs = command()[0], stock()
    with open_dict(config), open_dict(theirs):
        manager = config.actor_rollout_ref.rollout.agent.pop("agent_loop_manager_class")
        callback, estimator = config.trainer.checkpoint_callback_class, config.algorithm.adv_estimator
        config.trainer.checkpoint_callback_class = theirs.trainer.checkpoint_callback_class
        config.algorithm.adv_estimator = theirs.algorithm.adv_estimator
        del config["allocation"], config["hydra"], theirs["hydra"]
    assert OmegaConf.to_container(config) == OmegaConf.to_container(theirs)
    assert load_class_from_fqn(manager) is AllocatedAgentLoopManager
    assert load_class_from_fqn(callback) is SavedAllocation
    assert estimator == "apportion_rloo"


def test_verls_engines_are_chosen_as_ever():
    ours, theirs = command("model_engine=megatron")[0], stock("model_engine=megatron")
    assert ours.actor_rollout_ref.actor == theirs.actor_rollout_ref.actor


def test_without_verl_it_says_what_to_install():
    code = f"import runpy, sys; sys.modules['ray'] = None; runpy.run_module({MAIN!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        "error: python -m apportion.verl needs ray, which is not installed; pip install 'apportion[verl]'\n",
    )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("actor_rollout_ref.rollout.n=2", "rollouts_per_prompt must be between 3 and 64, got 2"),
        ("allocation.allocator.predictor.name=counts", "choose allocation/predictor=counts instead"),
        ("trainer.use_v1=False", "trainer.use_v1 must be True, got False"),
        ("allocation.allocator.low=2", "allocation.allocator.low must be at least 3"),
        ("trainer.default_local_dir=/proc/run", "trainer.default_local_dir must be a folder that can be written, got"),
    ],
)
def test_what_cannot_work_is_refused_before_ray_starts(train, override, message):
    done = train((override,), main=MAIN)
    assert done.status == 2, done.output[-5000:]
    assert STARTED not in done.output and "Traceback" not in done.output
    *_, last = done.output.splitlines()
    assert last.startswith("error: ") and message in last


MISSPELT = {
    "allocatoin=vip": "allocatoin is no setting; did you mean allocation? To add a key of your own, write +allocatoin=",
    "allocation.allocator.hihg=32": "allocation.allocator.hihg is no setting; did you mean allocation.allocator.high?",
    "allocation=vipp": "allocation has no choice 'vipp'; did you mean allocation=vip?",
    "allocation/predictor=gpp": "allocation/predictor has no choice 'gpp'; did you mean allocation/predictor=gp?",
    "actor_rollout_ref.rollout.nn=8": "actor_rollout_ref.rollout.nn is no setting; did you mean actor_rollout_ref.",
    "data.trian_files=x": "data.trian_files is no setting; did you mean data.train_files?",
    "data.train_files.x=1": "data.train_files.x is no setting; data.train_files has no settings.",
    "zzz=1": "zzz is no setting; there are actor_rollout_ref, algorithm, allocation,",
}


@pytest.mark.parametrize("override", MISSPELT)
def test_a_misspelt_override_is_refused_with_the_nearest_name(override):
    with pytest.raises(ConfigError) as caught:
        check_overrides(["actor_rollout_ref.rollout.n=8", override])
    assert str(caught.value).startswith(MISSPELT[override]) and "\n" not in str(caught.value)


def test_a_misspelt_override_costs_a_second_and_one_line():
    """verl alone takes 4 seconds of processor time to import, and its own error has five lines."""
    before = os.times()
    done = subprocess.run(
        [sys.executable, "-m", MAIN, "actor_rollout_ref.rollout.n=8", "allocatoin=vip"],
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    after = os.times()
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"error: {MISSPELT['allocatoin=vip']}")
    assert after.children_user - before.children_user < 3


def test_correct_overrides_pass_the_check_of_spelling():
    for right in (
        ["allocation=hora", "allocation.allocator.high=3"],
        ["+own=1"],
        ["~data.train_files"],
        ["--help"],
        [],
    ):
        check_overrides(right)


def test_too_few_prompts_of_a_length_end_the_run_with_their_number(train):
    """verl itself makes no step of them, and divides by their number."""
    done = train((*COUNTS, "data.filter_overlong_prompts=True", "data.max_prompt_length=1"), main=MAIN)
    assert done.status != 0 and "ZeroDivisionError" not in done.output
    assert "data.train_files must have the 4 prompts of data.train_batch_size, got 0 after those above" in done.output


def test_it_trains_as_stock_verl_does_with_the_same_settings(train):
    done = train(COUNTS, main=MAIN)
    assert done.status == 0 and STARTED in done.output, done.output[-5000:]
    same = train(allocated("{name: vip, high: 8, predictor: counts}"))
    for step, metrics in zip((1, 2), done.metrics, strict=True):
        rows = done.rows(step)
        sizes = [len(own) for own in groups_of(rows).values()]
        assert sum(sizes) == metrics["allocation/rows"] == 16 and all(3 <= size <= 8 for size in sizes)
        assert content(rows) == content(same.rows(step))


@pytest.mark.soak  # test_checks has the reason
def test_a_rule_that_cannot_differ_from_uniform_is_said_once_before_ray_starts(train):
    done = train((*COUNTS, "allocation.allocator.low=4", "trainer.total_training_steps=1"), main=MAIN)
    assert done.status == 0, done.output[-5000:]
    said = "vip gives every prompt 4 rollouts, whatever their outcomes; "
    assert done.output.count(said) == 1  # the settings that are printed have similar words
    assert done.output.index(said) < done.output.index(STARTED)


SPELLED = {
    "hora_as_printed": allocated("{name: hora, pre_rollouts: 8, rollouts_per_prompt: 16}"),
    "fixed_baseline": allocated("uniform", estimator="apportion_reinforce", baseline="optimal"),
}


@pytest.mark.soak  # test_configs composes the settings of every preset
@pytest.mark.parametrize("name", SPELLED)
def test_a_preset_trains_as_its_parts_do(train, name):
    step = ("trainer.total_training_steps=1",)
    one, same = train((f"allocation={name}", *step), main=MAIN), train((*SPELLED[name], *step))
    assert one.status == same.status == 0, one.output[-3000:] + same.output[-3000:]
    assert content(one.rows(1)) == content(same.rows(1)) != []


def content(rows):
    return sorted((row["index"], row["responses"], row["advantages"]) for row in rows)
