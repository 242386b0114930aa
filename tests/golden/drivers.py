"""What each driver requests, trains on and learns: a table of drivers by rules, on seeded outcomes with failures.

The rules are those of the registry, with small settings. Budgets in tokens are left out, because floats of another
processor may break their ties in another way.
"""

import asyncio
import json
from hashlib import sha256
from itertools import cycle, islice
from random import Random

import numpy as np

from apportion import collect, collect_async
from apportion.advantages import advantages_of, loss_weights
from apportion.allocators import ALLOCATORS
from apportion.engines.contract import EngineGroups
from apportion.predictors import MeanLengths
from apportion.scheduler import OfferedScheduler, Prompts, Rows, Scheduler, Selected
from apportion.scheduler.decisions import RunDecisions, TrainerAllocation
from apportion.scheduler.scheduler import plans_prompts_alone
from apportion.selection import MoPPS, ShuffledEpochs
from tests.golden.decisions import plain, pool, rate, rollout, sampler
from tests.rules import MAKE
from tests.verl.coordinator.test_streamed import Trainer, failing
from tests.verl.coordinator.worker_pool import (
    Table,
    WorkerPool,
    allocation,
    make_coordinator,
    open_rounds,
    request_of,
    work,
)
from tests.verl.coordinator.worker_pool import texts as texts_of

PROMPTS, UPDATES, SLOTS, STEPS = 40, 4, 6, 3_000


def success(prompt):
    return rate(int(prompt.text.split()[1]))


def digest(state):
    """Return a digest of ``state``, with floats of 6 digits."""
    text = json.dumps(plain(state), sort_keys=True)
    short = json.loads(text, parse_float=lambda number: float(f"{float(number):.6g}"))
    return sha256(json.dumps(short).encode()).hexdigest()[:16]


def trained(rule, groups, batch):
    """Return what enters the loss of an update, and what was asked for."""
    estimator = rule.needs.estimator or "rloo"
    weighted = advantages_of(groups, estimator) * loss_weights(groups, "prompt") if groups else []
    return {
        "groups": [group.prompt.text for group in groups],
        "keep": ["".join("01"[int(kept)] for kept in group.keep) for group in groups],
        "advantages": plain(weighted),
        "asked": [f"{prompt.text}: {asked}" for prompt, asked in zip(batch.prompts, batch.asked, strict=True)],
    }


def streamed(rule, stream, selection=None):
    """Run ``stream`` on results in any order, some of them failed."""
    order, running, asked, updates = Random("order of results"), [], [], []
    source = Loader(stream) if isinstance(stream, OfferedScheduler) else None
    for now in range(STEPS):
        if source is not None:
            source.bring(stream.wanted())
        decision = stream.decide(SLOTS - len(running), float(now))
        asked += [f"{t.prompt.text} #{t.rollout}.{t.attempt} @{t.version}" for t in decision.requests]
        running += decision.requests
        if (found := decision.update) is not None:
            own = {"requests": "\n".join(asked), "ages": list(found.ages)}
            updates.append(own | trained(rule, found.groups, found.batch))
            stream.trained(found.version)
            asked = []
            if len(updates) == UPDATES:
                break
            if source is not None:
                source.bring(3)
        if source is not None and now % 23 == 22:
            running = source.lose_one(running)
        if running:
            ticket = running.pop(order.randrange(len(running)))
            name = f"{ticket.prompt.text} {ticket.rollout} {ticket.attempt} {ticket.version}"
            result = rollout(name, success(ticket.prompt), False)
            if result is None and now % 2 and source is not None:
                stream.gave_up(ticket)
            else:
                stream.arrived(ticket, result)
    learned = [rule.state_dict(), {} if selection is None else selection.state_dict()]
    kept = {"counts": stream.state_dict()["counts"], "carry": stream.carry, "version": stream.version}
    return plain({"updates": updates, "state": digest(learned), **kept})


class Loader:
    """An engine's own prompts, in order, and again those whose rollouts were lost."""

    def __init__(self, stream):
        self.stream, self.prompts = stream, cycle(pool()[:PROMPTS])
        self.bring(9)

    def bring(self, number):
        for prompt in islice(self.prompts, number):
            self.stream.source.offer(prompt.id)

    def lose_one(self, running):
        """Withdraw the oldest prompt that is sampled, and offer it again. Return what is ``running`` then."""
        for unit in self.stream.unfinished()[:1]:
            id, granted = self.stream.batch(unit).prompts[0].id, self.stream.withdraw([unit])
            self.stream.source.offer(id, granted.get(unit))
            running = [ticket for ticket in running if ticket.unit != unit]
        return running


def barrier(rule):
    return streamed(rule, Scheduler(rule, pool()[:PROMPTS], Rows(1, 0), batch=7, attempts=2))


def batches(rule):
    lengths = MeanLengths(initial=60)
    return streamed(rule, Scheduler(rule, pool()[:PROMPTS], Rows(24), Selected(lengths=lengths), batch=3))


def alone(rule):
    selection = MoPPS() if rule.needs.labels else ShuffledEpochs()
    own = RunDecisions(allocator=rule, selection=selection)
    stream = Scheduler(own, pool()[:PROMPTS], Rows(40, 2), Selected(seed=3))
    return streamed(stream.rule, stream, selection)


def offered(rule, *settings):
    stream = OfferedScheduler(rule, pool()[:PROMPTS], Prompts(3, 3, *settings))
    return streamed(stream.rule, stream)


def engine(rule):
    """Run the contract of engines, which end groups in any order, lose some, and ask for advantages of three."""
    decisions = TrainerAllocation(allocator=rule, selection="shuffled", baseline="spo", estimator="reinforce")
    groups = EngineGroups(decisions, pool()[:PROMPTS], seed=3, lost_after=30)
    order, flying, asked, done, advantages = Random("order of groups"), [], [], [], []
    for step in range(40):
        opened = groups.next()
        asked.append(f"{opened.prompt.text} {opened.key.rpartition('#')[2]}: {opened.count}")
        flying += [opened] * (step % 13 != 12)
        if len(flying) > SLOTS:
            group = flying.pop(order.randrange(len(flying)))
            more, rows = group.count, []
            while more:
                names = (f"{group.key} {len(rows) + i}" for i in range(more))
                rows += [rollout(name, success(group.prompt), False) for name in names]
                more = groups.observe(group.key, rows[-more:])
                asked.append(f"{group.prompt.text}: {more} more")
            done.append((group.key, rows))
        if len(done) == 3:
            keys = [key for key, rows in done for _ in rows]
            advantages += groups.advantages(keys, [row for _, rows in done for row in rows]).tolist()
            done = []
    state = digest({name: None if part is None else part.state_dict() for name, part in decisions.parts.items()})
    return plain({"asked": "\n".join(asked), "advantages": advantages, "state": state, "counts": dict(groups.counts)})


def committed(tasks, pool):
    """Return what verl trains on, by uid: its rows, and the columns from which they get advantages."""
    return [
        {"uid": task.uid, "status": task.status, "cleared": pool.cleared[task.uid]}
        | {"rows": [key for row in task.rows for key in row.keys(task.uid)]}
        | {"columns": digest([group.columns for group in task.groups])}
        for task in tasks
    ]


def rounds(rule):
    """Run three rounds of verl's coordinator on workers in this process, whose results come in any order."""
    worker_pool, order = WorkerPool(Table(failing=0.1)), np.random.default_rng(3)
    coordinator = make_coordinator(allocation(rule, retries=1), worker_pool)
    for step in range(3):
        open_rounds(coordinator, request_of(texts_of(*range(step, step + 7)), step=step))
        work(coordinator, order)
    return plain({"commits": committed(worker_pool.committed, worker_pool), "state": digest(rule.state_dict())})


def verl_stream(rule):
    trainer = Trainer(rule, seed=3, slots=SLOTS)
    trainer.feed(6)
    for update in range(UPDATES):
        trainer.step(failing if update % 2 else None)
    state = trainer.coordinator.state()["allocator"]
    return plain({"commits": committed((task for _, task in trainer.trained), trainer.pool), "state": digest(state)})


def collected(rule):
    """Run ``collect`` twice, and ``collect_async`` once."""
    found = []
    for step in range(3):
        sample, fresh = sampler(success, False, f"collect {step}"), iter(pool()[20:])
        source, prompts = lambda number, fresh=fresh: [next(fresh) for _ in range(number)], pool()[step : step + 9]
        if step < 2:
            batch = collect(rule, prompts, sample, source=source)
        else:

            async def one(prompt, number, sample=sample):
                await asyncio.sleep(0)
                return sample([prompt], [number])[0]

            batch = asyncio.run(collect_async(rule, prompts, one, source=source))
        found.append(trained(rule, rule.groups(batch), batch) | {"rounds": batch.round})
        rule.observe(batch)
    return {"batches": found, "state": digest(rule.state_dict())}


ALONE = [name for name in ALLOCATORS if plans_prompts_alone(MAKE[name]()) and not MAKE[name]().size(1).fresh]
LABELLED = [name for name in ALONE if MAKE[name]().needs.labels and not MAKE[name]().needs.reused_rollouts]
DRIVERS = {
    "collect": (ALLOCATORS, collected),
    "barrier": (ALLOCATORS, barrier),
    "batches, longest first": (ALLOCATORS, batches),
    "alone or by a price": (ALONE, alone),
    "offered": (ALONE, offered),
    "offered, few rows": (ALONE, lambda rule: offered(rule, 20, 2)),
    "engine": (LABELLED, engine),
    "verl, rounds": (ALLOCATORS, rounds),
    "verl, stream": (ALONE, verl_stream),
}


def record():
    """Return what each driver does with each rule that it takes, as JSON data."""
    return {title: {name: run(MAKE[name]()) for name in names} for title, (names, run) in DRIVERS.items()}
