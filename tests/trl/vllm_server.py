"""A stand-in for vLLM in tests: a function that answers prompts, behind an HTTP server.

TRL's real client sends HTTP requests to ``serve``: TRL 1.0 to 1.10 in the format of TRL's server (``/generate/``), 1.16
in that of vLLM (``/v1/completions``).
"""

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Reply(NamedTuple):
    """Token ids of a completion and their log-probabilities."""

    ids: list
    logps: list


@dataclass
class Script:
    """``answer`` takes the ids of a prompt. ``requests`` and ``replies`` are recorded."""

    answer: object
    requests: list = field(default_factory=list)
    replies: list = field(default_factory=list)

    def complete(self, prompts, n, **asked):
        """Return ``n`` replies to each of the ``prompts``."""
        self.requests.append({"prompts": list(prompts), "n": n, **asked})
        said = [[self.answer(prompt) for _ in range(n)] for prompt in prompts]
        self.replies += [(prompt, reply) for prompt, replies in zip(prompts, said, strict=True) for reply in replies]
        return said


@contextmanager
def serve(script):
    """Run a server on a free port within the block, and give its address."""
    handler = type("Handler", (_Handler,), {"script": script})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class JsonHandler(BaseHTTPRequestHandler):
    """Says answers in JSON, and logs nothing, because the requests are recorded otherwise."""

    def say(self, answer):
        """Send ``answer``; status 404 if it is None."""
        body = json.dumps(answer).encode()
        self.send_response(404 if answer is None else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        """Log nothing."""


class _Handler(JsonHandler):
    def do_GET(self):
        """Answer the requests that the client sends at construction."""
        self.say(
            {
                "/health": {},
                "/v1/models": {"data": [{"id": "policy"}]},
                "/server_info": {"vllm_config": {"model_config": {"logprobs_mode": "processed_logprobs"}}},
            }.get(self.path.split("?")[0].rstrip("/"))
        )

    def do_POST(self):
        """Answer with completions in the format of either server."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompts, form = ("prompts", _of_trl) if self.path == "/generate/" else ("prompt", _of_vllm)
        said = self.script.complete(asked[prompts], **{key: asked[key] for key in asked.keys() - {prompts}})
        self.say(form(asked[prompts], said, asked["logprobs"] is not None))


def _of_trl(prompts, said, scored):
    """Return the reply of ``trl vllm-serve``: each prompt once, one list of completions, a list per log-probability."""
    replies = [reply for replies in said for reply in replies]
    return {
        "prompt_ids": prompts,
        "completion_ids": [reply.ids for reply in replies],
        "logprobs": [[[logp] for logp in reply.logps] for reply in replies] if scored else None,
        "logprob_token_ids": [[[token] for token in reply.ids] for reply in replies] if scored else None,
    }


def _of_vllm(prompts, said, scored):
    """Return the reply of ``vllm serve``: choices grouped by prompt, with tokens written as ``token_id:7``."""
    choices = []
    for prompt, replies in zip(prompts, said, strict=True):
        for reply in replies:
            tokens = [f"token_id:{token}" for token in reply.ids]
            top = [{token: logp} for token, logp in zip(tokens, reply.logps, strict=True)]
            logprobs = {"tokens": tokens, "token_logprobs": reply.logps, "top_logprobs": top} if scored else None
            choices.append({"prompt_token_ids": prompt, "token_ids": reply.ids, "logprobs": logprobs})
    return {"choices": choices}
