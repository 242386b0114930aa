"""The first advice of the documents against TRL's groups on one GPU: accuracy on held-out questions at equal seconds.

Every arm of every seed trains for the same seconds of sampling and learning, on GSM8K; evaluations do not count.
``Uniform`` equals stock TRL to the last bit. Without a GPU the same code trains the lab's policy on the CPU. The
learning rate is the same in all arms: try others by ``--set`` before you conclude from a small difference.

    make gpu
    python -m benchmarks.gpu [--minutes N] [--seeds 0 1 2] [--model PATH] [--set KEY=VALUE] [--results FOLDER]
"""

import argparse
import gc
import time
from pathlib import Path
from typing import Any

import torch
import yaml  # type: ignore[import-untyped]
from datasets import Dataset, load_dataset
from transformers import TrainerCallback
from trl import GRPOConfig

from apportion.lab.policy.base import base_policy
from apportion.lab.policy.export import right, row
from apportion.lab.policy.recipes import RECIPES
from apportion.lab.world.task import TASKS, held_out_problems, training_problems
from apportion.questions import TEMPLATE
from apportion.trl import AllocatedGRPOTrainer, EvaluationAtK
from apportion.trl.verified import math
from benchmarks.common import RESULTS, spread, write

MODEL, DATA, HELD_OUT = "Qwen/Qwen2.5-1.5B-Instruct", "openai/gsm8k", 256
ARMS: dict[str, dict[str, Any]] = {
    "groups, TRL's baseline": {"allocator": "uniform"},
    "groups, baseline from history": {"preset": "fixed_baseline"},
    "single rollouts, baseline from history": {"preset": "singles"},
}
PARTS = 4
"""A run is evaluated before it, and after each of so many equal parts of its seconds."""
SETTINGS: dict[str, Any] = {
    "per_device_train_batch_size": 16,
    "gradient_accumulation_steps": 16,
    "steps_per_generation": 16,
    "num_generations": 8,
    "num_generations_eval": 1,
    "per_device_eval_batch_size": 64,
    "max_completion_length": 400,
    "learning_rate": 1e-6,
    "lr_scheduler_type": "constant",
    "beta": 0.0,
    "bf16": True,
    "gradient_checkpointing": True,
    "max_steps": 1_000_000,
    "save_strategy": "no",
    "logging_steps": 1,
    "disable_tqdm": True,
    "report_to": [],
}
"""256 rollouts an update. For generation by vLLM add --set use_vllm=true --set vllm_mode=colocate."""

ON_CPU: dict[str, Any] = {
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "learning_rate": 1e-3,
    "gradient_accumulation_steps": 4,
    "steps_per_generation": 4,
}
HOUR, MINUTE = 60.0, 1.0
"""Minutes of all runs together, on a GPU and without one. Loading and evaluations come on top."""


class EqualSeconds(TrainerCallback):
    """Evaluates after each part of ``seconds`` of training steps, and then ends the run."""

    def __init__(self, seconds):
        self.seconds, self.spent, self.parts, self._begun = seconds, 0.0, [0], 0.0

    def on_step_begin(self, args, state, control, **_):
        """Start the clock."""
        self._begun = _now()

    def on_step_end(self, args, state, control, **_):
        """Stop the clock, and ask for an evaluation if a part is over."""
        self.spent += _now() - self._begun
        parts = min(PARTS, int(PARTS * self.spent / self.seconds))
        if parts > self.parts[-1]:  # a long step may end several
            self.parts.append(parts)
            control.should_evaluate, control.should_training_stop = True, parts == PARTS


def _now():
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def right_of_lab(completions, answer, **columns):
    """Return 1 for each right completion of a problem of the lab."""
    return [float(right(text, gold)) for text, gold in zip(completions, answer, strict=True)]


def questions(large):
    """Return the questions to train on and those held out."""
    if not large:
        return tuple(
            Dataset.from_list(list(map(row, own))) for own in (training_problems(512), held_out_problems()[:64])
        )
    found = load_dataset(DATA, "main").map(
        lambda row: {"prompt": [{"role": "user", "content": TEMPLATE.replace("{question}", row["question"])}]}
    )
    return found["train"], found["test"].shuffle(seed=0).select(range(HELD_OUT))


def measured(arm, seed, seconds, settings, model, large):
    """Return the accuracy after each part of a run, its steps and rollouts, and the seconds it took."""
    args = GRPOConfig(**settings, seed=seed, output_dir=f"runs/gpu-{list(ARMS).index(arm)}-{seed}")
    train, held_out = questions(large)
    clock = EqualSeconds(seconds)
    trainer = AllocatedGRPOTrainer(
        model, [math if large else right_of_lab], args, train, eval_dataset=held_out, **ARMS[arm]
    )
    trainer.add_callback(EvaluationAtK(trainer))
    trainer.add_callback(clock)
    before = trainer.evaluate()
    trainer.train()
    metric = f"eval_mean_at_{args.num_generations_eval}"
    found = [before[metric], *(entry[metric] for entry in trainer.state.log_history if metric in entry)]
    accuracy = [
        value
        for value, before, parts in zip(found, [-1, *clock.parts[:-1]], clock.parts, strict=True)
        for _ in range(parts - before)
    ]
    rows = args.per_device_train_batch_size * args.gradient_accumulation_steps
    return {
        "accuracy": accuracy,
        "steps": trainer.state.global_step,
        "rollouts": trainer.state.global_step * rows,
        "seconds": clock.spent,
    }


def main():
    """Write the table, beside the others on a GPU and under ``runs`` without one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    large = torch.cuda.is_available()
    parser.add_argument("--minutes", type=float, default=HOUR if large else MINUTE, help="of all runs together")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of the runs of each arm")
    parser.add_argument("--model", default=MODEL if large else None, help="by default the lab's without a GPU")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of GRPOConfig")
    parser.add_argument("--results", type=Path, default=None, help="the folder of the table")
    given = parser.parse_args()
    own = {key: yaml.safe_load(value) for key, _, value in (each.partition("=") for each in given.set)}
    settings = SETTINGS | ({} if large else {**ON_CPU, "max_completion_length": TASKS["ledger"].max_new_tokens}) | own
    if given.model is None:
        base_policy("medium")  # trains it, the first time
    model = given.model or str(RECIPES["medium"].directory)
    seconds = 60 * given.minutes / (len(ARMS) * len(given.seeds))
    rows, cells = list[list[object]](), dict[str, Any]()
    for arm in ARMS:
        runs = []
        for seed in given.seeds:
            runs.append(measured(arm, seed, seconds, settings, model, large))
            print(arm, seed, runs[-1], flush=True)
            gc.collect()
            if large:
                torch.cuda.empty_cache()
        cells[arm] = runs
        each = zip(*(run["accuracy"] for run in runs), strict=True)
        counts = [spread([run[key] for run in runs], ",.0f") for key in ("steps", "rollouts", "seconds")]
        rows.append([arm, *(spread(values, ".3f") for values in each), *counts])
    shares = [f"{part}/{PARTS}" for part in range(1, PARTS)]
    write(
        "gpu",
        "The first advice on one GPU",
        [
            "arm",
            "accuracy before",
            *(f"after {share}" for share in shares),
            "at the end",
            "steps",
            "rollouts",
            "seconds",
        ],
        rows,
        [
            f"GPU: {torch.cuda.get_device_name() if large else 'none; the policy of the lab on the CPU'}. The "
            f"settings are those of benchmarks/gpu.py, {' '.join(given.set) or 'as they stand'}. Accuracy is on "
            "held-out questions, higher is better, after equal seconds of sampling and learning. ± is the 95% interval "
            "over seeds."
        ],
        seeds=given.seeds,
        cells=cells,
        results=given.results or (RESULTS if large else Path("runs") / "gpu"),
    )


if __name__ == "__main__":
    main()
