"""TRL's rollout worker and weight transfer for a stream, which decides in a thread and samples in a process."""

import multiprocessing
import queue
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from apportion.engines.metrics import allocation_metrics, prefixed
from apportion.engines.saved_state import load_state, restoring, save_state
from apportion.engines.weights import save_weights, weights_folder
from apportion.predictors.score_norms import sampled_score_norm
from apportion.runs.children import ChildError
from apportion.scheduler import Scheduler, Ticket, Update
from apportion.trl.checkpoints import REMEDY
from apportion.trl.rewards import RewardVerdicts
from apportion.trl.settings import TRLAllocation
from apportion.trl.stream_sampler import SampledBatch, SamplerJob, SignOfLife, StreamCompletion, run_sampler
from apportion.types import Rollout

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it says that the trainer is experimental, which docs/stream.md says
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

KIND = "TRL stream"
START_SECONDS, STOP_SECONDS, POLL_SECONDS = 600.0, 5.0, 1.0
WAKE_SECONDS = 0.05
"""How soon the thread notices that the trainer has made an update or stops."""


START_METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


class StreamWorkerError(RuntimeError):
    """The process that samples has ended, hangs or failed. The message says which, and what it was doing."""


class StreamWorker:
    """What TRL calls a rollout worker and a weight transfer: it decides by ``stream``, and samples in a process.

    ``row_of`` returns the row of the prompt with this id, and ``slots`` completions are sampled at a time.
    ``updates`` has the number of rows of each update that is in ``rollout_buffer``, which never has parts of one.
    """

    job: SamplerJob
    size: int
    """The bytes of the weights."""

    def __init__(
        self,
        stream: Scheduler,
        allocation: TRLAllocation,
        row_of: Callable[[str], Mapping[str, Any]],
        names: Sequence[str],
        slots: int,
    ) -> None:
        self.stream, self.allocation, self.row_of, self.slots = stream, allocation, row_of, slots
        self.rollout_buffer: queue.Queue[Any] = queue.Queue()
        self.metrics_queue: queue.Queue[Any] = queue.Queue()
        self.updates: deque[int] = deque()
        self.groups = 0
        self.rewards = RewardVerdicts(allocation, names, torch.ones(len(names)))
        self._asked: dict[int, Ticket] = {}
        self._asked_at = 0.0
        self._seconds = {"seconds_generate": 0.0, "seconds_reward": 0.0}
        self._update: Update | None = None
        self._lock, self._stopping = threading.Lock(), threading.Event()
        self._folder = ExitStack()
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
        self._process = context.Process(target=run_sampler, args=(theirs, self._sign, self.job), daemon=True)
        self._process.start()
        theirs.close()
        if not self._link.poll(START_SECONDS):
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
            self._thread.join(STOP_SECONDS)
        self._folder.close()

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
            if self.stream.trained(model_version - 1) and self._update is not None:
                self._log(self._update)

    def init_weight_transfer(self) -> None:
        """Make the folder of the weights. Called by TRL, as the next four are."""
        folder = self._folder.enter_context(weights_folder(self.size))
        self.job = replace(self.job, weights=folder / "weights.safetensors")

    def pause(self) -> None:
        """Do nothing: the process loads weights between two batches, and ``stop`` removes them."""

    resume = destroy = pause

    def send_weights(self, iterator: Iterator[tuple[str, Tensor]]) -> None:
        """Write the weights to the file that the process reads. It waits for nobody."""
        assert self.job.weights is not None
        save_weights(self.job.weights, self.stream.version + (self._thread is not None), iterator)

    def save(self, path: Path) -> None:
        """Write everything that a resumed run needs to ``path``."""
        with self._lock:
            own = {"groups": self.groups, "failures": self.rewards.state_dict()}
            save_state(path, KIND, {"stream": self.stream.state_dict(), **own})

    def load(self, path: Path) -> None:
        """Continue from what ``save`` wrote. Raise ValueError if it is damaged, or of a run with other settings."""
        state = load_state(path, KIND, remedy=REMEDY, records=(StreamCompletion,))
        with restoring(path, REMEDY):
            before = {name: state[name] for name in ("settings", "baseline") if name in state}  # of 0.3.0
            self.stream.load_state_dict(before | state["stream"])
            self.stream.restarted()
            self.rewards.load_state_dict(state["failures"])
        self.groups = state["groups"]

    @property
    def _name(self) -> str:
        return f"the rollout worker (process {self._process.pid})"

    def _run(self) -> None:
        """Decide, ask and take results until the trainer stops. ``check_health`` raises an error in the trainer."""
        try:
            while not self._stopping.is_set():
                self._decide()
                if self._link.poll(WAKE_SECONDS):
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
            self._link.send([(ticket.number, self.row_of(ticket.prompt.id)) for ticket in decision.requests])

    def _take(self, message: Any) -> None:
        """Take the results of a batch. Raise the error that ended the process."""
        if message == "ready":
            return
        if not isinstance(message, SampledBatch):
            line, trace = message
            raise StreamWorkerError(f"{self._name} failed while it was {self._sign.text}: {line}") from ChildError(
                trace
            )
        self.rewards.reader = message.reader
        norms = self.allocation.needs.score_norms
        rollouts = [
            Rollout(
                completion=each, tokens=len(each.ids), score_norm=sampled_score_norm(each.logprobs) if norms else None
            )
            for _, each in message.completions
        ]
        tickets = [self._asked[number] for number, _ in message.completions]
        with self._lock:  # a checkpoint has failures and the arrival of their completions, or neither
            judged = self.rewards.judge(rollouts, [ticket.prompt.text for ticket in tickets])
            for ticket, rollout in zip(tickets, judged, strict=True):
                self.stream.arrived(ticket, rollout)
            self._asked = {}
            for name, seconds in message.seconds.items():
                self._seconds[name] += seconds

    def _give(self, update: Update) -> None:
        """Put the rows of ``update`` into TRL's queue, with their weighted advantages. The lock is held."""
        groups = update.groups
        if not any(group.keep.any() for group in groups):
            raise StreamWorkerError(
                f"an update must have rows, got none in {len(groups)} groups; give more prompts, or see failed_rewards"
            )
        assert update.advantages is not None
        weighted, samples = iter(update.advantages.tolist()), []
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
        scores = zip(self.rewards.names, own.scores, strict=True)
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

    def _log(self, update: Update) -> None:
        """Log ``update``. The lock is held."""
        groups, ages, batch = update.groups, update.ages, update.batch
        self.groups += len(groups)
        found = allocation_metrics(batch, groups, self.allocation.estimator) | self.stream.rule.metrics(batch)
        found |= {"rows": sum(int(group.keep.sum()) for group in groups), "carry": self.stream.carry} | self._seconds
        found |= {"age_mean": sum(ages) / len(ages), "age_max": max(ages)}
        self.metrics_queue.put(prefixed(found, self.allocation.selection))
        self._seconds = dict.fromkeys(self._seconds, 0.0)
