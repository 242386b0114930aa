"""The base policies easy, medium, hard, forks and notes: trained from scratch on a noisy demonstrator, and cached.

Supervised learning has two stages, each with its own optimiser and cosine schedule. A demonstrator that is mostly right
teaches the task, then the target demonstrator teaches its errors. Easy, medium and hard share the first stage, which is
also cached. The config of a saved policy names its task.
On one thread a recipe gives the same bits each time on the same machine and version of torch.
"""

import math
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from transformers import Qwen2ForCausalLM
from transformers.utils import logging as transformers_logging

from apportion.lab.policy.network import completion_logprobs, new_policy
from apportion.lab.policy.recipes import RECIPES, Recipe, Stage, check_base
from apportion.lab.world.demonstrator import Demonstrator
from apportion.lab.world.task import EOS, TASKS, encode
from apportion.lab.world.tokenizer import ledger_tokenizer

BATCHES_SORTED = 16

Progress = Callable[[int, int, float], None]
"""Called after each training step with the step (from 1), the steps of this stage, and the loss in nats per token."""


def base_policy(base: str = "medium", progress: Progress | None = None) -> Qwen2ForCausalLM:
    """Return the base of that name in ``RECIPES``. If it is not cached, train it (two to three minutes on one core).

    ``base`` may also be a folder in which ``save_pretrained`` saved a policy of the lab. Raises ValueError if it is
    neither.
    """
    check_base(base)
    return trained_policy(RECIPES[base], progress) if base in RECIPES else _load(Path(base))


def trained_policy(recipe: Recipe, progress: Progress | None = None) -> Qwen2ForCausalLM:
    """Return the policy of ``recipe`` from the cache, or train it. Every stage is cached separately.

    A folder in the cache is always complete, even if several processes train at the same time. It holds a model and its
    tokenizer, which ``AutoModelForCausalLM`` and ``AutoTokenizer`` load.
    """
    if not recipe.directory.exists():
        before = recipe.stages[:-1]
        policy = trained_policy(replace(recipe, stages=before), progress) if before else new_policy(recipe.policy_seed)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # several give other bits, and are slower on matrices this small
        try:
            _train(policy, recipe, recipe.stages[-1], progress)
        finally:
            torch.set_num_threads(threads)
        _save(policy, recipe)
    return _load(recipe.directory)


def _load(directory: Path) -> Qwen2ForCausalLM:
    with _no_progress_bars():
        return Qwen2ForCausalLM.from_pretrained(
            directory, dtype=torch.float32, local_files_only=True, use_safetensors=True
        ).eval()


def _train(policy: Qwen2ForCausalLM, recipe: Recipe, stage: Stage, progress: Progress | None) -> None:
    """Train ``policy`` in place."""
    steps, warm_up = _scale(stage.steps, recipe), _scale(recipe.warm_up_steps, recipe)
    optimizer = torch.optim.AdamW(policy.parameters(), betas=recipe.betas, weight_decay=recipe.weight_decay)
    batches = _batches(_demonstrations(recipe, stage.demonstrator), recipe)
    policy.train()
    for step in range(steps):
        cosine = (1 + math.cos(math.pi * step / steps)) / 2
        decay = recipe.final_learning_rate + (1 - recipe.final_learning_rate) * cosine
        for group in optimizer.param_groups:
            group["lr"] = stage.learning_rate * min(1.0, (step + 1) / warm_up) * decay
        prompts, completions = zip(*next(batches), strict=True)
        logprobs, mask = completion_logprobs(policy, prompts, completions)
        loss = -logprobs.sum() / mask.sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), recipe.clip)
        optimizer.step()
        if progress is not None:
            progress(step + 1, steps, loss.item())
    policy.eval()


def _demonstrations(recipe: Recipe, demonstrator: Demonstrator) -> list[tuple[list[int], list[int]]]:
    """Return pairs of prompt and completion token ids."""
    rng, task = random.Random(recipe.data_seed), TASKS[recipe.task]
    lengths = range(task.operations[0], task.operations[0] + len(recipe.operation_weights))
    pairs = []
    for _ in range(max(_scale(recipe.sequences, recipe), recipe.batch_size)):
        problem = task.of_length(rng.choices(lengths, recipe.operation_weights)[0], rng)
        pairs.append((encode(problem.text), [*encode(demonstrator.demonstrate(problem, rng)), EOS]))
    return pairs


def _batches(pairs: list[tuple[list[int], list[int]]], recipe: Recipe) -> Iterator[list[tuple[list[int], list[int]]]]:
    """Yield batches without end, each of pairs of similar length: draw sixteen batches, sort, cut and shuffle."""
    rng, size = random.Random(recipe.order_seed), recipe.batch_size
    while True:
        drawn = rng.sample(range(len(pairs)), min(BATCHES_SORTED * size, len(pairs)))
        drawn.sort(key=lambda index: len(pairs[index][0]) + len(pairs[index][1]))
        batches = [drawn[first : first + size] for first in range(0, len(drawn) - size + 1, size)]
        rng.shuffle(batches)
        for batch in reversed(batches):
            yield [pairs[index] for index in batch]


def _scale(number: int, recipe: Recipe) -> int:
    return max(1, round(number * recipe.steps))


def _save(policy: Qwen2ForCausalLM, recipe: Recipe) -> None:
    """Save to a folder beside the cache's entries, then rename it. If another process was faster, keep its folder."""
    recipe.directory.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=recipe.directory.parent))
    try:
        with _no_progress_bars():
            policy.config.lab_task = recipe.task
            policy.save_pretrained(unfinished)
        ledger_tokenizer().save_pretrained(unfinished)
        unfinished.chmod(0o755)
        try:
            unfinished.rename(recipe.directory)
        except OSError:
            if not recipe.directory.exists():
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Hide the progress bars of transformers for a block."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()
