"""What ``apportion.trl.Meter`` costs a step: by prompts a step and in the data set, beside the smallest real step.

The step beside it is one of TRL's GRPO trainer with 64 prompts of 8 completions on this CPU, of a model with 25,000
parameters and completions of 4 tokens. No step that teaches a language model is shorter.

    python -m benchmarks.meter
"""

from __future__ import annotations

import contextlib
import io
import tempfile
import time
from pathlib import Path

import numpy as np
from trl import GRPOTrainer

from apportion.diagnosis.meter import RolloutMeter
from apportion.trl import Meter
from apportion.types import Prompt
from benchmarks.common import write
from tests.trl.tiny import Judge, made, make_policy, make_questions

SIZES = ((64, 1_209), (1_024, 100_000), (64, 1_000_000))
SIZE, STEPS, SEED, REAL = 8, 200, 0, 12


def seconds(prompts, held):
    """Return the seconds of each of ``STEPS`` steps of ``prompts`` prompts, shuffled from ``held``."""
    rng = np.random.default_rng(SEED)
    known = [Prompt(f"What is {q} + {q}?", id=f"q{q}") for q in range(held)]
    rates = rng.beta(0.4, 0.4, held)
    meter, order, found = RolloutMeter(), np.zeros(0, np.int64), []
    for _ in range(STEPS):
        if len(order) < prompts:
            order = rng.permutation(held)
        places, order = order[:prompts], order[prompts:]
        rewards = (rng.random((prompts, SIZE)) < rates[places, None]).astype(float).tolist()
        asked = [known[q] for q in places]
        started = time.perf_counter()
        meter.add(asked, rewards)
        found.append(time.perf_counter() - started)
    return found


def real():
    """Return the seconds of a step of TRL's trainer with 64 prompts of 8, and those of the meter in it, on average."""
    spent = [0.0]

    class Timed(Meter):
        def on_step_end(self, *args, **settings):
            started = time.perf_counter()
            super().on_step_end(*args, **settings)
            spent.append(time.perf_counter() - started)

        on_substep_end = on_step_end

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        config, given = {"per_device_train_batch_size": 128, "max_steps": REAL}, {"reward_funcs": [Judge()]}
        questions = make_questions(256)
        trainer = made(GRPOTrainer, make_policy(), Path(folder), config=config, questions=questions, **given)
        trainer.add_callback(Timed(trainer))
        started = time.perf_counter()
        trainer.train()
        return (time.perf_counter() - started) / REAL, sum(spent) / REAL


def main():
    """Write the table."""
    rows: list[list[object]] = []
    for prompts, held in SIZES:
        own = 1e3 * np.array(seconds(prompts, held))
        rows.append([f"{prompts:,}", f"{held:,}", f"{np.median(own):.2f}", f"{np.quantile(own, 0.95):.2f}"])
    step, meter = real()
    write(
        "meter",
        "What the meter of a stock trainer costs",
        ["prompts a step", "prompts in the data set", "ms a step, median", "95%"],
        rows,
        [
            f"{STEPS} steps of groups of {SIZE}. A step of TRL's GRPO trainer with 64 prompts of 8 completions, the "
            f"smallest that there is (a model of 25,000 parameters, 4 tokens), took {step:.2f} s here, of which the "
            f"meter took {1e3 * meter:.1f} ms: {meter / step:.2%}."
        ],
        seeds=[SEED],
    )


if __name__ == "__main__":
    main()
