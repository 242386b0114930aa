"""What an allocation in tinker-cookbook refuses before anything is sampled."""

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import chz
import pytest
from tinker_cookbook.rl.rollout_strategy import FailFast
from tinker_cookbook.rl.train import AsyncConfig, StreamMinibatchConfig
from tinker_cookbook.rl.types import EnvGroupBuilder

from apportion import AR3PO, VIP, Uniform
from apportion.allocators import ALLOCATORS
from apportion.tinker import TinkerAllocation, allocated
from apportion.tinker.problems import question_of, resized
from tests.cases import assert_refused, refuse_lines, settings_of
from tests.rules import small

LABEL_FREE = [name for name in ALLOCATORS if not small(name).needs.labels]


REFUSED = r"""
    vip; estimator = "ppo" => estimator must be one of
    vip; estimator = "reinforce" => a baseline goes with the estimators 'reinforce' and 'spo'
    vip; weighting = "group" => weighting must be one of
    vip; seed = -1 => seed must be an integer of at least 0
    horae; => allocator must be known, got 'horae'; did you mean 'hora'\?
"""


def test_what_the_loop_cannot_train_is_refused(configured):
    def make(case):
        name, _, settings = case.partition(";")
        return allocated(configured(), name, **settings_of(settings))

    refuse_lines(make, REFUSED)
    ahead = AsyncConfig(max_steps_off_policy=1, groups_per_batch=4)
    on = {"async_config": chz.replace(ahead, loss_fn="importance_sampling")}
    minibatches = StreamMinibatchConfig(groups_per_batch=4, num_minibatches=2)
    least = "AsyncConfig.loss_fn must be one of importance_sampling, ppo, cispo .*, got 'stable_reinfo"
    assert_refused(
        lambda case: allocated(configured(**case[1]), case[0], **case[2]),
        [
            *((f"got {name}, which learns from votes", (small(name), {}, {})) for name in LABEL_FREE),
            *(("reuses those of earlier steps", (AR3PO(reuse=reuse), {}, {})) for reuse in ("replay", "recompute")),
            (least, (Uniform(4), {"async_config": ahead}, {})),
            ("stream_minibatch_config must be None", (Uniform(4), {"stream_minibatch_config": minibatches}, {})),
            ("loss_fn must be one of importance_sampling, ppo, cispo", (Uniform(4), {"loss_fn": "dro"}, {})),
            ("for dr_grpo, which compares them, got 1 by uniform", (Uniform(1), {}, {})),
            ("that trains, dr_grpo, got rloo", (VIP(estimator="rloo"), {}, {"estimator": "dr_grpo"})),
            ("async_config must be None with dapo, which compares", (small("dapo", 4), on, {})),
            ("async_config must be None with the esti", (Uniform(4), on, {"estimator": "batch_optimal"})),
        ],
    )


def test_an_allocator_is_set_once(configured):
    with pytest.raises(ValueError, match="call it once"):
        allocated(allocated(configured(), Uniform(4)), Uniform(4))


def test_unequal_weights_of_prompts_are_warned_of(configured, caplog):
    TinkerAllocation(allocator=VIP(), weighting="rollout")
    assert "equal weights of prompts" in caplog.text


def test_a_rollout_executor_is_refused(configured, run, service):
    with ThreadPoolExecutor(1) as pool, pytest.raises(ValueError, match="rollout_executor must be None"):
        run(allocated(configured(), Uniform(4)), rollout_executor=pool)
    assert not service.sampled


def test_another_strategy_is_refused(configured, run):
    config = chz.replace(allocated(configured(), Uniform(4)), rollout_error_tolerance=FailFast())
    with pytest.raises(ValueError, match="give yours to the configuration before allocated"):
        run(config)


def test_batches_out_of_order_are_refused(configured):
    dataset, _ = asyncio.run(allocated(configured(), Uniform(4)).dataset_builder())
    with pytest.raises(ValueError, match="in order, each after the one before it is sampled, got 1 for 0"):
        dataset.get_batch(1)


class Plain(EnvGroupBuilder):
    group_size = 4

    async def make_envs(self):
        return []


@dataclass(frozen=True)
class Sized(EnvGroupBuilder):
    num_envs: int = 4

    async def make_envs(self):
        return []


class Unsized(EnvGroupBuilder):
    async def make_envs(self):
        return []


def test_builders_are_copied_with_another_size():
    plain, sized = Plain(), Sized()
    assert resized(plain, 7).group_size == 7 and plain.group_size == 4
    assert resized(sized, 7) == Sized(7) and sized.num_envs == 4
    with pytest.raises(ValueError, match="resize must be given for a group builder without num_envs and group_size"):
        resized(Unsized(), 7)


def test_a_builder_without_a_question_needs_prompt_of(configured):
    with pytest.raises(ValueError, match=r"prompt_of must be given .* got Plain"):
        question_of(Plain())


def test_without_tinker_cookbook_the_error_says_what_to_install():
    code = "import sys; sys.modules['tinker_cookbook'] = None; import apportion.tinker"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", timeout=120)
    assert done.returncode == 1
    assert done.stderr.endswith(
        "ImportError: apportion.tinker needs tinker-cookbook: pip install 'apportion[tinker]'\n"
    )


def test_hora_as_printed_is_grpo_and_not_the_cookbooks_own_formula():
    assert TinkerAllocation(preset="hora_as_printed").trained_estimator == "grpo"
