"""Learn the lab's task in TRL and in the lab, under the same allocators.

    python -m benchmarks.in_trl [--seeds 0 1 2 3] [--steps 100]

Learning: the medium base under the same allocator, estimator, weights, optimiser and number of rollouts, once by the
lab's reference trainer and once by ``AllocatedGRPOTrainer``. The result is the exact success on the held-out problems.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset
from transformers import ProgressCallback
from transformers.trainer_callback import PrinterCallback
from trl import GRPOConfig

from apportion import HORA, VIP, Allocator, Uniform
from apportion.lab.policy.base import base_policy
from apportion.lab.policy.exact import exact_success
from apportion.lab.report.results import SeedInterval
from apportion.lab.training.settings import Training
from apportion.lab.training.trainer import Trainer
from apportion.lab.world.task import TASKS, Problem, held_out_problems, training_problems, verify
from apportion.lab.world.tokenizer import ledger_tokenizer
from apportion.predictors import DiscountedCounts
from apportion.trl import AllocatedGRPOTrainer
from benchmarks.common import options, write

BASE, PROMPTS, ROLLOUTS, PROBLEMS, HELD_OUT = "medium", 16, 8, 256, 400
LEARNING_RATE = 5e-4
ARMS: dict[str, Callable[[], Allocator]] = {
    "uniform": lambda: Uniform(ROLLOUTS),
    "hora": lambda: HORA(pre_rollouts=4, rollouts_per_prompt=ROLLOUTS),
    "vip, counts": lambda: VIP(rollouts_per_prompt=ROLLOUTS, predictor=DiscountedCounts()),
}


def in_lab(allocator, seed, steps):
    """Return the exact held-out success after ``steps`` of the lab's reference trainer."""
    training = Training(
        base=BASE,
        problems=PROBLEMS,
        prompts_per_step=PROMPTS,
        steps=steps,
        learning_rate=LEARNING_RATE,
        held_out=HELD_OUT,
        evaluate_every=steps,
        checkpoint_every=steps,
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(training, allocator, seed, Path(folder))
        trainer.run()
        return success(trainer.policy)


def in_trl(allocator, seed, steps):
    """Return the same for TRL with Dr. GRPO's normalisation, RLOO's advantages and prompts of equal weight."""
    problems = training_problems(PROBLEMS, seed)
    with tempfile.TemporaryDirectory() as folder:
        trainer = AllocatedGRPOTrainer(
            base_policy(BASE),
            right,
            configuration(folder, seed, max_steps=steps, learning_rate=LEARNING_RATE),
            Dataset.from_list([{"prompt": problem.prompt().text} for problem in problems]),
            processing_class=ledger_tokenizer(),
            allocator=allocator,
            estimator="rloo",
            weighting="prompt",
        )
        quiet(trainer)
        trainer.train()
        return success(trainer.model.eval())


def configuration(folder, seed, **settings):
    """Return TRL's settings that do what the lab's trainer does."""
    return GRPOConfig(
        **{
            "output_dir": folder,
            "per_device_train_batch_size": PROMPTS * ROLLOUTS,
            "num_generations": ROLLOUTS,
            "max_completion_length": TASKS["ledger"].max_new_tokens,
            "loss_type": "dr_grpo",
            "lr_scheduler_type": "constant",
            "adam_beta2": 0.95,
            "weight_decay": 0.0,
            "max_grad_norm": 1.0,
            "seed": seed,
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
            "save_strategy": "no",
            "report_to": [],
            "logging_steps": 1,
            "disable_tqdm": True,
            **settings,
        }
    )


def right(prompts, completions, **columns):
    """Return the rewards of the lab's verifier."""
    return [float(verify(Problem.parse(p), c)[1]) for p, c in zip(prompts, completions, strict=True)]


def success(policy):
    """Return the mean exact success probability on the held-out problems."""
    return float(exact_success(policy, held_out_problems(HELD_OUT)).mean())


def quiet(trainer):
    """Stop ``trainer`` from printing a line each step."""
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)


def learning(seeds, steps):
    """Return the success in the lab and in TRL, and the paired difference, each with its interval."""
    rows: list[list[object]] = []
    for name, make in ARMS.items():
        lab = np.array([in_lab(make(), seed, steps) for seed in seeds])
        trl = np.array([in_trl(make(), seed, steps) for seed in seeds])
        rows.append([name, str(SeedInterval.of(lab)), str(SeedInterval.of(trl)), SeedInterval.of(trl - lab).signed])
        print(rows[-1], flush=True)
    return rows


def main():
    chosen = options(__doc__, seeds=(0, 1, 2, 3), steps=100)
    torch.set_num_threads(1)
    before = success(base_policy(BASE))
    learnt = learning(chosen.seeds, chosen.steps)
    write(
        "in_trl",
        "The lab's task in the lab and in TRL: exact held-out success",
        ["allocator", "in the lab", "in TRL", "TRL less lab"],
        learnt,
        [
            f"The {BASE} base, {before:.3f} before; {chosen.steps} steps of {PROMPTS} prompts, {PROMPTS * ROLLOUTS} "
            f"rollouts each; RLOO advantages, prompts of equal weight, AdamW at {LEARNING_RATE}, no warm-up or decay. "
            "Means over seeds with 95% t intervals, differences paired by seed: same training problems, other draws."
        ],
        seeds=chosen.seeds,
    )


if __name__ == "__main__":
    main()
