"""TRL's asynchronous GRPO trainer with an allocator that decides without batches; see ``apportion.scheduler``.

    from apportion import VIP
    from apportion.trl import AllocatedAsyncGRPOTrainer

    trainer = AllocatedAsyncGRPOTrainer(model, reward_funcs, args, train_dataset, allocator=VIP())

A step of the trainer is an update of the stream. A ``StreamWorker`` takes the place of TRL's rollout worker. It decides
in a thread of the trainer, where a checkpoint finds its state. It samples and scores in TRL's own process, by TRL's
loop (``stream_loop``) and the vLLM server, to which TRL transfers the weights.

A loader of TRL fetches a micro-batch before the one before it is trained on. The next update may need what this one
teaches, so the trainer would wait for itself. Here nothing is fetched before it is needed.
"""

import itertools
import secrets
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from trl.trainer.utils import get_callable_name

from apportion.advantages import gated
from apportion.scheduler import Rows, Scheduler, Selected
from apportion.trl.checkpoints import FILE, WholeCheckpoints
from apportion.trl.overrides import BillLine
from apportion.trl.ranks import Ranks
from apportion.trl.settings import TRLAllocation
from apportion.trl.stream_worker import POLL_SECONDS, StreamWorker
from apportion.types import Floats, Group

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it says that the trainer is experimental, which docs/stream.md says
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer
    from trl.experimental.async_grpo.async_grpo_trainer import (
        DataCollatorForRollout,
        FixedCountBatcher,
        RolloutQueueDataset,
    )

PATIENCE = 1e9
"""Time limit, in seconds, for a request of the stream. TRL's ``request_timeout`` bounds each request to the server."""


@dataclass(frozen=True, kw_only=True)
class AsyncAllocation(TRLAllocation):
    """An allocation whose own formula, without an ``estimator``, is that of TRL's asynchronous trainer."""

    def advantages(self, groups: Sequence[Group], baseline: ArrayLike | None = None) -> Floats:
        """Return the advantages [N] of all rollouts of ``groups``."""
        if self.estimator is not None:
            return super().advantages(groups, baseline)
        rewards = [gated(group, self.outcome_gate).rewards for group in groups]
        return np.concatenate([np.zeros(0), *((own - own.mean()) / (own.std() + 1e-8) for own in rewards)])


class AllocatedAsyncGRPOTrainer(WholeCheckpoints, AsyncGRPOTrainer):  # type: ignore[misc]
    """``trl.experimental.async_grpo.AsyncGRPOTrainer`` with an allocator that decides who gets the next free slot.

    The first ten arguments, and ``weight_transfer``, are those of TRL. ``per_device_train_batch_size *
    gradient_accumulation_steps`` times the processes are the rollouts of an update, ``max_staleness`` is the age bound
    of the stream, ``num_generations`` the rollouts of a prompt on average, and ``max_inflight_tasks`` the completions
    that are sampled at a time.

    Args:
        batch: how many prompts are planned together, for rules that compare prompts and have no price.
        settings: the decisions, as in ``TRLAllocation``: ``allocator`` or ``preset``, ``weighting``, ``estimator``, by
            default TRL's formula, ``baseline``, ``selection``, ``verdict``, ``id_column``, ``rate_column`` and
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
        tools: Any = None,
        environment_factory: Any = None,
        *,
        weight_transfer: Any = None,
        batch: int | None = None,
        **settings: Any,
    ) -> None:
        args = args or AsyncGRPOConfig(f"{model.split('/')[-1]}-AsyncGRPO")
        if reward_funcs is None:
            reward_funcs = []
        functions = list(reward_funcs) if isinstance(reward_funcs, (list, tuple)) else [reward_funcs]
        names = [get_callable_name(function) for function in functions] + rewarding(environment_factory)
        given = AsyncAllocation(**settings)
        trained = replace(given, estimator=given.estimator or "grpo").with_defaults(args)
        trained.check_stream(args, names, train_dataset)
        if isinstance(prompt := train_dataset[0].get("prompt"), str):
            raise ValueError(
                f"prompts must be messages, to which TRL applies the chat template, got the text {prompt!r:.60}; write "
                '[{"role": "user", "content": text}]'
            )
        self.allocation = allocation = replace(trained, estimator=given.estimator)
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
        super().__init__(
            model,
            functions,
            args,
            train_dataset,
            processing_class,
            callbacks,
            optimizers,
            peft_config,
            tools,
            environment_factory,
            weight_transfer=weight_transfer,
        )
        if self._is_vlm:
            raise ValueError(f"model must be a language model, got {model}, which reads images too; use TRL's trainer")
        if self.accelerator.is_main_process:
            stock: Any = self.rollout_worker
            asked = dict(stock._loop_kwargs)
            if self._lora_sync:  # the server may still hold adapters of the run that is resumed
                self._lora_name = asked["lora_name"] = f"trl-policy-{secrets.token_hex(4)}"
            self.rollout_worker: Any = StreamWorker(
                stream, allocation, places.__getitem__, names, self._logged, **asked
            )
        self.add_callback(
            BillLine(
                f"{allocation.allocator.name}: an update has {rows} or more rollouts, in whole groups, and none was "
                f"asked for more than {args.max_staleness} updates before it (without it: {rows} rollouts, in groups "
                f"of {args.num_generations})"
            )
        )

    def _logged(self, found: Mapping[str, float]) -> None:
        for name, value in found.items():
            self._metrics["train"][name].append(value)

    def get_train_dataloader(self) -> Any:
        """Return a loader that yields one micro-batch at a time, and fetches none ahead."""
        return DataLoader(_MicroBatches(self), batch_size=None)

    def _save_allocation(self, folder: Path) -> None:
        if self.accelerator.is_main_process:
            self.rollout_worker.save(folder / FILE)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            resumed = Ranks(self.accelerator).run_on_main(lambda: self.rollout_worker.load(Path(checkpoint) / FILE))
            self.model_version, self._groups_before_resume = resumed


class _MicroBatches(IterableDataset[Any]):
    """The micro-batches of a trainer on this rank. An update is divided into the micro-batches of one step."""

    def __init__(self, trainer: Any) -> None:
        self.trainer, self.ranks = trainer, Ranks(trainer.accelerator)

    def __iter__(self) -> Iterator[Any]:
        batches = self._of_all_ranks() if self.ranks.is_main else iter(())
        rank = self.ranks.rank
        while True:
            batch = self.ranks.run_on_main(lambda: next(batches))
            yield {name: values[rank : rank + 1] for name, values in batch.items()}

    def _of_all_ranks(self) -> Iterator[dict[str, Tensor]]:
        trainer, worker = self.trainer, self.trainer.rollout_worker
        metrics, args = trainer._metrics["train"], trainer.args
        trainer._rollout_dataset = RolloutQueueDataset(
            rollout_queue=worker.rows,
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


def rewarding(factory: Callable[[], Any] | Mapping[str, Callable[[], Any]] | None) -> list[str]:
    """Return the names of the environments that give rewards, each once, as TRL's process finds them."""
    factories = factory.values() if isinstance(factory, Mapping) else [] if factory is None else [factory]
    kinds = dict.fromkeys(type(own()) for own in factories)
    return [kind.__name__ for kind in kinds if hasattr(kind, "get_reward")]
