"""Train with the class that Unsloth puts in the place of TRL's, on the CPU, and write a comparison to the file RESULT.

    python -m tests.trl.scripts.unsloth_itself RESULT

Without an accelerator Unsloth rewrites no trainer by itself, so its own function is called. Its models have two methods
that switch kernels; the tiny policy gets ones that switch modes.
"""

import unsloth  # noqa: I001 - it must come first
import unsloth.models.rl

import json
import sys
import tempfile
from pathlib import Path

import torch
import trl

unsloth.models.rl._patch_trl_rl_trainers("grpo_trainer")

from apportion import HORA, Uniform  # noqa: E402
from apportion.trl import allocated  # noqa: E402
from tests.trl import tiny  # noqa: E402
from tests.trl.test_unsloth import CASES, WITHOUT_PAD  # noqa: E402

torch.set_num_threads(1)


def build(trainer, saved, settings, **given):
    policy = tiny.make_policy()
    policy.name_or_path = policy.config._name_or_path = saved
    policy.for_training = lambda **_: policy.train()
    policy.for_inference = lambda **_: policy.eval()
    if given:
        given = {"weighting": None} | given
    return tiny.made(trainer, policy, tempfile.mkdtemp(), config=settings, **given)


def run(*arguments, **given):
    built = build(*arguments, **given)
    return tiny.trained(built), {name: value.clone() for name, value in built.model.state_dict().items()}


def compared(saved, settings):
    trainer = allocated(trl.GRPOTrainer)
    theirs, weights = run(trl.GRPOTrainer, saved, settings)
    ours, own = run(trainer, saved, settings, allocator=Uniform(rollouts_per_prompt=8))
    pairs = zip(tiny.untimed(theirs), tiny.untimed(ours), strict=True)
    adaptive, _ = run(trainer, saved, settings, allocator=HORA(pre_rollouts=4, rollouts_per_prompt=8))
    batches = [logged for logged in adaptive if "allocation/rounds" in logged]
    return {
        "differing": sorted({k for a, b in pairs for k in a.keys() | b.keys() if tiny.bits(a[k]) != tiny.bits(b[k])}),
        "equal_weights": all(value.equal(own[name]) for name, value in weights.items()),
        "rounds": [logged["allocation/rounds"] for logged in batches][:3],
        "first_kl": adaptive[0]["kl"],
    }


def gradient_error(saved):
    """Return the relative error of the first gradient, where some rows are masked and rounds have other prompts."""
    judge = tiny.Judge()
    watch = tiny.Watch(judge)
    settings = {"loss_type": "grpo", "beta": 0.04, "num_iterations": 2, "max_steps": 1, "max_grad_norm": 0.0}
    rule = HORA(pre_rollouts=3, rollouts_per_prompt=5.5, high=16)
    settings |= {"generation_kwargs": WITHOUT_PAD}
    given = {"reward_funcs": [judge], "allocator": rule, "weighting": "rollout"}
    built = build(allocated(trl.GRPOTrainer), saved, settings, **given)
    tiny.trained(watch.on(built))
    weights, gradient = watch.updates[0]
    assert watch.steps[0].padding == 2
    expected = tiny.direct_gradient(weights, watch.steps[0].rows, tiny.TERMS["grpo"])
    return float((gradient - expected).norm() / expected.norm())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as saved:
        tiny.make_policy().save_pretrained(saved)
        tiny.make_tokenizer().save_pretrained(saved)
        cases = {name: compared(saved, settings) for name, settings in CASES.items()}
        error = gradient_error(saved)
    found = {"gradient_error": error, "mro": [kind.__name__ for kind in trl.GRPOTrainer.__mro__], "cases": cases}
    Path(sys.argv[1]).write_text(json.dumps(found))
