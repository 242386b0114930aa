"""The reference trainer: rollout, verify, group, estimate, update, observe.

A run on one thread is a function of its seed. A killed run continues from its checkpoint with exactly the same curve.
Metrics are one JSON object per step, one per line.
"""

import copy
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from apportion.allocators import Allocator
from apportion.allocators.votes import ConsensusAllocator
from apportion.engines.saved_state import load_state, restoring, save_state
from apportion.lab.policy.base import base_policy
from apportion.lab.policy.exact import effective_solutions, exact_success, solution_probabilities
from apportion.lab.policy.sampler import LedgerCompletion, LedgerSampler
from apportion.lab.training.judge import Judge
from apportion.lab.training.learner import PolicyLearner
from apportion.lab.training.metrics import METRICS, checksum_of, cut_metrics
from apportion.lab.training.pool import Pool, pool_of
from apportion.lab.training.settings import Training
from apportion.lab.training.slots import SlotSampler
from apportion.lab.world.task import EOS, TASKS, VOCABULARY
from apportion.loop import collect
from apportion.predictors.saved import SavedValues
from apportion.records import ROLLOUTS, LoggedStep, remove_steps_after, resume_log, start_log, write_steps
from apportion.runs.whole_files import is_file
from apportion.selection import ShuffledEpochs
from apportion.types import Batch, Floats, Group, Prompt, Rollout

KIND = "lab run"
COUNTERS = ("steps", "asked", "evaluations")


class Trainer:
    """One run: ``Trainer(training, allocator, seed, directory).run()`` starts or resumes it and spends its budget.

    ``pool`` holds its problems; without it they follow from ``training`` and ``seed``.
    """

    def __init__(
        self, training: Training, allocator: Allocator, seed: int, directory: Path, pool: Pool | None = None
    ) -> None:
        torch.set_num_threads(1)
        training.check(allocator)
        self.training, self.seed = training, seed
        self.metrics, self.rollouts = directory / METRICS, directory / ROLLOUTS
        self.checkpoint = directory / "checkpoint.pt"
        self.log: str | None = None
        self.unlogged: list[LoggedStep] = []
        directory.mkdir(parents=True, exist_ok=True)
        self.policy = base_policy(training.base)
        self.start = copy.deepcopy(self.policy)
        self.learner = PolicyLearner(self.policy, training, self.start if training.kl > 0 else None)
        self.pool, longest = pool or pool_of(training, seed), TASKS[training.task].max_new_tokens
        label_free, how = training.labels == "none", (seed, training.temperature, longest)
        self.judge = Judge(self.pool, self.start, *how) if label_free else None
        reward = None if label_free else training.reward
        self.sampler = LedgerSampler(self.policy, *how, reward, training.length_weight, training.format_weight)
        self.problems, self.prompts = self.pool.problems, self.pool.prompts
        self.steps, self.asked, self.evaluations = 0, 0, 0
        self.selector = copy.deepcopy(training.selection) or ShuffledEpochs()
        self.decisions = training.decisions(allocator, self.selector)
        self.decisions.prepare(self.prompts)
        self.slots: SlotSampler | None = None
        if training.age_bound is None:
            self.selector.prepare(self.prompts, seed, getattr(self.allocator, "predictor", None))
        else:
            self.slots = SlotSampler(training, self.decisions, self.pool, self.sampler, seed)
            self.decisions = replace(self.decisions, allocator=self.slots.stream.rule)
        if is_file(self.checkpoint):
            self._restore()
        else:
            self.metrics.unlink(missing_ok=True)
            remove_steps_after(self.rollouts, -1)
            if training.rollout_log != "none":
                self.log = start_log(self.rollouts)

    @property
    def allocator(self) -> Allocator:
        """The rule of the run, as it has learned."""
        return self.decisions.allocator

    @property
    def spent(self) -> dict[str, int]:
        """What the run has spent so far, by the keys of its records."""
        return {"step": self.steps, "rollouts": self.asked, "tokens": self.sampler.tokens}

    @property
    def finished(self) -> bool:
        return self.spent[self.training.unit] >= self.training.length

    def run(self, on_step: Callable[[dict[str, Any]], bool] = lambda record: True) -> bool:
        """Take steps until the budget is spent (True), or ``on_step`` returns False for a step's record (False)."""
        with self.metrics.open("a", encoding="utf-8", newline="\n") as lines:
            if not self.asked:
                self._write(lines, self.spent | self._evaluate())
            while not self.finished:
                record = self._step()
                self._write(lines, record)
                go_on = on_step(record)
                if self.finished or not go_on or self.steps % self.training.checkpoint_every == 0:
                    os.fsync(lines.fileno())  # the lines must reach the disk before the checkpoint that counts them
                    self._save(lines.tell())
                if not go_on:
                    return self.finished
        return True

    def _step(self) -> dict[str, Any]:
        started = time.process_time()
        if self.training.reset_every and self.steps and self.steps % self.training.reset_every == 0:
            self.learner.reset(self.start)
        if self.slots is None:
            draw = partial(self._draw, set())  # fresh prompts of a batch differ from those that it began with
            batch = collect(self.allocator, draw(self.training.prompts_per_step), self.sampler, source=draw)
            groups = self.allocator.groups(batch)
        else:
            update = self.slots.next_update()
            batch, groups = update.batch, list(update.groups)
        success = self._exact(batch.prompts)
        learnt = self.learner.update(groups, self.decisions)
        own = self.allocator.metrics(batch)
        if self.judge is not None and isinstance(self.allocator, ConsensusAllocator):
            learnt |= self.judge.labels(batch.prompts, self.allocator.labels(batch))
        if self.slots is None:
            self.decisions.observe(batch)
        else:
            self.slots.stream.trained(update.version)
            if self.decisions.baseline is not None:
                self.decisions.baseline.update(self.decisions.for_baseline(batch))
            learnt |= {"age": float(np.mean(update.ages or [0])), "largest_age": float(max(update.ages, default=0))}
        self.steps += 1
        self.asked += int(batch.asked.sum())
        self._log(batch, groups)
        rows = [self.pool.row[prompt.id] for prompt in batch.prompts]
        record = self.spent | _step_metrics(batch, groups, success) | {"prompts": rows} | learnt
        record |= {"allocator": own} if own else {}
        if self.training.selection is not None:
            record["selection"] = self.selector.metrics()
        due = (self.steps if self.training.unit == "step" else self.asked) // self.training.evaluate_every
        if self.finished or due > self.evaluations:
            self.evaluations = due
            record |= self._evaluate()
        if self.finished:
            record["held_out_p"] = exact_success(self.policy, self.pool.held_out).round(5).tolist()
        return record | {"cpu_seconds": time.process_time() - started}

    def _draw(self, held: set[str], count: int) -> list[Prompt]:
        """Return the next ``count`` prompts by the selector. Skip ids in ``held``, and add theirs."""
        chosen = [self.prompts[row] for row in self.selector.choose(count, held)]
        held.update(prompt.id for prompt in chosen)
        return chosen

    def _exact(self, prompts: Sequence[Prompt]) -> Floats:
        """Return the exact success of ``prompts`` [P] under the policy."""
        return exact_success(self.policy, [prompt.data for prompt in prompts])

    def _evaluate(self) -> dict[str, Any]:
        """Return exact success, pass@32 and effective solutions on the held-out problems.

        Without labels, add the exact success on the prompts themselves, their scores against gold, and the drift.
        """
        found = solution_probabilities(self.policy, self.pool.held_out)
        p = np.array([solutions.sum() for solutions in found])
        measured = {
            "success": p.mean(),
            "pass_32": (1 - (1 - p) ** 32).mean(),
            "solutions": effective_solutions(found).mean(),
        }
        if self.judge is not None:
            measured["prompts_success"] = exact_success(self.policy, self.problems).mean()
            measured["drift"] = self.judge.drift(self.policy, self.steps)
            measured |= self.judge.scores(self.policy, self.steps)
        return measured

    def _write(self, lines: Any, record: dict[str, Any]) -> None:
        lines.write(json.dumps(record, default=float) + "\n")
        lines.flush()

    def _log(self, batch: Batch, groups: list[Group]) -> None:
        """Keep the step for the rollout log. Advantages are not logged, because those of "gae" are per token."""
        if self.training.rollout_log != "none":
            self.unlogged.append(LoggedStep(self.steps, batch, groups))

    def _save(self, metrics_bytes: int) -> None:
        # Before the checkpoint, after which a resumed run goes on.
        if self.training.rollout_log != "none" and self.unlogged:
            write_steps(self.rollouts, self.unlogged, _text, self.training.rollout_log)
            self.unlogged = []
        state = {
            **{name: None if part is None else part.state_dict() for name, part in self._parts().items()},
            **{name: getattr(self, name) for name in COUNTERS},
            "metrics_bytes": metrics_bytes,
            "metrics_sha256": checksum_of(self.metrics, metrics_bytes),
            "log": self.log,
        }
        save_state(self.checkpoint, KIND, state)

    def _parts(self) -> dict[str, Any]:
        """Return the parts that have a state, by their keys in the checkpoint. The baseline may be None."""
        parts = {"learner": self.learner, "sampler": self.sampler, "baseline": self.decisions.baseline}
        if self.slots is not None:
            return parts | {"slots": self.slots}
        return parts | {"allocator": self.allocator, "selector": self.selector}

    def _restore(self) -> None:
        """Continue from the checkpoint. Raises SavedStateError if it is damaged or of another run."""
        remedy = f"delete {self.checkpoint.parent}, and the same command trains this run again from its start"
        state = load_state(self.checkpoint, KIND, remedy=remedy, records=(LedgerCompletion,))
        with restoring(self.checkpoint, remedy):
            parts = self._parts()
            saved = SavedValues(state, KIND, [*parts, *COUNTERS, "metrics_bytes", "metrics_sha256", "log"])
            metrics_bytes, log = saved.count("metrics_bytes"), state["log"]
            if not isinstance(log, str | None):
                raise saved.refusal("log", "text or None")
            for name in COUNTERS:
                setattr(self, name, saved.count(name))
            for name, part in parts.items():
                if part is not None:
                    part.load_state_dict(saved.state(name))
                elif state[name] is not None:
                    raise saved.refusal(name, "None")
        cut_metrics(self.metrics, metrics_bytes, state["metrics_sha256"])
        if self.training.rollout_log != "none":
            self.log = resume_log(self.rollouts, log, self.steps)


def _text(completion: LedgerCompletion) -> str:
    """Return the text of a completion, without the end token."""
    return "".join(VOCABULARY[token] for token in completion.tokens if token != EOS)


def _step_metrics(batch: Batch, groups: list[Group], success: np.ndarray) -> dict[str, Any]:
    """Return what a step spent, with lists over prompts [P] of exact p, predicted p and rollouts.

    The outcome is the verdict, or the reward where there is none. A group is phantom if its rewards differ and its
    outcomes do not. Without labels the rewards come from the votes. The groups hold them; the batch has none.
    """
    verified = [[each for each in rollouts if each.reward is not None] for rollouts in batch.rollouts]
    judged = verified if any(verified) else [list(group.rollouts) for group in groups]
    rollouts = [each for own in judged for each in own]
    asked = max(1, (batch.asked > 0).sum())
    return {
        "train_reward": np.mean([each.reward for each in rollouts] or [0.0]),
        "train_outcome": np.mean([_outcome(each) for each in rollouts] or [0.0]),
        "train_tokens": np.mean([each.tokens for own in batch.rollouts for each in own] or [0]),
        "informative": sum(group.informative for group in groups) / asked,
        "phantom": sum(group.spread > 0 and not group.informative for group in groups) / asked,
        "without_correct": np.mean([1.0 not in map(_outcome, own) for own in judged if own] or [False]),
        "rounds": batch.round,
        "p": success.round(4).tolist(),
        "predicted": batch.belief.mean.round(4).tolist(),
        "counts": batch.asked.tolist(),
    }


def _outcome(rollout: Rollout) -> float | None:
    return rollout.reward if rollout.correct is None else float(rollout.correct)
