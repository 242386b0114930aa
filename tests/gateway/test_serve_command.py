"""``apportion serve`` as a process: it starts, answers, and ends after a signal."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from apportion.gateway.settings import UpstreamSettings
from tests.commands import refuse_all
from tests.endpoint.builders import run
from tests.endpoint.fault_server import FaultServer
from tests.gateway.builders import MESSAGES, ballot, by_sample, openai

ROOT = Path(__file__).parents[2]


@contextmanager
def serving(*options):
    """Run the command, and kill it if it has not ended."""
    process = subprocess.Popen(
        [sys.executable, "-m", "apportion", "serve", "--port", "0", *options],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def address(process):
    """Return the URL that the process prints when it listens, and what it prints before."""
    assert process.stderr
    before = ""
    for line in process.stderr:
        if found := re.search(r"served on (http://\S+),", line):
            return found[1], before
        before += line
    raise AssertionError(before)


@pytest.mark.slow
def test_the_command_serves_votes_and_ends_after_a_signal():
    async def scenario():
        async with FaultServer(by_sample(["42"])) as upstream:
            options = f"--upstream {upstream.url} --rule esc --set window=3 --max-samples 8"
            with serving(*options.split()) as process:
                url, warning = await asyncio.to_thread(address, process)
                async with openai.AsyncOpenAI(base_url=url, api_key="the-key") as client:
                    found = ballot(await client.chat.completions.create(model="tiny", messages=MESSAGES))
                assert (found["answer"], found["rule"], found["samples"], found["max_samples"]) == ("42", "esc", 3, 8)
                process.send_signal(signal.SIGTERM)
                _, said = await asyncio.to_thread(process.communicate, timeout=20)
                assert process.returncode == 0 and "the-key" not in said and warning == ""
                assert "200 3 samples, stopped by rule" in said

    run(scenario(), seconds=60)


@pytest.mark.slow
def test_another_address_than_loopback_is_warned_of():
    with serving("--upstream", "http://127.0.0.1:9/v1", "--host", "0.0.0.0") as process:
        _, warning = address(process)
        assert warning.count("\n") == 1 and "no authentication" in warning


def test_wrong_options_end_the_command_with_one_line():
    wrong = """
        --upstream localhost:8000     => write http://localhost:8000
        --rule none                   => rule must be known
        --equivalence judge           => equivalence must be one of
        --set epsilon=1               => no key 'epsilon'
        --port 99999                  => cannot be listened on
        --api-key-env NO_SUCH_KEY     => NO_SUCH_KEY must hold a key
        --max-votes 0                 => max_votes must be at least 1
    """
    refuse_all(wrong, "serve", "--port", 0, "--upstream", "http://127.0.0.1:9/v1")


@pytest.mark.parametrize(
    "url", ["http://", "http://a:0", "http://a:b/v1", "http://me:key@host/v1", "http://host/v1?key=1"]
)
def test_an_upstream_url_that_cannot_be_used_is_refused(url):
    with pytest.raises(ValueError, match="upstream must") as raised:
        UpstreamSettings(url)
    assert "key" not in str(raised.value).replace("carry the key", "").replace("api_key_env", "")
