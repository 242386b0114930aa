"""A stream in place of rounds: nothing is lost or trained on twice, also with faults and after a restart."""

import pickle
from collections import Counter
from zlib import crc32

import numpy as np
import pytest

from apportion import HORA, VIP, Prompt, Uniform
from apportion.baselines import Optimal
from apportion.scheduler import OfferedScheduler, Prompts, RunDecisions
from apportion.verl.coordinator.messages import CommitTask, TaskResult, TrainerRequest, address_of
from apportion.verl.coordinator.service import Coordinator
from tests.verl.coordinator.worker_pool import Table, WorkerPool, allocation, lose_worker, request_of, texts, watched

PROMPTS, EACH, BOUND = 24, 2, 3
RULES = {
    "uniform": lambda: Uniform(4),
    "vip": lambda: VIP(rollouts_per_prompt=4.5, high=8),
    "hora": lambda: HORA(rollouts_per_prompt=6, pre_rollouts=2, high=12),
}


class Trainer:
    """A trainer of ``EACH`` prompts an update, and its queue: what is committed and not trained on yet."""

    def __init__(self, rule, seed=0, slots=None, retries=1, most_rows=None):
        self.prompts = [Prompt(text) for text in texts(*range(PROMPTS))]
        self.rng, self.fed, self.brought = np.random.default_rng(seed), 0, {}
        self.trained, self.dropped = [], []
        self.begin(rule, slots, retries, most_rows)

    def begin(self, rule, slots=None, retries=1, most_rows=None):
        """Start the coordinator of a process, with workers of its own."""
        self.pool, self.rule = WorkerPool(Table(failing=0.1)), watched(rule)
        settings, baseline = allocation(self.rule, retries=retries, slots=slots, stream=True), Optimal()
        object.__setattr__(settings, "baseline", baseline)  # beside votes too, which settings refuse
        due = Prompts(EACH, BOUND, most_rows)
        decisions = RunDecisions(allocator=self.rule, baseline=baseline)
        stream = OfferedScheduler(decisions, self.prompts, due, attempts=1 + retries)
        self.coordinator = Coordinator(settings, refills=True, stream=stream)
        self.coordinator.pool = self.pool
        self.queue, self.first, self.slots = {}, True, slots

    def open(self, prompts, workers="ab"):
        owners = tuple(workers[i % len(workers)] for i in range(len(prompts)))
        request = TrainerRequest(1, tuple(prompts), owners)
        self.brought |= {address_of(prompt).uid: prompt for prompt in prompts}
        self.pool.keep_rows(request)
        self.coordinator.open(request)

    def feed(self, count):
        numbers = [(self.fed + i) % len(self.prompts) for i in range(count)]
        self.open(request_of(texts(*numbers), step=1000 + self.fed).prompts)
        self.fed += count

    def work(self, fault=None):
        """Carry out one task at random, or what ``fault`` makes of it."""
        tasks = sorted(self.pool.sent)
        if not tasks:
            return
        id = str(self.rng.choice(tasks))
        task = self.pool.sent[id][1]
        result = (fault and not isinstance(task, CommitTask) and fault(self.pool, id, task)) or self.pool.carry_out(id)
        self.coordinator.receive([result, result])  # doubled, as after a lost message
        if isinstance(task, CommitTask):
            self.queue[task.uid] = task
        running = sum(not isinstance(other, CommitTask) for _, other in self.pool.sent.values())
        assert self.slots is None or running <= self.slots

    def step(self, fault=None, most=20_000):
        """Take one update as verl's trainer does, with work going on meanwhile."""
        self.feed(EACH)
        done = True
        for _ in range(most):
            update = self.coordinator.next_update(done, set(self.queue) if self.first else None)
            self.first = done = False
            for uid in update.dropped:
                self.queue.pop(uid)
                self.dropped.append(uid)
            if update.wanted:
                self.feed(update.wanted)
            if update.uids:
                self.trained += [(uid, self.queue.pop(uid)) for uid in update.uids]
                return
            self.work(fault)
        raise AssertionError("the trainer waits for ever")

    def killed(self, saved_queue, state, rule):
        """Go on from a checkpoint in a new process: the trainer brings again what its queue has not finished."""
        in_flight = [
            prompt
            for uid, prompt in self.brought.items()
            if uid not in saved_queue and uid not in dict(self.trained) and uid not in self.dropped
        ]
        self.begin(rule)
        self.coordinator.load(pickle.loads(pickle.dumps(state)))
        self.queue = dict(saved_queue)
        self.open(in_flight)

    def check(self, updates):
        """Check that each prompt that left the queue left it once, and that the rows are those of its own rollouts."""
        uids = [uid for uid, _ in self.trained] + self.dropped
        assert len(uids) == len(set(uids)) and set(uids) <= set(self.brought)
        assert len(self.trained) >= EACH * updates - EACH
        keys = [key for uid, task in self.trained for group in task.groups for r in group.rows for key in r.keys(uid)]
        assert len(keys) == len(set(keys))


def failing(pool, id, task):
    """Each fault of a rollout in turn."""
    pool.sent.pop(id)
    kind = crc32(id.encode()) % 4
    if kind == 0:
        return TaskResult(id, failures=("it raised",))
    if kind == 1:
        return TaskResult(id, failures=("too late",), expired=True)
    return pool.sample(task)


@pytest.mark.parametrize(("slots", "most_rows"), [(None, None), (5, None), (None, 8)])
@pytest.mark.parametrize("name", RULES)
def test_each_prompt_is_trained_on_once_within_its_age_whatever_fails(name, slots, most_rows):
    trainer = Trainer(RULES[name](), slots=slots, most_rows=most_rows)
    trainer.feed(2 * EACH)  # verl's warmup
    for update in range(30):
        trainer.step(failing if update % 2 else None)
        if update % 7 == 3:
            lose_worker(trainer.coordinator, "ab"[update % 2], ["ba"[update % 2]])
            for id, (worker, task) in list(trainer.pool.sent.items()):
                assert worker != "ab"[update % 2], (id, task)
    trainer.check(30)
    found = trainer.coordinator.metrics()
    assert found["stream_oldest"] <= BOUND and found["errors"] > 0 and found["expired"] > 0 and found["reassigned"] > 0
    left = set(trainer.brought) - {uid for uid, _ in trainer.trained} - set(trainer.dropped)
    assert 2 * EACH <= len(left) <= 4 * EACH  # failed prompts were replaced, so the window neither shrinks nor grows
    if name != "uniform":
        assert abs(found["stream_carry"]) <= 32 * 6


@pytest.mark.parametrize("late", ["state after the queue", "state before the queue"])
@pytest.mark.parametrize("name", RULES)
def test_a_killed_run_loses_no_prompt_and_learns_from_each_once(name, late):
    trainer, rule = Trainer(RULES[name]()), RULES[name]
    trainer.feed(3 * EACH)
    for _ in range(5):
        for _ in range(6):
            trainer.step(failing)
        state, queue = trainer.coordinator.state(), dict(trainer.queue)
        for _ in range(7):  # verl writes weights meanwhile
            trainer.work()
        if late == "state before the queue":
            queue = dict(trainer.queue)
        else:
            state = trainer.coordinator.state()
        trained, dropped, learned = list(trainer.trained), list(trainer.dropped), state["allocator"]
        trainer.step()  # lost with the process
        trainer.trained, trainer.dropped = trained, dropped
        trainer.killed(queue, state, rule())
        np.testing.assert_equal(trainer.coordinator.state()["allocator"], learned)
        trainer.step()
    trainer.check(35)
    left = set(trainer.brought) - {uid for uid, _ in trainer.trained} - set(trainer.dropped)
    assert left <= set(trainer.queue) | trainer.coordinator._planner._requests.keys()  # nothing lost


def test_a_price_gives_each_prompt_its_rollouts_at_once_and_again_after_a_restart():
    trainer = Trainer(RULES["vip"]())
    trainer.feed(6)
    counts = Counter(task.uid for _, task in trainer.pool.sent.values())
    assert sorted(counts.values()) == [4, 4, 4, 5, 5, 5]  # each alone, 4.5 on average, without waiting for the others
    state = trainer.coordinator.state()
    trainer.killed({}, state, RULES["vip"]())
    again = Counter(task.uid for _, task in trainer.pool.sent.values())
    assert again == counts and trainer.coordinator.metrics()["stream_carry"] == 0


def test_a_dead_engine_ends_the_run():
    trainer = Trainer(Uniform(4), retries=0)
    with pytest.raises(RuntimeError, match="must arrive"):
        trainer.step(lambda pool, id, task: pool.sent.pop(id) and TaskResult(id, failures=("no server",)))
    with pytest.raises(RuntimeError, match="must arrive"):
        trainer.coordinator.metrics()
