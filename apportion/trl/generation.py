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
from apportion.trl.advantages import without_failures
from apportion.trl.metrics import Logged, whole_columns
from apportion.trl.ranks import MainRankError
from apportion.trl.replaced import replaced
from apportion.trl.rewards import score
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
from apportion.trl.shares import Share
from apportion.trl.sleep import SleepMode
from apportion.trl.stopwatch import Stopwatch
from apportion.trl.unsloth import KEY, aligned, windowed
from apportion.types import Rollout

Ids = NDArray[np.int32]
SCALES = ("row_scale", "batch_scale")
"""Keys of a micro-batch with factors for coefficients of the loss, see ``TrainingBatch``."""
OWN_BATCHING = ("use_vllm", "use_transformers_continuous_batching", "use_transformers_paged")
"""Settings of TRL under which the engine that generates bounds its memory, however many completions it is asked for."""
PROBABILITY_KEYS = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
"""The columns that log-probabilities of completions are computed from."""
LOGPROB_KEYS = ("old_per_token_logps", "sampling_per_token_logps")
"""Columns of log-probabilities [N, T] at sampling, the model's and vLLM's. TRL has them for some configurations."""


@dataclass(frozen=True, slots=True)
class Response:
    """A rollout's completion: token ids, text or messages, and scores [F] of the reward functions.

    ``place`` is the index of its row among all rows of the step, and ``at`` its rank and the index on this rank.
    ``row`` is set if a later step may train on it. ``content`` is None in a response that version 0.3.0 saved.
    ``penalty`` is what RLOO subtracted from the reward in the step that sampled it.
    """

    tokens: Ids
    content: Any
    scores: tuple[float, ...]
    place: int
    row: Table | None = None
    penalty: float = 0.0
    at: tuple[int, int] = (0, 0)

    def for_reuse(self) -> Self:
        """Return what a later step needs, with the row in less memory."""
        return self if self.row is None else replace(self, row=pack_row(self.row))


@dataclass(frozen=True)
class TrainingBatch:
    """The finished batch: what each rank trains on, and what all ranks log.

    ``columns`` hold one value for each sampled row. ``row_scale`` is all rows / unmasked rows if the loss is a mean
    over rows, else 1. ``batch_scale`` is all micro-batches / micro-batches with an unmasked row.
    """

    shares: Sequence[Share]
    metrics: dict[str, float] = field(default_factory=dict)
    columns: dict[str, list[float]] = field(default_factory=dict)
    row_scale: float = 1.0
    batch_scale: float = 1.0


class GenerationBatch:
    """The rounds so far on this rank.

    ``generate`` and ``calculate`` are TRL's own ``_generate_and_score_completions`` and ``_calculate_rewards`` of the
    ``trainer``. ``running`` is true while the other ranks are inside a round and expect no message. ``group_metrics``
    are means of what functions of whole groups logged.
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

    @property
    def rounds(self) -> list[int]:
        """The numbers of rows of the calls of TRL so far."""
        return [rows for _, rows in self.logged]

    def add_prompts(self, inputs: Sequence[Row], num_generations: int) -> None:
        """Collect the prompts of the batch: those that the selection chooses, or those of TRL's loader.

        The loader repeats each ``num_generations`` times over all ranks. Under a selection it sets only the pace.
        """
        if (selection := self.allocation.selection) is not None:
            count, source = self.allocation.prompts(self.trainer.args), self.trainer._fresh
            self.rows.extend(self.ranks.run_on_main(lambda: source.at(selection.choose(count))))
            return
        start = self.ranks.rank * len(inputs)
        for i in range(1, len(inputs)):
            if (start + i) % num_generations and inputs[i].get("prompt") != inputs[i - 1].get("prompt"):
                raise ValueError(
                    f"the loader must repeat every prompt {num_generations} times in a row, as TRL's does, got two "
                    "prompts in one group; leave get_train_dataloader and _get_train_sampler to TRL"
                )
        firsts = [row for place, row in enumerate(inputs, start) if place % num_generations == 0]
        self.rows.extend(self.ranks.all_gather(firsts))

    def ask(self, work: Callable[..., Any], *given: Any) -> Any:
        """Have all ranks call ``work``, a method of this class, and return what it gives here. Only rank 0 calls it."""
        self.ranks.broadcast((work, given))
        return self._run(work, given)

    def follow(self) -> TrainingBatch:
        """Run what rank 0 asks for, and return its training batch. Raises MainRankError if rank 0 failed."""
        message: Any
        while isinstance(message := self.ranks.broadcast(), tuple):
            self._run(*message)
        if isinstance(message, MainRankError):
            raise message
        return message

    def _run(self, work: Callable[..., Any], given: Sequence[Any]) -> Any:
        self.running = True
        found = work(self, *given)
        self.running = False
        return found

    def sample(self, places: Sequence[int], fresh: Sequence[Row]) -> list[Rollout]:
        """Return a rollout for the prompt at each of ``places``, after ``fresh`` prompts joined: a round of all ranks.

        The number of places is a multiple of that of ranks. One call of TRL generates no more than TRL's own batch has,
        unless the engine bounds its memory itself.
        """
        self.rows.extend(fresh)
        rank, each = self.ranks.rank, len(places) // self.ranks.size
        own, most = places[rank * each : (rank + 1) * each], self.trainer.args.generation_batch_size // self.ranks.size
        if any(getattr(self.trainer, name, False) for name in OWN_BATCHING):
            most = each
        self.stopwatch.begin(len(places))
        parts = [own[first : first + most] for first in range(0, each, most)]
        return self.ranks.all_gather([rollout for part in parts for rollout in self._part(part)])

    def _part(self, places: Sequence[int]) -> list[Rollout]:
        """Return the rollouts of this rank for the prompts at ``places`` [N], by one call of TRL. All ranks have N."""
        rank, before, each = self.ranks.rank, sum(self.rounds), len(places)
        inputs = [copy.deepcopy(self.rows[place]) for place in places]
        trainer, logged = self.trainer, defaultdict[str, list[float]](list)
        metrics = trainer._metrics | {"train": logged}
        with (
            replaced(trainer, num_generations=1, _metrics=metrics, **self._noted_methods()),
            self.stopwatch.call(),
            self.sleep.round(getattr(trainer, "vllm_generation", None)),
            whole_columns(trainer._logs),
        ):
            output = self.generate(inputs)
        scores, completions, ids = self._scored
        self._windowed = KEY in output
        table = make_table(output)
        penalties = self._penalties(table)
        if self.needs.behaviour_logprobs and "old_logps" not in table and "old_per_token_logps" not in table:
            table["old_per_token_logps"] = self.log_probabilities(table)
        self._tables.append(table)
        self.logged.append((logged, each * self.ranks.size))
        kept = split_table(table) if self.needs.reused_rollouts else [None] * each
        tokens = [np.array(of_row, np.int32) for of_row in ids]
        given, first = map(tuple, scores.tolist()[rank * each :]), before + rank * each
        locations = [(rank, before // self.ranks.size + i) for i in range(each)]
        responses = map(Response, tokens, completions, given, range(first, first + each), kept, penalties, locations)
        ends = {*getattr(trainer, "eos_token_ids", ()), getattr(trainer, "eos_token_id", None), self.pad_token}
        cut = [of_row[-1] not in ends for of_row in ids]  # as TRL counts it
        columns = zip(responses, policy_tokens(table, ids), self._score_norms(table), cut, strict=True)
        return [Rollout(completion=c, tokens=n, score_norm=norm, truncated=is_cut) for c, n, norm, is_cut in columns]

    def _noted_methods(self) -> dict[str, Callable[..., Any]]:
        """Return methods of TRL for a round, which also note what TRL does in it.

        They note times, the scores [N, F] of all ranks with the completions and token ids of this rank, and
        log-probabilities [N, T]: the policy's first, then the reference's.
        """
        trainer, functions = self.trainer, self.allocation.functions_of_rounds(self.trainer.reward_func_names)
        generate, log_probabilities = trainer._generate, trainer._get_per_token_logps_and_entropies
        self._logprobs = list[Tensor]()

        def timed(prompts: list[Any]) -> Any:
            with self.stopwatch.part("generate"):
                return generate(prompts)

        def kept(*args: Any, **settings: Any) -> Any:
            found = log_probabilities(*args, **settings)
            self._logprobs.append(found[0])
            return found

        def read(*columns: Any) -> Tensor:
            with self.stopwatch.part("reward"):
                scores = score(trainer, self.calculate, columns, functions)
            self._scored = scores, *columns[2:]
            return without_failures(scores)

        return {"_generate": timed, "_calculate_rewards": read, "_get_per_token_logps_and_entropies": kept}

    def score_groups(self, places: Sequence[int], groups: Sequence[Sequence[Response]]) -> list[Tensor]:
        """Return scores [G, F] of the finished group of the prompt at each of ``places``, in the order of its sampling.

        An allocator may sample a group in several rounds. With ``whole_groups`` a reward function is called when it has
        finished, on the first rank only, but TRL gathers the scores of all. Functions that scored the rounds give 0.
        Columns that functions log are dropped, because TRL's table has its rows already.
        """
        trainer, names, found = self.trainer, self.trainer.reward_func_names, []
        in_rounds = self.allocation.functions_of_rounds(names)
        called = set(range(len(names))) - set(in_rounds) if self.ranks.is_main else ()
        with self.stopwatch.part("reward"):
            for place, group in zip(places, groups, strict=True):
                rows = [self.rows[place]] * len(group)
                contents, ids = [each.content for each in group], [each.tokens.tolist() for each in group]
                given = rows, [row["prompt"] for row in rows], contents, ids
                scores = score(trainer, self.calculate, given, called, whole=True)
                found.append(scores[: len(group)].cpu())
                trainer._pending_extra_logs.clear()
        self.group_metrics = {name: sum(own) / len(own) for name, own in trainer._pending_metrics.items()}
        trainer._pending_metrics.clear()  # TRL would log them with the next batch
        return found

    def training_rows(self, batch: TrainingBatch) -> dict[str, Any]:
        """Return the rows that this rank trains on, in the format of TRL's method."""
        device = self.trainer.accelerator.device
        rank, table = self.ranks.rank, concatenate(self._tables, self.pad_token)
        share = batch.shares[rank]
        moved = [at for other, each in enumerate(batch.shares) for at in each.places if other != at[0] == rank]
        sent = dict(self.ranks.all_gather([(at, to_device(select(table, [at[1]]), "cpu")) for at in moved]))
        own = [at[1] for at in share.places if at not in sent]
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
        policy, reference = self._logprobs
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
