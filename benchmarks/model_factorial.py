"""Shapes of an update times baselines on SmolLM2-135M: what makes single rollouts win?

Fixed before it was run. Every update has 32 rollouts, so arms with as many updates have as many rollouts. The rate is
swept for every arm and task with a seed of its own. Fresh seeds then train for 80 updates.
Runs of a task train side by side (``stacked_llama``), so a run has no seconds of its own. The gradient is the plain
score function's, as in ``evidence.language_model_measured``. On an H100 the 80 updates of all runs take eleven minutes.

    PYTHONPATH=.venv/weights python -m benchmarks.model_factorial FILE [--minutes N]  # after `make weights`
    python -m benchmarks.model_factorial_table FILE
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

os.environ.setdefault("TQDM_DISABLE", "1")  # read when tqdm is imported

import numpy as np
import torch
from torch import Tensor

from apportion import Prompt, Rollout
from apportion.advantages import advantages_of
from apportion.baselines import Baseline, Optimal, Zero
from apportion.evaluation import pass_at_k
from apportion.predictors.score_norms import sampled_score_norm
from apportion.runs.whole_files import write_whole
from apportion.types import Batch, Belief, Group, Plan
from benchmarks.baselines_measured import load
from benchmarks.evidence.language_model_policy import SUMS, line_ends, questions
from benchmarks.stacked_llama import StackedLlama

ROLLOUTS, UPDATES, EVERY = 32, 80, 20
RATES, TUNING_SEED, SEEDS = (2e-6, 4e-6, 8e-6, 1.6e-5), 100, (0, 1, 2, 3, 4, 5)
ATTEMPTS, DURING, AT_END, TOGETHER = 32, 16, 64, 8
"""pass@k's k; samples of a held-out question during a run and at its end, and how many of them are drawn at once."""
SHAPES = {"single": 1, "fours": 4, "eights": 8}
ARMS = [f"{shape}_{baseline}" for shape in SHAPES for baseline in ("zero", "global")] + ["fours_rloo", "eights_rloo"]
CONTROL = "eights_rloo"
BASELINES: Mapping[str, Callable[[], Baseline | None]] = {
    "zero": Zero,
    "global": lambda: Optimal(scope="constant"),
    "rloo": lambda: None,
}


@dataclass(frozen=True)
class Task:
    """Solved examples, training and held-out questions with their answers, and when a completion's line is right."""

    examples: tuple[str, ...]
    training: list[tuple[str, str]]
    held_out: list[tuple[str, str]]
    is_right: Callable[[str, str], bool]
    tokens: int


def tasks():
    """Return the tasks. A sum has one right answer, and a number between two others has 2 to 12."""
    training, held_out = questions()
    pairs = [(a, a + width) for a in range(1, 81) for width in range(3, 14)]
    order = np.random.default_rng(0).permutation(len(pairs))[:112]
    asked = [(f"{low} {high} :", f"{low} {high}") for low, high in (pairs[place] for place in order)]
    return {
        "sums": Task(SUMS.examples, training, held_out[:48], str.__eq__, 6),
        "between": Task(("3 9 : 5", "20 35 : 28", "11 14 : 13"), asked[:64], asked[64:], _between, 5),
    }


def _between(line, limits):
    low, high = map(int, limits.split())
    return line.isascii() and line.isdigit() and not line.startswith("0") and low < int(line) < high


class Run:
    """One arm with a rate and a seed: its order of questions, its noise, its baseline, and what it has come to."""

    def __init__(self, arm, rate, seed, questions):
        self.arm, self.rate, self.seed = arm, rate, seed
        shape, baseline = arm.split("_")
        self.size, self.baseline = SHAPES[shape], BASELINES[baseline]()
        self.prompts = [Prompt(question) for question in questions]
        self.noise = np.random.default_rng([seed, 1])
        self._order, self._left = np.random.default_rng([seed, 0]), list[int]()
        self.found: dict[str, list[float]] = {}

    def next_questions(self):
        """Return the places of the next update's questions. Each comes once an epoch."""
        wanted = ROLLOUTS // self.size
        if len(self._left) < wanted:
            self._left += self._order.permutation(len(self.prompts)).tolist()
        asked, self._left = self._left[:wanted], self._left[wanted:]
        return asked

    def advantages(self, asked, rollouts):
        """Return the advantages [B] of an update's rollouts, from which the baseline then learns."""
        prompts = [self.prompts[place] for place in asked]
        rows = [list(rollouts[start : start + self.size]) for start in range(0, len(rollouts), self.size)]
        groups = [Group(prompt, tuple(row)) for prompt, row in zip(prompts, rows, strict=True)]
        if self.baseline is None:
            return advantages_of(groups, "rloo")
        found = advantages_of(groups, "reinforce", baseline=self.baseline.predict(prompts))
        batch = Batch.start(prompts, Belief.uniform(len(prompts))).add(Plan([self.size] * len(prompts)), rows)
        self.baseline.update(batch)
        return found

    def cells(self):
        return {"arm": self.arm, "rate": self.rate, "seed": self.seed, **self.found}


class Trainer:
    """Trains runs of one task side by side from the same ``model``."""

    def __init__(self, task, model, tokenizer, device):
        self.task, self.model, self.tokenizer, self.device = task, model, tokenizer, device
        self.ends = line_ends(tokenizer)
        self.examples = tokenizer("\n".join([*task.examples, ""])).input_ids
        self.ids = {question: tokenizer(question).input_ids for question, _ in task.training + task.held_out}
        self._lines: dict[tuple[int, ...], str] = {}

    def train(self, runs):
        """Train all ``runs``, and evaluate each after every ``EVERY`` updates."""
        stack = StackedLlama(self.model, len(runs), self.examples, self.device)
        for update in range(UPDATES + 1):
            if update % EVERY == 0:
                self._evaluate(stack, runs, AT_END if update == UPDATES else DURING, update)
            if update < UPDATES:
                self._update(stack, runs)

    def _update(self, stack, runs):
        asked = [run.next_questions() for run in runs]
        pairs = [
            [self.task.training[q] for q in own for _ in range(run.size)] for own, run in zip(asked, runs, strict=True)
        ]
        prompts = [[self.ids[question] for question, _ in own] for own in pairs]
        noise = np.stack([run.noise.random((ROLLOUTS, self.task.tokens), np.float32) for run in runs])
        sampled = stack.sample(prompts, torch.from_numpy(noise), self.ends)
        logprobs, masks = sampled.logprobs.cpu().numpy(), sampled.mask.cpu().numpy()
        advantages = []
        for k, (run, lines) in enumerate(zip(runs, self._lines_of(sampled.tokens, sampled.mask), strict=True)):
            rollouts = [
                Rollout(self.task.is_right(line, answer), score_norm=sampled_score_norm(own[mask]))
                for line, (_, answer), own, mask in zip(lines, pairs[k], logprobs[k], masks[k], strict=True)
            ]
            advantages.append(run.advantages(asked[k], rollouts))
        weights = torch.tensor(np.stack(advantages), dtype=torch.float32, device=self.device)
        loss = -(weights * stack.logprobs(prompts, sampled).sum(-1)).mean(-1).sum()
        stack.step(loss, [run.rate for run in runs])

    def _evaluate(self, stack, runs, samples, update):
        """Add to what each run has come to: success, entropy and pass@32."""
        pairs = [pair for pair in self.task.held_out for _ in range(TOGETHER)]
        prompts = [[self.ids[question] for question, _ in pairs]] * len(runs)
        noises = [np.random.default_rng([run.seed, 2, update]) for run in runs]
        lines: list[list[list[str]]] = [[] for _ in runs]
        entropies: list[Tensor] = []
        for _ in range(samples // TOGETHER):
            noise = np.stack([each.random((len(pairs), self.task.tokens), np.float32) for each in noises])
            sampled = stack.sample(prompts, torch.from_numpy(noise), self.ends)
            entropies.append((sampled.entropy * sampled.mask).sum(-1).mean(-1))
            for own, found in zip(lines, self._lines_of(sampled.tokens, sampled.mask), strict=True):
                own.append(found)
        entropy = torch.stack(entropies).mean(0).tolist()
        for k, run in enumerate(runs):
            by_question = [
                [line for part in lines[k] for line in part[start : start + TOGETHER]]
                for start in range(0, len(pairs), TOGETHER)
            ]
            right = [
                sum(self.task.is_right(line, answer) for line in own)
                for own, (_, answer) in zip(by_question, self.task.held_out, strict=True)
            ]
            values = {"update": update, "success": np.mean(right) / samples, "entropy": entropy[k]}
            if samples >= ATTEMPTS:
                values["pass"] = pass_at_k(right, samples, ATTEMPTS).mean()
            for name, value in values.items():
                run.found.setdefault(name, []).append(float(value))

    def _lines_of(self, tokens, mask):
        """Return the first line of each completion."""
        every = [
            [tuple(row[: sum(real)]) for row, real in zip(*own, strict=True)]
            for own in zip(tokens.tolist(), mask.tolist(), strict=True)
        ]
        for new in {row for own in every for row in own} - self._lines.keys():
            self._lines[new] = self.tokenizer.decode(new).split("\n")[0].strip()
        return [[self._lines[row] for row in own] for own in every]


def parts(measured):
    """Yield the name, task and runs of each part in order. The sweep in ``measured`` gives the rates."""
    names = list(tasks())
    for task in names:
        for rates in (RATES[:2], RATES[2:]):
            yield f"sweep {task} {rates}", task, [(arm, r, TUNING_SEED) for r in rates for arm in ARMS]
    for start in range(0, len(SEEDS), 2):
        for task in names:
            seeds = SEEDS[start : start + 2]
            yield f"seeds {task} {seeds}", task, [(a, best(measured, task)[a], s) for s in seeds for a in ARMS]


def best(measured, task):
    """Return the rate of each arm whose area is largest in the sweep."""
    swept = [run for name, own in measured.items() if name.startswith(f"sweep {task}") for run in own["runs"]]
    return {arm: max((run for run in swept if run["arm"] == arm), key=area)["rate"] for arm in ARMS}


def area(run):
    """Return the mean held-out success of a run's evaluations after the start."""
    return float(np.mean(run["success"][1:]))


def measure(file, minutes, commit):
    """Measure part after part into ``file``, and begin none that would end too late. It goes on where it stopped."""
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    started, seconds = time.monotonic(), 0.0
    measured: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    model, tokenizer = load()
    known = {name: Trainer(task, model, tokenizer, device) for name, task in tasks().items()}
    for name, task, chosen in parts(measured):
        if name in measured:
            continue
        if time.monotonic() - started + seconds > 60 * minutes:
            print("no time is left for", name, "and what follows it", flush=True)
            return
        before, trainer = time.monotonic(), known[task]
        runs = [Run(*each, [question for question, _ in trainer.task.training]) for each in chosen]
        trainer.train(runs)
        seconds = time.monotonic() - before
        measured[name] = {
            "runs": [run.cells() for run in runs],
            "seconds": seconds,
            "machine": {
                "GPU": torch.cuda.get_device_name() if device == "cuda" else "none",
                "torch": torch.__version__,
                "date": datetime.now(UTC).date().isoformat(),
                "commit": commit,
            },
        }
        write_whole(file, json.dumps(measured))
        print(name, f"{seconds:.0f} s", {r.arm: [round(s, 3) for s in r.found["success"]] for r in runs}, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no part that would end later")
    parser.add_argument("--commit", default="unknown", help="of the code, where there is no git")
    given = parser.parse_args()
    measure(given.file, given.minutes, given.commit)


if __name__ == "__main__":
    main()
