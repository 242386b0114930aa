"""Under ``Uniform`` a run equals TRL's to the last bit: all that is logged, the weights, the table of completions."""

import inspect

import pandas as pd
import pytest
import torch
from trl import GRPOTrainer, RLOOTrainer

from apportion import Uniform
from apportion.trl import AllocatedGRPOTrainer, AllocatedRLOOTrainer
from apportion.trl.settings import LOSSES
from tests.trl.tiny import Judge, bits, configured, make_questions, trained, untimed

LEAVES_NAN_OUT = "unscorable" in inspect.getsource(GRPOTrainer._generate_and_score_completions)
"""Whether the installed TRL gives NaN to completions that nothing scored; older versions give the reward 0."""
DIVIDES = "dapo, truncated completions masked, which early versions of TRL count in the normalizer"
GRPO = {
    "grpo, a reference, two iterations": {"loss_type": "grpo", "beta": 0.04, "num_iterations": 2},
    "dr_grpo, unscaled, two updates a batch": {
        "loss_type": "dr_grpo",
        "scale_rewards": "none",
        "steps_per_generation": 8,
    },
    "bnpo, scaled by the batch, four batches an update": {
        "loss_type": "bnpo",
        "scale_rewards": "batch",
        "steps_per_generation": 1,
        "num_generations": 4,
    },
    "dapo, a reference": {"beta": 0.04},
    DIVIDES: {"beta": 0.04, "mask_truncated_completions": True},
    "cispo": {"loss_type": "cispo", "num_iterations": 2},
    "sapo": {"loss_type": "sapo", "num_iterations": 2},
    "luspo, a reference": {"loss_type": "luspo", "importance_sampling_level": "sequence", "beta": 0.04},
    "vespo": {"loss_type": "vespo", "num_iterations": 2, "steps_per_generation": 8},
}
RLOO = {
    "rloo": {},
    "rloo, a reference": {"beta": 0.05},
    "rloo, a reference, whitened, clipped, two iterations": {
        "beta": 0.5,
        "normalize_advantages": True,
        "reward_clip_range": (-0.5, 0.75),
        "num_iterations": 2,
    },
    "rloo, a reference, truncated completions masked": {"beta": 0.5, "mask_truncated_completions": True},
    "rloo, whitened, clipped, two iterations": {
        "normalize_advantages": True,
        "reward_clip_range": (-0.5, 0.75),
        "num_iterations": 2,
    },
    "rloo, two updates a batch, truncated completions masked": {
        "steps_per_generation": 8,
        "mask_truncated_completions": True,
    },
}
CASES = [(GRPOTrainer, AllocatedGRPOTrainer, name, GRPO[name]) for name in GRPO] + [
    (RLOOTrainer, AllocatedRLOOTrainer, name, RLOO[name]) for name in RLOO
]


def several(silent=""):
    """Return two reward functions: the first skips some completions, both skip those that begin with ``silent``."""
    letters = Judge(lambda text, k: sum(c.isalpha() for c in text) / 4, lambda text: text[:1] in "048c", "letters")
    return [letters, Judge(none=lambda text: text[:1] != "" and text[0] in silent, name="right")]


def run(make, trainer, settings, folder, **given):
    if "allocator" in given:
        given = {"weighting": None} | given  # the trainer's own default
    built = make(trainer, folder=folder, config=settings, **given)
    history = trained(built)
    return history, built.model.state_dict()


def assert_same(ours, theirs, except_for=()):
    """Compare to the last bit, or up to rounding if the formulas of the installed TRL do not skip NaN."""
    (our_history, our_weights), (their_history, their_weights) = ours, theirs
    for our, their in zip(untimed(our_history), untimed(their_history), strict=True):
        assert our.keys() == their.keys()
        for name in our.keys() - set(except_for):
            wanted = (
                bits(their[name]) if LEAVES_NAN_OUT else pytest.approx(their[name], rel=1e-4, abs=1e-5, nan_ok=True)
            )
            assert bits(our[name]) == wanted, name
    assert our_weights.keys() == their_weights.keys()
    for name, weights in our_weights.items():
        assert torch.equal(weights, their_weights[name]) or (
            not LEAVES_NAN_OUT and torch.allclose(weights, their_weights[name], atol=1e-4)
        )


@pytest.mark.parametrize(("stock", "allocated", "name", "settings"), CASES, ids=[case[2] for case in CASES])
def test_uniform_is_trl_to_the_last_bit(make, tmp_path, stock, allocated, name, settings):
    if name == DIVIDES and not LEAVES_NAN_OUT:
        pytest.skip(name)
    size = settings.get("num_generations", 8)
    theirs = run(make, stock, settings, tmp_path / "theirs")
    ours = run(make, allocated, settings, tmp_path / "ours", allocator=Uniform(size))
    assert_same(ours, theirs)
    assert len({row["loss"] for row in theirs[0] if "loss" in row}) > 1


SEVERAL = [
    (GRPOTrainer, AllocatedGRPOTrainer, {"beta": 0.04}, ()),
    (GRPOTrainer, AllocatedGRPOTrainer, {"scale_rewards": "batch", "loss_type": "grpo"}, ()),
    # TRL logs whether the whole batch has equal rewards here, and we log the share of groups as everywhere else
    (
        GRPOTrainer,
        AllocatedGRPOTrainer,
        {"multi_objective_aggregation": "normalize_then_sum"},
        ("frac_reward_zero_std",),
    ),
    (RLOOTrainer, AllocatedRLOOTrainer, {"normalize_advantages": True}, ()),
]


@pytest.mark.parametrize(("stock", "allocated", "settings", "except_for"), SEVERAL)
def test_uniform_is_trl_with_several_rewards_of_which_one_may_be_none(
    make, tmp_path, stock, allocated, settings, except_for
):
    settings = settings | {"reward_weights": [0.3, 1.0]}
    theirs = run(make, stock, settings, tmp_path / "theirs", reward_funcs=several())
    ours = run(make, allocated, settings, tmp_path / "ours", reward_funcs=several(), allocator=Uniform(8))
    assert_same(ours, theirs, except_for)


OF_LOSS = ("loss", "train_loss", "grad_norm", "entropy", "clip_ratio", "kl", "num_tokens", "epoch", "learning_rate")


@pytest.mark.skipif(not LEAVES_NAN_OUT, reason="this version of TRL gives them the reward 0")
@pytest.mark.parametrize(("stock", "allocated", "settings", "except_for"), SEVERAL)
def test_if_all_rewards_are_none_the_metrics_of_rewards_are_those_of_trl(
    make, tmp_path, stock, allocated, settings, except_for
):
    """The losses differ: TRL trains on completions without a reward with advantage 0, and we leave them out."""
    settings = settings | {"reward_weights": [0.3, 1.0], "max_steps": 1}
    kept = {"allocator": Uniform(8), "weighting": "rollout"}
    theirs = run(make, stock, settings, tmp_path / "theirs", reward_funcs=several(silent="04"))
    ours = run(make, allocated, settings, tmp_path / "ours", reward_funcs=several(silent="04"), **kept)
    for our, their in zip(untimed(ours[0]), untimed(theirs[0]), strict=True):
        assert our.keys() == their.keys()
        for name in our.keys() - set(except_for):
            if not name.startswith(OF_LOSS):
                assert our[name] == pytest.approx(their[name], rel=1e-4, abs=1e-5, nan_ok=True), name
    assert ours[0][0]["grad_norm"] != pytest.approx(theirs[0][0]["grad_norm"], rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stock", "allocated"), [(GRPOTrainer, AllocatedGRPOTrainer), (RLOOTrainer, AllocatedRLOOTrainer)]
)
def test_evaluation_in_between_and_the_table_of_completions_are_those_of_trl(make, tmp_path, stock, allocated):
    settings = {
        "eval_strategy": "steps",
        "eval_steps": 2,
        "num_generations_eval": 2,
        "per_device_eval_batch_size": 4,
        "log_completions": True,
        "max_steps": 4,
    }
    runs = {}
    for folder, trainer, given in (("theirs", stock, {}), ("ours", allocated, {"allocator": Uniform(8)})):
        built = make(
            trainer, folder=tmp_path / folder, config=settings, eval_dataset=make_questions(4, extra=100), **given
        )
        runs[folder] = trained(built), built.model.state_dict(), built._logs
    assert_same(runs["ours"][:2], runs["theirs"][:2])
    assert any("eval_reward" in row for row in runs["ours"][0])
    if LEAVES_NAN_OUT:
        assert runs["ours"][2] == runs["theirs"][2]
    assert len(runs["ours"][2]["advantages"]) == 32
    if stock is GRPOTrainer:  # RLOO writes no files
        tables = [sorted((tmp_path / folder / "completions").iterdir()) for folder in runs]
        assert [len(paths) for paths in tables] == [4, 4]
        for our, their in zip(*tables, strict=True):
            pd.testing.assert_frame_equal(pd.read_parquet(our), pd.read_parquet(their), check_exact=LEAVES_NAN_OUT)


def test_the_cases_cover_every_loss_of_trl():
    named = {settings.get("loss_type", "dapo") for settings in GRPO.values()} | {"rloo"}
    assert named == set(LOSSES)
    assert configured("unused", GRPOTrainer).loss_type == "dapo"
