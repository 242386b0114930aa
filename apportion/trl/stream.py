"""TRL's asynchronous GRPO trainer with an allocator that decides without batches; see ``apportion.stream``.

    from apportion import VIP
    from apportion.trl import AllocatedAsyncGRPOTrainer

    trainer = AllocatedAsyncGRPOTrainer(model, reward_funcs, args, train_dataset, allocator=VIP())

A step of the trainer is an update of the stream. A ``StreamWorker`` takes the places of TRL's rollout worker and of its
weight transfer. It decides in a thread of the trainer, where a checkpoint finds its state, and samples and scores in a
process of its own (``stream_sampler``), which a slow reward function cannot take from the trainer. No server is needed.

A loader of TRL fetches a micro-batch before the one before it is trained on. The next update may need what this one
teaches, so the trainer would wait for itself. Here nothing is fetched before it is needed.
"""

import itertools
import multiprocessing
import pickle
import queue
import shutil
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from apportion.advantages import Weighting, advantages_of, loss_weights
from apportion.allocators import Allocator
from apportion.baselines import Baseline
from apportion.engines.dataset_prompts import read_prompts
from apportion.engines.decisions import UNDECIDED
from apportion.engines.metrics import PREFIX, SELECTION_PREFIX, allocation_metrics
from apportion.engines.saved_settings import check_same_settings
from apportion.engines.saved_state import load_state, restoring, save_state
from apportion.engines.weights import save_weights, weights_folder
from apportion.predictors.score_norms import sampled_score_norm
from apportion.presets import Preset
from apportion.runs.children import ChildError
from apportion.selection import Selector
from apportion.stream import Stream, Ticket, Update
from apportion.trl.checkpoints import FILE, REMEDY
from apportion.trl.failures import FailedRewards, FailureCount
from apportion.trl.overrides import _Bill
from apportion.trl.ranks import Ranks
from apportion.trl.settings import TRLAllocation
from apportion.trl.stream_sampler import SampledBatch, SamplerJob, SignOfLife, StreamCompletion, run_sampler
from apportion.trl.verdicts import Verdicts
from apportion.types import Batch, Rollout

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it says that the trainer is experimental, which docs/stream.md says
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer
    from trl.experimental.async_grpo.async_grpo_trainer import (
        DataCollatorForRollout,
        FixedCountBatcher,
        RolloutQueueDataset,
    )
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

KIND = "TRL stream"
PATIENCE = 1e9
"""Seconds for a request of the stream. The trainer's ``heartbeat_stale_after_s`` bounds the silence of the process."""
START_SECONDS, STOP_SECONDS, POLL_SECONDS = 600.0, 5.0, 1.0


START_METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


class StreamWorkerError(RuntimeError):
    """The process that samples has ended, hangs or failed. The message says which, and what it was doing."""


class StreamWorker:
    """What TRL calls a rollout worker and a weight transfer: it decides by ``stream``, and samples in a process.

    ``rows`` are those of the data set by the id of their prompt, and ``slots`` completions are sampled at a time.
    ``updates`` has the number of rows of each update that is in ``rollout_buffer``, which never has parts of one.
    """

    job: SamplerJob
    size: int
    """The bytes of the weights."""

    def __init__(
        self,
        stream: Stream,
        allocation: TRLAllocation,
        rows: Mapping[str, Mapping[str, Any]],
        names: Sequence[str],
        slots: int,
    ) -> None:
        self.stream, self.allocation, self.rows, self.slots = stream, allocation, rows, slots
        self.rollout_buffer: queue.Queue[Any] = queue.Queue()
        self.metrics_queue: queue.Queue[Any] = queue.Queue()
        self.updates: deque[int] = deque()
        self.groups = 0
        self._problems: dict[str, str] = {}
        self._failures = FailureCount(allocation.failures, names, self._problems)
        self._verdicts = Verdicts(allocation, names, torch.ones(len(names)), self._failures, _no_components)
        self._asked: dict[int, Ticket] = {}
        self._asked_at = 0.0
        self._seconds = {"seconds_generate": 0.0, "seconds_reward": 0.0}
        self._update: Update | None = None
        self._lock, self._stopping = threading.Lock(), threading.Event()
        self._process: Any = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self) -> None:
        """Start the process, wait until it has loaded the model, and begin to sample. Called by TRL."""
        context: Any = multiprocessing.get_context(START_METHOD)
        if START_METHOD == "forkserver":  # the imports, which take seconds, are made once for all runs of this process
            context.set_forkserver_preload([run_sampler.__module__])
        self._sign = SignOfLife(context.RawValue("d", time.monotonic()), context.RawArray("c", 200))
        self._sign.give("starting")
        self._link, theirs = context.Pipe()
        self._wake, self._woken = context.Pipe()
        self._process = context.Process(target=run_sampler, args=(theirs, self._sign, self.job), daemon=True)
        self._process.start()
        theirs.close()
        until = time.monotonic() + START_SECONDS
        while not self._link.poll(POLL_SECONDS):
            if time.monotonic() > until:
                raise StreamWorkerError(f"{self._name} must start within {START_SECONDS:.0f} s; see its output")
        self._thread = threading.Thread(target=self._run, name="apportion stream", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the process and the thread, within seconds. Called by TRL, also after an error."""
        self._stopping.set()
        if self._process is not None:
            self._process.terminate()
            self._process.join(STOP_SECONDS)
            self._process.kill()  # it may be stopped, or hang
            self._process.join(STOP_SECONDS)
        if self._thread is not None:
            self._tell()
            self._thread.join(STOP_SECONDS)
        if self.job.weights is not None:
            shutil.rmtree(self.job.weights.parent, ignore_errors=True)

    def check_health(self, stale_after_s: float) -> None:
        """Raise the error of the thread, or StreamWorkerError if the process was silent for so many seconds."""
        if self._error is not None:
            raise self._error
        if self._thread is None or self._stopping.is_set():
            raise StreamWorkerError("the rollout worker must run, got one that was stopped; make a new trainer")
        silent = time.monotonic() - max(self._sign.at.value, self._asked_at)
        if self._asked and silent > stale_after_s:
            raise StreamWorkerError(
                f"{self._name} must go on, got no sign of it for {silent:.0f} s while it was {self._sign.text}; "
                "mend what hangs, or raise heartbeat_stale_after_s if that may take longer, and resume"
            )

    def update_model_version(self, model_version: int) -> None:
        """Take note that the trainer has made an update, and let all rules learn from it. Called by TRL."""
        with self._lock:
            batches = self.stream.in_training
            if self.stream.trained(model_version - 1) and self._update is not None:
                self._learn(Batch.concatenate(batches), self._update)
        if self._thread is not None:
            self._tell()

    def init_weight_transfer(self) -> None:
        """Make the folder of the weights. Called by TRL, as the next four are."""
        self.job = replace(self.job, weights=weights_folder(self.size) / "weights.safetensors")

    def pause(self) -> None:
        """Do nothing: the process loads weights between two batches."""

    def resume(self) -> None:
        """Do nothing."""

    def destroy(self) -> None:
        """Do nothing."""

    def send_weights(self, iterator: Iterator[tuple[str, Tensor]]) -> None:
        """Write the weights to the file that the process reads. It waits for nobody."""
        assert self.job.weights is not None
        save_weights(self.job.weights, self.stream.version + (self._thread is not None), iterator)

    def save(self, path: Path) -> None:
        """Write everything that a resumed run needs to ``path``."""
        with self._lock:
            baseline, failures = self.allocation.baseline, self._failures.state_dict()
            state = {
                "settings": self.allocation.settings,
                "stream": self.stream.state_dict(),
                "baseline": None if baseline is None else baseline.state_dict(),
                "groups": self.groups,
                "failures": failures,
            }
            save_state(path, KIND, state)

    def load(self, path: Path) -> None:
        """Continue from what ``save`` wrote. Raise ValueError if it is damaged, or of a run with other settings."""
        if not path.exists():
            raise ValueError(f"a checkpoint must hold the state of the stream, got none at {path}; {REMEDY}")
        state = load_state(path, KIND, remedy=REMEDY, records=(StreamCompletion,))
        with restoring(path, REMEDY):
            check_same_settings(state["settings"], self.allocation.settings)
            if (state["baseline"] is None) != (self.allocation.baseline is None):
                raise ValueError("a checkpoint must be of a run with the same baseline, got one with another")
            self.stream.load_state_dict(state["stream"])
            self.stream.restarted()
            if self.allocation.baseline is not None:
                self.allocation.baseline.load_state_dict(state["baseline"])
            self._failures.load_state_dict(state["failures"])
        self.groups = state["groups"]

    @property
    def _name(self) -> str:
        return f"the rollout worker (process {self._process.pid})"

    def _tell(self) -> None:
        self._wake.send_bytes(b"")

    def _run(self) -> None:
        """Decide, ask and take results until the trainer stops. ``check_health`` raises an error in the trainer."""
        try:
            while not self._stopping.is_set():
                self._decide()
                ready = wait([self._link, self._woken], POLL_SECONDS)
                if self._woken in ready:
                    self._woken.recv_bytes()
                if self._link in ready:
                    self._take(self._link.recv())
        except BaseException as error:  # noqa: BLE001 - raised by check_health
            self._error = error
            if isinstance(error, EOFError | OSError):
                self._process.join(STOP_SECONDS)
            if self._process.exitcode is not None and not isinstance(error, StreamWorkerError):
                self._error = StreamWorkerError(
                    f"{self._name} must run, got one that ended with exit code {self._process.exitcode} while it was "
                    f"{self._sign.text}: it was killed from outside (out of memory?); resume from the last checkpoint"
                )
                self._error.__cause__ = error

    def _decide(self) -> None:
        """Ask the process for a batch if it has none, and give the trainer an update if there is one."""
        with self._lock:
            decision = self.stream.decide(0 if self._asked else self.slots, time.monotonic())
            if decision.update is not None:
                self._give(decision.update)
        if decision.requests:
            self._asked_at = time.monotonic()
            self._asked = {ticket.number: ticket for ticket in decision.requests}
            self._link.send([(ticket.number, self.rows[ticket.prompt.id]) for ticket in decision.requests])

    def _take(self, message: Any) -> None:
        """Take the results of a batch. Raise the error that ended the process."""
        if message == "ready":
            return
        if not isinstance(message, SampledBatch):
            line, trace = message
            raise StreamWorkerError(f"{self._name} failed while it was {self._sign.text}: {line}") from ChildError(
                trace
            )
        numbers, completions = zip(*message.completions, strict=True)
        self._problems.update(message.problems)
        scores = torch.tensor([each.scores for each in completions], dtype=torch.float32)
        judged = self._verdicts.judge(scores, [self._asked[number].prompt.text for number in numbers])
        norms = self.allocation.needs.score_norms
        with self._lock:
            for number, found, completion in zip(numbers, judged, completions, strict=True):
                norm = sampled_score_norm(completion.logprobs) if norms else None
                rollout = found and replace(found, completion=completion, tokens=len(completion.ids), score_norm=norm)
                self.stream.arrived(self._asked[number], rollout, message.version)
            self._asked = {}
            for name, seconds in message.seconds.items():
                self._seconds[name] += seconds

    def _give(self, update: Update) -> None:
        """Put the rows of ``update`` into TRL's queue, with their weighted advantages. The lock is held."""
        groups, allocation = update.groups, self.allocation
        if not any(group.keep.any() for group in groups):
            raise StreamWorkerError(
                f"an update must have rows, got none in {len(groups)} groups; give more prompts, or see failed_rewards"
            )
        baseline = allocation.baseline
        expected = None if baseline is None else baseline.predict([group.prompt for group in groups])
        advantages = advantages_of(groups, str(allocation.estimator), baseline=expected)
        weights = loss_weights(groups, allocation.loss_weighting)
        weighted, samples = iter((advantages * weights).tolist()), []
        for place, (group, age) in enumerate(zip(groups, update.ages, strict=True)):
            shared = {"model_version": update.version - age, "group_id": self.groups + place}
            for rollout, kept, advantage in zip(group.rollouts, group.keep, weighted):  # noqa: B905 - goes on
                if kept:
                    samples.append(self._sample(rollout, advantage, group.spread, shared))
        self._update = update
        self.updates.append(len(samples))
        for sample in samples:
            self.rollout_buffer.put(sample)

    def _sample(self, rollout: Rollout, advantage: float, spread: float, shared: Mapping[str, int]) -> Any:
        """Return a row as TRL's trainer takes it, with what its group has in common."""
        own: StreamCompletion = rollout.completion
        context = np.zeros(len(own.prompt_ids), np.int64)
        scores = zip(self._failures.names, own.scores, strict=True)
        return RolloutSample(
            prompt=own.prompt,
            completion=own.content,
            input_ids=np.concatenate([own.prompt_ids, own.ids]),
            completion_mask=np.concatenate([context, np.ones_like(own.ids)]),
            old_log_probs=np.concatenate([context.astype(np.float32), own.logprobs]),
            advantage=advantage,
            metrics={"reward": float(rollout.reward or 0.0), "reward_std": spread}
            | {f"rewards/{name}": score for name, score in scores},
            enqueued_at=time.time(),
            **shared,
        )

    def _learn(self, batch: Batch, update: Update) -> None:
        """Let the baseline learn from ``update``, whose prompts are ``batch``, and log it. The lock is held."""
        groups, ages = update.groups, update.ages
        self.groups += len(groups)
        found = allocation_metrics(batch, groups, self.allocation.estimator) | self.stream.rule.metrics(batch)
        found |= {"rows": float(sum(group.keep.sum() for group in groups)), "carry": self.stream.carry} | self._seconds
        found |= {"age_mean": sum(ages) / len(ages), "age_max": float(max(ages))}
        if self.allocation.baseline is not None:
            self.allocation.baseline.update(batch.sampled)
        chosen = {} if self.allocation.selection is None else self.allocation.selection.metrics()
        self.metrics_queue.put(
            {f"{PREFIX}{name}": value for name, value in found.items()}
            | {f"{SELECTION_PREFIX}{name}": value for name, value in chosen.items()}
        )
        self._seconds = dict.fromkeys(self._seconds, 0.0)


class AllocatedAsyncGRPOTrainer(AsyncGRPOTrainer):  # type: ignore[misc]
    """``trl.experimental.async_grpo.AsyncGRPOTrainer`` with an allocator that decides who gets the next free slot.

    The first eight arguments are those of TRL. ``per_device_train_batch_size * gradient_accumulation_steps`` times the
    processes are the rows of an update, ``max_staleness`` is the age bound of the stream, ``num_generations`` the
    rollouts of a prompt on average, and ``max_inflight_tasks`` the completions that are sampled at a time. These are
    those of an update by default.

    Args:
        allocator: decides how many rollouts each prompt gets. A ``preset`` has one.
        preset: a method as its paper combines the decisions, or its name.
        weighting, estimator, baseline, selection, verdict, id_column, rate_column, failed_rewards: as in
            ``TRLAllocation``. The default estimator is "grpo".
        batch: how many prompts are planned together, for rules that compare prompts and have no price.
        sampler_device: where completions are sampled. The default is the trainer's first device.

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
        allocator: Allocator = UNDECIDED,
        preset: Preset | None = None,
        weighting: Weighting | None = None,
        estimator: str | None = None,
        baseline: Baseline | None = None,
        selection: Selector | None = None,
        verdict: str | None = None,
        id_column: str | None = None,
        rate_column: str | None = None,
        failed_rewards: FailedRewards | str = "stop",
        batch: int | None = None,
        sampler_device: str | None = None,
    ) -> None:
        args = args or AsyncGRPOConfig(f"{model.split('/')[-1]}-AsyncGRPO")
        allocation = TRLAllocation(
            allocator=allocator,
            preset=preset,
            weighting=weighting,
            estimator=estimator,
            baseline=baseline,
            selection=selection,
            verdict=verdict,
            id_column=id_column,
            rate_column=rate_column,
            failed_rewards=failed_rewards,
        )
        functions = list(reward_funcs) if isinstance(reward_funcs, (list, tuple)) else [reward_funcs]
        names = [getattr(function, "__name__", type(function).__name__) for function in functions]
        allocation = replace(allocation, estimator=allocation.estimator or "grpo").with_defaults(args)
        check_functions(functions)
        allocation.check_stream(args, names, train_dataset)
        self.allocation = allocation
        found = read_prompts(train_dataset, id_column, rate_column)
        allocation.check_repeated(found.differing, len(found.distinct))
        allocation.allocator.prepare(found.distinct)
        if allocation.baseline is not None:
            allocation.baseline.prepare(found.distinct)
        places: dict[str, int] = {}
        for place, prompt in enumerate(found.every):
            places.setdefault(prompt.id, place)
        rows = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
        stream = Stream(
            allocation.allocator,
            found.distinct,
            rows_an_update=rows,
            age_bound=args.max_staleness,
            batch=batch,
            selection=allocation.selection,
            seed=args.seed if args.data_seed is None else args.data_seed,
            attempts=1,
            patience=PATIENCE,
        )
        slots = args.max_inflight_tasks if args.max_inflight_tasks > 0 else rows
        worker = StreamWorker(stream, allocation, _Rows(train_dataset, places), names, slots)
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
            names=names,
            failures=allocation.failures,
            seed=args.seed,
        )
        self._worker = worker
        self.add_callback(
            _Bill(
                f"{allocation.allocator.name}: an update has {rows} or more rollouts, in whole groups, and none was "
                f"asked for more than {args.max_staleness} updates before it (without it: {rows} rollouts, in groups "
                f"of {args.num_generations})"
            )
        )

    def get_train_dataloader(self) -> Any:
        """Return a loader of one micro-batch after the other, which fetches none before it is needed."""
        return DataLoader(_MicroBatches(self), batch_size=None)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Write TRL's checkpoint after the state of the stream: TRL's files mark a checkpoint as complete."""
        if not self.args.save_only_model and self.accelerator.is_main_process:
            folder = Path(self._get_output_dir(trial=trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            folder.mkdir(parents=True, exist_ok=True)
            self._worker.save(folder / FILE)
        super()._save_checkpoint(model, trial)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            Ranks(self.accelerator).run_on_main(lambda: self._worker.load(Path(checkpoint) / FILE))
            self.model_version, self._groups_before_resume = self._worker.stream.version, self._worker.groups


class _Rows(Mapping[str, Any]):
    """The rows of a data set by the id of their prompt."""

    def __init__(self, dataset: Any, places: Mapping[str, int]) -> None:
        self.dataset, self.places = dataset, places

    def __getitem__(self, name: str) -> Any:
        return self.dataset[self.places[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)


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


def _no_components(scores: Tensor, weights: Tensor) -> Tensor:
    return scores[:, :0]
