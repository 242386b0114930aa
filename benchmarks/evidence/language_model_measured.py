"""Training runs of SmolLM2 on sums through ``AllocatedGRPOTrainer``: learning curves, seconds, groups and predictors.

Every run is one cell: a rule, a learning rate and a seed. All rules train on 32 rollouts an update, with the gradient
of the plain score function: no length normalisation, no KL penalty, no clipping of gradients. AdamW does not depend on
the scale of the advantages.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import ProgressCallback, TrainerCallback
from transformers.trainer_callback import PrinterCallback
from trl import GRPOConfig

from apportion import Prompt, Rollout, Uniform
from apportion.baselines import Optimal
from apportion.predictors import GaussianProcess, MovingAverage, SentenceTransformerEmbedder
from apportion.trl import AllocatedGRPOTrainer
from apportion.types import Batch, Belief, Plan
from benchmarks.evidence.language_model_policy import policy, questions, right, success
from benchmarks.ridge import Ridge

ROLLOUTS, BATCH, EVERY = 640, 32, 64
"""Rollouts of a run, of an update, and between two evaluations."""
MOST_TOKENS = 6
"""A right answer has at most four tokens with its line end."""
Rule = tuple[int, Callable[[], dict[str, Any]]]
"""Rollouts of each prompt on average, and a maker of the trainer's further arguments."""
RULES: Mapping[str, Rule] = {
    "uniform_8": (8, lambda: {"allocator": Uniform(), "estimator": "rloo"}),
    "uniform_4": (4, lambda: {"allocator": Uniform(), "estimator": "rloo"}),
    "optimal": (1, lambda: {"allocator": Uniform(1), "estimator": "reinforce", "baseline": Optimal()}),
}


def predictors():
    """Return the predictors that are compared, by name. All embeddings are MiniLM's, as in the paper."""
    embedder = SentenceTransformerEmbedder()
    return {
        "GP as printed": GaussianProcess(embedder),
        "moving average": MovingAverage(),
        "ridge": Ridge(embedder),
    }


@dataclass
class Watch(TrainerCallback):
    """Evaluates a run and keeps its groups. The seconds of evaluations do not count.

    ``groups`` has for each update the prompts, their rewards, and the exact success probability at sampling if
    ``exact``. ``curve`` has updates, held-out success, and processor seconds of training until then.
    """

    model: Any
    tokenizer: Any
    exact: bool = False
    groups: list[tuple[list[str], list[list[float]], list[float]]] = field(default_factory=list)
    curve: list[tuple[int, float, float]] = field(default_factory=list)
    _aside: float = 0.0

    def on_train_begin(self, args, state, control, **settings):
        self._evaluate(0)

    def on_step_end(self, args, state, control, **settings):
        if state.global_step % (EVERY // BATCH) == 0:
            self._evaluate(state.global_step)

    def reward(self, prompts, completions, answer, **columns):
        """Return the rewards, and keep them."""
        rewards = right(completions, answer)
        pairs = list(dict(zip(prompts, answer, strict=True)).items())
        by_prompt: dict[str, list[float]] = {prompt: [] for prompt, _ in pairs}
        for prompt, reward in zip(prompts, rewards, strict=True):
            by_prompt[prompt].append(reward)
        exact = self._success(pairs) if self.exact else []
        self.groups.append((list(by_prompt), list(by_prompt.values()), exact))
        return rewards

    def _evaluate(self, step):
        spent = time.process_time() - self._aside
        self.curve.append((step, float(np.mean(self._success(questions()[1]))), spent if step else 0.0))
        if not step:
            self._aside = time.process_time()

    def _success(self, pairs):
        """Return exact success probabilities, without counting the time."""
        started = time.process_time()
        found = success(self.model, self.tokenizer, pairs)
        self._aside += time.process_time() - started
        return found


def train(rule, rate, seed, rollouts=ROLLOUTS, exact=False):
    """Train a fresh model. Return its watch and its trainer."""
    torch.set_num_threads(1)
    model, tokenizer = policy()
    watch = Watch(model, tokenizer, exact)
    each, make = RULES[rule]
    rows = [{"prompt": question, "answer": answer} for question, answer in questions()[0]]
    with tempfile.TemporaryDirectory() as folder:
        trainer = AllocatedGRPOTrainer(
            model,
            watch.reward,
            configuration(folder, each, rate, seed, max_steps=rollouts // BATCH),
            Dataset.from_list(rows),
            processing_class=tokenizer,
            callbacks=[watch],
            weighting="prompt",
            **make(),
        )
        trainer.remove_callback(PrinterCallback)
        trainer.remove_callback(ProgressCallback)
        trainer.train()
    return watch, trainer


def configuration(folder, each, rate, seed, **settings):
    """Return TRL's settings. TRL takes no group of one, so a batch of single rollouts fills half of TRL's rows."""
    generations = max(each, 2)
    return GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=BATCH // each * generations,
        num_generations=generations,
        max_completion_length=MOST_TOKENS,
        temperature=1.0,
        beta=0.0,
        loss_type="dr_grpo",
        learning_rate=rate,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=0.0,
        seed=seed,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        save_strategy="no",
        report_to=[],
        logging_steps=1,
        disable_tqdm=True,
        **settings,
    )


def run(rule, rate, seed, shadow=False):
    """Train and return held-out success and processor seconds at each evaluation.

    A run with ``shadow`` also scores the predictors. They change nothing in it.
    """
    watch, _ = train(rule, rate, seed, exact=shadow)
    _, held_out, cpu = map(list, zip(*watch.curve, strict=True))
    return {"success": held_out, "cpu_seconds": cpu} | ({"predictors": shadows(watch.groups)} if shadow else {})


def shadows(groups):
    """Return each predictor's mean absolute error against the exact success on the next batch, which it has not seen.

    The first batch does not count.
    """
    found = {}
    for name, predictor in predictors().items():
        predictor.prepare([Prompt(question) for question, _ in questions()[0]])
        errors: list[float] = []
        for step, (texts, rewards, exact) in enumerate(groups):
            asked = [Prompt(text) for text in texts]
            if step:
                errors += np.abs(predictor.predict(asked).mean - np.array(exact)).tolist()
            rollouts = [[Rollout(bool(reward)) for reward in group] for group in rewards]
            batch = Batch.start(asked, Belief.uniform(len(asked)))
            predictor.update(batch.add(Plan([len(group) for group in rollouts]), rollouts))
        found[name] = {"exact": float(np.mean(errors))}
    return found
