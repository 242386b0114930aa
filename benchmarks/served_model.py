"""A real server for tests and benchmarks: `transformers serve` on loopback, offline, with a tiny policy.

The policy is one of the lab's, with 200,640 parameters, trained for seconds on ledger chains of one operation. It is
sure of some and unsure of others, so votes differ. A chat message is its prompt unchanged. ``7 a+3 =`` is answered with
``a 0``, with a space between tokens, so that the digit is the last number of the text.

Tests and benchmarks rely on these properties of the server (transformers 5.10):

- The model's name is its path.
- It samples only if the folder's generation config says so, whatever temperature is requested.
- It has one seed for all requests, so seeds repeat samples only if requests come one at a time.
- It ignores ``n``.
- It generates for one request after another, and to the end after a client has left, unless the answer is streamed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tokenizers import decoders
from transformers import GenerationConfig

from apportion.lab.policy.base import trained_policy
from apportion.lab.policy.recipes import Recipe, Stage
from apportion.lab.world.demonstrator import MEDIUM
from apportion.lab.world.task import EOS, PAD, problem_pool
from apportion.lab.world.tokenizer import ledger_tokenizer

RECIPE = Recipe(
    (Stage(MEDIUM, steps=250, learning_rate=4e-3),), sequences=8_000, operation_weights=(1.0,), batch_size=32
)
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_UPDATE_CHECK": "1",  # otherwise the command asks a package registry for a newer version of itself
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
}
SERVER = """
import os, runpy, sys, threading
def end_with_parent():
    sys.stdin.buffer.read()
    os._exit(1)
threading.Thread(target=end_with_parent, daemon=True).start()
runpy.run_module("transformers.cli.transformers", run_name="__main__", alter_sys=True)
"""
"""The server's process, which ends when the other end of its standard input is closed."""
SECONDS_TO_START = 120.0  # six to eight on an idle machine
SECONDS_TO_END = 10.0


@dataclass(frozen=True)
class ServedModel:
    """A running server: its address for clients, the folder with the model, its log, its process id."""

    base_url: str
    folder: Path
    log: Path
    process: int

    @property
    def model(self):
        """The name that requests must give the model."""
        return str(self.folder)

    @property
    def answered(self):
        """The number of requests for completions that it has answered."""
        return len(
            re.findall(
                r'"POST /v1/(chat/)?completions HTTP/1.1" 200', self.log.read_text(errors="replace", encoding="utf-8")
            )
        )

    @property
    def cpu_seconds(self):
        """The processor time of all threads of the server so far, on Linux only, in steps of 0.01 s."""
        fields = Path(f"/proc/{self.process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        user, system = fields[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def problems(count):
    """Return distinct chains of one operation."""
    return [problem for problem in problem_pool(10 * count, seed=3) if len(problem.operations) == 1][:count]


def train_model(folder):
    """Train the policy, unless the lab's cache has it, and write all files for a server into ``folder``."""
    policy = trained_policy(RECIPE)
    policy.generation_config = GenerationConfig(do_sample=True, eos_token_id=EOS, pad_token_id=PAD)
    policy.save_pretrained(folder)
    tokenizer = ledger_tokenizer()
    tokenizer.chat_template = "{{ messages[-1]['content'] }}"
    tokenizer.backend_tokenizer.decoder = decoders.WordPiece(cleanup=False)
    tokenizer.save_pretrained(folder)


@contextmanager
def serving(folder):
    """Serve the model in ``folder`` on a free port. The log is written beside the folder."""
    log = folder.parent / "server.log"
    command = [sys.executable, "-c", SERVER, "serve", str(folder)]
    command += ["--device", "cpu", "--host", "127.0.0.1", "--port", "0"]
    environment = {**os.environ, **OFFLINE, "HF_HOME": str(folder.parent / "huggingface")}
    with log.open("w", encoding="utf-8") as written:
        server = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=written, stderr=subprocess.STDOUT, env=environment
        )
    try:
        yield ServedModel(f"{_address(server, log)}/v1", folder, log, server.pid)
    finally:
        assert server.stdin is not None
        server.stdin.close()
        server.terminate()
        try:
            server.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:  # it is still generating
            server.kill()
            server.wait()


def _address(server, log):
    """Wait until the model is loaded and requests are taken, and return the server's address."""
    latest = time.monotonic() + SECONDS_TO_START
    while time.monotonic() < latest and server.poll() is None:
        found = re.search(r"running on (http://127\.0\.0\.1:\d+)", log.read_text(errors="replace", encoding="utf-8"))
        if found:
            return found[1]
        time.sleep(0.05)
    raise RuntimeError(
        f"transformers serve did not start, exit code {server.poll()}:\n{log.read_text(encoding='utf-8')[-2000:]}"
    )
