"""Unsloth's trainer under an allocator, on a stand-in: importing Unsloth rewrites TRL for the whole process.

``test_unsloth_itself`` runs Unsloth's own rewritten class in a process of its own, where it is installed.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from trl import RLOOTrainer

from apportion import HORA, Uniform
from apportion.baselines import Optimal
from apportion.trl import AllocatedGRPOTrainer, allocated
from apportion.trl.bases import check_trainer
from apportion.trl.unsloth import KEY, aligned, check_environment, is_unsloth, windowed
from tests.trl.test_parity import LEAVES_NAN_OUT, assert_same
from tests.trl.tiny import PAD, TERMS, Judge, Row, Watch, assert_gradient, direct_gradient, make_questions, trained
from tests.trl.unsloth_stand_in import UnslothStandIn

ROOT = Path(__file__).parents[2]
TRAINER = allocated(UnslothStandIn)
CASES = {
    "defaults": {},
    "a reference, two iterations": {"beta": 0.04, "num_iterations": 2, "loss_type": "grpo"},
    "a reference, two updates a batch": {"beta": 0.04, "steps_per_generation": 8, "loss_type": "bnpo"},
    "truncated completions masked": {"beta": 0.04, "mask_truncated_completions": True},
}


def rows(lengths, width, extra):
    """Return a table of prompts with ``lengths`` [N] and completions of ``width``; ``extra`` columns of padding."""
    longest = max(lengths) + extra
    mask = torch.tensor([[0] * (longest - n) + [1] * n for n in lengths])
    logps = torch.arange(1.0, 1 + len(lengths) * width).view(len(lengths), width)
    ones = torch.ones(len(lengths), width, dtype=torch.long)
    return {"prompt_mask": mask, "completion_ids": 7 * ones, "completion_mask": ones, "ref_per_token_logps": logps}


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 5), st.integers(0, 3))
def test_a_window_holds_each_completion_where_its_prompt_ends(lengths, width, extra):
    table = rows(lengths, width, extra)
    found = windowed(table, pad_token=0)
    most = max(lengths) - min(lengths) + extra
    assert found[KEY].tolist() == [[most]] * len(lengths)
    for wide, plain, length in zip(found["ref_per_token_logps"], table["ref_per_token_logps"], lengths, strict=True):
        start = length - min(lengths)
        assert wide[start : start + width].equal(plain) and wide.count_nonzero() == width
    again = aligned(found["ref_per_token_logps"], table["prompt_mask"], width)
    assert again.equal(table["ref_per_token_logps"])


def test_a_masked_row_holds_padding_because_unsloth_reads_its_mask_from_the_tokens():
    table = rows([2, 3], 4, 0)
    table["completion_mask"][1] = 0
    assert windowed(table, pad_token=5)["completion_ids"].tolist() == [[7] * 4, [5] * 4]


@pytest.mark.parametrize("name", CASES)
def test_uniform_equals_the_trainer_without_an_allocator(make, tmp_path, name):
    settings = CASES[name]
    if "mask_truncated_completions" in settings and not LEAVES_NAN_OUT:
        pytest.skip("early versions of TRL count masked completions in the normalizer")
    stock = make(UnslothStandIn, folder=tmp_path / "theirs", config=settings)
    theirs = trained(stock), stock.model.state_dict()
    built = make(
        TRAINER, folder=tmp_path / "ours", config=settings, allocator=Uniform(rollouts_per_prompt=8), weighting=None
    )
    ours = trained(built), built.model.state_dict()
    assert_same(ours, theirs)
    assert built.windows == stock.windows and max(stock.windows) > 0


WITHOUT_PAD = {"suppress_tokens": [PAD]}  # Unsloth takes a sampled padding token for padding


@pytest.mark.parametrize("settings", [{}, {"beta": 0.04, "num_iterations": 2}])
def test_the_gradient_is_that_of_the_true_rows_after_several_rounds(make, settings):
    judge = Judge()
    watch = Watch(judge)
    settings = settings | {"max_steps": 1, "max_grad_norm": 0.0, "loss_type": "grpo", "generation_kwargs": WITHOUT_PAD}
    rule = HORA(pre_rollouts=3, rollouts_per_prompt=5.5, high=16)  # no multiple of the micro-batches
    built = watch.on(make(TRAINER, config=settings, reward_funcs=[judge], allocator=rule))
    logged = trained(built)[0]
    assert (logged["allocation/rounds"], logged["allocation/rollouts"]) == (2, 22) and watch.steps[0].padding == 2
    weights, gradient = watch.updates[0]
    found = [Row(row.prompt, row.ids, row.advantage) for row in watch.steps[0].rows]
    assert_gradient(gradient, direct_gradient(weights, found, TERMS["grpo"]))
    if "beta" in settings:
        assert logged["kl"] == 0.0


def test_score_norms_are_those_of_the_completions(make, tmp_path):
    """A baseline learns them in the first batch and uses them in the second."""
    weights = []
    for trainer in (AllocatedGRPOTrainer, TRAINER):
        built = make(
            trainer,
            folder=tmp_path / trainer.__name__,
            config={"num_iterations": 2, "max_steps": 4, "generation_kwargs": WITHOUT_PAD},
            allocator=HORA(pre_rollouts=4, rollouts_per_prompt=8),
            questions=make_questions(4),
            estimator="reinforce",
            baseline=Optimal(),
        )
        trained(built)
        weights.append(built.model.state_dict())
    assert all(torch.allclose(value, weights[1][name], atol=1e-6) for name, value in weights[0].items())


def test_its_trainer_for_rloo_has_the_columns_of_trl(make, tmp_path):
    class UnslothRLOOTrainer(RLOOTrainer):
        pass

    stock = make(UnslothRLOOTrainer, folder=tmp_path / "theirs")
    theirs = trained(stock), stock.model.state_dict()
    rule = Uniform(rollouts_per_prompt=8)
    built = make(allocated(UnslothRLOOTrainer), folder=tmp_path / "ours", allocator=rule, weighting=None)
    assert_same((trained(built), built.model.state_dict()), theirs)
    assert all(KEY not in chunk for chunk in built._buffered_inputs)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("UNSLOTH_GRPO_ZERO_VARIANCE_EXCLUDE", "1"),
        ("UNSLOTH_GRPO_LOSS_AGGREGATION", "prompt"),
        ("UNSLOTH_GRPO_ROLLOUT_LOGPROBS_AS_OLD", "1"),
    ],
)
def test_weights_by_group_are_refused_at_construction(make, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"{name} must be unset under an allocator, got '{value}'"):
        make(TRAINER, allocator=HORA(pre_rollouts=4, rollouts_per_prompt=8))
    make(AllocatedGRPOTrainer, allocator=HORA(pre_rollouts=4, rollouts_per_prompt=8))


def test_variables_that_are_off_are_accepted():
    check_environment({"UNSLOTH_GRPO_ZERO_VARIANCE_EXCLUDE": "0", "UNSLOTH_GRPO_LOSS_AGGREGATION": " "})


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
        [sys.executable, "-m", "tests.trl.scripts.unsloth_itself", "result.json"],
        cwd=tmp_path,  # Unsloth writes its compiled classes there
        env=os.environ | off | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]
    found = json.loads((tmp_path / "result.json").read_text())
    assert found["mro"][1] == "_UnslothGRPOTrainer" and set(found["cases"]) == set(CASES)
    assert found["gradient_error"] < 1e-3  # a masked row in the loss would make it .08
    for name, case in found["cases"].items():
        assert case["differing"] == [] and case["equal_weights"], name
        assert set(case["rounds"]) == {2} and case["first_kl"] == 0.0, name
