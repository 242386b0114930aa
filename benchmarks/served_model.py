"""A real server for tests and benchmarks: `transformers serve` on loopback, offline, with a tiny policy.

The policy is one of the lab's, of 200,640 parameters, trained for seconds on ledger chains of one operation: sure of
some and torn on others, so that votes mean something. A chat message is its prompt as it stands, and ``7 a+3 =`` is
answered with ``a 0``: with a space between tokens, so that the digit is the last number of the text.

What of the server (transformers 5.10) is relied on: it takes the model's path, and nothing else, for its name; it
samples only where the folder's generation config says so, whatever temperature is asked for; it has one seed for all
requests, so that seeds repeat samples only where requests come one at a time; it ignores ``n``; it generates for one
request after another, and to the end also where the client has left, unless the answer is streamed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tokenizers import decoders
from transformers import GenerationConfig

from apportion.lab.base import Recipe, Stage, trained_policy
from apportion.lab.demonstrator import MEDIUM
from apportion.lab.task import EOS, PAD, Problem, problem_pool
from apportion.lab.tokenizer import ledger_tokenizer

RECIPE = Recipe(
    (Stage(MEDIUM, steps=250, learning_rate=4e-3),), sequences=8_000, operation_weights=(1.0,), batch_size=32
)
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_UPDATE_CHECK": "1",  # or the command asks a package registry for a newer version of itself
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
}
SECONDS_TO_START = 120.0  # six to eight where nothing else runs
SECONDS_TO_END = 10.0


@dataclass(frozen=True)
class ServedModel:
    """A running server: the address to give a client, the folder with the model, its log, its process id."""

    base_url: str
    folder: Path
    log: Path
    process: int

    @property
    def model(self) -> str:
        """The name that requests must give the model."""
        return str(self.folder)

    @property
    def answered(self) -> int:
        """How many requests for completions it has answered."""
        return len(re.findall(r'"POST /v1/(chat/)?completions HTTP/1.1" 200', self.log.read_text(errors="replace")))

    @property
    def cpu_seconds(self) -> float:
        """Processor time that the server has spent so far, in all its threads. Only Linux tells, in steps of 0.01 s."""
        fields = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()
        user, system = fields[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def problems(count: int) -> list[Problem]:
    """Distinct chains of one operation."""
    return [problem for problem in problem_pool(10 * count, seed=3) if len(problem.operations) == 1][:count]


def train_model(folder: Path) -> None:
    """Trains the policy, unless the lab's cache has it, and writes all that a server needs into ``folder``."""
    policy = trained_policy(RECIPE)
    policy.generation_config = GenerationConfig(do_sample=True, eos_token_id=EOS, pad_token_id=PAD)
    policy.save_pretrained(folder)
    tokenizer = ledger_tokenizer()
    tokenizer.chat_template = "{{ messages[-1]['content'] }}"
    tokenizer.backend_tokenizer.decoder = decoders.WordPiece(cleanup=False)
    tokenizer.save_pretrained(folder)


@contextmanager
def serving(folder: Path) -> Iterator[ServedModel]:
    """The model in ``folder`` served while it lasts, on a free port; its log lies beside the folder."""
    log = folder.parent / "server.log"
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(folder)]
    command += ["--device", "cpu", "--host", "127.0.0.1", "--port", "0"]
    environment = {**os.environ, **OFFLINE, "HF_HOME": str(folder.parent / "huggingface")}
    with log.open("w") as written:
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=written, stderr=subprocess.STDOUT, env=environment
        )
    try:
        yield ServedModel(f"{_address(server, log)}/v1", folder, log, server.pid)
    finally:
        server.terminate()
        try:
            server.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:  # it still generates what nobody waits for
            server.kill()
            server.wait()


def _address(server: subprocess.Popen[bytes], log: Path) -> str:
    """Where the server listens. It says so only when the model is loaded and requests are taken."""
    latest = time.monotonic() + SECONDS_TO_START
    while time.monotonic() < latest and server.poll() is None:
        found = re.search(r"running on (http://127\.0\.0\.1:\d+)", log.read_text(errors="replace"))
        if found:
            return found[1]
        time.sleep(0.05)
    raise RuntimeError(f"transformers serve did not start, exit code {server.poll()}:\n{log.read_text()[-2000:]}")
