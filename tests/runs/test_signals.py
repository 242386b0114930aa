"""What signals do to a command: they stop it once, by an exception that its code can catch, and then at once."""

import signal
import time

import pytest

from apportion.runs.signals import REPEAT_SECONDS
from tests.processes import Command

BEGIN = """
import asyncio, os, signal, sys, time
from apportion.runs.signals import *
from apportion.runs.signals import run_command, run_async, signals_held

def say(line):
    print(line, flush=True)

def wait():
    say("ready")
    while True:
        time.sleep(0.01)

"""
SAVES_SLOWLY = """
def main():
    try:
        wait()
    except KeyboardInterrupt:
        say("saving")
        wait()
"""
IMPORTS = """
def main():
    try:
        wait()
    except KeyboardInterrupt:
        raise ImportError("core failed to import")  # as C extensions do
"""
VOTES = """
async def ask():
    try:
        say("ready")
        await asyncio.sleep(600)
    finally:
        say("closed")

def main():
    try:
        run_async(ask())
    except KeyboardInterrupt as stop:
        say(f"stopped {stop.code}")
        raise
"""
HOLDS = """
def main():
    with signals_held():
        say("ready")
        time.sleep(1)
        say("whole")
    say("never")
"""
FORKS = """
def main():
    if os.fork() == 0:
        wait()
    os.wait()
    say("the child ended")
    wait()
"""


def start(tmp_path, script):
    command = Command(tmp_path, python=("-c", f"{BEGIN}{script}\nrun_command(main)"))
    assert command.process.stdout.readline() == "ready\n"
    return command


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("script", ["main = wait", IMPORTS])
def test_a_signal_ends_a_command_with_its_code_and_one_line(tmp_path, script, number):
    with start(tmp_path, script) as command:
        command.process.send_signal(number)
        assert command.ended() == (128 + number, "", "Stopped.\n")


def test_a_second_signal_ends_a_command_that_saves_at_once(tmp_path):
    with start(tmp_path, SAVES_SLOWLY) as command:
        command.process.send_signal(signal.SIGINT)
        assert command.process.stdout.readline() == "saving\n"
        command.process.stdout.readline()
        time.sleep(REPEAT_SECONDS)
        command.process.send_signal(signal.SIGTERM)
        assert command.ended() == (143, "", "Stopped at once.\n")


def test_a_copy_of_the_first_signal_does_not_end_a_command_that_saves(tmp_path):
    """A terminal and a wrapper may both send one."""
    script = SAVES_SLOWLY.replace(
        'say("saving")\n        wait()', 'signal.raise_signal(signal.SIGINT)\n        say("saved")'
    )
    with start(tmp_path, script) as command:
        command.process.send_signal(signal.SIGINT)
        assert command.ended() == (0, "saved\n", "")


def test_a_signal_cancels_what_runs_in_an_event_loop(tmp_path):
    with start(tmp_path, VOTES) as command:
        command.process.send_signal(signal.SIGTERM)
        assert command.ended() == (143, "closed\nstopped 143\n", "Stopped.\n")


def test_a_signal_that_is_held_strikes_after_the_block(tmp_path):
    with start(tmp_path, HOLDS) as command:
        command.process.send_signal(signal.SIGTERM)
        assert command.ended() == (143, "whole\n", "Stopped.\n")


def test_a_fork_of_a_command_ends_without_a_word(tmp_path):
    with start(tmp_path, FORKS) as command:
        (child,) = command.children()
        child.send_signal(signal.SIGTERM)
        assert command.process.stdout.readline() == "the child ended\n"


def test_a_signal_that_a_command_was_started_to_ignore_stays_ignored(tmp_path):
    """As under nohup."""
    script = "def main():\n    say('ready')\n    time.sleep(2)\n    say('done')\n"
    script += "signal.signal(signal.SIGHUP, signal.SIG_IGN)"
    with start(tmp_path, script) as command:
        command.process.send_signal(signal.SIGHUP)
        assert command.ended() == (0, "done\n", "")
