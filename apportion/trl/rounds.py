"""Rounds of TRL's own generation and scoring: the sampler of one generation batch.

Rank 0 decides, and all ranks run the rounds that it asks for. A round is one call of TRL's
``_generate_and_score_completions`` in which each row is a group of its own, so that a prompt may have any number of
rows. The advantages of 0 that TRL gives to groups of one, and its metrics of groups, are replaced at the end.

The size of a round is a multiple of the number of ranks. Surplus completions beyond the plan are sampled, counted and
dropped. The allocator and the loss see exactly the planned ones, whatever the number of ranks.
"""

import copy
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apportion.advantages import Reduction
from apportion.engines.fresh_rows import Row
from apportion.engines.prompts import last_text
from apportion.predictors.score_norms import sampled_score_norm
from apportion.trl.advantages import without_failures
from apportion.trl.metrics import Logs, empty_table
from apportion.trl.ranks import MainRankError
from apportion.trl.replaced import replaced
from apportion.trl.rewards import scores_of
from apportion.trl.rows import Table, loss_mask, make_table, pack_row, policy_tokens, sequences, split_table
from apportion.trl.stopwatch import Stopwatch
from apportion.trl.unsloth import aligned
from apportion.trl.votes import Votes
from apportion.types import Counts, Prompt, Rollout

T = TypeVar("T")
OWN_BATCHING = ("use_vllm", "use_transformers_continuous_batching", "use_transformers_paged")
"""Settings of TRL with which the generating engine bounds its own memory, for any number of completions."""
LOGPROB_KEYS = ("old_per_token_logps", "sampling_per_token_logps")
"""Columns with log-probabilities [N, T] at sampling, by the model and by vLLM. TRL has them in some configurations."""


@dataclass(frozen=True, slots=True)
class Response:
    """A rollout's completion: token ids, text or messages, and scores [F] of the reward functions.

    ``place`` is the index of its row among all rows of the step, and ``at`` its rank and the index on this rank.
    ``row`` is set if a later step may train on it. ``content`` is None in a response that version 0.3.0 saved.
    ``penalty`` is what RLOO subtracted from the reward in the step that sampled it.
    """

    tokens: NDArray[np.int32]
    content: Any
    scores: tuple[float, ...]
    place: int
    row: Table | None = None
    penalty: float = 0.0
    at: tuple[int, int] = (0, 0)

    def for_reuse(self) -> Self:
        """Return the part of the response that a later step needs, with the row in less memory."""
        return self if self.row is None else replace(self, row=pack_row(self.row))


class Rounds:
    """The rounds of one generation batch so far.

    ``generate`` and ``calculate`` are TRL's own ``_generate_and_score_completions`` and ``_calculate_rewards`` of the
    ``trainer``. Each rank has the ``tables`` of its own rows. Rank 0 alone has the ``rows`` of the data set by prompt,
    and the ``scores`` of planned completions in the order of sampling. ``group_metrics`` are means of what functions of
    whole groups logged.
    """

    def __init__(self, trainer: Any, generate: Callable[..., Any], calculate: Callable[..., Tensor]) -> None:
        self.trainer, self.generate, self.calculate = trainer, generate, calculate
        self.allocation, self.ranks, self.rewards = trainer.allocation, trainer._ranks, trainer._rewards
        tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
        self.pad_token = tokenizer.pad_token_id
        self.tables, self.rows, self.scores = list[Table](), list[Row](), list[tuple[float, ...]]()
        self.logged, self.stopwatch = list[Logs](), Stopwatch()
        self.surplus, self.group_metrics = 0, dict[str, float]()
        self._votes = Votes(trainer._answers) if self.allocation.label_free else None
        self._running = False
        """Whether the other ranks are inside a round, where they expect no message."""

    def led(self, lead: Callable[[], T]) -> T:
        """Return rank 0's result of ``lead`` on all ranks. The other ranks run the rounds that it asks for.

        An error of rank 0 between two rounds is raised on the others as MainRankError.
        """
        if not self.ranks.is_main:
            message: Any
            while isinstance(message := self.ranks.broadcast(), tuple):
                self._run(*message)
            if isinstance(message, MainRankError):
                raise message
            return message
        try:
            found = lead()
        except Exception as error:
            if not self._running:
                failed = MainRankError(f"rank 0 failed in this batch: {type(error).__name__}: {error}")
                self.ranks.broadcast(failed)
            raise
        return self.ranks.broadcast(found)

    def sample(self, prompts: Sequence[Prompt], counts: Counts) -> list[list[Rollout]]:
        """Run a round on all ranks and return its rollouts by prompt, as the sampler of ``collect``.

        A rollout without a reward is left out. Raises RewardsFailedError if too many have none.
        """
        places = np.repeat(np.arange(len(prompts)), counts).tolist()
        surplus = -len(places) % self.ranks.size
        self.surplus += surplus
        asked = [self.rows[place] for place in (*places, *places[-1:] * surplus)]
        sampled: list[Rollout] = self._ask(Rounds._round, asked)[: len(places)]
        self.scores += [each.completion.scores for each in sampled]
        judged: Sequence[Rollout | None] = sampled
        if self._votes is not None:
            answers = self._votes.read(places, [last_text(each.completion.content) for each in sampled])
            judged = [replace(each, answer=answer) for each, answer in zip(sampled, answers, strict=True)]
        elif self.allocation.functions_of_rounds(self.rewards.names):
            judged = self.rewards.judge(sampled, [prompts[place].text for place in places])
        found: list[list[Rollout]] = [[] for _ in prompts]
        for place, rollout in zip(places, judged, strict=True):
            if rollout is not None:
                found[place].append(rollout)
        return found

    def score_groups(self, groups: Sequence[tuple[Row, Sequence[Rollout]]]) -> list[list[Rollout]]:
        """Return the rollouts of each finished group with the scores of its functions.

        A group has the row of its prompt, and its rollouts in the order of sampling.
        """
        scored: list[list[Rollout]] = self._ask(Rounds._score_groups, groups)
        self.scores = [each.completion.scores for own in scored for each in own]
        return scored

    def _ask(self, work: Callable[..., Any], given: Any) -> Any:
        """Have all ranks call ``work``, a method of this class, and return what it gives here. Only rank 0 calls it."""
        self.ranks.broadcast((work, given))
        return self._run(work, given)

    def _run(self, work: Callable[..., Any], given: Any) -> Any:
        self._running = True
        found = work(self, given)
        self._running = False
        return found

    def _round(self, rows: Sequence[Row]) -> list[Rollout]:
        """Return a rollout for the prompt of each of the ``rows``, a multiple of the number of ranks.

        One call of TRL generates no more than TRL's own batch has, unless the engine bounds its memory itself.
        """
        rank, each = self.ranks.rank, len(rows) // self.ranks.size
        own, most = rows[rank * each : (rank + 1) * each], self.trainer.args.generation_batch_size // self.ranks.size
        if any(getattr(self.trainer, name, False) for name in OWN_BATCHING):
            most = each
        self.stopwatch.begin(len(rows))
        parts = [self._part(own[first : first + most]) for first in range(0, each, most)]
        return self.ranks.all_gather([rollout for part in parts for rollout in part])

    def _part(self, rows: Sequence[Row]) -> list[Rollout]:
        """Return the rollouts of this rank for the prompts of ``rows`` [N], by one call of TRL. All ranks have N."""
        trainer, needs = self.trainer, self.allocation.allocator.needs
        rank, size, before, each = self.ranks.rank, self.ranks.size, sum(own.rows for own in self.logged), len(rows)
        logged = Logs(defaultdict(list), empty_table(trainer._logs), each * size)
        noted = {"_metrics": trainer._metrics | {"train": logged.metrics}, "_logs": logged.table}
        with replaced(trainer, num_generations=1, **noted, **self._noted_methods()), self.stopwatch.within("trl"):
            table = make_table(self.generate(list(map(copy.deepcopy, rows))))
        scores, completions, ids = self._scored
        if needs.behaviour_logprobs and {"old_logps", "old_per_token_logps"}.isdisjoint(table):
            table["old_per_token_logps"] = self.log_probabilities(table)
        self.tables.append(table)
        self.logged.append(logged)
        kept = split_table(table) if needs.reused_rollouts else [None] * each
        ends = {*getattr(trainer, "eos_token_ids", ()), getattr(trainer, "eos_token_id", None), self.pad_token}
        columns = zip(
            ids, completions, scores.tolist()[rank * each :], kept, self._penalties(table), policy_tokens(table, ids),
            self._score_norms(table), strict=False,
        )  # fmt: skip
        first = before + rank * each
        return [
            Rollout(
                completion=Response(
                    np.array(of_row, np.int32), content, tuple(own), first + i, row, penalty, (rank, before // size + i)
                ),
                tokens=tokens,
                score_norm=norm,
                truncated=of_row[-1] not in ends,  # as TRL counts it
            )
            for i, (of_row, content, own, row, penalty, tokens, norm) in enumerate(columns)
        ]

    def _noted_methods(self) -> dict[str, Callable[..., Any]]:
        """Return TRL's methods for a round, wrapped so that they also record what TRL does in them.

        They note times, the scores [N, F] of all ranks with the completions and token ids of this rank, and
        log-probabilities [N, T]: the policy's first, then the reference's.
        """
        trainer, functions = self.trainer, self.allocation.functions_of_rounds(self.rewards.names)
        generate, log_probabilities = trainer._generate, trainer._get_per_token_logps_and_entropies
        self._logprobs = list[Tensor]()

        def timed(prompts: list[Any]) -> Any:
            with self.stopwatch.within("seconds_generate"):
                return generate(prompts)

        def kept(*args: Any, **settings: Any) -> Any:
            found = log_probabilities(*args, **settings)
            self._logprobs.append(found[0])
            return found

        def read(*columns: Any) -> Tensor:
            with self.stopwatch.within("seconds_reward"):
                scores = self.rewards.score(trainer, self.calculate, columns, functions)
            self._scored = scores, *columns[2:]
            return without_failures(scores)

        return {"_generate": timed, "_calculate_rewards": read, "_get_per_token_logps_and_entropies": kept}

    def _score_groups(self, groups: Sequence[tuple[Row, Sequence[Rollout]]]) -> list[list[Rollout]]:
        """Return the rollouts of ``score_groups``, on the first rank.

        With ``whole_groups`` a reward function is called when a group has finished, on the first rank only, but TRL
        gathers the scores of all. A function gives 0 where it is not called: those of rounds here, and these there.
        Columns that functions log are dropped, because TRL's table has its rows already.
        """
        trainer, names, found = self.trainer, self.rewards.names, []
        called = {*range(len(names))} - {*self.allocation.functions_of_rounds(names)} if self.ranks.is_main else ()
        with self.stopwatch.within("seconds_reward"):
            for row, own in groups:
                sampled = [each.completion for each in own]
                contents, ids = [each.content for each in sampled], [each.tokens.tolist() for each in sampled]
                given = [row] * len(own), [row["prompt"]] * len(own), contents, ids
                scores = self.rewards.score(trainer, self.calculate, given, called, whole=True)[: len(own)].cpu()
                rows = map(tuple, (scores + scores_of(own)).tolist())
                scored = [replace(each, scores=row) for each, row in zip(sampled, rows, strict=True)]
                found.append([replace(each, completion=new) for each, new in zip(own, scored, strict=True)])
                trainer._pending_extra_logs.clear()
        self.group_metrics = {name: sum(own) / len(own) for name, own in trainer._pending_metrics.items()}
        trainer._pending_metrics.clear()  # TRL would log them with the next batch
        return found

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


def score_norms(table: Table, logprobs: Tensor, reduction: Reduction) -> list[float]:
    """Return score norms [N] of the tokens in the loss, with ``logprobs`` [N, T], by its ``reduction`` over a row."""
    pairs = zip(logprobs.double().cpu().numpy(), loss_mask(table).bool().cpu().numpy(), strict=True)
    return [sampled_score_norm(row[own], reduction) for row, own in pairs]
