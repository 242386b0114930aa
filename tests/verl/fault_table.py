"""Kinds of faults in a run of verl, each at five moments: what must come of it, and what did."""

import asyncio
import errno
import functools
import logging
import math
import os
import pickle
import re
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from ray.exceptions import ActorUnavailableError, RayTaskError
from verl.workers.rollout.replica import TokenOutput

from apportion.types import Rollout
from apportion.verl.coordinator.messages import TaskResult, WrittenRollout
from apportion.verl.reports import opened
from tests.verl.fault_scene import LIFE, Moment, Scene, Strike

MOMENTS = (
    Moment(1, 0.0),
    Moment(2, 1.0),
    Moment(3, 0.5, ahead=True),
    Moment(4, 0.25),
    Moment(2, 0.75, ahead=True),
)
"""First, last and other passages of a point, in four steps, of synchronous and asynchronous trainers."""

ALWAYS = math.inf


def raises(error, after=False):
    """Raise, before or ``after`` what would happen."""

    async def act(scene, who, do):
        if after:
            await do()
        raise error

    return act


def returns(value):
    """Return something else. A function is called with what would be returned."""

    async def act(scene, who, do):
        found = await do()
        return value(found) if callable(value) else value

    return act


def late(seconds, after=False):
    """Take longer, or for ever."""

    async def act(scene, who, do):
        found = await do() if after else None
        await (asyncio.Event().wait() if math.isinf(seconds) else asyncio.sleep(seconds))
        return found if after else await do()

    return act


def poisons(act):
    """Do that to one prompt, whenever it comes."""

    async def poisoned(scene, who, do):
        scene.poisoned.add(who) if not scene.poisoned else None
        return await (act(scene, who, do) if who in scene.poisoned else do())

    return poisoned


def kills(*names, after=False, for_good=False):
    """Kill actors before or ``after`` what would happen; "me" is the one whose code runs."""

    async def act(scene, who, do):
        if after:
            await do()
        own = LIFE.get()
        for name in names:
            scene.actor(name).die(for_good)
        if own is not None and not own.alive:
            await asyncio.Event().wait()
        return None if after else await do()

    return act


def stops(*names, seconds=math.inf, after=False):
    """Stop actors, for ``seconds`` or for ever."""

    async def act(scene, who, do):
        found = await do() if after else None
        for name in names:
            actor = scene.actor(name)
            actor.stop()
            if not math.isinf(seconds):
                asyncio.get_running_loop().call_later(seconds, actor.go_on, actor._life)
        own = LIFE.get()
        if own is not None:
            await own.wait()
        return found if after else await do()

    return act


def jumps(wall=0.0, all_clocks=0.0):
    """Have the clock of the host jump, or all clocks, as of a machine that slept."""

    async def act(scene, who, do):
        scene.wall += wall
        scene.slept += all_clocks
        asyncio.get_running_loop().now += all_clocks
        return await do()

    return act


def both(first, second):
    """Do the first in place of what would happen in the second."""

    async def act(scene, who, do):
        return await second(scene, who, functools.partial(first, scene, who, do))

    return act


def full_disk(name, number=1):
    """Have call ``number`` of a function of ``os`` find the disk full."""

    async def act(scene, who, do):
        calls, real = Counter(), getattr(os, name)

        def full(*args, **settings):
            calls[name] += 1
            if calls[name] >= number:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(*args, **settings)

        with mock.patch.object(os, name, full):
            return await do()

    return act


def full_log():
    """Have verl's file of metrics on a full disk."""

    async def act(scene, who, do):
        scene.tracker.logger["file"].fp.close()
        with Path("/dev/full").open("wb", buffering=0) as full:
            scene.tracker.logger["file"].fp = full
            return await do()

    return act


def score(value):
    """Have the reward function return ``value``."""
    return returns({"reward_score": value, "reward_extra_info": {}})


def reports(change):
    """Have a worker report something else."""
    return returns(lambda values: [pickle.dumps(each) for each in change(opened(values))])


def with_more(results):
    """Add a rollout that nobody asked for to the first result."""
    return [
        TaskResult(each.id, (*each.rollouts, Rollout(True, None, 1.0, WrittenRollout(b"x", "t0-0", 99, (1,)), 1)))
        if isinstance(each, TaskResult) and each.rollouts
        else each
        for each in results
    ]


BROKEN = RuntimeError("this service is broken")
GONE = ActorUnavailableError("the network failed", None)


def remote(error):
    """Return an error as Ray raises that of another process."""
    return RayTaskError("f", "a traceback", error).as_instanceof_cause()


def tokens(ids, log_probs=None, reason="completed"):
    return returns(TokenOutput.model_construct(token_ids=ids, log_probs=log_probs, stop_reason=reason, extra_fields={}))


@dataclass(frozen=True)
class Kind:
    """A kind of fault, and the ``cause`` that the last line of a run says that it must end; "" if the run goes on."""

    name: str
    strikes: tuple
    cause: str = ""
    rule: str = "hora"
    validates: bool = False


def kind(name, *strikes, **settings):
    return Kind(name, tuple(Strike(*each) for each in strikes), **settings)


KINDS = (
    # reward services
    kind("a reward raises", ("score", raises(remote(BROKEN)))),
    kind("a reward raises twice", ("score", raises(remote(BROKEN)), 2)),
    kind("all rewards of a prompt raise", ("score", poisons(raises(remote(BROKEN))), ALWAYS)),
    kind("rewards raise from now on", ("score", raises(remote(BROKEN)), ALWAYS), cause="must arrive, got none"),
    *(
        kind(f"a reward is {name}", ("score", score(value), 2))
        for name, value in {
            "NaN": math.nan, "infinite": math.inf, "minus infinity": -math.inf, "None": None, "text": "one",
            "a list": [1.0, 0.0], "an array": np.ones(3), "a tensor of NaN": torch.tensor(math.nan),
            "a dictionary": {"score": 1.0}, "a complex number": 1j, "a whole number beyond the range": 10**400,
        }.items()
    ),
    kind("all rewards of a prompt are NaN", ("score", poisons(score(math.nan)), ALWAYS)),
    kind("a reward service returns nothing", ("score", returns(None), 2)),
    kind("a reward service returns a list", ("score", returns([1.0]), 2)),
    kind("a reward service leaves the reward out", ("score", returns({"reward_extra_info": {}}), 2)),
    kind("a reward service leaves the extra values out", ("score", returns({"reward_score": 1.0}), 2)),
    kind("a reward takes 15 s", ("score", late(15.0), 3)),
    kind("a reward takes longer than the deadline", ("score", late(60.0))),
    kind("a reward never comes", ("score", late(ALWAYS))),
    kind("a reward comes after the deadline", ("score", late(60.0, after=True))),
    kind("a reward worker dies", ("score", kills("me"))),
    kind("both reward workers die", ("score", kills("rewarder 0", "rewarder 1"))),
    kind("a reward worker stops", ("score", stops("me"))),
    kind("a reward worker stops for 8 s", ("score", stops("me", seconds=8.0))),
    kind("a reward worker is gone for good", ("score", kills("me", for_good=True)), cause="rewarder . must live"),
    # rollout servers and the load balancer
    kind("a request raises", ("generate", raises(remote(BROKEN)))),
    kind("all requests of a prompt raise", ("generate", poisons(raises(remote(BROKEN))), ALWAYS)),
    kind("requests raise from now on", ("generate", raises(remote(BROKEN)), ALWAYS), cause="must arrive, got none"),
    kind("a request takes longer than the deadline", ("generate", late(60.0))),
    kind("a request never ends", ("generate", late(ALWAYS))),
    kind("a response without tokens", ("generate", tokens([]), 2)),
    kind("a response that was aborted", ("generate", tokens([], reason="aborted"), 2)),
    kind("a response of None", ("generate", tokens(None), 2)),
    kind("a response that is text", ("generate", returns("a text"), 2)),
    kind("a response whose tokens are text", ("generate", tokens(["a", "b"]), 2)),
    kind(
        "a server dies while it samples", ("generate", kills("me")),
        cause="server must live|ActorDiedError|The actor died",
    ),
    kind("a server stops while it samples", ("generate", stops("me")), cause="server must answer|no answer of server"),
    kind("a server stops for 10 s while it samples", ("generate", stops("me", seconds=10.0))),
    kind("a server stops when it is put to sleep", ("sleep", stops("me")), cause="(must|no) answer"),
    kind("a server dies when it is put to sleep", ("sleep", kills("me")), cause="The actor died"),
    kind("a server stops in an update", ("update", stops("server")), cause="server must answer|no answer of server"),
    kind("a server stops when it gets weights", ("load", stops("me")), cause="server must answer|no answer of server"),
    kind("a server stops in a checkpoint", ("save", stops("server")), cause="server must answer|no answer of server"),
    kind("weights are never loaded", ("load", late(ALWAYS)), cause="must leave on_step_end: update_weights"),
    kind("a training worker stops", ("update", stops("me")), cause="must leave step: update_actor"),
    kind("a training worker dies", ("update", kills("me")), cause="The actor died"),
    kind("an update takes 100 s", ("update", late(100.0))),
    kind("the load balancer raises", ("acquire", raises(remote(BROKEN)), 2)),
    kind("the load balancer is late", ("acquire", late(60.0))),
    kind("the load balancer dies", ("acquire", kills("me")), cause="balancer must live|ActorDiedError"),
    # agent-loop workers
    kind("a worker dies before it writes rows", ("write", kills("me"))),
    kind("a worker dies after it wrote rows", ("write", kills("me", after=True))),
    kind("a worker dies before it commits", ("columns", kills("me"))),
    kind("a worker dies within a commit", ("columns", kills("me", after=True))),
    kind("a worker dies after a commit", ("status", kills("me", after=True))),
    kind("a worker dies with its report", ("report", kills("me"))),
    kind("a worker dies with its tasks", ("task", kills("me"))),
    kind("a worker dies with its rows", ("rows", kills("me"))),
    kind("a worker dies between rounds", ("update", kills("worker 0"))),
    kind("a worker dies in a validation", ("write in a validation", kills("worker 0")), validates=True),
    kind("a worker dies after it validated", ("status in a validation", kills("me", after=True)), validates=True),
    kind("a worker stops in a validation", ("score in a validation", stops("worker 1")), validates=True),
    kind("a worker dies for good", ("write", kills("me", for_good=True))),
    kind("a worker dies five times", ("write", kills("me"), 5)),
    kind("workers die at each write", ("write", kills("me"), ALWAYS), cause="workers must live, got none of 2"),
    kind("both workers die", ("generate", kills("worker 0", "worker 1"))),
    kind(
        "both workers die for good", ("generate", kills("worker 0", "worker 1", for_good=True)),
        cause="workers must live, got none of 2",
    ),
    kind("a worker stops", ("write", stops("me"))),
    kind("a worker stops after it wrote rows", ("write", stops("me", after=True))),
    kind("a worker stops within a commit", ("columns", stops("me", after=True))),
    kind("a worker stops after a commit", ("status", stops("me", after=True))),
    kind("a worker stops for 3 s", ("write", stops("me", seconds=3.0))),
    kind("a worker stops for 8 s", ("write", stops("me", seconds=8.0))),
    kind("both workers stop", ("generate", stops("worker 0", "worker 1"))),
    kind("one worker dies and the other stops", ("generate", both(kills("worker 0"), stops("worker 1")))),
    kind("a worker answers twice", ("report", reports(lambda found: found * 2), 5)),
    kind("a worker answers 4 s late", ("report", late(4.0, after=True))),
    kind("a worker answers for others", ("report", reports(lambda found: [*found, TaskResult("t9-9:1")]))),
    kind(
        "a worker returns what nobody asked for", ("report", reports(with_more), 5),
        cause="rollouts, but . were asked for",
    ),
    kind("a call of a worker fails in the network", ("report", raises(GONE))),
    kind("tasks are lost in the network", ("task", raises(GONE))),
    kind("tasks arrive, and the answer is lost", ("task", raises(GONE, after=True))),
    kind("rows are lost in the network", ("rows", raises(GONE))),
    # TransferQueue
    kind("a write of rows fails", ("write", raises(BROKEN))),
    kind("a write of rows fails after it was done", ("write", raises(BROKEN, after=True))),
    kind("all writes of a prompt fail", ("write", poisons(raises(BROKEN)), ALWAYS)),
    kind("a write of rows takes 15 s", ("write", late(15.0))),
    kind("a commit fails at its columns", ("columns", raises(BROKEN))),
    kind("a commit fails at its columns twice", ("columns", raises(BROKEN), 2)),
    kind("a commit fails when it clears", ("score", raises(remote(BROKEN)), 4), ("clear", raises(BROKEN))),
    kind("a commit fails at the status", ("status", raises(BROKEN))),
    kind("a commit fails after the status", ("status", raises(BROKEN, after=True))),
    kind("commits fail from now on", ("columns", raises(BROKEN), ALWAYS), cause="commit of a prompt failed"),
    kind("a commit takes 15 s", ("columns", late(15.0))),
    kind("a commit never ends", ("columns", late(ALWAYS)), cause="must end within 30 s"),
    kind("a row's status fails", ("row", raises(BROKEN))),
    kind("the list fails when rows are taken over", ("write", kills("me")), ("list", raises(BROKEN))),
    kind(
        "TransferQueue's controller dies", ("write", both(late(ALWAYS), kills("controller")), ALWAYS),
        cause="controller must live",
    ),
    kind(
        "TransferQueue's storage stops", ("write", both(late(ALWAYS), stops("storage")), ALWAYS),
        cause="storage must answer|no answer of storage",
    ),
    # disks
    kind("the disk is full at the first file", ("save", full_disk("fsync")), cause="No space left", rule="ar3po"),
    kind("the disk is full at the second file", ("save", full_disk("fsync", 2)), cause="No space left", rule="ar3po"),
    kind("the disk is full when a file is named", ("save", full_disk("replace")), cause="No space left"),
    kind("the disk is full for a folder", ("save", full_disk("mkdir")), cause="No space left"),
    kind("the disk is full for metrics", ("log", full_log()), cause="No space left"),
    # clocks
    kind("the host's clock jumps a day ahead", ("score", jumps(wall=86400.0))),
    kind("the host's clock jumps a day back", ("score", jumps(wall=-86400.0))),
    kind("the machine sleeps for half an hour", ("score", jumps(wall=1800.0, all_clocks=1800.0))),
    kind("the machine sleeps in an update", ("update", jumps(wall=600.0, all_clocks=600.0))),
    # two at once
    kind("a worker dies, and rewards are NaN", ("write", kills("me")), ("score", score(math.nan), 3)),
    kind("a worker stops, and a request never ends", ("write", stops("me")), ("generate", late(ALWAYS))),
    kind("a worker dies, and a write fails", ("report", kills("me")), ("write", raises(BROKEN))),
    kind("a reward worker and a worker die", ("score", both(kills("worker 0"), kills("me")))),
    kind("the clock jumps, and a worker stops", ("score", jumps(wall=-9e5)), ("write", stops("me"))),
    kind("a worker dies, and the one that takes over", ("write", kills("me")), ("row", kills("me"))),
    kind("a worker dies after a commit, and one within", ("status", kills("me", after=True)), ("columns", kills("me"))),
)  # fmt: skip
"""All kinds, each with the cause that must end its run, if one must."""


@dataclass
class Found:
    """What came of a fault: "survived", "ended" with its cause, "ended otherwise", or "hung", and the run's last line.

    ``slowest`` is the longest step, and ``seconds`` the time of the test itself.
    """

    kind: str
    moment: Moment
    outcome: str
    last: str = ""
    wrong: list = field(default_factory=list)
    slowest: float = 0.0
    seconds: float = 0.0
    struck: bool = True

    @property
    def right(self):
        """Whether it is what must come of it, with the right rows."""
        return not self.wrong and self.outcome in ("survived", "ended")


def tried(kind, moment, assets):
    """Have a fault of ``kind`` happen at ``moment`` of a run. A run that ends is resumed without the fault."""
    began = time.perf_counter()
    logging.disable(logging.CRITICAL)
    try:
        with tempfile.TemporaryDirectory() as name:
            found = _tried(kind, moment, assets, Path(name))
    finally:
        logging.disable(logging.NOTSET)
    found.seconds = time.perf_counter() - began
    return found


def _tried(kind, moment, assets, folder):
    make = functools.partial(Scene, folder, assets, kind.rule, validates=kind.validates)
    ahead = moment.ahead and not any(strike.point == "sleep" for strike in kind.strikes)
    counts = passages(assets, kind.rule, ahead, kind.validates)
    begins = []
    for strike in kind.strikes:
        place = (strike.point, moment.step)
        begins.append((strike, place, 1 + round(moment.share * (max(counts[place], 1) - 1))))
    scene = make(ahead=ahead, strikes=tuple(begins))
    found = Found(kind.name, moment, "survived")
    try:
        scene.run()
    except TimeoutError as error:
        found.outcome, found.last = "hung", str(error)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        found.last = str(error).strip().splitlines()[-1] if str(error).strip() else repr(error)
        found.outcome = "ended" if kind.cause and _says(kind.cause, error) else "ended otherwise"
    found.struck = all(scene.done[i] for i in range(1 if kind.cause else len(kind.strikes)))
    found.wrong = list(scene.wrong)
    found.slowest = max(scene.seconds.values(), default=0.0)
    if found.outcome == "ended":
        resumed = make(ahead=ahead)
        try:
            resumed.run()
        except Exception as error:  # noqa: BLE001 - it is what is looked for
            found.wrong.append(f"the run cannot be resumed: {error}")
        found.wrong += resumed.wrong
    return found


def _says(cause, error):
    return re.search(cause, str(error) or repr(error)) is not None


@functools.cache
def passages(assets, rule, ahead, validates):
    """Return how often a run without faults passes each point in each step."""
    with tempfile.TemporaryDirectory() as name:
        scene = Scene(Path(name), assets, rule, ahead=ahead, validates=validates)
        scene.run()
    assert not scene.wrong, scene.wrong
    return scene.passed
