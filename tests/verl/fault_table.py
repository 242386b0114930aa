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
import yaml
from ray.exceptions import ActorUnavailableError, RayTaskError
from verl.workers.rollout.replica import TokenOutput

from apportion.types import Rollout
from apportion.verl.coordinator.messages import TaskResult, WrittenRollout
from apportion.verl.reports import opened
from tests.cases import lines
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
            if calls[name] >= int(number):
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


def remote(error):
    """Return an error as Ray raises that of another process."""
    return RayTaskError("f", "a traceback", error).as_instanceof_cause()


BROKEN = RuntimeError("this service is broken")
ERRORS = {"remotely": remote(BROKEN), "here": BROKEN, "in the network": ActorUnavailableError("it failed", None)}


def tokens(ids, log_probs=None, reason="completed"):
    return returns(TokenOutput.model_construct(token_ids=ids, log_probs=log_probs, stop_reason=reason, extra_fields={}))


OWN = {
    "aborts": tokens([], reason="aborted"),
    "answers twice": reports(lambda found: found * 2),
    "answers for others": reports(lambda found: [*found, TaskResult("t9-9:1")]),
    "answers more": reports(with_more),
    "fills the log": full_log(),
}
VALUES = {
    "an array": np.ones(3),
    "a tensor of NaN": torch.tensor(math.nan),
    "a complex number": 1j,
    "a number beyond the range": 10**400,
}
"""Acts and values by what a table says. Other values are YAML."""


def act_of(text):
    """Return the act that ``text`` says: a word and what it does that with. It may be ``after`` what would happen."""
    if text in OWN:
        return OWN[text]
    if " + " in text:
        return both(*map(act_of, text.split(" + ")))
    text, after = text.removesuffix(" after"), text.endswith(" after")
    word, _, rest = text.partition(" ")
    whom, _, how = rest.partition(" for ")
    match word:
        case "poisons":
            return poisons(act_of(rest))
        case "raises":
            return raises(ERRORS[rest], after)
        case "late":
            return late(seconds_of(rest), after)
        case "kills":
            return kills(*whom.split(" and "), after=after, for_good=how == "good")
        case "stops":
            return stops(*whom.split(" and "), seconds=seconds_of(how), after=after)
        case "jumps" | "sleeps":
            return jumps(seconds_of(rest), seconds_of(rest) if word == "sleeps" else 0.0)
        case "fills":
            return full_disk(*rest.split(" on call "))
    value = VALUES[rest] if rest in VALUES else yaml.safe_load(rest)
    acts = {"scores": lambda: returns({"reward_score": value, "reward_extra_info": {}})}
    return (acts | {"returns": lambda: returns(value), "generates": lambda: tokens(value)})[word]()


def seconds_of(text):
    """Return the seconds in ``text``, such as "15 s", without which it is for ever."""
    return float(text.removesuffix(" s")) if text.endswith(" s") else math.inf


@dataclass(frozen=True)
class Kind:
    """A kind of fault, and the ``cause`` that the last line of a run says that it must end; "" if the run goes on.

    The suite tries one moment of a kind that is ``in_suite``.
    """

    name: str
    strikes: tuple
    cause: str
    rule: str
    in_suite: bool

    @property
    def validates(self):
        return any("validation" in strike.point for strike in self.strikes)


def kind_of(name, strikes, cause="", rule="hora"):
    """Return the kind of a line of ``TABLE``."""
    found = []
    for each in strikes.split("; "):
        point, act, times = re.fullmatch(r"(.+?): (.+?)(?:, (\d+) times|, always)?", each).groups()
        found.append(Strike(point, act_of(act), ALWAYS if each.endswith(", always") else int(times or 1)))
    return Kind(name.removeprefix("* "), tuple(found), cause, rule, name.startswith("* "))


TABLE = r"""
    * a reward raises => score: raises remotely
    a reward raises twice => score: raises remotely, 2 times
    all rewards of a prompt raise => score: poisons raises remotely, always
    * rewards raise from now on => score: raises remotely, always => must arrive, got none
    * a reward is NaN => score: scores .nan, 2 times
    a reward is infinite => score: scores .inf, 2 times
    a reward is minus infinity => score: scores -.inf, 2 times
    a reward is None => score: scores null, 2 times
    a reward is text => score: scores one, 2 times
    a reward is a list => score: scores [1.0, 0.0], 2 times
    a reward is an array => score: scores an array, 2 times
    a reward is a tensor of NaN => score: scores a tensor of NaN, 2 times
    a reward is a dictionary => score: scores {score: 1.0}, 2 times
    a reward is a complex number => score: scores a complex number, 2 times
    a reward is a whole number beyond the range => score: scores a number beyond the range, 2 times
    all rewards of a prompt are NaN => score: poisons scores .nan, always
    a reward service returns nothing => score: returns null, 2 times
    a reward service returns a list => score: returns [1.0], 2 times
    a reward service leaves the reward out => score: returns {reward_extra_info: {}}, 2 times
    a reward service leaves the extra values out => score: returns {reward_score: 1.0}, 2 times
    a reward takes 15 s => score: late 15 s, 3 times
    a reward takes longer than the deadline => score: late 60 s
    * a reward never comes => score: late for ever
    a reward comes after the deadline => score: late 60 s after
    a reward worker dies => score: kills me
    both reward workers die => score: kills rewarder 0 and rewarder 1
    * a reward worker stops => score: stops me
    a reward worker stops for 8 s => score: stops me for 8 s
    a reward worker is gone for good => score: kills me for good => rewarder . must live
    a request raises => generate: raises remotely
    all requests of a prompt raise => generate: poisons raises remotely, always
    requests raise from now on => generate: raises remotely, always => must arrive, got none
    a request takes longer than the deadline => generate: late 60 s
    * a request never ends => generate: late for ever
    a response without tokens => generate: generates [], 2 times
    a response that was aborted => generate: aborts, 2 times
    * a response of None => generate: generates null, 2 times
    a response that is text => generate: returns a text, 2 times
    a response whose tokens are text => generate: generates [a, b], 2 times
    a server dies while it samples => generate: kills me => server must live|ActorDiedError|The actor died
    a server stops while it samples => generate: stops me => server must answer|no answer of server
    a server stops for 10 s while it samples => generate: stops me for 10 s
    * a server stops when it is put to sleep => sleep: stops me => (must|no) answer
    a server dies when it is put to sleep => sleep: kills me => The actor died
    a server stops in an update => update: stops server => server must answer|no answer of server
    a server stops when it gets weights => load: stops me => server must answer|no answer of server
    a server stops in a checkpoint => save: stops server => server must answer|no answer of server
    * weights are never loaded => load: late for ever => must leave on_step_end: update_weights
    a training worker stops => update: stops me => must leave step: update_actor
    a training worker dies => update: kills me => The actor died
    an update takes 100 s => update: late 100 s
    the load balancer raises => acquire: raises remotely, 2 times
    the load balancer is late => acquire: late 60 s
    the load balancer dies => acquire: kills me => balancer must live|ActorDiedError
    a worker dies before it writes rows => write: kills me
    a worker dies after it wrote rows => write: kills me after
    a worker dies before it commits => columns: kills me
    * a worker dies within a commit => columns: kills me after
    a worker dies after a commit => status: kills me after
    a worker dies with its report => report: kills me
    a worker dies with its tasks => task: kills me
    a worker dies with its rows => rows: kills me
    a worker dies between rounds => update: kills worker 0
    * a worker dies in a validation => write in a validation: kills worker 0
    a worker dies after it validated => status in a validation: kills me after
    * a worker stops in a validation => score in a validation: stops worker 1
    a worker dies for good => write: kills me for good
    a worker dies five times => write: kills me, 5 times
    * workers die at each write => write: kills me, always => workers must live, got none of 2
    * both workers die => generate: kills worker 0 and worker 1
    * both workers die for good => generate: kills worker 0 and worker 1 for good => workers must live, got none of 2
    * a worker stops => write: stops me
    a worker stops after it wrote rows => write: stops me after
    a worker stops within a commit => columns: stops me after
    a worker stops after a commit => status: stops me after
    a worker stops for 3 s => write: stops me for 3 s
    a worker stops for 8 s => write: stops me for 8 s
    both workers stop => generate: stops worker 0 and worker 1
    one worker dies and the other stops => generate: kills worker 0 + stops worker 1
    a worker answers twice => report: answers twice, 5 times
    a worker answers 4 s late => report: late 4 s after
    * a worker answers for others => report: answers for others
    a worker returns what nobody asked for => report: answers more, 5 times => rollouts, but . were asked for
    a call of a worker fails in the network => report: raises in the network
    * tasks are lost in the network => task: raises in the network
    tasks arrive, and the answer is lost => task: raises in the network after
    * rows are lost in the network => rows: raises in the network
    a write of rows fails => write: raises here
    a write of rows fails after it was done => write: raises here after
    all writes of a prompt fail => write: poisons raises here, always
    a write of rows takes 15 s => write: late 15 s
    a commit fails at its columns => columns: raises here
    a commit fails at its columns twice => columns: raises here, 2 times
    a commit fails when it clears => write: raises here after, 4 times; clear: raises here
    * a commit fails at the status => status: raises here
    a commit fails after the status => status: raises here after
    commits fail from now on => columns: raises here, always => commit of a prompt failed
    a commit takes 15 s => columns: late 15 s
    * a commit never ends => columns: late for ever => must end within 30 s
    a row's status fails => row: raises here
    the list fails when rows are taken over => write: kills me; list: raises here
    TransferQueue's controller dies => write: late for ever + kills controller, always => controller must live
    * TransferQueue's storage stops => write: late for ever + stops storage, always \
        => storage must answer|no answer of storage
    the disk is full at the first file => save: fills fsync => No space left => ar3po
    * the disk is full at the second file => save: fills fsync on call 2 => No space left => ar3po
    the disk is full when a file is named => save: fills replace => No space left
    the disk is full for a folder => save: fills mkdir => No space left
    the disk is full for metrics => log: fills the log => No space left
    the host's clock jumps a day ahead => score: jumps 86400 s
    the host's clock jumps a day back => score: jumps -86400 s
    * the machine sleeps for half an hour => score: sleeps 1800 s
    the machine sleeps in an update => update: sleeps 600 s
    a worker dies, and rewards are NaN => write: kills me; score: scores .nan, 3 times
    a worker stops, and a request never ends => write: stops me; generate: late for ever
    a worker dies, and a write fails => report: kills me; write: raises here
    a reward worker and a worker die => score: kills worker 0 + kills me
    the clock jumps, and a worker stops => score: jumps -900000 s; write: stops me
    a worker dies, and the one that takes over => write: kills me; row: kills me
    a worker dies after a commit, and one within => status: kills me after; columns: kills me
"""
"""All kinds: the name, the strikes, the cause that must end the run if one must, and the rule if it is not HORA.

A strike is a point and what happens there, once, so many times, or always. Those with a star are in the suite.
"""

KINDS = tuple(kind_of(*line) for line in lines(TABLE.replace("\\\n", "")))


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
