"""One generation batch on one rank: rounds of TRL's own generation and scoring, then the rows for the loss.

Every rank has a ``GenerationBatch`` and runs the rounds that rank 0 requests. A round is one call of TRL's
``_generate_and_score_completions`` in which each row is a group of its own, so that a prompt may have any number of
rows. The advantages of 0 that TRL gives to groups of one, and its metrics of groups, are replaced at the end.
"""

import copy
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apportion.advantages import Reduction
from apportion.engines.fresh_rows import Row
from apportion.predictors.score_norms import sampled_score_norm
from apportion.trl.metrics import Logged, whole_columns
from apportion.trl.ranks import MainRankError
from apportion.trl.replaced import replaced
from apportion.trl.rewards import called_functions, score
from apportion.trl.rows import (
    Table,
    concatenate,
    loss_mask,
    make_table,
    masked_rows,
    pack_row,
    policy_tokens,
    select,
    sequences,
    split_table,
    to_device,
    unpack_row,
)
from apportion.trl.shares import Share, row_locations
from apportion.trl.sleep import SleepMode
from apportion.trl.stopwatch import Stopwatch
from apportion.trl.unsloth import KEY, aligned, windowed
from apportion.types import Rollout

Ids = NDArray[np.int32]
SCALES = ("row_scale", "batch_scale")
"""Keys of a micro-batch with factors for coefficients of the loss, see ``TrainingBatch``."""
PROBABILITY_KEYS = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
"""The columns that log-probabilities of completions are computed from."""
LOGPROB_KEYS = ("old_per_token_logps", "sampling_per_token_logps")
"""Columns of log-probabilities [N, T] at sampling, the model's and vLLM's. TRL has them for some configurations."""


@dataclass(frozen=True)
class RoundRequest:
    """What to generate next: one completion for the prompt at each of ``places`` [N], after ``fresh`` prompts joined.

    N is a multiple of the number of ranks. ``continues`` says whether this is a further part of the allocator's round
    of the request before.
    """

    places: Sequence[int]
    fresh: Sequence[Row] = ()
    continues: bool = False


@dataclass(frozen=True)
class GroupsRequest:
    """Score the finished groups of the prompts at ``places`` [P], of ``sizes`` [P] completions.

    An allocator may sample a group in several rounds. With ``whole_groups`` a reward function is called when it has
    finished, with all completions of one prompt, in the order in which they were sampled.
    """

    places: Sequence[int]
    sizes: Sequence[int]


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
class TrainingBatch:
    """The finished batch: what each rank trains on, and what all ranks log.

    ``columns`` hold one value for each sampled row. ``row_scale`` is all rows / unmasked rows if the loss is a mean
    over rows, else 1. ``batch_scale`` is all micro-batches / micro-batches with an unmasked row.
    """

    shares: Sequence[Share]
    metrics: dict[str, float] = field(default_factory=dict)
    columns: dict[str, Sequence[float]] = field(default_factory=dict)
    row_scale: float = 1.0
    batch_scale: float = 1.0


class GenerationBatch:
    """The rounds so far on this rank.

    ``generate`` and ``calculate`` are TRL's own ``_generate_and_score_completions`` and ``_calculate_rewards`` of the
    ``trainer``. ``running`` is true while the other ranks are inside a round and expect no message. The overrides of
    TRL's methods put what it made in this round into ``scored``: scores [N, F] of all ranks, completions and token ids
    of this rank; and into ``logprobs`` [N, T]: the policy's first, then the reference's. ``group_metrics`` are means of
    what functions of whole groups logged.
    """

    def __init__(self, trainer: Any, generate: Callable[..., Any], calculate: Callable[..., Tensor]) -> None:
        self.trainer, self.generate, self.calculate = trainer, generate, calculate
        self.allocation, self.ranks = trainer.allocation, trainer._ranks
        self.needs = self.allocation.allocator.needs
        tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
        self.pad_token = tokenizer.pad_token_id
        self.sleep = SleepMode(several=not self.allocation.allocator.one_round)
        self.rows: list[Row] = []
        self.logged, self.stopwatch = list[tuple[Logged, int]](), Stopwatch()
        self.running = self._windowed = False
        self._tables: list[Table] = []
        self.group_metrics: dict[str, float] = {}
        self.scored: tuple[Tensor, Sequence[Any], Sequence[Sequence[int]]] | None = None
        self.logprobs: list[Tensor] = []

    @property
    def rounds(self) -> list[int]:
        """The numbers of rows of the rounds so far."""
        return [rows for _, rows in self.logged]

    def add_prompts(self, inputs: Sequence[Row], num_generations: int) -> None:
        """Collect the prompts of the batch. TRL's loader repeats each ``num_generations`` times over all ranks."""
        start = self.ranks.rank * len(inputs)
        for i in range(1, len(inputs)):
            if (start + i) % num_generations and inputs[i].get("prompt") != inputs[i - 1].get("prompt"):
                raise ValueError(
                    f"the loader must repeat every prompt {num_generations} times in a row, as TRL's does, got two "
                    "prompts in one group; leave get_train_dataloader and _get_train_sampler to TRL"
                )
        firsts = [row for place, row in enumerate(inputs, start) if place % num_generations == 0]
        self.rows.extend(self.ranks.all_gather(firsts))

    def ask(self, request: RoundRequest | GroupsRequest, groups: Sequence[Sequence[Rollout]] | None = None) -> Any:
        """Have all ranks run ``request``, and return what it gives. Only rank 0 calls it, with the finished groups."""
        self.ranks.broadcast(request)
        return self._run(request, groups)

    def follow(self) -> TrainingBatch:
        """Run what rank 0 asks for, and return its training batch. Raises MainRankError if rank 0 failed."""
        while not isinstance(message := self.ranks.broadcast(), TrainingBatch):
            if isinstance(message, str):
                raise MainRankError(f"rank 0 failed in this batch: {message}")
            self._run(message, None)
        return message

    def _run(self, request: RoundRequest | GroupsRequest, groups: Sequence[Sequence[Rollout]] | None) -> Any:
        self.running = True
        found = self._round(request) if isinstance(request, RoundRequest) else self._score_groups(request, groups)
        self.running = False
        return found

    def _round(self, request: RoundRequest) -> list[Rollout]:
        """Run one round. Return the rollouts of all ranks, in the order of ``request.places``."""
        self.rows.extend(request.fresh)
        each, before = len(request.places) // self.ranks.size, sum(self.rounds)
        mine = slice(self.ranks.rank * each, (self.ranks.rank + 1) * each)
        inputs = [copy.deepcopy(self.rows[place]) for place in request.places[mine]]
        self.logprobs.clear()
        trainer, logged = self.trainer, defaultdict[str, list[float]](list)
        with (
            replaced(trainer, num_generations=1, _metrics=trainer._metrics | {"train": logged}),
            self.stopwatch.round(len(request.places), continues=request.continues),
            self.sleep.round(getattr(trainer, "vllm_generation", None)),
            whole_columns(trainer._logs),
        ):
            output = self.generate(inputs)
        if self.scored is None:
            raise RuntimeError("TRL must score completions in _calculate_rewards; check that its version is supported")
        (scores, completions, ids), self.scored = self.scored, None
        self._windowed = KEY in output
        table = make_table(output)
        penalties = self._penalties(table)
        if self.needs.behaviour_logprobs and "old_logps" not in table and "old_per_token_logps" not in table:
            table["old_per_token_logps"] = self.log_probabilities(table)
        self._tables.append(table)
        self.logged.append((logged, len(request.places)))
        kept = split_table(table) if self.needs.reused_rollouts else [None] * each
        tokens = [np.array(of_row, np.int32) for of_row in ids]
        given, places = map(tuple, scores[mine].tolist()), range(before + mine.start, before + mine.stop)
        responses = map(Response, tokens, completions, given, places, kept, penalties)
        ends = {*getattr(trainer, "eos_token_ids", ()), getattr(trainer, "eos_token_id", None), self.pad_token}
        cut = [of_row[-1] not in ends for of_row in ids]  # as TRL counts it
        columns = (responses, policy_tokens(table, ids), self._score_norms(table), cut)
        rollouts = [
            Rollout(completion=each, tokens=number, score_norm=norm, truncated=is_cut)
            for each, number, norm, is_cut in zip(*columns, strict=True)
        ]
        return self.ranks.all_gather(rollouts)

    def _score_groups(self, request: GroupsRequest, groups: Sequence[Sequence[Rollout]] | None) -> list[Tensor]:
        """Return scores [G, F] of each finished group, with 0 for functions that scored the rounds.

        Other ranks than 0, which have no ``groups``, call no reward function, but TRL gathers their scores. Columns
        that functions log are dropped, because TRL's table has its rows already.
        """
        trainer, found = self.trainer, []
        names = trainer.reward_func_names
        columns = set(range(len(names))) - set(self.allocation.functions_of_rounds(names))
        with self.stopwatch.part("reward"), called_functions(trainer, columns if groups is not None else ()):
            for i, (place, size) in enumerate(zip(request.places, request.sizes, strict=True)):
                inputs = [copy.deepcopy(self.rows[place]) for _ in range(size)]
                prompts = [row["prompt"] for row in inputs]
                contents, ids = [""] * size, [[0]] * size
                if groups is not None:
                    contents = [rollout.completion.content for rollout in groups[i]]
                    ids = [rollout.completion.tokens.tolist() for rollout in groups[i]]
                given, allowed = (inputs, prompts, contents, ids), self.allocation.failures
                scores = score(trainer, self.calculate, given, allowed=allowed, verdict=None, whole=True)
                found.append(scores[:size].cpu())
                trainer._pending_extra_logs.clear()
        self.group_metrics = {name: sum(own) / len(own) for name, own in trainer._pending_metrics.items()}
        trainer._pending_metrics.clear()  # TRL would log them with the next batch
        return found

    def training_rows(self, batch: TrainingBatch) -> dict[str, Any]:
        """Return the rows that this rank trains on, in the format of TRL's method."""
        device = self.trainer.accelerator.device
        share, table = batch.shares[self.ranks.rank], concatenate(self._tables, self.pad_token)
        locations = row_locations(self.rounds, self.ranks.size)
        moved = [at for rank, each in enumerate(batch.shares) for at in each.places if locations[at][0] != rank]
        sent: dict[int, Table] = {}
        if moved:
            mine = [(at, locations[at][1]) for at in moved if locations[at][0] == self.ranks.rank]
            sent = dict(self.ranks.all_gather([(at, to_device(select(table, [i]), "cpu")) for at, i in mine]))
        own = [locations[at][1] for at in share.places if at not in sent]
        parts = [select(table, own)] if own else []
        parts += [to_device(sent[at], device) for at in share.places if at in sent]
        parts += self._reused(batch, table)
        if share.padding:
            parts.append(masked_rows(table, share.padding))
        whole = concatenate(parts, self.pad_token)
        tokens = self.trainer.accelerator.gather(loss_mask(whole).sum()).sum()
        if self._windowed:
            whole = windowed(whole, self.pad_token)
        advantages = [row.advantage for row in share.rows] + [0.0] * share.padding
        return {
            **whole,
            "advantages": torch.tensor(advantages, dtype=torch.float32, device=device),
            "num_items_in_batch": tokens.clamp(min=1),  # some versions of TRL divide by it unguarded
            **{key: torch.tensor(scale, device=device) for key in SCALES if (scale := getattr(batch, key)) != 1.0},
        }

    def log_probabilities(self, table: Table) -> Tensor:
        """Return log-probabilities [N, T] of the completions under the current policy."""
        trainer, width = self.trainer, table["completion_ids"].size(1)
        batch_size = trainer.args.per_device_train_batch_size
        with torch.no_grad():
            found = trainer._get_per_token_logps_and_entropies(trainer.model, *sequences(table), width, batch_size)[0]
        return aligned(found, table["prompt_mask"], width)

    def _penalties(self, table: Table) -> list[float]:
        """Return what RLOO subtracts from the rewards [N] of this round, by TRL's formula; zeros without ``beta``."""
        if not (beta := self.trainer._reward_beta):
            return [0.0] * len(table["completion_ids"])
        if len(self.logprobs) != 2:
            raise RuntimeError(
                "TRL must compute the policy's and the reference's log-probabilities in each round, got "
                f"{len(self.logprobs)} results; check that its version is supported"
            )
        policy, reference = self.logprobs
        self.logprobs.clear()
        divergence = ((policy - reference) * table["completion_mask"]).sum(-1)
        return (beta * divergence).tolist()

    def _score_norms(self, table: Table) -> Sequence[float | None]:
        """Return score norms [N], by one more forward pass if TRL made none; None if nothing learns from them.

        TRL has nan for a token that vLLM gave no log-probability; it adds 0, as if it were certain.
        """
        reduction = self.allocation.norm_reduction(self.trainer._loss)
        if reduction is None:
            return [None] * len(table["completion_ids"])
        known = next((table[key] for key in LOGPROB_KEYS if key in table), None)
        logprobs = self.log_probabilities(table) if known is None else known.nan_to_num(0.0)
        return score_norms(table, logprobs, reduction)

    def _reused(self, batch: TrainingBatch, table: Table) -> list[Table]:
        """Return this rank's rows of earlier steps, with the keys of this step's ``table``.

        If any rank must recompute log-probabilities, all ranks run the model on equally many rows, because a sharded
        model needs all of them.
        """
        device = self.trainer.accelerator.device
        reused = batch.shares[self.ranks.rank].reused
        rows = [unpack_row(to_device(each.row, device), table) for each in reused]
        stale = [row for row, each in zip(rows, reused, strict=True) if each.recompute]
        most = max(sum(each.recompute for each in share.reused) for share in batch.shares)
        if most and not {"old_per_token_logps", "old_logps"}.isdisjoint(table):
            self._recompute(stale, most, table)
        return [_with_keys_of(table, row) for row in rows]

    def _recompute(self, stale: list[Table], most: int, table: Table) -> None:
        """Give the ``stale`` rows log-probabilities under the current policy. ``most`` is the maximum over ranks."""
        filling = [masked_rows(table, most - len(stale))] if len(stale) < most else []
        inputs = [{key: part[key] for key in PROBABILITY_KEYS} for part in [*stale, *filling]]
        found = self.log_probabilities(concatenate(inputs, self.pad_token))
        for row, logps in zip(stale, found, strict=False):
            logps = logps[None, : row["completion_ids"].size(1)]
            if "old_per_token_logps" in table:
                row["old_per_token_logps"] = logps
            if "old_logps" in table:
                row["old_logps"] = (logps * row["completion_mask"]).sum(1)
            if "importance_sampling_ratio" in table:
                row["importance_sampling_ratio"] = torch.ones_like(row["importance_sampling_ratio"])


def score_norms(table: Table, logprobs: Tensor, reduction: Reduction) -> list[float]:
    """Return score norms [N] of the tokens in the loss, with ``logprobs`` [N, T], by its ``reduction`` over a row."""
    pairs = zip(logprobs.double().cpu().numpy(), loss_mask(table).bool().cpu().numpy(), strict=True)
    return [sampled_score_norm(row[own], reduction) for row, own in pairs]


def _with_keys_of(table: Table, row: Table) -> Table:
    """Return a row of an earlier step with only the keys of ``table``. Raises ValueError if it lacks one."""
    missing = sorted(table.keys() - row.keys())
    if missing:
        raise ValueError(
            f"rows of earlier steps must have all columns of this step's loss, got one without {missing[0]}; resume "
            "with the beta, num_iterations, steps_per_generation and vLLM settings that the run began with"
        )
    return {key: row[key] for key in table}
