"""Where the trainer waits is read from its thread, and for how long is measured."""

import threading
import types

import pytest

from apportion.verl.phases import TRAINERS, PhaseWatch

SOURCE = """
def fit(waits):
    for wait in waits:
        step(wait)

def step(wait):
    wait()
    wait()
"""


class Trainer:
    """A thread that is in verl's loop, at one of its waits until ``go_on``."""

    def __init__(self, waits=2):
        self.at, self.gates = threading.Semaphore(0), threading.Semaphore(0)
        module = types.ModuleType(f"{TRAINERS}trainer_sync")
        exec(compile(SOURCE, "trainer_sync.py", "exec"), module.__dict__)
        self.thread = threading.Thread(target=module.fit, args=([self.wait] * waits,), daemon=True)
        self.thread.start()
        self.at.acquire(timeout=10)

    def wait(self):
        self.at.release()
        self.gates.acquire(timeout=10)

    def go_on(self):
        self.gates.release()
        self.at.acquire(timeout=10)


@pytest.fixture
def trainer():
    trainer = Trainer()
    yield trainer
    for _ in range(4):
        trainer.gates.release()
    trainer.thread.join(10)


def test_the_seconds_at_one_line_are_added_up(trainer):
    watch = PhaseWatch()
    assert [watch.look(10) for _ in range(3)] == [("step: ", 0.0), ("step: ", 10.0), ("step: ", 20.0)]
    trainer.go_on()  # the second line of the same call
    assert watch.look(10)[1] == 0.0


def test_a_line_that_comes_again_is_another_wait_and_who_looks_for_prompts_does_not_wait(trainer):
    watch = PhaseWatch()
    watch.look(10)
    trainer.go_on()
    trainer.go_on()
    assert watch.look(10) == ("step: ", 0.0)
    watch.looked()
    assert watch.look(10)[1] == 0.0
    assert watch.look(10)[1] == 10.0


def test_outside_of_a_step_nothing_is_waited_for():
    assert PhaseWatch().look(10) == ("", 0.0)
