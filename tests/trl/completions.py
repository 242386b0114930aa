"""A server of completions with adapters, as TRL's asynchronous trainer asks of vLLM: a small one, or vLLM itself.

``started`` serves a policy by plain PyTorch in a thread; where vLLM is installed it starts that instead.
"""

import contextlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import zlib
from collections import Counter
from http.server import HTTPServer
from types import SimpleNamespace

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.trl.vllm_server import JsonHandler

HAS_VLLM = importlib.util.find_spec("vllm") is not None
START_SECONDS = 300
CALL = '<tool_call>\n{"name": "double", "arguments": {"number": 4}}\n</tool_call>'
"""What the small server says, without a choice, to a prompt with the word "tool" and no response of a tool."""


@contextlib.contextmanager
def started(folder, log, port=0):
    """Run a server of the policy in ``folder``. Give its ``url``, its ``port``, and how to ``kill`` it.

    What vLLM says goes to the file ``log``.
    """
    server = _vllm(folder, log, port or _free_port()) if HAS_VLLM else _small(folder, port)
    try:
        yield server
    finally:
        server.kill()


def _small(folder, port):
    handler = type("Bound", (Handler,), {"served": Served(folder)})
    server = Server(("127.0.0.1", port), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()

    def kill():
        if thread.is_alive():
            server.shutdown()
            server.server_close()
            thread.join(30)

    port = server.server_port
    return SimpleNamespace(url=f"http://127.0.0.1:{port}", port=port, kill=kill)


def _vllm(folder, log, port):
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", folder, "--host", "127.0.0.1",
        "--port", str(port), "--enforce-eager", "--dtype", "float32", "--max-model-len", "256", "--enable-lora",
        "--max-lora-rank", "8", "--max-loras", "6",
    ]  # fmt: skip
    own = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "VLLM_SERVER_DEV_MODE": "1"}
    own |= {"TORCHDYNAMO_DISABLE": "1"}  # or the first request waits for a compiler
    with log.open("w") as output:
        server = subprocess.Popen(
            command, env=os.environ | own, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )

    def kill():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, 9)
        server.wait(30)

    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + START_SECONDS
    while True:
        if server.poll() is not None or time.monotonic() > deadline:
            kill()
            raise AssertionError(log.read_text())
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"{url}/health", timeout=5)
            return SimpleNamespace(url=url, port=port, kill=kill)
        time.sleep(0.2)


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def asked(url):
    """Return how often the small server was asked to complete each prompt; of vLLM it is not known."""
    return {} if HAS_VLLM else json.loads(urllib.request.urlopen(f"{url}/asked", timeout=5).read())


class Served:
    """A policy with the adapters that were loaded."""

    def __init__(self, folder):
        self.folder, self.tokenizer = folder, AutoTokenizer.from_pretrained(folder)
        self.model, self.adapters = AutoModelForCausalLM.from_pretrained(folder).eval(), set()
        self.asked, self.lock = Counter(), threading.Lock()

    def load(self, name, path):
        with self.lock:
            if self.adapters:
                self.model.load_adapter(path, name)
            else:
                self.model = PeftModel.from_pretrained(self.model, path, name).eval()
            self.adapters.add(name)

    def complete(self, model, prompt, max_tokens, temperature, **rest):
        """Return a choice. By the same weights a prompt gets the same completions in order, and another one others."""
        text = self.tokenizer.decode(prompt)
        with self.lock, torch.inference_mode():
            if model in self.adapters:
                self.model.set_adapter(model)
            elif model != self.folder:
                return None
            self.asked[text] += 1
            if "tool" in text and "tool_response" not in text:
                ids = self.tokenizer(CALL)["input_ids"] + [self.tokenizer.eos_token_id]
                chances = self._chances(prompt + ids, temperature)[len(prompt) - 1 : -1]
                return _choice(ids, chances[range(len(ids)), ids].tolist())
            generator = torch.Generator().manual_seed(zlib.crc32(f"{self.asked[text]} {text}".encode()))
            ids, logprobs = [], []
            while len(ids) < max_tokens and self.tokenizer.eos_token_id not in ids:
                chances = self._chances(prompt + ids, temperature)[-1]
                ids.append(int(torch.multinomial(chances.exp(), 1, generator=generator)))
                logprobs.append(float(chances[ids[-1]]))
        return _choice(ids, logprobs)

    def _chances(self, ids, temperature):
        return torch.log_softmax(self.model(torch.tensor([ids])).logits[0].float() / temperature, -1)


def _choice(ids, logprobs):
    return {"token_ids": ids, "logprobs": {"token_logprobs": logprobs}}


class Handler(JsonHandler):
    """What TRL asks of the policy that is ``served``."""

    timeout = 10

    def do_GET(self):
        lora = {"max_lora_rank": 8, "max_loras": 6}
        config = {"lora_config": lora, "parallel_config": {"data_parallel_size": 1}}
        known = {"health": {}, "server_info": {"vllm_config": config}, "asked": self.served.asked}
        self.say(known.get(self.path.strip("/").partition("?")[0]))

    def do_POST(self):
        given = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "{}")
        path = self.path.partition("?")[0]
        if path == "/v1/load_lora_adapter":
            self.served.load(given["lora_name"], given["lora_path"])
        if path != "/v1/completions":
            return self.say({})
        choice = self.served.complete(**given)
        return self.say(choice and {"choices": [choice]})


class Server(HTTPServer):
    """One request after the other, in the order in which they came, with room for as many as TRL sends at once."""

    request_queue_size = 256

    def handle_error(self, request, client_address):
        """Say nothing of a client that was killed while it waited."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)
