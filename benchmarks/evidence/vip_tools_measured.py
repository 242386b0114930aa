"""Training a policy that searches: TRL's loop of tool calls, uniform rollouts against VIP's, before and after.

A run makes two epochs over half of the questions, eight rollouts a prompt, as the paper does. The other half is
answered before and after. Precision is that of the five passages of each search. Recall is over the four passages that
support a question. F1 is of these two, and 0 without a search.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from apportion import VIP, Uniform
from apportion.allocators import Allocator
from apportion.predictors import EmpiricalBayes, GaussianProcess, Shuffled

SEEDS = (0, 1, 2)
RATES = (1e-3, 3e-3)
SWEEP_SEED = 100
ROLLOUTS, PROMPTS, EPOCHS = 8, 8, 2
TRAINED = 96
"""Questions of the first half, out of 192."""
FOUND, SEPARATOR = 5, "|"
"""Passages of a search, and what stands between them."""
STEPS = EPOCHS * TRAINED // PROMPTS
LENGTH = 110
MEASURES = ("em", "f1", "precision")

RULES: Mapping[str, Callable[[str, int], Allocator]] = {
    "uniform": lambda estimator, seed: Uniform(ROLLOUTS),
    "vip": lambda estimator, seed: VIP(estimator=estimator, rollouts_per_prompt=ROLLOUTS),
    "vip_gp": lambda estimator, seed: VIP(
        estimator=estimator, rollouts_per_prompt=ROLLOUTS, predictor=GaussianProcess()
    ),
    "vip_shuffled": lambda estimator, seed: VIP(
        estimator=estimator, rollouts_per_prompt=ROLLOUTS, predictor=Shuffled(EmpiricalBayes(), seed=seed)
    ),
}


def retrieval(messages, gold):
    """Return the precision at 5, a mean over the searches of a dialogue, and F1."""
    searches = [
        {passage.strip() for passage in str(message["content"]).split(SEPARATOR)}
        for message in messages
        if message["role"] == "tool"
    ]
    if not searches:
        return 0.0, 0.0
    precision = float(np.mean([len(found.intersection(gold)) / FOUND for found in searches]))
    recall = len(set().union(*searches).intersection(gold)) / len(gold)
    return precision, 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def em(completions, answer, **columns):
    """Return 1 for each dialogue that ends with the answer and nothing else."""
    return [
        float(messages[-1]["role"] == "assistant" and str(messages[-1].get("content")).strip() == gold)
        for messages, gold in zip(completions, answer, strict=True)
    ]


def f1(completions, gold, **columns):
    return [retrieval(*each)[1] for each in zip(completions, gold, strict=True)]


def precision(completions, gold, **columns):
    return [retrieval(*each)[0] for each in zip(completions, gold, strict=True)]


def train(rule, estimator, rate, seed):
    """Train one run; return the measures on held-out questions ``before`` and ``after``.

    TRL's RLOO trainer has no tools, so RLOO is the estimator of its GRPO trainer, with the loss of Dr. GRPO.
    """
    # TRL is an extra, and slow to import
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    import torch  # noqa: PLC0415
    from datasets import Dataset  # noqa: PLC0415
    from transformers import AutoModelForCausalLM, PrinterCallback  # noqa: PLC0415
    from trl import GRPOConfig  # noqa: PLC0415

    from apportion.trl import AllocatedGRPOTrainer  # noqa: PLC0415
    from benchmarks.evidence.vip_tools_task import base_policy, make_tokenizer, questions, search  # noqa: PLC0415

    torch.set_num_threads(1)
    folder = base_policy()
    rows = [
        {"prompt": [{"role": "user", "content": each.text}], "answer": each.answer, "gold": list(each.gold)}
        for each in questions()
    ]
    with tempfile.TemporaryDirectory() as output:
        trainer = AllocatedGRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
            reward_funcs=[em, f1, precision],
            args=GRPOConfig(
                output,
                per_device_train_batch_size=PROMPTS * ROLLOUTS,
                per_device_eval_batch_size=TRAINED * 4,
                num_generations=ROLLOUTS,
                num_generations_eval=4,
                max_completion_length=LENGTH,
                max_tool_calling_iterations=3,
                max_steps=STEPS,
                learning_rate=rate,
                lr_scheduler_type="constant",
                loss_type="dr_grpo",
                scale_rewards="none",
                reward_weights=[1.0, 0.0, 0.0],
                beta=0.0,
                seed=seed,
                logging_steps=1,
                report_to=[],
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                save_strategy="no",
                disable_tqdm=True,
            ),
            train_dataset=Dataset.from_list(rows[:TRAINED]),
            eval_dataset=Dataset.from_list(rows[TRAINED:]),
            processing_class=make_tokenizer(),  # from the folder transformers would make Qwen's own
            tools=[search],
            allocator=RULES[rule](estimator, seed),
            estimator="rloo" if estimator == "rloo" else None,
            weighting="prompt",
            verdict="em",
        )
        trainer.remove_callback(PrinterCallback)
        found = {"before": _evaluated(trainer)}
        trainer.train()
        found["after"] = _evaluated(trainer)
    return found


def _evaluated(trainer):
    import torch  # noqa: PLC0415

    torch.manual_seed(0)
    logged = trainer.evaluate()
    return {name: float(logged[f"eval_rewards/{name}/mean"]) for name in MEASURES}


def study(estimator):
    """Return by rule the measures before and after, a value for each seed, at the rate that suits uniform best."""
    sweep = [train("uniform", estimator, rate, SWEEP_SEED)["after"]["em"] for rate in RATES]
    rate = RATES[int(np.argmax(sweep))]
    found: dict[str, Any] = {"rate": rate, "sweep": sweep, "rollouts": STEPS * PROMPTS * ROLLOUTS}
    for rule in RULES:
        runs = [train(rule, estimator, rate, seed) for seed in SEEDS]
        found[rule] = {
            when: {name: [run[when][name] for run in runs] for name in MEASURES} for when in ("before", "after")
        }
    return found
