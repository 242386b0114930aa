"""Under ``Uniform`` a run equals TRL's to the last bit: all that is logged, the weights, the table of completions."""

import inspect

import pandas as pd
import pytest
import torch
from trl import GRPOTrainer, RLOOTrainer

from apportion import Uniform
from apportion.trl import AllocatedGRPOTrainer, AllocatedRLOOTrainer
from apportion.trl.settings import LOSSES
from tests.soak import case
from tests.trl.tiny import Judge, bits, configured, make_questions, trained, untimed

LEAVES_NAN_OUT = "unscorable" in inspect.getsource(GRPOTrainer._generate_and_score_completions)
"""Whether the installed TRL gives NaN to completions that nothing scored; older versions give the reward 0."""
BOUNDS = {"normalize_advantages": True, "reward_clip_range": (-0.5, 0.75), "num_iterations": 2}
CASES = {
    "grpo, a reference, two iterations": {"loss_type": "grpo", "beta": 0.04, "num_iterations": 2},
    "dr_grpo, unscaled, two updates": {"loss_type": "dr_grpo", "scale_rewards": "none", "steps_per_generation": 8},
    "bnpo, scaled by the batch, four batches an update": {
        "loss_type": "bnpo",
        "scale_rewards": "batch",
        "steps_per_generation": 1,
        "num_generations": 4,
    },
    # truncated completions are masked, which early versions of TRL count in the normalizer
    "dapo, a reference": {"beta": 0.04} | ({"mask_truncated_completions": True} if LEAVES_NAN_OUT else {}),
    "cispo": {"loss_type": "cispo", "num_iterations": 2},
    "sapo": {"loss_type": "sapo", "num_iterations": 2},
    "luspo, a reference": {"loss_type": "luspo", "importance_sampling_level": "sequence", "beta": 0.04},
    "vespo": {"loss_type": "vespo", "num_iterations": 2, "steps_per_generation": 8},
    "rloo, whitened, clipped": BOUNDS,
    "rloo, a reference, whitened, clipped": {"beta": 0.5} | BOUNDS,
    "rloo, a reference, two updates, masked": {
        "beta": 0.05,
        "steps_per_generation": 8,
        "mask_truncated_completions": True,
    },
}
SOAKED = ("cispo", "sapo", "rloo, whitened, clipped")
TRAINERS = {"grpo": (GRPOTrainer, AllocatedGRPOTrainer), "rloo": (RLOOTrainer, AllocatedRLOOTrainer)}


def run(make, trainer, settings, folder, **given):
    if "allocator" in given:
        given = {"weighting": None} | given  # the trainer's own default
    built = make(trainer, folder=folder, config=settings, **given)
    return trained(built), built.model.state_dict(), built


def assert_same(ours, theirs, except_for=()):
    """Compare to the last bit, or up to rounding if the formulas of the installed TRL do not skip NaN."""
    (our_history, our_weights, *_), (their_history, their_weights, *_) = ours, theirs
    for our, their in zip(untimed(our_history), untimed(their_history), strict=True):
        assert our.keys() == their.keys()
        for name in our.keys() - set(except_for):
            near = pytest.approx(their[name], rel=1e-4, abs=1e-5, nan_ok=True)
            assert bits(our[name]) == (bits(their[name]) if LEAVES_NAN_OUT else near), name
    assert our_weights.keys() == their_weights.keys()
    for name, weights in our_weights.items():
        assert torch.equal(weights, their_weights[name]) or (
            not LEAVES_NAN_OUT and torch.allclose(weights, their_weights[name], atol=1e-4)
        )


def assert_parity(make, folder, stock, ours, settings=None, except_for=(), each=8, **given):
    """``ours`` under ``Uniform`` equals ``stock`` with the same settings. Return both trainers."""
    theirs = run(make, stock, settings, folder / "theirs", **given)
    found = run(make, ours, settings, folder / "ours", allocator=Uniform(each), **given)
    assert_same(found, theirs, except_for)
    return found[2], theirs[2]


@pytest.mark.parametrize("name", [case(name, suite=name not in SOAKED, id=name) for name in CASES])
def test_uniform_is_trl_to_the_last_bit(make, tmp_path, name):
    settings = CASES[name]
    pair = TRAINERS["rloo" if name.startswith("rloo") else "grpo"]
    _, stock = assert_parity(make, tmp_path, *pair, settings, each=settings.get("num_generations", 8))
    assert len({row["loss"] for row in stock.state.log_history if "loss" in row}) > 1


SEVERAL = {
    "grpo": ("grpo", {"scale_rewards": "batch", "loss_type": "grpo", "beta": 0.04}, ()),
    # TRL logs whether the whole batch has equal rewards here, and we log the share of groups as everywhere else
    "gdpo": ("grpo", {"multi_objective_aggregation": "normalize_then_sum"}, ("frac_reward_zero_std",)),
    "rloo": ("rloo", {"normalize_advantages": True}, ()),
}


def several(silent=""):
    """Return two reward functions: the first skips some completions, both skip those that begin with ``silent``."""
    letters = Judge(lambda text, k: sum(c.isalpha() for c in text) / 4, lambda text: text[:1] in "048c", "letters")
    return [letters, Judge(none=lambda text: text[:1] != "" and text[0] in silent, name="right")]


@pytest.mark.parametrize("name", SEVERAL)
def test_uniform_is_trl_with_several_rewards_of_which_one_may_be_none(make, tmp_path, name):
    kind, settings, except_for = SEVERAL[name]
    settings = settings | {"reward_weights": [0.3, 1.0]}
    assert_parity(make, tmp_path, *TRAINERS[kind], settings, except_for, reward_funcs=several())


@pytest.mark.slow
@pytest.mark.parametrize("kind", TRAINERS)
def test_evaluation_in_between_and_the_table_of_completions_are_those_of_trl(make, tmp_path, kind):
    settings = {"eval_strategy": "steps", "eval_steps": 2, "num_generations_eval": 2, "max_steps": 4}
    settings |= {"per_device_eval_batch_size": 4, "log_completions": True}
    held_out = make_questions(4, extra=100)
    ours, theirs = assert_parity(make, tmp_path, *TRAINERS[kind], settings, eval_dataset=held_out)
    assert any("eval_reward" in row for row in ours.state.log_history)
    assert (not LEAVES_NAN_OUT or ours._logs == theirs._logs) and len(ours._logs["advantages"]) == 32
    if kind == "grpo":  # RLOO writes no files
        tables = [sorted((tmp_path / folder / "completions").iterdir()) for folder in ("ours", "theirs")]
        assert [len(paths) for paths in tables] == [4, 4]
        for our, their in zip(*tables, strict=True):
            pd.testing.assert_frame_equal(pd.read_parquet(our), pd.read_parquet(their), check_exact=LEAVES_NAN_OUT)


def test_the_cases_cover_every_loss_of_trl():
    assert {settings.get("loss_type", "dapo") for settings in CASES.values()} | {"rloo"} == set(LOSSES)
    assert configured("unused", GRPOTrainer).loss_type == "dapo"
