"""The patch of docs/proposal_trl.md applies to TRL 1.16, and its advantages of groups of any size are ours."""

import subprocess
import sys
from importlib.metadata import version
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import trl

from apportion.trl.advantages import Grouped, grpo, weighted_rewards

PATCH = Path(__file__).parents[2] / "docs" / "proposal_trl.patch"
SCALES = [("group", "sum_then_normalize"), ("batch", "sum_then_normalize"), ("none", "sum_then_normalize")]


@pytest.fixture(scope="module")
def patched(tmp_path_factory):
    """The patched ``GRPOTrainer``."""
    if not version("trl").startswith("1.16."):
        pytest.skip("the patch is for TRL 1.16")
    folder = tmp_path_factory.mktemp("trl")
    path = folder / "trl" / "trainer" / "grpo_trainer.py"
    path.parent.mkdir(parents=True)
    path.write_text((Path(trl.__file__).parent / "trainer" / "grpo_trainer.py").read_text())
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    subprocess.run(["git", "apply", PATCH], cwd=folder, check=True)
    spec = spec_from_file_location("trl.trainer.patched_grpo_trainer", path)
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.GRPOTrainer


@pytest.mark.parametrize(("scale", "aggregation"), [*SCALES, ("group", "normalize_then_sum")])
def test_its_advantages_are_those_of_our_formulas_in_any_order_of_the_groups(patched, scale, aggregation):
    generator = torch.Generator().manual_seed(0)
    sizes, weights = torch.tensor([4, 1, 3, 8, 2]), torch.tensor([0.3, 1.0])
    scores = torch.randint(3, (18, 2), generator=generator) / 2.0
    scores[[0, 9, 10]] = torch.nan  # nothing scored them
    scores[5, 0] = torch.nan
    trainer = SimpleNamespace(
        scale_rewards=scale, multi_objective_aggregation=aggregation, reward_weights=weights, reward_funcs=[None] * 2
    )
    order = torch.randperm(18, generator=generator)
    ids = torch.repeat_interleave(torch.tensor([70, 3, 12, 5, 40]), sizes)
    found, equal = patched.compute_advantages(trainer, scores[order], ids[order])
    ours = grpo(Grouped(weighted_rewards(scores, weights), sizes, scores, weights), scale, aggregation)
    alone = ids == 3  # TRL's has 0 there but for normalize_then_sum, which then compares groups
    kept = ~alone if aggregation == "normalize_then_sum" else torch.ones_like(alone)
    assert torch.allclose(found[torch.argsort(order)][kept], ours[kept], atol=1e-6)
    assert equal.shape == (18,)


def test_a_group_is_num_generations_in_a_row_unless_it_is_overridden(patched):
    trainer = SimpleNamespace(
        num_generations=4, num_generations_eval=2, model=SimpleNamespace(training=True),
        accelerator=SimpleNamespace(process_index=1, device="cpu"),
    )  # fmt: skip
    assert patched.get_group_ids(trainer, [{}] * 8).tolist() == [2, 2, 2, 2, 3, 3, 3, 3]
    trainer.model.training = False
    assert patched.get_group_ids(trainer, [{}] * 4).tolist() == [2, 2, 3, 3]
