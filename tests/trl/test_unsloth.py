"""Unsloth's trainer under an allocator, on a stand-in: importing Unsloth rewrites TRL for the whole process.

``test_unsloth_itself`` runs Unsloth's own rewritten class in a process of its own, where it is installed.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from trl import RLOOTrainer

from apportion import HORA
from apportion.baselines import Optimal
from apportion.trl import AllocatedGRPOTrainer, allocated
from apportion.trl.bases import check_trainer
from apportion.trl.unsloth import KEY, is_unsloth, windowed
from tests.trl.test_parity import LEAVES_NAN_OUT, assert_parity
from tests.trl.tiny import PAD, TERMS, assert_gradient, direct_gradient, make_questions
from tests.trl.unsloth_stand_in import UnslothStandIn

ROOT = Path(__file__).parents[2]
TRAINER = allocated(UnslothStandIn)
CASES = {
    "defaults": {},
    "a reference, two iterations": {"beta": 0.04, "num_iterations": 2, "loss_type": "grpo"},
    "a reference, two updates a batch": {"beta": 0.04, "steps_per_generation": 8, "loss_type": "bnpo"},
    "truncated completions masked": {"beta": 0.04, "mask_truncated_completions": True},
}


def test_a_masked_row_holds_padding_because_unsloth_reads_its_mask_from_the_tokens():
    masks = {"prompt_mask": torch.ones(2, 3), "completion_mask": torch.tensor([[1] * 4, [0] * 4])}
    found = windowed({"completion_ids": torch.full((2, 4), 7)} | masks, pad_token=5)
    assert found["completion_ids"].tolist() == [[7] * 4, [5] * 4]


@pytest.mark.parametrize("name", CASES)
def test_uniform_equals_the_trainer_without_an_allocator(make, tmp_path, name):
    if "masked" in name and not LEAVES_NAN_OUT:
        pytest.skip("early versions of TRL count masked completions in the normalizer")
    ours, theirs = assert_parity(make, tmp_path, UnslothStandIn, TRAINER, CASES[name])
    assert ours.windows == theirs.windows and max(theirs.windows) > 0


WITHOUT_PAD = {"suppress_tokens": [PAD]}  # Unsloth takes a sampled padding token for padding


@pytest.mark.parametrize("settings", [{}, {"beta": 0.04, "num_iterations": 2}])
def test_the_gradient_is_that_of_the_true_rows_after_several_rounds(run, settings):
    settings = settings | {"max_steps": 1, "max_grad_norm": 0.0, "loss_type": "grpo", "generation_kwargs": WITHOUT_PAD}
    rule = HORA(pre_rollouts=3, rollouts_per_prompt=5.5, high=16)  # no multiple of the micro-batches
    _, watch, (logged,) = run(TRAINER, config=settings, allocator=rule)
    (step,), ((weights, gradient),) = watch.steps, watch.updates
    assert (logged["allocation/rounds"], logged["allocation/rollouts"], step.padding) == (2, 22, 2)
    assert_gradient(gradient, direct_gradient(weights, step.rows, TERMS["grpo"]))
    assert logged.get("kl", 0.0) == 0.0


def test_score_norms_are_those_of_the_completions(run):
    """A baseline learns them in the first batch and uses them in the second."""
    weights, config = [], {"num_iterations": 2, "max_steps": 4, "generation_kwargs": WITHOUT_PAD}
    for trainer in (AllocatedGRPOTrainer, TRAINER):
        given = {"questions": make_questions(4), "estimator": "reinforce", "baseline": Optimal(), "config": config}
        built, _, _ = run(trainer, allocator=HORA(pre_rollouts=4, rollouts_per_prompt=8), **given)
        weights.append(built.model.state_dict())
    assert all(torch.allclose(value, weights[1][name], atol=1e-6) for name, value in weights[0].items())


def test_its_trainer_for_rloo_has_the_columns_of_trl(make, tmp_path):
    class UnslothRLOOTrainer(RLOOTrainer):
        pass

    ours, _ = assert_parity(make, tmp_path, UnslothRLOOTrainer, allocated(UnslothRLOOTrainer))
    assert all(KEY not in chunk for chunk in ours._buffered_inputs)


def test_weights_by_group_are_refused_at_construction(make, monkeypatch):
    allocator, variable = HORA(pre_rollouts=4, rollouts_per_prompt=8), "UNSLOTH_GRPO_{}"
    given = {"ZERO_VARIANCE_EXCLUDE": "1", "LOSS_AGGREGATION": "prompt", "ROLLOUT_LOGPROBS_AS_OLD": "1"}
    for name, value in given.items():
        with monkeypatch.context() as patched:
            patched.setenv(variable.format(name), value)
            message = f"{variable.format(name)} must be unset under an allocator, got '{value}'"
            with pytest.raises(ValueError, match=message):
                make(TRAINER, allocator=allocator)
            make(AllocatedGRPOTrainer, allocator=allocator)
            patched.setenv(variable.format(name), " ")
            make(TRAINER, allocator=allocator)


def test_unsloth_that_was_imported_too_late_is_refused(monkeypatch):
    assert is_unsloth(TRAINER) and not is_unsloth(AllocatedGRPOTrainer)
    monkeypatch.setattr("trl.GRPOTrainer", UnslothStandIn)
    with pytest.raises(ValueError, match=r"must be imported before apportion\.trl, got AllocatedGRPOTrainer"):
        check_trainer(AllocatedGRPOTrainer)
    check_trainer(TRAINER)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("unsloth") is None, reason="unsloth is not installed")
def test_unsloth_itself(tmp_path):
    """Compile Unsloth's class on the CPU, and compare it with and without an allocator."""
    off = {"UNSLOTH_GRPO_PREFIX_GROUPER": "0", "UNSLOTH_GRPO_SEQ_PACKING": "0"}  # rounds do without them
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    ran = subprocess.run(
        [sys.executable, "-m", "tests.trl.scripts.unsloth_itself"],
        cwd=tmp_path,  # Unsloth writes its compiled classes there
        env=os.environ | off | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]
