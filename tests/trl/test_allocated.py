"""``allocated`` gives an allocator to any subclass of TRL's trainers."""

import pytest
from trl import GRPOTrainer, RLOOTrainer

from apportion import HORA
from apportion.trl import AllocatedGRPOTrainer, AllocatedRLOOTrainer, allocated
from apportion.trl.overrides import AllocatedTrainer
from tests.trl.tiny import Judge, configured, make_questions, make_tokenizer, trained


class Louder(GRPOTrainer):
    """A subclass as people write them: an argument of its own, and another loss."""

    def __init__(self, *args, loudness=1.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.loudness, self.losses = loudness, 0

    def compute_loss(self, *args, **kwargs):
        self.losses += 1
        return super().compute_loss(*args, **kwargs) * self.loudness


def rule():
    return HORA(pre_rollouts=3, rollouts_per_prompt=8, high=16)


def test_the_two_trainers_are_its_results():
    assert (AllocatedGRPOTrainer.__name__, AllocatedRLOOTrainer.__name__) == (
        "AllocatedGRPOTrainer",
        "AllocatedRLOOTrainer",
    )
    assert issubclass(AllocatedGRPOTrainer, GRPOTrainer) and issubclass(AllocatedRLOOTrainer, RLOOTrainer)


def test_a_subclass_keeps_its_own_arguments_and_its_own_loss(make):
    trainer = allocated(Louder)
    built = make(trainer, allocator=rule(), loudness=0.0)
    assert isinstance(built, Louder) and isinstance(built, AllocatedTrainer) and built.loudness == 0.0
    before = {name: weight.clone() for name, weight in built.model.named_parameters()}
    history = trained(built)
    assert built.losses == 12
    assert {logged["allocation/rollouts"] for logged in history[:-1]} == {32.0}
    assert all(weight.equal(before[name]) for name, weight in built.model.named_parameters())


def test_arguments_may_be_given_by_position_where_a_subclass_does_not_name_them(policy, tmp_path):
    settings = configured(tmp_path, GRPOTrainer)
    tokenizer = make_tokenizer()
    given = {"train_dataset": make_questions(), "processing_class": tokenizer}
    built = allocated(Louder)(policy, [Judge()], settings, allocator=rule(), **given)
    assert built.args is settings and built.reward_func_names == ["judge"]
    with pytest.raises(TypeError, match="multiple values for argument 'args'"):
        allocated(Louder)(policy, [Judge()], settings, args=settings, allocator=rule(), **given)


class OwnFirst(GRPOTrainer):
    """A subclass with an argument before those of TRL."""

    def __init__(self, loudness, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.loudness = loudness


def test_arguments_must_be_named_if_a_subclass_puts_its_own_before_those_of_trl(make):
    with pytest.raises(TypeError, match="must be given by name, got 2 without, because OwnFirst puts its own before"):
        allocated(OwnFirst)(1.0, "model", allocator=rule())
    assert make(allocated(OwnFirst), allocator=rule(), loudness=2.0).loudness == 2.0


def test_another_class_is_refused():
    with pytest.raises(TypeError, match=r"must be a subclass of trl.GRPOTrainer or trl.RLOOTrainer, got <class 'int'>"):
        allocated(int)


def test_a_trainer_with_an_allocator_is_refused():
    with pytest.raises(TypeError, match="must be a trainer without an allocator, got AllocatedGRPOTrainer"):
        allocated(AllocatedGRPOTrainer)
