"""Which trainers ``allocated`` takes: those that leave sampling to TRL, and say what their loss divides by."""

import dataclasses
import importlib
import inspect
from pathlib import Path

import pytest
import torch
from trl import GRPOTrainer

from apportion import HORA
from apportion.trl import AllocatedGRPOTrainer, allocated
from tests.trl.test_parity import assert_parity
from tests.trl.tiny import (
    TERMS,
    Judge,
    assert_gradient,
    configured,
    direct_gradient,
    hora,
    make_questions,
    make_tokenizer,
    trained,
)


def experimental(path):
    """Return a trainer of ``trl.experimental``, or skip: the installed version of TRL may not have it."""
    module, name = path.rsplit(".", 1)
    try:
        return getattr(importlib.import_module(f"trl.experimental.{module}"), name)
    except ImportError as error:
        pytest.skip(f"the installed TRL has no {path}: {error}")


OWN_LOSSES = ("gmpo.GMPOTrainer", "gspo_token.GRPOTrainer")
OWN_ROUND = "dppo.DPPOTrainer"
OTHERS = (
    "gfpo.GFPOTrainer",
    "grpo_with_replay_buffer.GRPOWithReplayBufferTrainer",
    "papo.PAPOTrainer",
    "minillm.MiniLLMTrainer",
)
SUBCLASSES = {*OWN_LOSSES, OWN_ROUND, *OTHERS}


def test_every_subclass_in_trl_is_known_here():
    """A new one must be tried, and take its place in the tables above and in the docs."""
    root = inspect.getfile(importlib.import_module("trl.experimental")).removesuffix("__init__.py")
    found = set()
    for path in sorted(Path(root).rglob("*_trainer.py")):
        for line in path.read_text().splitlines():
            if line.startswith("class ") and line.endswith(("GRPOTrainer):", "RLOOTrainer):")):
                found.add(f"{path.parent.name}.{line.removeprefix('class ').split('(')[0]}")
    assert found <= SUBCLASSES


def test_a_subclass_in_trl_with_a_loss_of_its_own_equals_itself_under_uniform(make, tmp_path):
    base = experimental(OWN_LOSSES[0])
    unnamed = make(allocated(base), folder=tmp_path / "unnamed", config={"loss_type": "grpo"}, allocator=hora())
    with pytest.raises(ValueError, match=rf"{base.__name__} has a loss of its own \(_compute_loss\).*, loss="):
        unnamed.train()
    assert unnamed.state.global_step == 0
    trainer, settings = allocated(base, loss="grpo"), {"loss_type": "grpo"}
    assert_parity(make, tmp_path, base, trainer, settings)
    history = trained(make(trainer, folder=tmp_path / "hora", config=settings, allocator=hora()))[:-1]
    assert {logged["allocation/rollouts"] for logged in history} == {32.0}
    assert max(logged["allocation/n_max"] for logged in history) > 8


def test_a_subclass_in_trl_with_a_copy_of_the_sampling_is_refused(policy, tmp_path):
    base, usual = experimental(OWN_ROUND), configured(tmp_path, GRPOTrainer)
    config = experimental(OWN_ROUND.replace("Trainer", "Config"))
    given = {field.name: getattr(usual, field.name) for field in dataclasses.fields(usual) if field.init}
    settings = config(**given | {"generation_batch_size": None})  # TRL sets it and steps_per_generation, and takes one
    built = allocated(base, loss="grpo")(
        model=policy,
        reward_funcs=[Judge()],
        args=settings,
        train_dataset=make_questions(),
        processing_class=make_tokenizer(),
        allocator=hora(),
    )
    with pytest.raises(ValueError, match=r"must call super\(\)._generate_and_score_completions, got rows that"):
        built.train()
    assert built.state.global_step == 0


def test_trl_s_asynchronous_trainer_is_refused_with_the_reason():
    base = experimental("async_grpo.AsyncGRPOTrainer")
    with pytest.raises(TypeError, match=r"got AsyncGRPOTrainer: it samples ahead .* use apportion.trl.Alloc"):
        allocated(base)


def test_the_named_loss_says_how_masked_rows_are_weighed(run):
    """GMPO's loss is a mean over rows, whatever ``loss_type`` says. At a ratio of 1 its gradient is that of "grpo"."""
    settings = {"loss_type": "dapo", "max_steps": 1, "max_grad_norm": 0.0}
    some_masked = HORA(pre_rollouts=3, rollouts_per_prompt=5.5, high=16)
    trainer = allocated(experimental("gmpo.GMPOTrainer"), loss="grpo")
    _, watch, _ = run(trainer, config=settings, allocator=some_masked)
    assert watch.steps[0].padding == 2
    weights, gradient = watch.updates[0]
    assert_gradient(gradient, direct_gradient(weights, watch.steps[0].rows, TERMS["grpo"]))


def rounds(change):
    """Return a subclass of TRL's trainer whose rounds ``change`` (trainer, output of TRL's method)."""

    class Changed(GRPOTrainer):
        def _generate_and_score_completions(self, inputs):
            return change(self, super()._generate_and_score_completions(inputs))

    return Changed


def doubled(trainer, output):
    """Change advantages by a factor, which nobody would notice: they are 0 in groups of one."""
    return output | {"advantages": output["advantages"] * 2}


def fewer(trainer, output):
    """Drop rows, as filters of groups do."""
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


class ByName(GRPOTrainer):
    def _generate_and_score_completions(self, inputs):
        return GRPOTrainer._generate_and_score_completions(self, inputs)


class OwnStep(GRPOTrainer):
    """Trains a micro-batch without TRL's method, which counts them."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = self.compute_loss(model, self._prepare_inputs(inputs))
        loss.backward()
        return loss.detach()


REFUSED = (
    (int, r"must be a subclass of trl.GRPOTrainer or trl.RLOOTrainer, got <class 'int'>"),
    (AllocatedGRPOTrainer, "must be a trainer without an allocator, got AllocatedGRPOTrainer"),
)


def test_a_class_that_cannot_have_an_allocator_is_refused_when_it_is_made():
    for base, message in REFUSED:
        with pytest.raises(TypeError, match=message):
            allocated(base)
    with pytest.raises(ValueError, match=r"loss must be one of grpo, .*, got 'gmpo'"):
        allocated(GRPOTrainer, loss="gmpo")


@pytest.mark.parametrize(
    ("base", "message"),
    [
        (rounds(doubled), "must return the rows and advantages of TRL's method unchanged"),
        (rounds(fewer), "must return the rows and advantages of TRL's method unchanged"),
        (Summed, r"must return a row for each completion .*, \(12, 1\), got \(12,\)"),
        (Elsewhere, r"rows must come from AllocatedElsewhere._generate_and_score_completions"),
        (Shuffled, "the loader must repeat every prompt 8 times in a row"),
        (ByName, r"AllocatedByName._generate_and_score_completions must call super\(\)._generate.*, got rows that"),
        (OwnStep, r"AllocatedOwnStep.training_step must call super\(\).training_step, got one that does not"),
    ],
)
def test_what_differs_from_trl_is_refused_in_the_first_round(make, base, message):
    built = make(allocated(base), allocator=hora())
    with pytest.raises(ValueError, match=message):
        built.train()
    assert built.state.global_step == 0


def test_a_method_that_only_looks_at_the_rows_works_and_evaluation_is_trl_s(make, tmp_path):
    seen = []
    watching = rounds(lambda trainer, output: seen.append(len(output["prompt_ids"])) or output)
    settings = {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 8}
    held_out = make_questions(4, extra=100)
    ours, _ = assert_parity(make, tmp_path, GRPOTrainer, allocated(watching), settings, eval_dataset=held_out)
    assert seen.count(32) == 3 and any("eval_reward" in row for row in ours.state.log_history)


class Louder(GRPOTrainer):
    """A subclass as people write them: an argument of its own and another loss."""

    def __init__(self, *args, loudness=1.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.loudness, self.losses = loudness, 0

    def compute_loss(self, *args, **kwargs):
        self.losses += 1
        return super().compute_loss(*args, **kwargs) * self.loudness


def test_a_subclass_keeps_its_own_arguments_and_its_own_loss(run):
    built, watch, history = run(allocated(Louder), allocator=hora(), loudness=0.0)
    assert isinstance(built, Louder) and built.losses == 12
    assert {logged["allocation/rollouts"] for logged in history} == {32.0}
    assert all(weight.equal(watch.updates[0][0][name]) for name, weight in built.model.state_dict().items())


class OwnFirst(GRPOTrainer):
    """A subclass with an argument before those of TRL."""

    def __init__(self, loudness, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.loudness = loudness


def test_arguments_are_named_or_have_the_places_of_trl(make, policy, tmp_path):
    settings, given = configured(tmp_path, GRPOTrainer), {"allocator": hora(), "processing_class": make_tokenizer()}
    given["train_dataset"] = make_questions()
    built = allocated(Louder)(policy, [Judge()], settings, **given)
    assert built.args is settings and built.reward_func_names == ["judge"]
    with pytest.raises(TypeError, match="multiple values for argument 'args'"):
        allocated(Louder)(policy, [Judge()], settings, args=settings, **given)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'loudness'"):
        allocated(OwnFirst)(1.0, "model", allocator=hora())
    assert make(allocated(OwnFirst), allocator=hora(), loudness=2.0).loudness == 2.0
