"""The undocumented names of TRL and transformers exist in the installed versions."""

import inspect
from collections import deque

import pytest
from trl import GRPOTrainer, RLOOTrainer

from apportion.trl import seam
from apportion.trl.overrides import AllocatedTrainer

TRAINERS = {GRPOTrainer: seam.GRPO_ATTRIBUTES, RLOOTrainer: seam.RLOO_ATTRIBUTES}


@pytest.mark.parametrize("trainer", TRAINERS)
def test_methods_exist_with_these_parameters(trainer):
    for name, wanted in seam.TRAINER_METHODS.items():
        parameters = tuple(inspect.signature(getattr(trainer, name)).parameters)[1:]
        assert parameters[: len(wanted)] == wanted, name
        if name in vars(AllocatedTrainer):  # an override must accept all arguments
            assert len(inspect.signature(getattr(AllocatedTrainer, name)).parameters) - 1 == len(parameters), name


@pytest.mark.parametrize("trainer", TRAINERS)
def test_attributes_exist_after_construction(make, trainer):
    built = make(trainer)
    for name in (*seam.TRAINER_ATTRIBUTES, *TRAINERS[trainer]):
        assert hasattr(built, name), name
    assert built.num_generations == 8 and built._step == 0 and built._buffered_inputs is None
    assert built.reward_func_names == ["judge"] and built.reward_weights.tolist() == [1.0]
    assert built._metrics["train"]["new"] == []
    assert all(isinstance(built._logs[name], deque) for name in ("prompt", "completion", "advantages"))
    assert isinstance(built._logs["rewards"]["new"], deque)


def test_every_private_method_that_is_overridden_is_listed():
    own = {name for name, value in vars(AllocatedTrainer).items() if inspect.isfunction(value)}
    of_trl = {name for name in own if hasattr(GRPOTrainer, name) and not name.startswith("__")}
    assert of_trl <= set(seam.TRAINER_METHODS)
