"""Time the lab's sampler and Hugging Face ``generate`` with the same policy, prompts and counts, on one thread.

Useful tokens are those up to and including the end token. Runs alternate between the two, and processor time is
counted, so that other load on the machine affects both equally. ``generate`` gets its rows sorted by length, in batches
of the best size of those tried. Unlike the sampler it returns no log-probabilities.

    python -m benchmarks.sampler
"""

from __future__ import annotations

import os

os.environ |= {"OMP_NUM_THREADS": "1"}

import statistics
import time
from collections.abc import Callable, Sequence

import torch
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from apportion.lab.policy.base import base_policy
from apportion.lab.policy.sampler import MAX_NEW_TOKENS, sample
from apportion.lab.world.task import EOS, Problem, encode, training_problems
from apportion.lab.world.tokenizer import ledger_tokenizer
from benchmarks.common import options, write

WORKLOADS = ((64, 1), (512, 1), (64, 8), (512, 8), (128, 32))
GENERATE_BATCHES = (128, 256, 512)


def by_sampler(policy: Qwen2ForCausalLM, problems: Sequence[Problem], rollouts: int, generator: torch.Generator) -> int:
    """Return the useful tokens of ``rollouts`` completions of each problem by the lab's sampler."""
    groups = sample(policy, [encode(problem.text) for problem in problems], [rollouts] * len(problems), generator)
    return sum(len(completion.tokens) for group in groups for completion in group)


@torch.inference_mode()
def by_generate(
    policy: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    problems: Sequence[Problem],
    rollouts: int,
    batch_rows: int,
) -> int:
    """Return the same for ``generate`` with ``batch_rows`` rows a call."""
    texts = [p.text for p in sorted(problems, key=lambda p: len(p.operations)) for _ in range(rollouts)]
    useful = 0
    for first in range(0, len(texts), batch_rows):
        batch = tokenizer(texts[first : first + batch_rows], padding=True, return_tensors="pt")
        written = policy.generate(**batch, max_new_tokens=MAX_NEW_TOKENS, do_sample=True, temperature=1.0, top_k=0)
        new = written[:, batch["input_ids"].shape[1] :]
        ended = (new == EOS).cumsum(1)
        useful += int(((ended == 0) | ((ended == 1) & (new == EOS))).sum())
    return useful


def greedy_differences(
    policy: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, problems: Sequence[Problem]
) -> int:
    """Return the number of greedy completions that differ between the two."""
    batch = tokenizer([problem.text for problem in problems], padding=True, return_tensors="pt")
    written = policy.generate(**batch, max_new_tokens=MAX_NEW_TOKENS, do_sample=False)
    rows = written[:, batch["input_ids"].shape[1] :].tolist()
    groups = sample(policy, [encode(problem.text) for problem in problems], [1] * len(problems), temperature=0)
    return sum(row[: len(group[0].tokens)] != list(group[0].tokens) for row, group in zip(rows, groups, strict=True))


def speed(task: Callable[[], int]) -> float:
    """Return the useful tokens per second of processor time."""
    start = time.process_time()
    useful = task()
    return useful / (time.process_time() - start)


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"


def measure(repeats: int, seed: int) -> tuple[list[list[object]], list[str]]:
    """Return the table's rows and notes."""
    policy, tokenizer = base_policy("medium"), ledger_tokenizer()
    problems, generator = training_problems(512, seed), torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    rows: list[list[object]] = []
    for prompts, rollouts in WORKLOADS:
        part = problems[:prompts]
        tasks: dict[str, Callable[[], int]] = {
            "sampler": lambda p=part, n=rollouts: by_sampler(policy, p, n, generator)
        }
        for size in GENERATE_BATCHES:
            tasks[f"generate, {size} rows"] = lambda p=part, n=rollouts, b=size: by_generate(policy, tokenizer, p, n, b)
        speeds: dict[str, list[float]] = {name: [] for name in tasks}
        for repeat in range(repeats + 1):
            for name, task in tasks.items():
                measured = speed(task)
                if repeat:  # the first round warms up
                    speeds[name].append(measured)
        ours = speeds.pop("sampler")
        best = max(speeds, key=lambda name: statistics.median(speeds[name]))
        ratios = [a / b for a, b in zip(ours, speeds[best], strict=True)]
        ratio = f"{statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})"
        rows.append([f"{prompts} x {rollouts}", spread(ours), spread(speeds[best]), best, ratio])
    different = greedy_differences(policy, tokenizer, problems)
    notes = [
        f"Medium base, 200,640 parameters, temperature 1, at most {MAX_NEW_TOKENS} new tokens; {repeats} interleaved "
        f"repeats, seed {seed}, one thread. Median (min to max) of useful tokens per second of processor time.",
        f"Greedy completions that differ from generate's: {different} of {len(problems)}.",
        "The gain grows with rollouts per prompt because rollouts with one prefix share one row.",
    ]
    return rows, notes


def main() -> None:
    """Measure and write the table ``sampler``."""
    arguments = options(__doc__, repeats=7, seed=0)
    torch.set_num_threads(1)
    rows, notes = measure(arguments.repeats, arguments.seed)
    columns = ["prompts x rollouts", "sampler", "generate", "its best batch", "ratio"]
    write("sampler", "Sampling: the lab's sampler and generate", columns, rows, notes, seeds=[arguments.seed])


if __name__ == "__main__":
    main()
