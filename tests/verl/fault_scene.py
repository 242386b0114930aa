"""A run of verl's trainer in one process, in which anything can be made to fail at any moment.

The coordinator, the group of workers, the watch of actors, checkpoints, tracking and the agent-loop workers, with
verl's own code below them, are the real ones. What is made up is what lies behind verl's interfaces: Ray's actors and
calls, the TransferQueue, rollout servers, the load balancer, reward workers, and the trainer's loop. Every call of one
of these passes a named *point*, where a fault may take its place. Time passes at once where nothing runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import hashlib
import importlib
import itertools
import math
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from unittest import mock

import ray
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from ray.exceptions import ActorDiedError, ActorUnavailableError
from tensordict import NonTensorData
from verl.utils.tensordict_utils import list_of_dict_to_tensordict
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput

from apportion import Prompt
from apportion.verl import tracking
from apportion.verl.actor_watch import WatchedActor
from apportion.verl.checkpoints import FILE, SavedAllocation, load_into
from apportion.verl.coordinator.messages import RowAddress, TrainerRequest
from apportion.verl.coordinator.service import Coordinator
from apportion.verl.reports import BEAT_SECONDS, Outbox
from apportion.verl.settings import allocation_of
from apportion.verl.worker import AllocatedWorker
from tests.verl import harness
from tests.verl.composed import command

agent_loop = importlib.import_module("verl.experimental.agent_loop.agent_loop")
workers = importlib.import_module("apportion.verl.workers")
actor_watch = importlib.import_module("apportion.verl.actor_watch")

PROMPTS, VALIDATED, ROLLOUTS = 4, 2, 3
"""Prompts of a step and of a validation, and rollouts a prompt of a step on average."""

RULES = {
    "hora": ("allocation=hora", "allocation.allocator.pre_rollouts=2", "allocation.allocator.high=6"),
    "uniform": ("allocation=uniform",),
    "ar3po": ("allocation=ar3po", "allocation.allocator.stages=2", "allocation.allocator.reuse=recompute"),
}
"""A rule whose prompts share a budget and wait for each other, one of independent prompts, one with a store."""

OF_THE_RUN = ("deadline_seconds=20", "silent_seconds=5", "wait_seconds=120")
HUNG_SECONDS = 3000.0
"""A step, of this clock, that takes longer hangs: no wait has a bound of more than 120 s, and a step has few waits."""

RESTARTED_SECONDS, NOTICED_SECONDS = 3.0, 1.5
"""The time in which Ray restarts an actor, and in which it notices a death."""

LIFE = contextvars.ContextVar("life", default=None)
"""The process in which the running code is; None for the trainer's."""


class QuickLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes at once while nothing runs."""

    def __init__(self):
        super().__init__()
        self.now = 1000.0
        select = self._selector.select

        def passed(timeout=None):
            self.now += timeout or 0.0
            return select(0)

        self._selector.select = passed
        self.set_task_factory(_task_of_life)

    def time(self):
        return self.now

    def run_in_executor(self, executor, function, *args):
        done = self.create_future()
        try:
            done.set_result(function(*args))
        except Exception as error:  # noqa: BLE001 - it is the caller's
            done.set_exception(error)
        return done


def _task_of_life(loop, work, context=None):
    life = LIFE.get() if context is None else context.get(LIFE)
    task = asyncio.Task(work, loop=loop, context=context)
    if life is not None:
        life.tasks.add(task)
        task.add_done_callback(life.tasks.discard)
    return task


@dataclass(eq=False)
class Life:
    """A process of an actor. Code of it that wants something of the outside waits while it is ``stopped``."""

    pid: int
    tasks: set = field(default_factory=set)
    replies: set = field(default_factory=set)
    alive: bool = True
    goes: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self):
        self.goes.set()

    async def wait(self):
        """Return if the process runs, or once it does. A dead one never does."""
        await self.goes.wait()
        if not self.alive:
            await asyncio.Event().wait()


async def passing():
    """Wait until the process of the running code runs."""
    life = LIFE.get()
    if life is not None:
        await life.wait()


@dataclass(frozen=True)
class Reference:
    """What a call of Ray returns. A cancelled wait for it does not cancel the call."""

    reply: asyncio.Future

    def __await__(self):
        return asyncio.shield(self.reply).__await__()


class Actor:
    """Ray's handle of an actor that ``make`` makes, in a process of its own. It is restarted ``restarts`` times."""

    def __init__(self, scene, name, make, restarts=math.inf):
        self._scene, self._actor, self._make, self._left = scene, name, make, restarts
        self._begin()

    def _begin(self):
        self._life = Life(next(self._scene.pids))
        self._scene.lives[self._life.pid] = self
        self._object = contextvars.copy_context().run(self._made)

    def _made(self):
        LIFE.set(self._life)
        return self._make()

    def __getattr__(self, name):
        if name.startswith("_") and name != "__ray_call__":
            raise AttributeError(name)
        if name != "__ray_call__" and not hasattr(self._object, name):
            raise AttributeError(name)
        return SimpleNamespace(remote=functools.partial(self._call, name))

    def _call(self, name, *args, **settings):
        loop = asyncio.get_running_loop()
        reply = loop.create_future()
        reply.add_done_callback(lambda done: done.cancelled() or done.exception())
        life = self._life
        if life is None:
            loop.call_later(0.01, _fail, reply, self._death())
            return Reference(reply)
        life.replies.add(reply)
        reply.add_done_callback(life.replies.discard)
        context = contextvars.copy_context()
        context.run(LIFE.set, life)
        task = loop.create_task(self._answer(life, name, args, settings, reply, LIFE.get()), context=context)
        self._scene.served[reply] = task
        return Reference(reply)

    async def _answer(self, life, name, args, settings, reply, caller):
        await asyncio.sleep(0.001)
        await life.wait()
        args = [given.value() if isinstance(given, Kept) else given for given in args]
        try:
            if name == "__ray_call__":
                found = ("node", "host", life.pid, 0.0)
            else:
                found = getattr(self._object, name)(*args, **settings)
                found = await found if asyncio.iscoroutine(found) else found
        except Exception as error:  # noqa: BLE001 - it is the caller's
            await life.wait()
            _fail(reply, error)
        except asyncio.CancelledError:
            if life.alive:
                _fail(reply, ray.exceptions.TaskCancelledError())
            raise
        else:
            await life.wait()
            if caller is not None:
                await caller.wait()
            if not reply.done():
                reply.set_result(found)

    def _death(self):
        return ActorUnavailableError("it is restarted", None) if self._left else ActorDiedError()

    def die(self, for_good=False):
        """End the process. Ray notices, and restarts it."""
        life, self._life = self._life, None
        if life is None:
            return
        life.alive = False
        self._left = 0 if for_good else self._left
        loop = asyncio.get_running_loop()
        for reply in life.replies:
            loop.call_later(NOTICED_SECONDS, _fail, reply, self._death())
        for task in list(life.tasks):
            if task is not asyncio.current_task():
                task.cancel()
        life.goes.set()
        if self._left:
            self._left -= 1
            loop.call_later(RESTARTED_SECONDS, self._begin)

    def stop(self):
        """Stop the process, as SIGSTOP does."""
        if self._life is not None:
            self._life.goes.clear()

    def go_on(self, life):
        """Have the process ``life`` go on, as SIGCONT does."""
        if life is not None:
            life.goes.set()


def _fail(reply, error):
    if not reply.done():
        reply.set_exception(error)


@dataclass(frozen=True)
class Kept:
    """A reference to rows in Ray's object store."""

    rows: object

    def value(self):
        return self.rows.clone()

    def __await__(self):
        yield from asyncio.sleep(0).__await__()
        return self.value()


class ReportedOutbox(Outbox):
    """An outbox whose ``take`` is awaited in the one thread that there is."""

    def __init__(self):
        super().__init__()
        self.filled = asyncio.Event()

    def put(self, value):
        super().put(value)
        self.filled.set()

    async def taken(self):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.filled.wait(), BEAT_SECONDS)
        self.filled.clear()
        return [self._values.get_nowait() for _ in range(self._values.qsize())]


class Worker(AllocatedWorker):
    """The real worker, whose calls pass points."""

    def __init__(self, scene):
        handles = [scene.actors[f"rewarder {i}"] for i in range(2)]
        super().__init__(scene.config, LLMServerClient(scene.config, scene.actors["balancer"]), None, handles)
        self._scene, self._outbox = scene, ReportedOutbox()

    async def reports(self):
        values = await self._outbox.taken()
        if not values:
            return values

        async def told():
            return values

        return await self._scene.at("report", "", told)

    async def carry_out(self, tasks):
        await self._scene.at("task", "", lambda: super(Worker, self).carry_out(tasks))

    async def generate_sequences(self, batch):
        await self._scene.at("rows", "", lambda: super(Worker, self).generate_sequences(batch))


@dataclass
class Server:
    """A rollout server: a rollout is fixed by its prompt and by how often it was asked for."""

    scene: Scene
    step: int = 0
    live: set = field(default_factory=set)

    async def generate(self, request_id, prompt_ids, sampling_params, **rest):
        asked = self.scene.asked
        asked[tuple(prompt_ids)] += 1
        number = asked[tuple(prompt_ids)]
        digest = hashlib.sha256(repr((tuple(prompt_ids), number)).encode()).digest()
        tokens = [3 + byte % 20 for byte in digest[: 2 + digest[0] % 5]]
        self.live.add(request_id)

        async def generated():
            await asyncio.sleep(0.2 + digest[1] / 256)
            logprobs, extra = [-1.0] * len(tokens), {"global_steps": self.step}
            return TokenOutput(token_ids=tokens, log_probs=logprobs, stop_reason="completed", extra_fields=extra)

        try:
            return await self.scene.at("generate", str(prompt_ids), generated)
        finally:
            self.live.discard(request_id)

    async def sleep(self):
        """Wait, as vLLM's replica does, until nothing is generated any more."""

        async def slept():
            while self.live:
                await asyncio.sleep(0.1)

        await self.scene.at("sleep", "", slept)

    async def load(self, step):
        async def loaded():
            self.step = step

        await self.scene.at("load", "", loaded)


@dataclass
class Balancer:
    """verl's load balancer of one server."""

    scene: Scene

    def require_acquire_fields(self):
        return []

    def require_release_fields(self):
        return []

    async def acquire_server(self, request_id):
        async def acquired():
            return "server", self.scene.actors["server"]

        return await self.scene.at("acquire", "", acquired)

    def release_server(self, server_id):
        return None


@dataclass
class Rewarder:
    """A reward worker of verl: an even sum of tokens is right."""

    scene: Scene

    async def compute_score(self, data):
        async def scored():
            return {"reward_score": reward_of(data.batch["responses"][-1].tolist()), "reward_extra_info": {}}

        return await self.scene.at("score", str(data.non_tensor_batch["uid"][0]), scored)


@dataclass
class Trained:
    """verl's training workers."""

    scene: Scene

    async def update(self):
        await self.scene.at("update", "", lambda: asyncio.sleep(2.0))


class Nothing:
    """An actor that is only asked whether it lives."""


def reward_of(tokens):
    return float(sum(tokens) % 2 == 0)


class Queue:
    """TransferQueue: tags and fields of keys, by partition."""

    def __init__(self, scene):
        self.scene = scene
        self.tags = defaultdict(dict)
        self.fields = defaultdict(dict)

    async def async_kv_put(self, key, partition_id, fields=None, tag=None):
        status = tag["status"]

        async def put():
            self.tags[partition_id].setdefault(key, {}).update(tag)

        await self._at("status" if status in ("finished", "failure") else "row", key, put)

    async def async_kv_batch_put(self, keys, partition_id, fields=None, tags=None):
        async def put():
            for i, key in enumerate(keys):
                self.tags[partition_id].setdefault(key, {}).update(tags[i] if tags else {})
                own = self.fields[partition_id].setdefault(key, {})
                own.update({name: _at(column, i) for name, column in (() if fields is None else fields.items())})

        names = [] if fields is None else list(fields.keys())
        await self._at("columns" if "apportion" in names else "write", keys[0], put)

    async def async_kv_clear(self, keys, partition_id):
        async def clear():
            for key in keys:
                self.tags[partition_id].pop(key, None)
                self.fields[partition_id].pop(key, None)

        await self._at("clear", keys[0], clear)

    async def async_kv_list(self, partition_id=None):
        async def listed():
            return {name: dict(tags) for name, tags in self.tags.items() if partition_id in (None, name)}

        return await self._at("list", "", listed)

    async def _at(self, point, who, do):
        await passing()
        await asyncio.sleep(0.002)
        found = await self.scene.at(point, who, do)
        await passing()
        return found


def _at(column, i):
    found = column[i]
    return getattr(found, "data", found) if not isinstance(found, torch.Tensor) else found


@dataclass
class Phase:
    """Where the trainer is, and since when, in place of the watch of its stack."""

    at: str = ""
    seconds: float = 0.0

    def look(self, passed):
        self.seconds = self.seconds + passed if self.at else 0.0
        return self.at, self.seconds


@dataclass(frozen=True)
class Strike:
    """A fault: ``act`` takes the place of what happens at ``point``, from a moment on so many ``times``.

    It is given the scene, what passes, and what would happen, and returns what does.
    """

    point: str
    act: Callable
    times: float = 1


@dataclass(frozen=True)
class Moment:
    """The passage of a point in a ``step`` (from 1) at which a fault begins: at this ``share`` of its passages there.

    With ``ahead`` the trainer is asynchronous: it requests a step before it trains on the one before.
    """

    step: int
    share: float
    ahead: bool = False


class Scene:
    """A run of ``steps`` steps in ``folder``, under the rule of this name, with ``strikes`` and their first passages.

    ``passed`` counts the passages of each point in each step.
    """

    def __init__(
        self,
        folder,
        assets,
        rule="hora",
        steps=4,
        ahead=False,
        strikes=(),
        validates=False,
    ):
        self.folder, self.steps, self.ahead, self.validates = folder, steps, ahead, validates
        self.config = _config(str(assets), rule)
        self.allocation = allocation_of(self.config)
        self.strikes, self.done = strikes, Counter()
        self.passed = Counter()
        self.asked = Counter()
        self.pids = itertools.count(100)
        self.lives = {}
        self.actors = {}
        self.served = {}
        self.step, self.validating, self.phase = 0, False, Phase()
        self.wrong = []
        self.seconds = {}
        self.wall = self.slept = 0.0
        self.poisoned = set()
        self.rollouts = 0
        self.random = lambda point, who: None

    async def at(self, point, who, do):
        """Pass ``point``: have happen what does, or a fault in its place."""
        point = f"{point} in a validation" if self.validating else point
        place = (point, self.step)
        self.passed[place] += 1
        for i, (strike, begins, number) in enumerate(self.strikes):
            if strike.point != point or self.done[i] >= strike.times:
                continue
            late = begins[1] < self.step  # another fault left fewer passages
            if self.done[i] or late or (begins == place and self.passed[place] >= number):
                self.done[i] += 1
                return await strike.act(self, who, do)
        act = self.random(point, who)
        return await (do() if act is None else act(self, who, do))

    def kill(self, place):
        """Kill the process at ``place``."""
        actor = self.lives[place.pid]
        if actor._life is not None and actor._life.pid == place.pid:
            actor.die()

    def actor(self, name):
        """Return an actor by name; "me" is the one whose code runs."""
        life = LIFE.get()
        return self.lives[life.pid] if name == "me" and life is not None else self.actors[name]

    def run(self):
        """Run it. Raises what ends it, and TimeoutError if it hangs."""
        with contextlib.ExitStack() as stack:
            loop = stack.enter_context(contextlib.closing(QuickLoop()))
            for function in ("async_kv_put", "async_kv_batch_put", "async_kv_clear", "async_kv_list"):
                stack.enter_context(mock.patch.object(tq, function, self._queued(function)))
            clock = time.time

            async def killed(name, place):
                self.kill(place)

            async def ended(message, waits):
                self.interrupted.set()

            for owner, name, value in (
                (tq, "init", lambda *args: None),
                (time, "monotonic", lambda: loop.now),
                (time, "time", lambda: clock() + self.wall),
                (workers, "kill", killed),
                (actor_watch, "kill", killed),
                (workers, "end_trainer", ended),
                (ray, "kill", lambda actor: actor.die(for_good=True)),
                (ray, "cancel", lambda call: self.served[call.reply].cancel()),
                (agent_loop, "omega_conf_to_dataclass", _dataclass),  # which take most of the time
                (agent_loop.hydra.utils, "instantiate", _instantiated),
            ):
                stack.enter_context(mock.patch.object(owner, name, value))
            stack.enter_context(mock.patch.dict(os.environ, VERL_FILE_LOGGER_PATH=str(self.folder / "metrics.jsonl")))
            asyncio.set_event_loop(loop)
            try:
                loop.run_until_complete(self._run())
            finally:
                asyncio.set_event_loop(None)

    def _queued(self, name):
        return lambda *args, **settings: getattr(self.queue, name)(*args, **settings)

    async def _run(self):
        self.queue, self.interrupted = Queue(self), asyncio.Event()
        for name, make in {
            "server": lambda: Server(self),
            "balancer": lambda: Balancer(self),
            "training worker": lambda: Trained(self),
            "rewarder 0": lambda: Rewarder(self),
            "rewarder 1": lambda: Rewarder(self),
            "controller": Nothing,
            "storage": Nothing,
        }.items():
            self.actors[name] = Actor(self, name, make, math.inf if name.startswith("rewarder") else 0)
        for i in range(2):
            self.actors[f"worker {i}"] = Actor(self, f"worker {i}", lambda: Worker(self))
        handles = {f"worker {i}": self.actors[f"worker {i}"] for i in range(2)}
        others = [
            WatchedActor(name, self.actors[name], "made there", name.startswith("rewarder"))
            for name in ("server", "balancer", "rewarder 0", "rewarder 1", "controller", "storage")
        ]
        self.coordinator = Coordinator(self.allocation)
        self.manager = SimpleNamespace(coordinator_state=self.coordinator.state, allocation=self.allocation)
        self.group = workers.WorkerGroup(self.coordinator, handles, others, self.phase)
        try:
            await self.group.start()
            await self._train()
        except Interrupted:
            self.coordinator.check()
            raise
        finally:
            self.group.close()
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            for life in self.lives.values():
                life.go_on(life._life)
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)

    async def _train(self):
        saver = SavedAllocation()
        newest = max(self.folder.glob("global_step_*"), key=lambda path: int(path.name[12:]), default=None)
        first = 1
        if newest is not None:
            load_into(self.coordinator, newest / FILE)
            first = int(newest.name[12:]) + 1
        tracker = self.tracker = tracking.AllocationTracking("toy", "run", ["file"], {"trainer": {}})
        opened = {}
        for number in range(first, self.steps + 1):
            self.step = number
            began = asyncio.get_running_loop().time()
            for step in range(self.step, min(self.step + self.ahead, self.steps) + 1):
                if step not in opened:
                    opened[step] = await self._open(step)
            await self._finished("train", opened[self.step])
            self._audit(self.step, opened[self.step])
            if not self.ahead:
                await self._wait("on_sample_end: sleep_replicas()", self.actors["server"].sleep.remote())
            await self._wait("step: update_actor()", self.actors["training worker"].update.remote())
            self._forget(opened.pop(self.step))
            await self.at("save", "", functools.partial(self._save, saver))
            await self._wait("on_step_end: update_weights()", self.actors["server"].load.remote(self.step))
            if self.validates:
                await self._validate()
            await self.at("log", "", functools.partial(self._log, tracker))
            self.seconds[self.step] = asyncio.get_running_loop().time() - began - self.slept
            self.slept = 0.0
        tracker.finish()

    async def _save(self, saver):
        trainer = SimpleNamespace(agent_loop_manager=self.manager, trainer_mode="sync")
        saver.write(trainer, self.folder / f"global_step_{self.step}")

    async def _log(self, tracker):
        with mock.patch.object(tracking.AllocationTracking, "metrics", self._metrics):
            tracker.log(data={"training/global_step": self.step}, step=self.step)

    def _metrics(self):
        """Return the coordinator's metrics. Note rollouts beyond the budget, or that nobody counts."""
        found = self.coordinator.metrics()
        if found and self.allocation.allocator.name != "ar3po":
            asked, budget = found["rollouts"], found["requests"] * PROMPTS * ROLLOUTS
            self.rollouts += int(asked)
            if asked != budget:
                self.wrong.append(f"step {self.step} asked for {asked:g} rollouts of {budget:g}")
        return found

    async def _wait(self, where, call):
        """Wait as verl's trainer does: without a bound, until it is interrupted."""
        self.phase.at, self.phase.seconds = where, 0.0
        ended = asyncio.ensure_future(self.interrupted.wait())
        future = asyncio.ensure_future(call)
        try:
            await asyncio.wait_for(asyncio.wait([future, ended], return_when=asyncio.FIRST_COMPLETED), HUNG_SECONDS)
            if not future.done():
                raise Interrupted
            future.result()
        finally:
            self.phase.at = ""
            ended.cancel()
            future.cancel()

    def _rows(self, step, prompts, validate):
        """Return the uids of a step, its rows in chunks for the workers, and the rows."""
        kind = "v" if validate else "t"
        rows = [
            {
                "uid": f"{kind}{step}-{i}",
                "index": i,
                "raw_prompt": [{"role": "user", "content": f"{kind} q{step}{i}"}],
                "data_source": "toy",
                "reward_model": {"style": "rule", "ground_truth": "1"},
                "extra_info": {"index": i},
            }
            for i in range(prompts)
        ]
        batch = list_of_dict_to_tensordict(rows)
        batch["global_steps"], batch["validate"] = NonTensorData(step), NonTensorData(validate)
        chunks = [Kept(chunk) for chunk in batch.chunk(2)]
        uids = [str(row["uid"]) for row in rows]
        partition = self.queue.tags["val" if validate else "train"]
        for uid in uids:
            partition[uid] = {"is_prompt": True, "status": "pending", "global_steps": step}
        return uids, chunks, rows

    async def _open(self, step):
        uids, chunks, rows = self._rows(step, PROMPTS, False)
        prompts = [Prompt(str(row["raw_prompt"]), data=RowAddress(str(row["uid"]), str(row["uid"]))) for row in rows]
        holders = [f"worker {i * 2 // PROMPTS}" for i in range(PROMPTS)]

        async def opened():
            request = TrainerRequest(step, tuple(prompts), tuple(holders), tuple(chunks))
            self.group.hand_out(request, self.coordinator.open)

        await self.at("open", "", opened)
        return uids

    async def _validate(self):
        self.validating = True
        uids, chunks, _ = self._rows(self.step, VALIDATED, True)
        prompts = tuple(Prompt(uid, data=RowAddress(uid, uid)) for uid in uids)
        request = TrainerRequest(self.step, prompts, ("worker 0", "worker 1"), tuple(chunks))
        self.group.hand_out(request, self.coordinator.validate)
        await self._finished("val", uids)
        self._forget(uids, "val")
        self.validating = False

    async def _finished(self, partition, uids):
        """Wait as verl's replay buffer does, under our check."""
        began = asyncio.get_running_loop().time()
        tags = self.queue.tags[partition]
        while not all(tags[uid]["status"] in ("finished", "failure") for uid in uids):
            self.coordinator.check()
            if asyncio.get_running_loop().time() - began - self.slept > HUNG_SECONDS:
                left = [uid for uid in uids if tags[uid]["status"] not in ("finished", "failure")]
                raise TimeoutError(f"step {self.step} waits for {left}")
            await asyncio.sleep(0.5)
        self.coordinator.check()

    def _forget(self, uids, partition="train"):
        """Clear a step's rows. What is left of them, or comes later, is wrong."""
        for table in (self.queue.tags[partition], self.queue.fields[partition]):
            for key in [key for key in table if key.split("_")[0] in uids]:
                del table[key]

    def _audit(self, step, uids):
        """Note what is wrong with the rows that a step trains on."""
        tags, fields = self.queue.tags["train"], self.queue.fields["train"]
        rows = [key for key in tags if key not in uids and key.split("_")[0] in uids]
        stray = [key for key in tags if int(key.split("-")[0][1:]) < step]
        self.wrong += [f"{key} of an earlier step is left" for key in stray]
        groups = {}
        for key in rows:
            own = fields[key].get("apportion")
            if own is None:
                self.wrong.append(f"{key} is of no group")
                continue
            groups.setdefault(own["group"], []).append(own["position"])
            if own["group"] != key.split("_")[0] and self.allocation.allocator.name == "hora":
                self.wrong.append(f"{key} is of the group of another prompt")
            reward = own["rewards"][own["position"]]
            if reward != reward_of(fields[key]["responses"].tolist()) or reward != float(
                fields[key]["rm_scores"].sum()
            ):
                self.wrong.append(f"{key} has another reward than its tokens")
        self.wrong += [f"two rows of {name} at one position" for name, at in groups.items() if len({*at}) < len(at)]
        budget = PROMPTS * ROLLOUTS if self.allocation.allocator.name != "ar3po" else math.inf
        if len(rows) > budget:
            self.wrong.append(f"step {step} has {len(rows)} rows of {budget}")


class Interrupted(BaseException):
    """The trainer's wait was interrupted."""


@functools.cache
def _config(assets, rule):
    own = {**harness.settings(assets, "/nowhere"), "actor_rollout_ref.rollout.name": "vllm"}
    own |= {"actor_rollout_ref.rollout.n": ROLLOUTS}
    words = [f"{name}={value}" for name, value in own.items() if "custom_sampler" not in name]
    config, _ = command(*words, *RULES[rule], *(f"allocation.{each}" for each in OF_THE_RUN))
    OmegaConf.resolve(config)  # now, not again for each rollout
    return config


_known = {}
_convert, _instantiate = agent_loop.omega_conf_to_dataclass, agent_loop.hydra.utils.instantiate


def _dataclass(config):
    """Return verl's dataclass of a part of the configuration, which is made once."""
    if id(config) not in _known:
        _known[id(config)] = (config, _convert(config))
    return _known[id(config)][1]


def _instantiated(config, **settings):
    """Return an agent loop, as ``hydra.utils.instantiate`` does."""
    if "_convert_" in settings:
        return _instantiate(config, **settings)
    return agent_loop.hydra.utils.get_class(config["_target_"])(**settings)
