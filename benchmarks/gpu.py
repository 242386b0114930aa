"""The first advice of the documents against TRL's groups on one GPU: accuracy on held-out questions at equal seconds.

Every arm of every seed trains for the same seconds of sampling and learning, on the job in ``gpu.toml``; evaluations do
not count. ``Uniform`` equals stock TRL to the last bit. Without a GPU the same code trains the lab's policy on the CPU.
The learning rate is the same in all arms: try others by ``--set`` before you conclude from a small difference.

    make gpu
    python -m benchmarks.gpu [--minutes N] [--seeds 0 1 2] [--set model=PATH] [--results FOLDER]
"""

import argparse
import gc
import time
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from apportion.trl.jobs.command import make_trainer
from apportion.trl.jobs.folder import remove_results
from apportion.trl.jobs.job import read_job
from apportion.trl.jobs.prepared import prepare
from benchmarks.common import RESULTS, spread, write

JOB = Path(__file__).with_name("gpu.toml")
ARMS = {
    "groups, TRL's baseline": "allocator=uniform",
    "groups, baseline from history": "preset=fixed_baseline",
    "single rollouts, baseline from history": "preset=singles",
}
PARTS = 4
"""A run is evaluated before it, and after each of so many equal parts of its seconds."""
ON_CPU = [
    "model=lab:medium", "data.name=lab:medium", "evaluation.name=lab:medium", "evaluation.limit=64",
    "training.bf16=false", "training.gradient_checkpointing=false", "training.max_completion_length=14",
    "training.learning_rate=1e-3", "training.gradient_accumulation_steps=4", "training.steps_per_generation=4",
]  # fmt: skip
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


def measured(arm, seed, seconds, overrides):
    """Return the accuracy after each part of a run, its steps and rollouts, and the seconds it took."""
    given = ["training.max_steps=1000000", "training.save_strategy=no"]
    lines = [*given, "training.disable_tqdm=true", f"training.seed={seed}", ARMS[arm], *overrides]
    name = f"gpu-{list(ARMS).index(arm)}-{seed}"
    prepared = prepare(read_job(JOB, lines, name, False)[0])
    remove_results(prepared.job.directory)
    model, clock = prepared.job.model, EqualSeconds(seconds)
    weights = model if prepared.lab_model is None else str(prepared.lab_model.folder(None))
    trainer = make_trainer(prepared, weights)
    trainer.add_callback(clock)
    before = trainer.evaluate()
    trainer.train()
    metric = f"eval_mean_at_{prepared.arguments.num_generations_eval}"
    found = [before[metric], *(entry[metric] for entry in trainer.state.log_history if metric in entry)]
    accuracy = [
        value
        for value, before, parts in zip(found, [-1, *clock.parts[:-1]], clock.parts, strict=True)
        for _ in range(parts - before)
    ]
    rows = prepared.arguments.per_device_train_batch_size * prepared.arguments.gradient_accumulation_steps
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
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the job")
    parser.add_argument("--results", type=Path, default=None, help="the folder of the table")
    given = parser.parse_args()
    overrides = [*([] if large else ON_CPU), *given.set]
    seconds = 60 * given.minutes / (len(ARMS) * len(given.seeds))
    rows, cells = list[list[object]](), dict[str, Any]()
    for arm in ARMS:
        runs = []
        for seed in given.seeds:
            runs.append(measured(arm, seed, seconds, overrides))
            print(arm, seed, runs[-1], flush=True)
            gc.collect()
            if large:
                torch.cuda.empty_cache()
        cells[arm] = runs
        each = zip(*(run["accuracy"] for run in runs), strict=True)
        counts = [spread([run[key] for run in runs], ",.0f") for key in ("steps", "rollouts", "seconds")]
        rows.append([arm, *(spread(values, ".3f") for values in each), *counts])
    shares = [f"{part}/{PARTS}" for part in range(1, PARTS)]
    settings = " ".join(overrides) or "as it stands"
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
            f"GPU: {torch.cuda.get_device_name() if large else 'none; the policy of the lab on the CPU'}. The job is "
            f"benchmarks/gpu.toml, {settings}. Accuracy is on held-out questions, higher is better, after "
            "equal seconds of sampling and learning. ± is the 95% interval over seeds."
        ],
        seeds=given.seeds,
        cells=cells,
        results=given.results or (RESULTS if large else Path("runs") / "gpu"),
    )


if __name__ == "__main__":
    main()
