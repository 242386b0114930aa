"""What rank 0 does: run the allocator over rounds of all ranks, compute advantages, and assign rows to the ranks.

``apportion.loop.collect`` runs the allocator, and its sampler is a round of all ranks. Only rank 0 holds the batch, the
belief and the store of earlier responses, so that ranks cannot disagree.

The size of a round is a multiple of the number of ranks. Surplus completions beyond the plan are sampled, counted and
dropped. The allocator and the loss see exactly the planned ones, whatever the number of ranks.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch

from apportion.advantages import advantages_of, loss_weights
from apportion.engines.fresh_rows import FreshRows, Row, draw_distinct
from apportion.engines.prompts import last_text, prompt_of
from apportion.loop import collect
from apportion.trl.advantages import Grouped
from apportion.trl.generation import Ids, Reused, RoundRequest, Sampled, TrainingBatch
from apportion.trl.metrics import reward_metrics
from apportion.trl.rows import Table, pack_row
from apportion.trl.settings import LOSSES, TRLAllocation
from apportion.trl.shares import LossRow, rows_per_rank, split_rows
from apportion.trl.verdicts import Verdicts
from apportion.trl.votes import Votes
from apportion.trl.whole_groups import GroupsRequest
from apportion.types import Batch, Counts, Floats, Group, Prompt, Rollout


@dataclass(frozen=True, slots=True)
class Response:
    """A rollout's completion: token ids, text or messages, and scores [F] of the reward functions.

    ``place`` is the index of its row among all rows of the step. ``row`` is set if a later step may train on it.
    ``content`` is None in a response of an earlier step. ``penalty`` is what RLOO subtracted from the reward in the
    step that sampled it.
    """

    tokens: Ids
    content: Any
    scores: tuple[float, ...]
    place: int
    row: Table | None = None
    penalty: float = 0.0

    def for_reuse(self) -> Self:
        """Return what a later step needs: the token ids, the scores, and the row."""
        return replace(self, content=None, place=0, row=None if self.row is None else pack_row(self.row))


@dataclass(frozen=True)
class LossSettings:
    """TRL's advantage ``formula``, the ``names`` and ``weights`` [F] of its reward functions, and its loss.

    ``kind`` is a key of ``LOSSES``. ``ranks`` processes train on ``chunks`` micro-batches each.
    """

    formula: Callable[[Grouped], torch.Tensor]
    names: Sequence[str]
    weights: torch.Tensor
    kind: str
    ranks: int
    chunks: int


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


@dataclass
class BatchPlanner:
    """The allocation of one generation batch.

    ``run_round`` runs one generation round on all ranks. ``votes`` is set for label-free training only. ``rounds`` are
    the sizes of the rounds, and ``surplus`` counts completions beyond the plan. ``verdicts`` makes rollouts of scores.
    At most ``most_at_once`` completions are generated in one call if it is set; it is a multiple of the number of
    ranks. ``score_groups`` scores finished groups if reward functions read whole ones.
    """

    allocation: TRLAllocation
    loss: LossSettings
    run_round: Callable[[RoundRequest], list[Sampled]]
    source: FreshRows
    verdicts: Verdicts
    votes: Votes | None = None
    most_at_once: int | None = None
    score_groups: Callable[[GroupsRequest, Sequence[Sequence[Response]]], list[torch.Tensor]] | None = None
    rounds: list[int] = field(default_factory=list)
    surplus: int = 0
    sampled: int = 0
    _scores: list[tuple[float, ...]] = field(default_factory=list)
    _new_rows: list[Row] = field(default_factory=list)

    def collect(self, rows: Sequence[Row]) -> FinishedBatch:
        """Sample what the allocator plans for the prompts of ``rows``, and compute advantages and weights."""
        prompts = [self._prompt(row) for row in rows]
        held = {prompt.id for prompt in prompts}
        batch = collect(self.allocation.allocator, prompts, self._sample, source=lambda count: self._fresh(count, held))
        if not self.sampled:
            raise ValueError(
                f"{self.allocation.allocator.name} must plan rollouts for a batch of {len(prompts)} prompts, got none; "
                "raise its budget, or its minimum per prompt"
            )
        if self.score_groups is not None:
            batch = self._with_group_rewards(batch)
        groups = self.allocation.allocator.groups(batch)
        grouped = self._grouped(groups)
        advantages, weights = self._advantages(groups, grouped), self._weights(groups)
        return FinishedBatch(batch, groups, grouped, advantages, weights)

    def loss_rows(self, batch: FinishedBatch) -> list[LossRow]:
        """Return the rows for the loss by group."""
        found = []
        rollouts = [(group, i) for group in batch.groups for i in range(len(group.rollouts))]
        for (group, i), advantage, weight in zip(rollouts, batch.advantages, batch.weights, strict=True):
            if not group.keep[i]:
                continue
            rollout, weighted = group.rollouts[i], float(advantage * weight)
            if rollout.step is None:
                found.append(LossRow(weighted, place=rollout.completion.place))
            else:
                found.append(LossRow(weighted, reused=Reused(rollout.completion.row, bool(group.recompute[i]))))
        return found

    def training_batch(self, batch: FinishedBatch) -> TrainingBatch:
        """Return the shares of all ranks. Advantages are scaled up if masked rows would dilute a mean over rows."""
        rows = self.loss_rows(batch)
        each = rows_per_rank(len(rows), self.loss.ranks, self.loss.chunks)
        batches = self.loss.ranks * self.loss.chunks
        batch_scale = max(1.0, batches / len(rows)) if rows else 1.0
        scale = {"row": each * self.loss.ranks / max(len(rows), 1), "batch": batch_scale, "token": 1.0}
        row_scale = scale[LOSSES[self.loss.kind][1]] if rows else 1.0
        if row_scale != 1.0:
            rows = [replace(row, advantage=row.advantage * row_scale) for row in rows]
        shares = split_rows(rows, self.rounds, self.loss.ranks, self.loss.chunks)
        return TrainingBatch(shares, row_scale=row_scale, batch_scale=batch_scale)

    def reward_metrics(self, batch: FinishedBatch) -> dict[str, float]:
        """Return TRL's reward metrics over all rows, and in label-free training those of rewards from votes.

        With a single round and no surplus TRL's own are correct, and left out here.
        """
        found = {}
        if len(self.rounds) > 1 or self.surplus or self.score_groups is not None:
            found = reward_metrics(torch.tensor(self._scores, dtype=torch.float32), self.loss.names, self.loss.weights)
        if self.votes is not None:
            found |= reward_metrics(batch.grouped.scores, [self.allocation.vote_reward_name], batch.grouped.weights)
        return found

    def columns(self, batch: FinishedBatch) -> dict[str, list[float]]:
        """Return columns of TRL's table of completions: advantages, 0 outside the groups, and rewards of groups."""
        advantages, rewards = [0.0] * self.sampled, [math.nan] * self.sampled
        scored = {name: [math.nan] * self.sampled for name in self.loss.names if self.score_groups is not None}
        rollouts = [rollout for group in batch.groups for rollout in group.rollouts]
        for rollout, advantage in zip(rollouts, batch.advantages, strict=True):
            if rollout.step is None:
                advantages[rollout.completion.place] = float(advantage)
                rewards[rollout.completion.place] = float(rollout.reward or 0.0)
        for rollout in (each for own in batch.batch.rollouts if scored for each in own if each.step is None):
            for name, score in zip(self.loss.names, rollout.completion.scores, strict=True):
                scored[name][rollout.completion.place] = score
        voted = {} if self.votes is None else {self.allocation.vote_reward_name: rewards}
        return {"advantages": advantages} | scored | voted

    def _sample(self, prompts: Sequence[Prompt], counts: Counts) -> list[list[Rollout]]:
        """Run a round on all ranks and return its rollouts by prompt, as the sampler of ``collect``."""
        places = np.repeat(np.arange(len(prompts)), counts).tolist()
        found: list[list[Rollout]] = [[] for _ in prompts]
        most = self.most_at_once or len(places)
        for first in range(0, len(places), most):
            part = places[first : first + most]
            rollouts = self._generate(part, prompts, continues=first > 0)
            for place, rollout in zip(part, rollouts, strict=True):
                if rollout is not None:
                    found[place].append(rollout)
        return found

    def _generate(self, places: Sequence[int], prompts: Sequence[Prompt], *, continues: bool) -> list[Rollout | None]:
        """Return a rollout of each of the ``prompts`` at ``places``, None for one without a reward.

        ``continues`` says whether they are a further part of a round.
        """
        surplus = -len(places) % self.loss.ranks
        request = RoundRequest([*places, *[places[-1]] * surplus], tuple(self._new_rows), continues)
        self._new_rows.clear()
        start, sampled = self.sampled, self.run_round(request)[: len(places)]
        self.rounds.append(len(request.places))
        self.surplus += surplus
        self.sampled += len(request.places)
        self._scores += [each.scores for each in sampled]
        return self._rollouts(places, prompts, sampled, start)

    def _rollouts(
        self, places: Sequence[int], prompts: Sequence[Prompt], sampled: Sequence[Sampled], start: int
    ) -> list[Rollout | None]:
        """Return rollouts, None for a completion without a reward. The first is row ``start`` of the step.

        Raises RewardsFailedError if too many have no reward.
        """
        responses = [
            Response(s.ids, s.completion, s.scores, start + i, s.row, s.penalty) for i, s in enumerate(sampled)
        ]
        if self.votes is not None:
            answers = self.votes.read(places, [last_text(each.completion) for each in sampled])
            return [
                Rollout(answer=answer, completion=response, tokens=each.tokens, score_norm=each.score_norm)
                for answer, response, each in zip(answers, responses, sampled, strict=True)
            ]
        scores = torch.tensor([each.scores for each in sampled], dtype=torch.float32)
        texts = [prompts[place].text for place in places]
        judge = self.verdicts.judge if self.score_groups is None else self.verdicts.judge_in_round
        return [
            None if judged is None else replace(judged, completion=response, tokens=s.tokens, score_norm=s.score_norm)
            for judged, response, s in zip(judge(scores, texts), responses, sampled, strict=True)
        ]

    def _with_group_rewards(self, batch: Batch) -> Batch:
        """Return the batch with rewards of whole groups. A rollout of an earlier step keeps its own."""
        assert self.score_groups is not None
        fresh = [[rollout for rollout in own if rollout.step is None] for own in batch.rollouts]
        places = [place for place, own in enumerate(fresh) if own]
        responses = [[rollout.completion for rollout in fresh[place]] for place in places]
        found = self.score_groups(GroupsRequest(places, list(map(len, responses))), responses)
        in_rounds = self.allocation.functions_of_rounds(self.loss.names)
        rollouts, self._scores = list(batch.rollouts), []
        for place, own, scores in zip(places, responses, found, strict=True):
            scores[:, in_rounds] = torch.tensor([response.scores for response in own])[:, in_rounds]
            self._scores += map(tuple, scores.tolist())
            judged = self.verdicts.judge(scores, [batch.prompts[place].text] * len(own))
            scored = [
                replace(
                    new,
                    completion=replace(response, scores=tuple(row)),
                    tokens=old.tokens,
                    score_norm=old.score_norm,
                    round=old.round,
                )
                for old, new, response, row in zip(fresh[place], judged, own, scores.tolist(), strict=True)
                if new is not None
            ]
            earlier = [rollout for rollout in batch.rollouts[place] if rollout.step is not None]
            rollouts[place] = (*earlier, *scored)
        return replace(batch, rollouts=tuple(rollouts))

    def _fresh(self, count: int, held: set[str]) -> list[Prompt]:
        selection = self.allocation.selection
        if selection is None:
            rows = draw_distinct(self.source, count, held, lambda row: self._prompt(row).id)
        else:
            rows = [self.source.dataset[row] for row in selection.choose(count, held)]
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
        if self.votes is not None:
            rewards = torch.tensor([rollout.reward for rollout in rollouts], dtype=torch.float32)
            return Grouped(rewards.unsqueeze(1), sizes, torch.ones(1), penalties)
        scores = torch.tensor([rollout.completion.scores for rollout in rollouts], dtype=torch.float32)
        return Grouped(scores.view(len(rollouts), len(self.loss.names)), sizes, self.loss.weights, penalties)

    def _advantages(self, groups: Sequence[Group], grouped: Grouped) -> Floats:
        if not groups:
            return np.zeros(0)
        estimator, baseline = self.allocation.estimator, self.allocation.baseline
        if estimator is None:
            return self.loss.formula(grouped).double().numpy()
        expected = None if baseline is None else baseline.predict([group.prompt for group in groups])
        return advantages_of([_penalised(group) for group in groups], estimator, baseline=expected)

    def _weights(self, groups: Sequence[Group]) -> Floats:
        """Return the weights of all rollouts of the groups, 0 outside the loss, times those of the selection."""
        tokens = np.array([rollout.tokens for group in groups for rollout in group.rollouts], np.float64)
        selection = self.allocation.selection
        importance = None if selection is None else selection.weights([group.prompt for group in groups])
        return loss_weights(
            groups, self.allocation.loss_weighting, importance, tokens=tokens, reduction=LOSSES[self.loss.kind][0]
        )


def _penalised(group: Group) -> Group:
    """Return the group with RLOO's penalties subtracted from its rewards, for the estimator alone."""
    rollouts = tuple(
        rollout
        if rollout.reward is None or not rollout.completion.penalty
        else replace(rollout, reward=rollout.reward - rollout.completion.penalty)
        for rollout in group.rollouts
    )
    return replace(group, rollouts=rollouts)
