"""Measure what an allocator adds to a training step of TRL, beside stock TRL in one process.

    python -m benchmarks.trl_overhead [--cycles 12] [--steps 6]

Four trainers take turns: TRL's own, ours under ``Uniform``, TRL's own with its batch generated in two halves, and ours
under HORA, whose two rounds are such halves. Each turn is a short training run with a new trainer. All completions have
the same length, so that all four do equal work.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from datasets import Dataset
from transformers import ProgressCallback, Qwen2Config, Qwen2ForCausalLM, TrainerCallback
from transformers.trainer_callback import PrinterCallback
from transformers.utils import logging
from trl import GRPOTrainer

from apportion import HORA, Uniform
from apportion.lab.policy.base import base_policy
from apportion.lab.world.task import training_problems
from apportion.lab.world.tokenizer import ledger_tokenizer
from apportion.trl import AllocatedGRPOTrainer
from benchmarks.common import options, spread, write
from benchmarks.in_trl import configuration

ROLLOUTS = 8


class TwoCalls(GRPOTrainer):
    """TRL's trainer that generates each batch in two calls of half the size."""

    def _generate(self, prompts):
        half = len(prompts) // 2
        first, second = super()._generate(prompts[:half]), super()._generate(prompts[half:])
        return tuple(a if a is None or isinstance(a, dict) else a + b for a, b in zip(first, second, strict=True))


MAKE: dict[str, Callable[..., GRPOTrainer]] = {
    "TRL": GRPOTrainer,
    "ours, uniform": lambda *given, **named: AllocatedGRPOTrainer(*given, allocator=Uniform(ROLLOUTS), **named),
    "TRL, two calls of generate": TwoCalls,
    "ours, HORA in two rounds": lambda *given, **named: AllocatedGRPOTrainer(
        *given, allocator=HORA(pre_rollouts=ROLLOUTS // 2, rollouts_per_prompt=ROLLOUTS), **named
    ),
}
COMPARED = {"ours, uniform": "TRL", "ours, HORA in two rounds": "TRL, two calls of generate"}
"""What each of our trainers is compared with."""


@dataclass(frozen=True)
class Shape:
    """A policy by name, the prompts of a batch, and the tokens of a completion."""

    policy: str
    prompts: int
    tokens: int

    def __str__(self):
        return f"{self.policy}, {self.prompts} x {ROLLOUTS} x {self.tokens}"


SHAPES = (Shape("tiny", 4, 16), Shape("tiny", 16, 64), Shape("medium", 16, 64))


def make_policy(name):
    """Return the lab's base of this name, or a policy of two layers that computes next to nothing."""
    if name != "tiny":
        return base_policy(name)
    torch.manual_seed(0)
    vocabulary = len(ledger_tokenizer())
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=vocabulary, num_attention_heads=4, num_key_value_heads=2, **sizes))


@dataclass
class StepTimes(TrainerCallback):
    """The processor seconds of each step but the first, from the beginning of one to that of the next."""

    marks: list[float] = field(default_factory=list)

    def on_step_begin(self, *args, **named):
        """Note the time at which a step begins."""
        self.marks.append(time.process_time())

    @property
    def seconds(self):
        """The median of a step."""
        return float(np.median(np.diff(self.marks[1:])))


def coin(completions, **columns):
    """Return rewards of 0 and 1 in turn."""
    return [float(i % 2) for i in range(len(completions))]


def turn(name, shape, steps, seed):
    """Train for ``steps``, and return the median processor seconds of a step."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "max_steps": steps,
            "per_device_train_batch_size": shape.prompts * ROLLOUTS,
            "num_generations": ROLLOUTS,
            "max_completion_length": shape.tokens,
            "generation_kwargs": {"min_new_tokens": shape.tokens},
        }
        trainer = MAKE[name](
            make_policy(shape.policy),
            coin,
            configuration(folder, seed, **settings),
            Dataset.from_list([{"prompt": problem.prompt().text} for problem in training_problems(64)]),
            processing_class=ledger_tokenizer(),
        )
        times = StepTimes()
        trainer.add_callback(times)
        trainer.remove_callback(PrinterCallback)
        trainer.remove_callback(ProgressCallback)
        trainer.train()
        return times.seconds


def measure(shape, cycles, steps):
    """Return a row for each trainer. The order of the trainers turns round in every other cycle."""
    seconds: dict[str, list[float]] = {name: [] for name in MAKE}
    for cycle in range(cycles):
        for name in list(MAKE)[:: -1 if cycle % 2 else 1]:
            seconds[name].append(turn(name, shape, steps, cycle))
    rows: list[list[object]] = []
    for name, other in COMPARED.items():
        own, apart = seconds[name], np.subtract(seconds[name], seconds[other])
        ratios = [spread(np.divide(own, seconds[other]).tolist(), ".3f"), spread((1e3 * apart).tolist(), ".1f")]
        rows.append([str(shape), name, *ratios])
        print(rows[-1], flush=True)
    return rows


def main():
    chosen = options(__doc__, cycles=12, steps=6)
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    turn("TRL", SHAPES[0], 2, 0)  # imports and caches
    rows = list(itertools.chain(*(measure(shape, chosen.cycles, chosen.steps) for shape in SHAPES)))
    write(
        "trl_overhead",
        "What an allocator adds to a training step of TRL",
        ["policy, prompts x rollouts x tokens", "trainer", "times TRL", "ms above TRL"],
        rows,
        [
            f"Processor time of a whole step: generation, rewards, loss, optimizer and log. {chosen.cycles} cycles in "
            f"which the four trainers take turns, each with a run of {chosen.steps} steps. Means over cycles of the "
            "median step, with 95% t intervals. Ratios and differences are paired by cycle: `Uniform` beside TRL, two "
            "rounds beside TRL with its batch generated in two calls of half the size."
        ],
        seeds=range(chosen.cycles),
    )


if __name__ == "__main__":
    main()
