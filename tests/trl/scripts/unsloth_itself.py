"""Train with the class that Unsloth puts in the place of TRL's, on the CPU, and check what it makes of an allocator.

    python -m tests.trl.scripts.unsloth_itself

Without an accelerator Unsloth rewrites no trainer by itself, so its own function is called. Its models have two methods
that switch kernels; the tiny policy gets ones that switch modes.
"""

import unsloth  # noqa: I001 - it must come first
import unsloth.models.rl

import functools
import tempfile
from pathlib import Path

import torch
import trl

unsloth.models.rl._patch_trl_rl_trainers("grpo_trainer")

from apportion import HORA  # noqa: E402
from apportion.trl import allocated  # noqa: E402
from tests.trl import tiny  # noqa: E402
from tests.trl.test_parity import assert_parity  # noqa: E402
from tests.trl.test_unsloth import CASES, WITHOUT_PAD  # noqa: E402

torch.set_num_threads(1)


def made(saved, trainer, **given):
    policy = tiny.make_policy()
    policy.name_or_path = policy.config._name_or_path = saved
    policy.for_training = lambda **_: policy.train()
    policy.for_inference = lambda **_: policy.eval()
    return tiny.made(trainer, policy, **{"folder": tempfile.mkdtemp()} | given)


def main(saved):
    tiny.make_policy().save_pretrained(saved)
    tiny.make_tokenizer().save_pretrained(saved)
    make, trainer = functools.partial(made, saved), allocated(trl.GRPOTrainer)
    assert trl.GRPOTrainer.__mro__[1].__name__ == "_UnslothGRPOTrainer"
    for name, settings in CASES.items():
        assert_parity(make, Path(tempfile.mkdtemp()), trl.GRPOTrainer, trainer, settings)
        _, _, log = tiny.run(make, trainer, config=settings, allocator=HORA(pre_rollouts=4, rollouts_per_prompt=8))
        assert {logged["allocation/rounds"] for logged in log} == {2} and log[0]["kl"] == 0.0, name
    # some rows are masked, and rounds have other prompts
    settings = {"loss_type": "grpo", "beta": 0.04, "num_iterations": 2, "max_steps": 1, "max_grad_norm": 0.0}
    rule, settings["generation_kwargs"] = HORA(pre_rollouts=3, rollouts_per_prompt=5.5, high=16), WITHOUT_PAD
    _, watch, _ = tiny.run(make, trainer, config=settings, allocator=rule)
    (step,), ((weights, gradient),) = watch.steps, watch.updates
    assert step.padding == 2
    expected = tiny.direct_gradient(weights, step.rows, tiny.TERMS["grpo"])
    tiny.assert_gradient(gradient, expected, 1e-3)  # a masked row in the loss would make it .08


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
