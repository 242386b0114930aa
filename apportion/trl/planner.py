"""What rank 0 does: run the allocator over rounds of all ranks, compute advantages, and assign rows to the ranks.

``apportion.loop.collect`` runs the allocator, and its sampler is a round of all ranks. Only rank 0 holds the batch, the
belief and the store of earlier responses, so that ranks cannot disagree.

The size of a round is a multiple of the number of ranks. Surplus completions beyond the plan are sampled, counted and
dropped. The allocator and the loss see exactly the planned ones, whatever the number of ranks.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from apportion.engines.fresh_rows import Row, draw_distinct
from apportion.engines.metrics import allocation_metrics, prefixed
from apportion.engines.prompts import last_text, prompt_of
from apportion.loop import collect
from apportion.trl.advantages import Grouped, zero_deviation
from apportion.trl.generation import GenerationBatch, TrainingBatch
from apportion.trl.metrics import reward_metrics
from apportion.trl.settings import LOSSES, TRLAllocation
from apportion.trl.shares import LossRow, Reused, rows_per_rank, split_rows
from apportion.trl.verdicts import Verdicts, scores_of
from apportion.trl.votes import Votes
from apportion.types import Batch, Counts, Floats, Group, Prompt, Rollout


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


class BatchPlanner:
    """The allocation of one generation batch of ``trainer``, whose rounds ``generation`` runs on all ranks.

    ``votes`` is set for label-free training only. ``surplus`` counts completions beyond the plan.
    """

    def __init__(self, trainer: Any, generation: GenerationBatch) -> None:
        self.trainer, self.generation = trainer, generation
        self.allocation: TRLAllocation = trainer.allocation
        self.names, self.weights = trainer.reward_func_names, trainer.reward_weights.cpu()
        self.verdicts = Verdicts(self.allocation, self.weights, trainer._failures, trainer._components)
        self.votes = Votes(trainer._answers) if self.allocation.label_free else None
        self.surplus = 0
        self._scores: list[tuple[float, ...]] = []
        self._new_rows: list[Row] = []

    def collect(self) -> FinishedBatch:
        """Sample what the allocator plans for the prompts of the batch, and compute advantages and weights."""
        allocator, prompts = self.allocation.allocator, [self._prompt(row) for row in self.generation.rows]
        held = {prompt.id for prompt in prompts}
        batch = collect(allocator, prompts, self._sample, source=lambda count: self._fresh(count, held))
        if not self.generation.rounds:
            raise ValueError(
                f"{allocator.name} must plan rollouts for a batch of {len(prompts)} prompts, got none; "
                "raise its budget, or its minimum per prompt"
            )
        if self.allocation.whole_groups:
            batch = self._with_group_rewards(batch)
        groups = allocator.groups(batch)
        grouped = self._grouped(groups)
        weights = self.allocation.weights(groups, LOSSES[self.trainer._loss][0])
        return FinishedBatch(batch, groups, grouped, self._advantages(groups, grouped), weights)

    def training_batch(self, finished: FinishedBatch) -> TrainingBatch:
        """Return the shares of all ranks, with what all of them log.

        Advantages are scaled up if masked rows would dilute a mean over rows.
        """
        ranks, chunks = self.generation.ranks.size, self.trainer.args.steps_per_generation
        rows, row_scale, batch_scale = self._loss_rows(finished), 1.0, 1.0
        if rows:
            batch_scale = max(1.0, ranks * chunks / len(rows))
            of_rows = rows_per_rank(len(rows), ranks, chunks) * ranks / len(rows)
            row_scale = {"row": of_rows, "batch": batch_scale, "token": 1.0}[LOSSES[self.trainer._loss][1]]
            rows = [replace(row, advantage=row.advantage * row_scale) for row in rows]
        shares = split_rows(rows, ranks, chunks)
        own = allocation_metrics(finished.batch, finished.groups, self.allocation.estimator)
        own |= self.allocation.allocator.metrics(finished.batch)
        padding = sum(share.padding for share in shares)
        own |= {"surplus": self.surplus, "padding": padding, "rows": len(rows)}
        metrics = prefixed(own, self.allocation.selection) | self._reward_metrics(finished)
        metrics |= self.generation.group_metrics
        metrics["frac_reward_zero_std"] = zero_deviation(
            finished.grouped, getattr(self.trainer, "scale_rewards", "group")
        )
        return TrainingBatch(shares, metrics, self._columns(finished), row_scale, batch_scale)

    def _loss_rows(self, finished: FinishedBatch) -> list[LossRow]:
        """Return the rows for the loss by group."""
        found, weighted = [], iter((finished.advantages * finished.weights).tolist())
        for group in finished.groups:
            for rollout, kept, recompute in zip(group.rollouts, group.keep, group.recompute, strict=True):
                own, advantage = rollout.completion, next(weighted)
                if kept:
                    source = own.at if rollout.step is None else Reused(own.row, bool(recompute))
                    found.append(LossRow(advantage, source))
        return found

    def _reward_metrics(self, finished: FinishedBatch) -> dict[str, float]:
        """Return TRL's reward metrics over all rows, and in label-free training those of rewards from votes.

        With a single round and no surplus TRL's own are correct, and left out here.
        """
        found = {}
        if len(self.generation.rounds) > 1 or self.surplus or self.allocation.whole_groups:
            found = reward_metrics(torch.tensor(self._scores, dtype=torch.float32), self.names, self.weights)
        if self.votes is not None:
            votes = [self.allocation.vote_reward_name]
            found |= reward_metrics(finished.grouped.scores, votes, finished.grouped.weights)
        return found

    def _columns(self, finished: FinishedBatch) -> dict[str, list[float]]:
        """Return columns of TRL's table of completions: advantages, 0 outside the groups, and rewards of groups."""

        def column(values: Iterable[tuple[Rollout, float]], missing: float) -> list[float]:
            found = [missing] * sum(self.generation.rounds)
            for rollout, value in values:
                if rollout.step is None:
                    found[rollout.completion.place] = value
            return found

        rollouts = [rollout for group in finished.groups for rollout in group.rollouts]
        columns = {"advantages": column(zip(rollouts, finished.advantages.tolist(), strict=True), 0.0)}
        if self.votes is not None:
            rewards = ((rollout, rollout.reward or 0.0) for rollout in rollouts)
            columns[self.allocation.vote_reward_name] = column(rewards, math.nan)
        if self.allocation.whole_groups:
            rollouts = [rollout for own in finished.batch.rollouts for rollout in own]
            for i, name in enumerate(self.names):
                columns[name] = column(((each, each.completion.scores[i]) for each in rollouts), math.nan)
        return columns

    def _sample(self, prompts: Sequence[Prompt], counts: Counts) -> list[list[Rollout]]:
        """Run a round on all ranks and return its rollouts by prompt, as the sampler of ``collect``.

        A rollout without a reward is left out. Raises RewardsFailedError if too many have none.
        """
        places = np.repeat(np.arange(len(prompts)), counts).tolist()
        surplus = -len(places) % self.generation.ranks.size
        asked, (new, self._new_rows) = [*places, *places[-1:] * surplus], (self._new_rows, [])
        self.surplus += surplus
        sampled: list[Rollout] = self.generation.ask(GenerationBatch.sample, asked, new)[: len(places)]
        self._scores += [each.completion.scores for each in sampled]
        found: list[list[Rollout]] = [[] for _ in prompts]
        for place, rollout in zip(places, self._judged(sampled, places, prompts), strict=True):
            if rollout is not None:
                found[place].append(rollout)
        return found

    def _judged(
        self, sampled: Sequence[Rollout], places: Sequence[int], prompts: Sequence[Prompt]
    ) -> list[Rollout | None]:
        """Return the rollouts of the ``prompts`` at ``places``, with an answer or a reward; None for one without."""
        if self.votes is not None:
            answers = self.votes.read(places, [last_text(each.completion.content) for each in sampled])
            return [replace(each, answer=answer) for each, answer in zip(sampled, answers, strict=True)]
        judge = self.verdicts.judge_in_round if self.allocation.whole_groups else self.verdicts.judge
        return judge(sampled, [prompts[place].text for place in places])

    def _with_group_rewards(self, batch: Batch) -> Batch:
        """Return the batch with rewards of whole groups. A rollout of an earlier step keeps its own."""
        fresh = [[each for each in own if each.step is None] for own in batch.rollouts]
        places = [place for place, own in enumerate(fresh) if own]
        responses = [[replace(each.completion, row=None) for each in fresh[place]] for place in places]
        found = self.generation.ask(GenerationBatch.score_groups, places, responses)
        in_rounds = self.allocation.functions_of_rounds(self.names)
        rollouts, self._scores = list(batch.rollouts), []
        for place, scores in zip(places, found, strict=True):
            own = fresh[place]
            scores[:, in_rounds] = scores_of(own)[:, in_rounds]
            rows = [tuple(row) for row in scores.tolist()]
            self._scores += rows
            pairs = zip(own, rows, strict=True)
            scored = [replace(each, completion=replace(each.completion, scores=row)) for each, row in pairs]
            judged = self.verdicts.judge(scored, [batch.prompts[place].text] * len(own))
            earlier = [each for each in batch.rollouts[place] if each.step is not None]
            rollouts[place] = (*earlier, *filter(None, judged))
        return replace(batch, rollouts=tuple(rollouts))

    def _fresh(self, count: int, held: set[str]) -> list[Prompt]:
        selection, source = self.allocation.selection, self.trainer._fresh
        if selection is None:
            rows = draw_distinct(source, count, held, lambda row: self._prompt(row).id)
        else:
            rows = source.at(selection.choose(count, held))
        self._new_rows.extend(rows)
        prompts = [self._prompt(row) for row in rows]
        held.update(prompt.id for prompt in prompts)
        return prompts

    def _prompt(self, row: Row) -> Prompt:
        return prompt_of(row, self.allocation.id_column, self.allocation.rate_column)

    def _grouped(self, groups: Sequence[Group]) -> Grouped:
        """Return the groups for TRL's formulas. In label-free training the votes are the only reward function."""
        sizes = torch.tensor([len(group.rollouts) for group in groups], dtype=torch.long)
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        penalties = torch.tensor([rollout.completion.penalty for rollout in rollouts], dtype=torch.float32)
        scores, weights = scores_of(rollouts).view(-1, len(self.names)), self.weights
        if self.votes is not None:
            rewards = torch.tensor([rollout.reward for rollout in rollouts], dtype=torch.float32)
            scores, weights = rewards.unsqueeze(1), torch.ones(1)
        return Grouped(scores, sizes, weights, penalties, getattr(self.trainer, "reward_clip_range", None))

    def _advantages(self, groups: Sequence[Group], grouped: Grouped) -> Floats:
        if not groups:
            return np.zeros(0)
        if self.allocation.estimator is None:
            advantages: Floats = self.trainer._advantages(grouped).double().numpy()
            return advantages
        return self.allocation.advantages([_penalised(group) for group in groups])


def _penalised(group: Group) -> Group:
    """Return the group with RLOO's penalties subtracted from its rewards, for the estimator alone."""
    pairs = zip(group.rollouts, group.rewards.tolist(), strict=True)
    return replace(group, rollouts=tuple(replace(own, reward=reward - own.completion.penalty) for own, reward in pairs))
