"""TRL's rollout worker for a stream, which decides in a thread of the trainer and samples in TRL's own process."""

import queue
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from apportion.engines.metrics import allocation_metrics, prefixed
from apportion.engines.saved_state import load_state, restoring, save_state
from apportion.predictors.score_norms import sampled_score_norm
from apportion.scheduler import Scheduler, Ticket, Update
from apportion.trl.checkpoints import REMEDY
from apportion.trl.rewards import RewardVerdicts
from apportion.trl.settings import TRLAllocation
from apportion.trl.stream_loop import ScoredCompletions, StreamCompletion, StreamLoop
from apportion.types import Rollout

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it says that the trainer is experimental, which docs/stream.md says
    from trl.experimental.async_grpo.async_rollout_worker import AsyncRolloutWorker, RolloutSample
    from trl.experimental.async_grpo.vllm_client import VLLMClient

KIND = "TRL stream"
RECORDS = (StreamCompletion, RolloutSample)
STOP_SECONDS, POLL_SECONDS = 5.0, 1.0
WAKE_SECONDS = 0.05
"""Seconds within which the thread notices an update or a stop of the trainer."""
OWN = {"num_generations": 1, "queue_maxsize": 0, "log_completions": False}
"""Settings of TRL's loop: each rollout is a group of its own, and the scheduler bounds how many wait."""


class StreamWorkerError(RuntimeError):
    """The process that samples has ended or hangs, or the server does not answer. The message says which."""


class StreamWorker(AsyncRolloutWorker):  # type: ignore[misc]
    """TRL's worker, whose process samples what ``stream`` requests, in ``max_inflight_tasks`` slots.

    ``row_of`` returns the place of the row with the prompt of this id, and ``log`` takes metrics. ``updates`` has the
    number of rows of each update that is in ``rows``, which never has parts of one. ``settings`` are those of TRL's.
    """

    _process: Any

    def __init__(
        self,
        stream: Scheduler,
        allocation: TRLAllocation,
        row_of: Callable[[str], int],
        names: Sequence[str],
        log: Callable[[Mapping[str, float]], None],
        **settings: Any,
    ) -> None:
        super().__init__(**settings | OWN)
        self.stream, self.allocation, self.row_of, self.log = stream, allocation, row_of, log
        self.rows: queue.Queue[RolloutSample] = queue.Queue()
        self.updates: deque[int] = deque()
        self.groups = 0
        self.rewards = RewardVerdicts(allocation, names, torch.ones(len(names)))
        self._tickets: dict[int, Ticket] = {}
        self._sampled: set[int] = set()
        self._heard = 0.0
        self._update: Update | None = None
        self._lock, self._stopping = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self) -> None:
        """Start TRL's process, and begin to request. Called by TRL."""
        self._link, theirs = self._mp_ctx.Pipe()
        self._loop_cls = partial(StreamLoop, link=theirs, reader=self.rewards.reader)
        super().start()
        theirs.close()
        self._thread = threading.Thread(target=self._run, name="apportion stream", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the process and the thread, within seconds. Called by TRL, also after an error."""
        self._stopping.set()
        process, self._process = self._process, None
        if process is not None and process.pid is not None:
            process.kill()  # TRL's method waits for what is sampled, and for ever if the process is dead
            process.join(STOP_SECONDS)
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)

    def check_health(self, stale_after_s: float) -> None:
        """Raise the error of the thread or the process. Raise StreamWorkerError if one of them hangs or has ended."""
        if self._error is not None:
            raise self._error
        if self._process is None:
            raise StreamWorkerError("the rollout worker must run, got one that was stopped; make a new trainer")
        if not (self._process.is_alive() or self._failed_event.is_set()):
            raise StreamWorkerError(
                f"the rollout worker (process {self._process.pid}) must run, got one that ended with exit code "
                f"{self._process.exitcode}: it was killed from outside (out of memory?); resume from the last "
                "checkpoint"
            )
        super().check_health(stale_after_s)
        silent = time.monotonic() - self._heard
        if not self._tickets or silent <= stale_after_s:
            return
        if self._sampled:
            raise StreamWorkerError(
                f"the reward functions must return, got nothing from {' or '.join(self.rewards.names)} for "
                f"{silent:.0f} s; mend the one that hangs, or raise heartbeat_stale_after_s if that may take longer, "
                "and resume"
            )
        url = self._loop_kwargs["vllm_server_url"]
        try:
            VLLMClient(url, 0.0).wait_for_server_ready()
        except TimeoutError as error:
            raise StreamWorkerError(
                f"the vLLM server at {url} must answer, got nothing for {silent:.0f} s; start it again, and resume "
                "from the last checkpoint, because it has lost the weights"
            ) from error

    def update_model_version(self, model_version: int) -> None:
        """Note an update of the trainer, and let all rules learn from it. Called by TRL."""
        super().update_model_version(model_version)
        if self._thread is None:
            return  # TRL sets the version at which a resumed run begins
        with self._lock:
            if self.stream.trained(model_version - 1) and self._update is not None:
                self._log(self._update)

    def save(self, path: Path) -> None:
        """Write everything that a resumed run needs to ``path``."""
        with self._lock:
            own = {"groups": self.groups, "failures": self.rewards.state_dict()}
            save_state(path, KIND, {"stream": self.stream.state_dict(), **own})

    def load(self, path: Path) -> tuple[int, int]:
        """Continue from what ``save`` wrote. Return how many updates and groups were trained on.

        Raises ValueError if it is damaged, or of a run with other settings.
        """
        state = load_state(path, KIND, remedy=REMEDY, records=RECORDS)
        with restoring(path, REMEDY):
            self.stream.load_state_dict(state["stream"])
            self.stream.restarted()
            self.rewards.load_state_dict(state["failures"])
        self.groups = state["groups"]
        return self.stream.version, self.groups

    def _run(self) -> None:
        """Decide, request and take results until the trainer stops. ``check_health`` raises an error in the trainer."""
        try:
            while not self._stopping.is_set():
                self._decide()
                try:
                    self._take(self.rollout_buffer.get(timeout=WAKE_SECONDS))
                except queue.Empty:
                    continue
        except BrokenPipeError:
            return  # the process has ended: check_health says how
        except BaseException as error:  # noqa: BLE001 - raised by check_health
            self._error = error

    def _decide(self) -> None:
        """Request what free slots can take, and give the trainer an update if there is one."""
        free = self._loop_kwargs["max_inflight_tasks"] - len(self._tickets) + len(self._sampled)
        with self._lock:
            decision = self.stream.decide(free, time.monotonic())
            if decision.update is not None:
                self._give(decision.update)
        if decision.requests:
            if not self._tickets:
                self._heard = time.monotonic()
            self._tickets |= {ticket.number: ticket for ticket in decision.requests}
            self._link.send([(ticket.number, self.row_of(ticket.prompt.id)) for ticket in decision.requests])

    def _take(self, message: int | ScoredCompletions) -> None:
        """Take the number of a sampled rollout, or scored rollouts."""
        self._heard = time.monotonic()
        if isinstance(message, int):
            self._sampled.add(message)
            return
        self.rewards.reader = message.reader
        tickets, rollouts = [], []
        norms = self.allocation.needs.score_norms
        with self._lock:  # a checkpoint has failures and the arrival of their completions, or neither
            for number, each in message.completions:
                ticket = self._tickets.pop(number)
                self._sampled.discard(number)
                if each is None:
                    self.stream.arrived(ticket, None)
                    continue
                logprobs = np.concatenate([row.old_log_probs[row.completion_mask > 0] for row in each.rows])
                norm = sampled_score_norm(logprobs) if norms else None
                tickets.append(ticket)
                rollouts.append(Rollout(completion=each, tokens=each.tokens, score_norm=norm))
            judged = self.rewards.judge(rollouts, [ticket.prompt.text for ticket in tickets]) if rollouts else []
            for ticket, rollout in zip(tickets, judged, strict=True):
                self.stream.arrived(ticket, rollout)

    def _give(self, update: Update) -> None:
        """Put the rows of ``update``, with their weighted advantages, into ``rows``. The caller holds the lock."""
        groups = update.groups
        if not any(group.keep.any() for group in groups):
            raise StreamWorkerError(
                f"an update must have rows, got none in {len(groups)} groups; give more prompts, or see failed_rewards"
            )
        assert update.advantages is not None
        weighted, rows = iter(update.advantages.tolist()), []
        for place, (group, age) in enumerate(zip(groups, update.ages, strict=True)):
            shared = {"model_version": update.version - age, "group_id": self.groups + place}
            for rollout, kept, advantage in zip(group.rollouts, group.keep, weighted):  # noqa: B905 - goes on
                for row in rollout.completion.rows if kept else ():
                    metrics = row.metrics | {"reward_std": float(group.rewards.std())}
                    own = {"advantage": advantage, "metrics": metrics, "enqueued_at": time.time()}
                    rows.append(replace(row, **own, **shared))
        self._update = update
        self.updates.append(len(rows))
        for row in rows:
            self.rows.put(row)

    def _log(self, update: Update) -> None:
        """Log ``update``. The caller holds the lock."""
        groups, ages, batch = update.groups, update.ages, update.batch
        self.groups += len(groups)
        found = allocation_metrics(batch, groups, self.allocation.estimator) | self.stream.rule.metrics(batch)
        found |= {"rows": sum(int(group.keep.sum()) for group in groups), "carry": self.stream.carry}
        found |= {"age_mean": sum(ages) / len(ages), "age_max": max(ages)}
        self.log(prefixed(found, self.allocation.selection))
