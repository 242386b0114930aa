"""The process that decides: it runs the allocator over rounds of all processes, and says who trains on what.

``collect`` is the library's own loop; its sampler is a round of all processes. The batch, the belief and the store of
earlier responses are here alone, so that no two processes can disagree.

A round is a multiple of the number of processes. What it has beyond the plan is sampled, thrown away, and logged as
spare: the allocator sees, and the loss takes, what was planned, on any number of processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from apportion.advantages import advantages_of, rollout_weights
from apportion.integrations.fresh import FreshRows, Row, distinct
from apportion.integrations.prompts import last_text, prompt_of
from apportion.integrations.trl.division import Entry, divided, rows_each
from apportion.integrations.trl.generation import Ids, Reused, Round, Sampled, Update
from apportion.integrations.trl.metrics import reward_metrics
from apportion.integrations.trl.ragged import Grouped, weighted
from apportion.integrations.trl.rows import Table
from apportion.integrations.trl.settings import LOSSES, Allocation
from apportion.integrations.trl.voting import Votes
from apportion.loop import collect
from apportion.types import Batch, Counts, Floats, Group, Prompt, Rollout

Orders = Callable[[Round], list[Sampled]]


@dataclass(frozen=True, slots=True)
class Response:
    """A rollout's completion: token ids, text or messages, scores [F] of the reward functions, and where its row is.

    ``place`` counts the rows of its step over all processes; ``row`` is there where a later step may train on it.
    """

    tokens: Ids
    content: Any
    scores: tuple[float, ...]
    place: int
    row: Table | None = None


@dataclass(frozen=True)
class Loss:
    """How TRL makes advantages, by its ``formula``, of reward functions with ``names`` and ``weights`` [F], and a loss.

    ``kind`` is a key of ``LOSSES``; ``ranks`` processes train on ``chunks`` micro-batches each.
    """

    formula: Callable[[Grouped], torch.Tensor]
    names: Sequence[str]
    weights: torch.Tensor
    kind: str
    ranks: int
    chunks: int


@dataclass(frozen=True)
class Trained:
    """A finished batch: its groups, and of all their rollouts advantages [N] and weights [N], 0 outside the loss.

    ``unscored`` are places of rows that no reward function scored: they are in the loss with advantage 0, as in TRL.
    """

    batch: Batch
    groups: Sequence[Group]
    grouped: Grouped
    advantages: Floats
    weights: Floats
    unscored: Sequence[int]


@dataclass
class Director:
    """One batch. ``orders`` has a round carried out by all processes, ``votes`` are there without labels."""

    allocation: Allocation
    loss: Loss
    orders: Orders
    source: FreshRows
    votes: Votes | None = None
    rounds: list[int] = field(default_factory=list)
    spare: int = 0
    sampled: int = 0
    _scores: list[tuple[float, ...]] = field(default_factory=list)
    _unscored: list[tuple[int, int]] = field(default_factory=list)
    _joining: list[Row] = field(default_factory=list)

    def collect(self, rows: Sequence[Row]) -> Trained:
        """Samples what the allocator asks for, beginning with the prompts of ``rows``; advantages and weights."""
        prompts = [self._prompt(row) for row in rows]
        held = {prompt.id for prompt in prompts}
        batch = collect(self.allocation.allocator, prompts, self._sample, source=lambda count: self._fresh(count, held))
        if not self.sampled:
            raise ValueError(
                f"{self.allocation.allocator.name} must plan rollouts for a batch of {len(prompts)} prompts, got none; "
                "raise its budget, or what every prompt gets at the least"
            )
        groups = self.allocation.allocator.groups(batch)
        grouped = self._grouped(groups)
        return Trained(
            batch,
            groups,
            grouped,
            self._advantages(groups, grouped),
            self._weights(groups),
            self._without_score(batch, groups),
        )

    def entries(self, trained: Trained) -> list[Entry]:
        """The rows for the loss, by group, then those without a score."""
        found = []
        rollouts = [(group, i) for group in trained.groups for i in range(len(group.rollouts))]
        for (group, i), advantage, weight in zip(rollouts, trained.advantages, trained.weights, strict=True):
            if not group.keep[i]:
                continue
            rollout, weighted = group.rollouts[i], float(advantage * weight)
            if rollout.step is None:
                found.append(Entry(weighted, place=rollout.completion.place))
            else:
                found.append(Entry(weighted, reused=Reused(rollout.completion.row, bool(group.recompute[i]))))
        return found + [Entry(0.0, place=place) for place in trained.unscored]

    def update(self, trained: Trained) -> Update:
        """The shares of all processes; masked rows do not make the others count less in a mean over rows."""
        entries = self.entries(trained)
        each = rows_each(len(entries), self.loss.ranks, self.loss.chunks)
        batches = self.loss.ranks * self.loss.chunks
        batch_share = max(1.0, batches / len(entries)) if entries else 1.0
        share = {"row": each * self.loss.ranks / max(len(entries), 1), "batch": batch_share, "token": 1.0}
        row_share = share[LOSSES[self.loss.kind][1]] if entries else 1.0
        if row_share != 1.0:
            entries = [Entry(entry.advantage * row_share, entry.place, entry.reused) for entry in entries]
        shares = divided(entries, self.rounds, self.loss.ranks, self.loss.chunks)
        return Update(shares, row_share=row_share, batch_share=batch_share)

    def reward_metrics(self, trained: Trained) -> dict[str, float]:
        """TRL's reward metrics over all rows of the batch, where those that it logged itself are not that.

        Without labels those of the rewards that the votes gave, too.
        """
        found = {}
        if len(self.rounds) > 1 or self.spare:
            found = reward_metrics(torch.tensor(self._scores, dtype=torch.float32), self.loss.names, self.loss.weights)
        if self.votes is not None:
            found |= reward_metrics(trained.grouped.scores, [self.allocation.pseudo_name], trained.grouped.weights)
        return found

    def columns(self, trained: Trained) -> dict[str, list[float]]:
        """What TRL's table of completions shows of every row: its advantage, 0 outside its group, and pseudo-reward."""
        advantages, rewards = [0.0] * self.sampled, [math.nan] * self.sampled
        rollouts = [rollout for group in trained.groups for rollout in group.rollouts]
        for rollout, advantage in zip(rollouts, trained.advantages, strict=True):
            if rollout.step is None:
                advantages[rollout.completion.place] = float(advantage)
                rewards[rollout.completion.place] = float(rollout.reward or 0.0)
        return {"advantages": advantages} | ({} if self.votes is None else {self.allocation.pseudo_name: rewards})

    def _sample(self, prompts: Sequence[Prompt], counts: Counts) -> list[list[Rollout]]:
        """A round of all processes: the sampler of ``collect``."""
        places = np.repeat(np.arange(len(prompts)), counts).tolist()
        spare = -len(places) % self.loss.ranks
        order = Round([*places, *[places[-1]] * spare], tuple(self._joining))
        self._joining.clear()
        start, sampled = self.sampled, self.orders(order)[: len(places)]
        self.rounds.append(len(order.places))
        self.spare += spare
        self.sampled += len(order.places)
        self._scores += [each.scores for each in sampled]
        found: list[list[Rollout]] = [[] for _ in prompts]
        for i, (place, rollout) in enumerate(zip(places, self._rollouts(places, sampled, start), strict=True)):
            if rollout is None:
                self._unscored.append((place, start + i))
            else:
                found[place].append(rollout)
        return found

    def _rollouts(self, places: Sequence[int], sampled: Sequence[Sampled], start: int) -> list[Rollout | None]:
        """What was ``sampled`` as rollouts, the first the row ``start`` of the step; None where nothing scored it."""
        responses = [Response(s.ids, s.completion, s.scores, start + i, s.row) for i, s in enumerate(sampled)]
        if self.votes is not None:
            answers = self.votes.cast(places, [last_text(each.completion) for each in sampled])
            return [
                Rollout(answer=answer, completion=response, tokens=each.tokens, score_norm=each.score_norm)
                for answer, response, each in zip(answers, responses, sampled, strict=True)
            ]
        scores = torch.tensor([each.scores for each in sampled], dtype=torch.float32)
        rewards, verdicts = weighted(scores, self.loss.weights).tolist(), self._verdicts(scores)
        return [
            None
            if math.isnan(reward)
            else Rollout(verdict, None, reward, response, tokens=each.tokens, score_norm=each.score_norm)
            for verdict, reward, response, each in zip(verdicts, rewards, responses, sampled, strict=True)
        ]

    def _verdicts(self, scores: torch.Tensor) -> list[bool | None]:
        """Whether rollouts with ``scores`` [N, F] are right; None where nothing says so.

        Without a named verdict a single reward function says so whose rewards are all 0 or 1. Raises ValueError where
        they are not, and the rule needs to know.
        """
        named = self.allocation.verdict
        if named is None and len(self.loss.names) > 1:
            return [None] * len(scores)
        column = scores[:, 0 if named is None else self.loss.names.index(named)]
        graded = [score for score in column.tolist() if score not in (0.0, 1.0) and not math.isnan(score)]
        if named is None and graded:
            if self.allocation.needs_binary:
                raise ValueError(
                    f"rewards must be 0 or 1 for {self.allocation.allocator.name}, which counts correct rollouts, got "
                    f"{graded[0]}; set verdict={self.loss.names[0]!r} if rewards above 0 are right, or take an "
                    "allocator or predictor for graded rewards"
                )
            return [None] * len(scores)
        return [None if math.isnan(score) else score > 0 for score in column.tolist()]

    def _fresh(self, count: int, held: set[str]) -> list[Prompt]:
        rows = distinct(self.source, count, held, lambda row: self._prompt(row).id)
        self._joining.extend(rows)
        prompts = [self._prompt(row) for row in rows]
        held.update(prompt.id for prompt in prompts)
        return prompts

    def _prompt(self, row: Row) -> Prompt:
        return prompt_of(row, self.allocation.id_column)

    def _grouped(self, groups: Sequence[Group]) -> Grouped:
        """The groups as TRL's formulas take them; without labels the votes are the only reward function."""
        sizes = torch.tensor([len(group.rollouts) for group in groups], dtype=torch.long)
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        if self.votes is not None:
            rewards = torch.tensor([rollout.reward for rollout in rollouts], dtype=torch.float32)
            return Grouped(rewards.unsqueeze(1), sizes, torch.ones(1))
        scores = torch.tensor([rollout.completion.scores for rollout in rollouts], dtype=torch.float32)
        return Grouped(scores.view(len(rollouts), len(self.loss.names)), sizes, self.loss.weights)

    def _advantages(self, groups: Sequence[Group], grouped: Grouped) -> Floats:
        if not groups:
            return np.zeros(0)
        estimator, baseline = self.allocation.estimator, self.allocation.baseline
        if estimator is None:
            return self.loss.formula(grouped).double().numpy()
        expected = None if baseline is None else baseline.predict([group.prompt for group in groups])
        return advantages_of(groups, estimator, baseline=expected)

    def _weights(self, groups: Sequence[Group]) -> Floats:
        """Weights of all rollouts of the groups; of those outside the loss 0."""
        keep = np.concatenate([np.zeros(0, bool), *(group.keep for group in groups)])
        sizes = np.array([len(group.rollouts) for group in groups], np.int64)
        owner = np.repeat(np.arange(len(groups)), sizes)
        tokens = np.array([rollout.tokens for group in groups for rollout in group.rollouts], np.float64)
        reduction = LOSSES[self.loss.kind][0]
        weights = np.zeros(len(keep))
        weights[keep] = rollout_weights(owner[keep], self.allocation.weighting, tokens[keep], reduction=reduction)
        return weights

    def _without_score(self, batch: Batch, groups: Sequence[Group]) -> list[int]:
        """Rows that no function scored, but for those of prompts that the allocator left out."""
        grouped = {group.prompt.id for group in groups}
        return [
            place
            for prompt, place in self._unscored
            if batch.prompts[prompt].id in grouped or not batch.rollouts[prompt]
        ]
