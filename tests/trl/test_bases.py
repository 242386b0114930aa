"""Which trainers ``allocated`` takes: those that leave sampling to TRL, and say what their loss divides by."""

import functools
import importlib
import inspect
from pathlib import Path

import pytest
import torch
from trl import GRPOTrainer, RLOOTrainer

from apportion import HORA, Uniform
from apportion.trl import allocated
from apportion.trl.bases import trl_class
from tests.trl.test_parity import assert_same
from tests.trl.tiny import TERMS, Judge, Watch, assert_gradient, direct_gradient, make_questions, trained


def rule():
    return HORA(pre_rollouts=3, rollouts_per_prompt=8, high=16)


def experimental(path):
    """Return a trainer of ``trl.experimental``, or skip: the installed version of TRL may not have it."""
    module, name = path.rsplit(".", 1)
    try:
        return getattr(importlib.import_module(f"trl.experimental.{module}"), name)
    except ImportError as error:
        pytest.skip(f"the installed TRL has no {path}: {error}")


OWN_LOSSES = {"gmpo.GMPOTrainer": "grpo", "gspo_token.GRPOTrainer": "grpo"}
OWN_ROUNDS = ("gfpo.GFPOTrainer", "grpo_with_replay_buffer.GRPOWithReplayBufferTrainer", "dppo.DPPOTrainer")
SUBCLASSES = {*OWN_LOSSES, *OWN_ROUNDS, "papo.PAPOTrainer", "minillm.MiniLLMTrainer"}


def test_every_subclass_in_trl_is_known_here():
    """A new one must be tried, and take its place in the tables above and in the docs."""
    root = inspect.getfile(importlib.import_module("trl.experimental")).removesuffix("__init__.py")
    found = set()
    for path in sorted(Path(root).rglob("*_trainer.py")):
        for line in path.read_text().splitlines():
            if line.startswith("class ") and line.endswith(("GRPOTrainer):", "RLOOTrainer):")):
                found.add(f"{path.parent.name}.{line.removeprefix('class ').split('(')[0]}")
    assert found <= SUBCLASSES


@pytest.mark.parametrize("path", OWN_LOSSES)
def test_a_subclass_in_trl_with_a_loss_of_its_own_equals_itself_under_uniform(make, tmp_path, path):
    base, loss = experimental(path), OWN_LOSSES[path]
    with pytest.raises(TypeError, match=rf"{base.__name__} has a loss of its own.*allocated\({base.__name__}, loss="):
        allocated(base)
    trainer, settings = allocated(base, loss=loss), {"loss_type": loss}
    stock = make(base, folder=tmp_path / "theirs", config=settings)
    theirs = trained(stock), stock.model.state_dict()
    built = make(trainer, folder=tmp_path / "ours", config=settings, allocator=Uniform(8), weighting=None)
    assert_same((trained(built), built.model.state_dict()), theirs)
    adaptive = make(trainer, folder=tmp_path / "hora", config=settings, allocator=rule())
    history = trained(adaptive)[:-1]
    assert {logged["allocation/rollouts"] for logged in history} == {32.0}
    assert max(logged["allocation/n_max"] for logged in history) > 8


@pytest.mark.parametrize("path", OWN_ROUNDS)
def test_a_subclass_in_trl_with_a_copy_of_the_sampling_is_refused(path):
    base = experimental(path)
    with pytest.raises(TypeError, match=r"must call super\(\)._generate_and_score_completions, got one that does not"):
        allocated(base, loss="grpo")


def test_trl_s_asynchronous_trainer_is_refused_with_the_reason():
    base = experimental("async_grpo.AsyncGRPOTrainer")
    with pytest.raises(TypeError, match=r"got AsyncGRPOTrainer: it samples ahead .* use apportion.trl.Alloc"):
        allocated(base)


def test_the_named_loss_says_how_masked_rows_are_weighed(make):
    """GMPO's loss is a mean over rows, whatever ``loss_type`` says. At a ratio of 1 its gradient is that of "grpo"."""
    judge = Judge()
    watch = Watch(judge)
    settings = {"loss_type": "dapo", "max_steps": 1, "max_grad_norm": 0.0}
    some_masked = HORA(pre_rollouts=3, rollouts_per_prompt=5.5, high=16)
    trainer = allocated(experimental("gmpo.GMPOTrainer"), loss="grpo")
    trained(watch.on(make(trainer, config=settings, reward_funcs=[judge], allocator=some_masked)))
    assert watch.steps[0].padding == 2
    weights, gradient = watch.updates[0]
    assert_gradient(gradient, direct_gradient(weights, watch.steps[0].rows, TERMS["grpo"]))


def test_another_name_of_a_loss_is_refused():
    with pytest.raises(ValueError, match=r"loss must be one of grpo, .*, got 'gmpo'"):
        allocated(GRPOTrainer, loss="gmpo")


class Copied(GRPOTrainer):
    def _generate_and_score_completions(self, inputs):
        return {"prompt_ids": inputs}


class ByGroup(GRPOTrainer):
    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        output["advantages"] = output["advantages"].view(-1, self.num_generations).flatten()
        return output


class Scaled(GRPOTrainer):
    """Changes advantages by a factor, which nobody would notice: they are 0 in groups of one."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        output["advantages"] = output["advantages"] * 2
        return output


class Fewer(GRPOTrainer):
    """Drops rows, as filters of groups do."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        rows = len(output["prompt_ids"]) // 2
        return {key: value[:rows] if value.ndim else value for key, value in output.items()}


class Elsewhere(GRPOTrainer):
    """Makes its rows outside the method that an allocator runs."""

    def _prepare_inputs(self, generation_batch):
        if not self.model.training:
            return super()._prepare_inputs(generation_batch)
        ids = torch.full((8, 4), 5)
        masks = {"prompt_mask": torch.ones_like(ids), "completion_mask": torch.ones_like(ids)}
        return {"prompt_ids": ids, "completion_ids": ids, **masks, "advantages": torch.ones(8)}


class Shuffled(GRPOTrainer):
    """Loads prompts in another order than TRL's, one of each."""

    def _get_train_sampler(self, dataset=None):
        return torch.utils.data.SequentialSampler(self.train_dataset)


class Summed(GRPOTrainer):
    """Returns one reward for each completion, without the columns of the reward functions."""

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        return super()._calculate_rewards(inputs, prompts, completions, completion_ids_list).sum(1)


class Watching(GRPOTrainer):
    """Looks at the rows that TRL makes, and changes none."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        self.seen = [*getattr(self, "seen", []), len(output["prompt_ids"])]
        return output


def test_a_method_that_does_not_call_trl_s_is_refused_when_the_class_is_made():
    with pytest.raises(TypeError, match=r"Copied\._generate_and_score_completions must call super\(\)"):
        allocated(Copied)


def test_a_method_that_needs_whole_groups_is_refused_when_the_class_is_made():
    with pytest.raises(TypeError, match="must not depend on num_generations, which is 1 while a round runs"):
        allocated(ByGroup)


@pytest.mark.parametrize("base", [Scaled, Fewer])
def test_advantages_or_rows_that_differ_from_trl_s_are_refused_in_the_first_round(make, base):
    built = make(allocated(base), allocator=rule())
    with pytest.raises(ValueError, match="must return the rows and advantages of TRL's method unchanged"):
        built.train()
    assert built.state.global_step == 0


def test_scores_of_another_shape_are_refused(make):
    built = make(allocated(Summed), allocator=rule())
    with pytest.raises(ValueError, match=r"must return a row for each completion .*, \(12, 1\), got \(12,\)"):
        built.train()


def test_a_method_that_is_no_function_is_refused_when_the_class_is_made():
    made = type("Made", (GRPOTrainer,), {"_generate_and_score_completions": functools.partial(print)})
    with pytest.raises(TypeError, match=r"Made\._generate_and_score_completions must call super\(\)"):
        allocated(made)


def test_rows_that_no_allocator_has_seen_are_refused(make):
    built = make(allocated(Elsewhere), allocator=rule())
    with pytest.raises(ValueError, match=r"rows must come from AllocatedElsewhere._generate_and_score_completions"):
        built.train()


def test_a_loader_that_does_not_repeat_prompts_is_refused(make):
    built = make(allocated(Shuffled), allocator=rule())
    with pytest.raises(ValueError, match="the loader must repeat every prompt 8 times in a row"):
        built.train()


def test_a_method_that_only_looks_at_the_rows_works(make, tmp_path):
    stock = make(GRPOTrainer, folder=tmp_path / "theirs")
    theirs = trained(stock), stock.model.state_dict()
    built = make(allocated(Watching), folder=tmp_path / "ours", allocator=Uniform(8), weighting=None)
    assert_same((trained(built), built.model.state_dict()), theirs)
    assert built.seen == [32, 32, 32]


def test_evaluation_is_trl_s(make):
    settings = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 8, "max_steps": 1}
    built = make(allocated(Watching), config=settings, allocator=rule(), eval_dataset=make_questions(4, extra=100))
    assert "eval_reward" in trained(built)[1]


def test_the_class_of_trl_that_a_trainer_extends():
    assert (trl_class(GRPOTrainer), trl_class(Watching), trl_class(RLOOTrainer)) == (
        GRPOTrainer,
        GRPOTrainer,
        RLOOTrainer,
    )
    with pytest.raises(TypeError, match=r"must be a subclass of trl.GRPOTrainer or trl.RLOOTrainer, got 3"):
        trl_class(3)


def undeclared(method):
    """Wrap ``method`` as a decorator without ``functools.wraps`` does."""

    def inner(self, *args, **settings):
        return method(self, *args, **settings)

    return inner


class Decorated(GRPOTrainer):
    @undeclared
    def _prepare_inputs(self, generation_batch):
        return super()._prepare_inputs(generation_batch)

    def _step(self, *args, timed, **settings):
        return super().training_step(*args, **settings)

    training_step = functools.partialmethod(_step, timed=True)


class ByName(GRPOTrainer):
    def _generate_and_score_completions(self, inputs):
        return GRPOTrainer._generate_and_score_completions(self, inputs)


def test_methods_that_call_trl_s_behind_a_decorator_work(make):
    built = make(allocated(Decorated), config={"max_steps": 1}, allocator=rule())
    assert trained(built)[0]["allocation/rollouts"] == 32.0


def test_a_call_of_trl_s_class_by_name_is_refused_with_the_reason(make):
    built = make(allocated(ByName), allocator=rule())
    with pytest.raises(ValueError, match=r"must call super\(\)\._generate.*, got a call of TRL's class by name"):
        built.train()
