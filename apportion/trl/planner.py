"""What rank 0 does: run the allocator over rounds of all ranks, compute advantages, and assign rows to the ranks.

``apportion.loop.collect`` runs the allocator, and its sampler is a round of all ranks. Only rank 0 holds the batch, the
belief and the store of earlier responses, so that ranks cannot disagree.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from apportion.advantages import gated
from apportion.engines.fresh_rows import Row, draw_distinct
from apportion.engines.metrics import allocation_metrics, prefixed
from apportion.engines.prompts import prompt_of, text_of
from apportion.loop import collect
from apportion.records import write_step
from apportion.trl.advantages import Grouped, zero_deviation
from apportion.trl.metrics import combined, joined_table, reward_metrics
from apportion.trl.rewards import scores_of
from apportion.trl.rounds import Rounds
from apportion.trl.settings import LOSSES, TRLAllocation
from apportion.trl.shares import LossRow, TrainingBatch, rows_per_rank, split_rows, training_rows
from apportion.types import Batch, Floats, Group, Prompt, Rollout


@dataclass(frozen=True)
class FinishedBatch:
    """A finished batch, its groups, and advantages [N] and weights [N] of all their rollouts, 0 outside the loss.

    Rollouts without a reward are in no group, and so not in the loss.
    """

    batch: Batch
    groups: Sequence[Group]
    grouped: Grouped
    advantages: Floats
    weights: Floats


def generation_batch(
    trainer: Any, inputs: Sequence[Row], generate: Callable[..., Any], calculate: Callable[..., Tensor]
) -> tuple[dict[str, Any], bool]:
    """Return the rows that this rank trains on, as TRL's method does, and whether any are masked.

    ``inputs`` are those of that method, which is ``generate``; ``calculate`` is TRL's ``_calculate_rewards``. Rank 0
    learns from the finished batch, and all ranks log it. TRL's loader repeats each prompt ``num_generations`` times
    over all ranks. Under a selection it sets only the pace.
    """
    rounds = Rounds(trainer, generate, calculate)
    if trainer.allocation.selection is None:
        firsts = _firsts(inputs, trainer.num_generations, rounds.ranks.rank * len(inputs))
        rounds.rows.extend(rounds.ranks.all_gather(firsts))

    batch = rounds.led(BatchPlanner(trainer, rounds).lead)
    output = training_rows(rounds, batch)
    trainer._logs = joined_table(rounds.logged, batch.columns)
    logged, seconds = trainer._metrics["train"], prefixed(rounds.stopwatch.metrics(), None)
    for name, value in (combined(rounds.logged) | batch.metrics | seconds).items():
        logged[name].append(value)
    logged["num_tokens"] = logged["num_tokens"][-1:]
    return output, any(len(share) < batch.each for share in batch.shares)


def _firsts(inputs: Sequence[Row], num_generations: int, start: int) -> list[Row]:
    """Return the first row of each prompt among ``inputs``. ``start`` rows come before these, on other ranks."""
    for i in range(1, len(inputs)):
        if (start + i) % num_generations and inputs[i].get("prompt") != inputs[i - 1].get("prompt"):
            raise ValueError(
                f"the loader must repeat every prompt {num_generations} times in a row, as TRL's does, got two "
                "prompts in one group; leave get_train_dataloader and _get_train_sampler to TRL"
            )
    return [row for place, row in enumerate(inputs, start) if place % num_generations == 0]


class BatchPlanner:
    """The allocation of one generation batch of ``trainer``, whose ``rounds`` all ranks run."""

    def __init__(self, trainer: Any, rounds: Rounds) -> None:
        self.trainer, self.rounds = trainer, rounds
        self.allocation: TRLAllocation = trainer.allocation
        self.names, self.weights = trainer._rewards.names, trainer._rewards.weights

    def lead(self) -> TrainingBatch:
        """Return the finished batch, after the allocation has learned from it."""
        finished = self.collect()
        batch = self.training_batch(finished)
        self.learn(finished)
        return batch

    def collect(self) -> FinishedBatch:
        """Sample what the allocator plans for the prompts of the batch, and compute advantages and weights."""
        allocation, rounds = self.allocation, self.rounds
        prompts = [self._prompt(row) for row in rounds.rows] or self._fresh(allocation.prompts(self.trainer.args))
        batch = collect(allocation.allocator, prompts, rounds.sample, source=self._fresh)
        if not rounds.logged:
            raise ValueError(
                f"{allocation.allocator.name} must plan rollouts for a batch of {len(prompts)} prompts, got none; "
                "raise its budget, or its minimum per prompt"
            )
        if allocation.whole_groups:
            batch = self._with_group_rewards(batch)
        groups = allocation.allocator.groups(batch)
        grouped = self._grouped(groups)
        weights = allocation.weights(groups, LOSSES[self.trainer._loss][0])
        return FinishedBatch(batch, groups, grouped, self._advantages(groups, grouped), weights)

    def training_batch(self, finished: FinishedBatch) -> TrainingBatch:
        """Return the shares of all ranks, with what all of them log.

        Advantages are scaled up if masked rows would dilute a mean over rows.
        """
        ranks, chunks, rows = self.rounds.ranks.size, self.trainer.args.steps_per_generation, _loss_rows(finished)
        each, count = rows_per_rank(len(rows), ranks, chunks), max(1, len(rows))
        batch_scale = max(1.0, ranks * chunks / count)
        row_scale = {"row": each * ranks / count, "batch": batch_scale, "token": 1.0}[LOSSES[self.trainer._loss][1]]
        shares = split_rows([replace(row, advantage=row.advantage * row_scale) for row in rows], ranks)
        own = allocation_metrics(finished.batch, finished.groups, self.allocation.estimator)
        own |= self.allocation.allocator.metrics(finished.batch)
        own |= {"surplus": self.rounds.surplus, "padding": each * ranks - len(rows), "rows": len(rows)}
        metrics = prefixed(own, self.allocation.selection) | self._reward_metrics(finished) | self.rounds.group_metrics
        metrics["frac_reward_zero_std"] = zero_deviation(
            finished.grouped, getattr(self.trainer, "scale_rewards", "group")
        )
        return TrainingBatch(shares, each, metrics, self._columns(finished), row_scale, batch_scale)

    def learn(self, finished: FinishedBatch) -> None:
        """Write the rollout log, and let the allocator, the selection and the baseline learn from the batch."""
        allocation = self.allocation
        self.trainer._no_signal.add(finished)
        if allocation.rollout_log is not None:
            write_step(
                allocation.rollout_log,
                self.trainer._batches,
                finished.batch,
                finished.groups,
                finished.advantages,
                finished.weights,
                text=lambda response: text_of(response.content or ""),
                log_text=allocation.rollout_log_text,
            )
        allocation.observe(finished.batch)

    def _reward_metrics(self, finished: FinishedBatch) -> dict[str, float]:
        """Return TRL's reward metrics over all planned rows, and in label-free training those of rewards from votes."""
        scores = torch.tensor(self.rounds.scores, dtype=torch.float32)
        found = reward_metrics(scores, self.names, self.weights)
        if self.allocation.label_free:
            votes = finished.grouped.rewards.unsqueeze(1)
            found |= reward_metrics(votes, [self.allocation.vote_reward_name], torch.ones(1))
        return found

    def _columns(self, finished: FinishedBatch) -> dict[str, list[float]]:
        """Return columns of TRL's table of completions: advantages, 0 outside the groups, and rewards of groups."""
        rows, allocation = sum(each.rows for each in self.rounds.logged), self.allocation

        def column(rollouts: Iterable[Rollout], values: Iterable[float], missing: float) -> list[float]:
            found = [missing] * rows
            for rollout, value in zip(rollouts, values, strict=True):
                if rollout.step is None:
                    found[rollout.completion.place] = value
            return found

        used = _rollouts(finished.groups)
        columns = {"advantages": column(used, finished.advantages.tolist(), 0.0)}
        if allocation.label_free:
            columns[allocation.vote_reward_name] = column(used, finished.grouped.rewards.tolist(), math.nan)
        if allocation.whole_groups:
            sampled = [each for own in finished.batch.rollouts for each in own]
            for name, scores in zip(self.names, scores_of(sampled).view(-1, len(self.names)).T.tolist(), strict=True):
                columns[name] = column(sampled, scores, math.nan)
        return columns

    def _with_group_rewards(self, batch: Batch) -> Batch:
        """Return the batch with rewards of whole groups. A rollout of an earlier step keeps its own."""
        rollouts, rows = list(batch.rollouts), self.rounds.rows
        fresh = {q: own for q, each in enumerate(rollouts) if (own := [one for one in each if one.step is None])}
        scored = self.rounds.score_groups([(rows[q], own) for q, own in fresh.items()])
        for q, own in zip(fresh, scored, strict=True):
            judged = self.rounds.rewards.judge(own, [batch.prompts[q].text] * len(own))
            rollouts[q] = (*(each for each in rollouts[q] if each.step is not None), *filter(None, judged))
        return replace(batch, rollouts=tuple(rollouts))

    def _fresh(self, count: int) -> list[Prompt]:
        """Return ``count`` further prompts of the batch, by the selection, or the next ones of the data set."""
        selection, source = self.allocation.selection, self.trainer._fresh
        held = {self._prompt(row).id for row in self.rounds.rows}
        if selection is None:
            rows = draw_distinct(source, count, held, lambda row: self._prompt(row).id)
        else:
            rows = [source.dataset[place] for place in selection.choose(count, held)]
        self.rounds.rows.extend(rows)
        return list(map(self._prompt, rows))

    def _prompt(self, row: Row) -> Prompt:
        return prompt_of(row, self.allocation.id_column, self.allocation.rate_column)

    def _grouped(self, groups: Sequence[Group]) -> Grouped:
        """Return the groups for TRL's formulas. In label-free training the votes are the only reward function."""
        sizes, rollouts = torch.tensor([len(group.rollouts) for group in groups], dtype=torch.long), _rollouts(groups)
        gate, clip = self.allocation.outcome_gate, getattr(self.trainer, "reward_clip_range", None)
        rewards, penalties = (
            torch.tensor(values, dtype=torch.float32)
            for values in (
                [reward for group in groups for reward in gated(group, gate).rewards.tolist()],
                [rollout.completion.penalty for rollout in rollouts],
            )
        )
        if self.allocation.label_free:
            return Grouped(rewards, sizes, rewards.unsqueeze(1), torch.ones(1), penalties, clip)
        dead = torch.tensor([bool(gate) and not group.informative for group in groups], dtype=torch.bool)
        scores = scores_of(rollouts).view(-1, len(self.names))
        scores = scores.masked_fill(dead.repeat_interleave(sizes).unsqueeze(1), 0.0)
        return Grouped(rewards, sizes, scores, self.weights, penalties, clip)

    def _advantages(self, groups: Sequence[Group], grouped: Grouped) -> Floats:
        if not groups:
            return np.zeros(0)
        if self.allocation.estimator is None:
            advantages: Floats = self.trainer._advantages(grouped).double().numpy()
            return advantages
        return self.allocation.advantages([_penalised(group) for group in groups])


def _rollouts(groups: Sequence[Group]) -> list[Rollout]:
    return [rollout for group in groups for rollout in group.rollouts]


def _loss_rows(finished: FinishedBatch) -> list[LossRow]:
    """Return the rows for the loss by group."""
    found, weighted = [], iter((finished.advantages * finished.weights).tolist())
    for group in finished.groups:
        for rollout, kept, recompute in zip(group.rollouts, group.keep, group.recompute, strict=True):
            own, advantage = rollout.completion, next(weighted)
            if kept and rollout.step is None:
                found.append(LossRow(advantage, own.at))
            elif kept:
                found.append(LossRow(advantage, None, own.row, bool(recompute)))
    return found


def _penalised(group: Group) -> Group:
    """Return the group with RLOO's penalties subtracted from its rewards, for the estimator alone."""
    pairs = zip(group.rollouts, group.rewards.tolist(), strict=True)
    return replace(group, rollouts=tuple(replace(own, reward=reward - own.completion.penalty) for own, reward in pairs))
