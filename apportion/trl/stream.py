"""TRL's asynchronous GRPO trainer with an allocator that decides without batches; see ``apportion.scheduler``.

    from apportion import VIP
    from apportion.trl import AllocatedAsyncGRPOTrainer

    trainer = AllocatedAsyncGRPOTrainer(model, reward_funcs, args, train_dataset, allocator=VIP())

A step of the trainer is an update of the stream. A ``StreamWorker`` takes the places of TRL's rollout worker and of its
weight transfer. It decides in a thread of the trainer, where a checkpoint finds its state. It samples and scores in a
process of its own (``stream_sampler``), so a slow reward function takes no time from the trainer. No server is needed.

A loader of TRL fetches a micro-batch before the one before it is trained on. The next update may need what this one
teaches, so the trainer would wait for itself. Here nothing is fetched before it is needed.
"""

import itertools
import pickle
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from apportion.scheduler import Rows, Scheduler, Selected
from apportion.trl.checkpoints import FILE, WholeCheckpoints
from apportion.trl.overrides import BillLine
from apportion.trl.ranks import Ranks
from apportion.trl.settings import TRLAllocation
from apportion.trl.stream_sampler import SamplerJob
from apportion.trl.stream_worker import POLL_SECONDS, StreamWorker

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it says that the trainer is experimental, which docs/stream.md says
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer
    from trl.experimental.async_grpo.async_grpo_trainer import (
        DataCollatorForRollout,
        FixedCountBatcher,
        RolloutQueueDataset,
    )

PATIENCE = 1e9
"""Seconds for a request of the stream. The trainer's ``heartbeat_stale_after_s`` bounds the silence of the process."""


class AllocatedAsyncGRPOTrainer(WholeCheckpoints, AsyncGRPOTrainer):  # type: ignore[misc]
    """``trl.experimental.async_grpo.AsyncGRPOTrainer`` with an allocator that decides who gets the next free slot.

    The first eight arguments are those of TRL. ``per_device_train_batch_size * gradient_accumulation_steps`` times the
    processes are the rows of an update, ``max_staleness`` is the age bound of the stream, ``num_generations`` the
    rollouts of a prompt on average, and ``max_inflight_tasks`` the completions that are sampled at a time. These are
    those of an update by default.

    Args:
        batch: how many prompts are planned together, for rules that compare prompts and have no price.
        sampler_device: where completions are sampled. The default is the trainer's first device.
        settings: the decisions, as in ``TRLAllocation``: ``allocator`` or ``preset``, ``weighting``, ``estimator``, by
            default "grpo", ``baseline``, ``selection``, ``verdict``, ``id_column``, ``rate_column`` and
            ``failed_rewards``.

    Raises ValueError if settings cannot work, before anything is sampled.
    """

    def __init__(
        self,
        model: str,
        reward_funcs: Any = None,
        args: AsyncGRPOConfig | None = None,
        train_dataset: Any = None,
        processing_class: Any = None,
        callbacks: Any = None,
        optimizers: Any = (None, None),
        peft_config: Any = None,
        *,
        batch: int | None = None,
        sampler_device: str | None = None,
        **settings: Any,
    ) -> None:
        args = args or AsyncGRPOConfig(f"{model.split('/')[-1]}-AsyncGRPO")
        allocation = TRLAllocation(**settings)
        functions = list(reward_funcs) if isinstance(reward_funcs, (list, tuple)) else [reward_funcs]
        names = [getattr(function, "__name__", type(function).__name__) for function in functions]
        allocation = replace(allocation, estimator=allocation.estimator or "grpo").with_defaults(args)
        check_functions(functions)
        allocation.check_stream(args, names, train_dataset)
        self.allocation = allocation
        found = allocation.read(train_dataset)
        allocation.prepare(found.distinct)
        places = {prompt.id: place for place, prompt in reversed(list(enumerate(found.every)))}
        rows = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
        stream = Scheduler(
            allocation,
            found.distinct,
            Rows(rows, args.max_staleness),
            Selected(seed=args.seed if args.data_seed is None else args.data_seed),
            batch=batch,
            attempts=1,
            patience=PATIENCE,
        )
        slots = args.max_inflight_tasks if args.max_inflight_tasks > 0 else rows
        worker = StreamWorker(stream, allocation, lambda name: train_dataset[places[name]], names, slots)
        super().__init__(
            model,
            functions,
            args,
            train_dataset,
            processing_class,
            callbacks,
            optimizers,
            peft_config,
            rollout_worker=worker,
            weight_transfer=worker,
        )
        if self._is_vlm:
            raise ValueError(f"model must be a language model, got {model}, which reads images too; use TRL's trainer")
        worker.size = sum(weight.numel() * weight.element_size() for weight in self.model.parameters())
        worker.job = SamplerJob(
            model=model,
            loading={"dtype": args.dtype, "trust_remote_code": args.trust_remote_code} | (args.model_init_kwargs or {}),
            device=sampler_device or str(self.args.device),
            tokenizer=self.processing_class,
            generation={
                "max_new_tokens": args.max_completion_length,
                "temperature": args.temperature,
                "top_p": args.top_p,
                "top_k": args.top_k,
                "min_p": args.min_p,
                "repetition_penalty": args.repetition_penalty,
                "eos_token_id": self.eos_token_ids,
                "pad_token_id": self.processing_class.pad_token_id,
            },
            chat=args.chat_template_kwargs or {},
            functions=functions,
            reader=worker.rewards.reader,
            seed=args.seed,
        )
        self._worker = worker
        self.add_callback(
            BillLine(
                f"{allocation.allocator.name}: an update has {rows} or more rollouts, in whole groups, and none was "
                f"asked for more than {args.max_staleness} updates before it (without it: {rows} rollouts, in groups "
                f"of {args.num_generations})"
            )
        )

    def get_train_dataloader(self) -> Any:
        """Return a loader of one micro-batch after the other, which fetches none before it is needed."""
        return DataLoader(_MicroBatches(self), batch_size=None)

    def _save_allocation(self, folder: Path) -> None:
        if self.accelerator.is_main_process:
            self._worker.save(folder / FILE)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            Ranks(self.accelerator).run_on_main(lambda: self._worker.load(Path(checkpoint) / FILE))
            self.model_version, self._groups_before_resume = self._worker.stream.version, self._worker.groups


class _MicroBatches(IterableDataset[Any]):
    """The micro-batches of a trainer, for this rank. Each update is dealt out to as many as a step has."""

    def __init__(self, trainer: Any) -> None:
        self.trainer, self.ranks = trainer, Ranks(trainer.accelerator)

    def __iter__(self) -> Iterator[Any]:
        batches = self._of_all_ranks() if self.ranks.is_main else iter(())
        rank = self.ranks.rank
        while True:
            batch = self.ranks.run_on_main(lambda: next(batches))
            yield {name: values[rank : rank + 1] for name, values in batch.items()}

    def _of_all_ranks(self) -> Iterator[dict[str, Tensor]]:
        trainer, worker = self.trainer, self.trainer._worker
        metrics, args = trainer._metrics["train"], trainer.args
        trainer._rollout_dataset = RolloutQueueDataset(
            rollout_queue=worker.rollout_buffer,
            model_version_fn=lambda: trainer.model_version,
            check_health_fn=worker.check_health,
            stale_after_s=args.heartbeat_stale_after_s,
            metrics=metrics,
            max_staleness=args.max_staleness,
            poll_interval_s=POLL_SECONDS,
            report_to=args.report_to,
        )
        collate = DataCollatorForRollout(
            trainer.processing_class.pad_token_id,
            self.ranks.size,
            groups_trained=trainer._trained_groups,
            metrics=metrics,
        )
        samples = iter(trainer._rollout_dataset)
        for first in samples:
            update = [first, *itertools.islice(samples, worker.updates.popleft() - 1)]
            for rows in micro_batches(update, args.gradient_accumulation_steps, self.ranks.size):
                yield collate([rows])


def micro_batches(update: Sequence[dict[str, Any]], count: int, ranks: int) -> Iterator[Any]:
    """Yield the rows of an update in ``count`` micro-batches, each dealt out to all ranks by TRL.

    TRL takes the mean over the tokens of a micro-batch, and the mean over these. The advantages are scaled so that the
    loss is the mean over all tokens of the update. An update of the last few prompts may have less rows than there are
    places: it is filled up with rows of advantage 0.
    """
    tokens = [int(sample["completion_mask"].sum()) for sample in update]
    total, least = sum(tokens), count * ranks
    padding = [{**update[0], "advantage": 0.0}] * max(0, least - len(update))
    rows, lengths = [*update, *padding], [*tokens, *[tokens[0]] * len(padding)]
    for i in range(count):
        first, last = len(rows) * i // count, len(rows) * (i + 1) // count
        scale = sum(lengths[first:last]) * count / total
        scaled = [{**sample, "advantage": sample["advantage"] * scale} for sample in rows[first:last]]
        yield from FixedCountBatcher(scaled, ranks, len(scaled))


def check_functions(functions: Sequence[Any]) -> None:
    """Raise ValueError unless all reward ``functions`` can be called in another process."""
    for function in functions:
        if not callable(function) or isinstance(function, torch.nn.Module):
            raise ValueError(f"reward_funcs must be functions, got {function!r:.80}; write one that calls it")
        try:
            pickle.dumps(function)
        except Exception as error:
            raise ValueError(
                f"reward_funcs must be functions of a module, which another process can import, got {function!r:.80} "
                f"({error}); write def at the top of a file"
            ) from error
