"""A stand-in for vLLM in tests: a function that answers prompts, behind an HTTP server or an engine.

TRL's real client sends HTTP requests to ``serve``: TRL 1.0 to 1.10 in the format of TRL's server (``/generate/``), 1.16
in that of vLLM (``/v1/completions``). ``Engine`` has the one method of vLLM's ``LLM`` that TRL calls.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any


@dataclass(frozen=True)
class Reply:
    """Token ids of a completion and their log-probabilities."""

    ids: list[int]
    logps: list[float]


@dataclass
class Script:
    """``answer`` takes the ids of a prompt. ``requests`` and ``replies`` are recorded."""

    answer: Callable[[Sequence[int]], Reply]
    requests: list[dict[str, Any]] = field(default_factory=list)
    replies: list[tuple[list[int], Reply]] = field(default_factory=list)

    def complete(self, prompts: Sequence[list[int]], n: int, **asked: Any) -> list[list[Reply]]:
        """Return ``n`` replies to each of the ``prompts``."""
        self.requests.append({"prompts": list(prompts), "n": n, **asked})
        said = [[self.answer(prompt) for _ in range(n)] for prompt in prompts]
        self.replies += [(prompt, reply) for prompt, replies in zip(prompts, said, strict=True) for reply in replies]
        return said


@dataclass(frozen=True)
class Server:
    """The address of a served ``Script``."""

    url: str
    script: Script


@contextmanager
def serve(answer: Callable[[Sequence[int]], Reply]) -> Iterator[Server]:
    """Run a server on a free port within the block."""
    script = Script(answer)
    handler = type("Handler", (_Handler,), {"script": script})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield Server(f"http://127.0.0.1:{server.server_port}", script)
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    script: Script

    def do_GET(self) -> None:
        """Answer the requests that the client sends at construction."""
        self._say(
            {
                "/health": {},
                "/v1/models": {"data": [{"id": "policy"}]},
                "/server_info": {"vllm_config": {"model_config": {"logprobs_mode": "processed_logprobs"}}},
            }.get(self.path.split("?")[0].rstrip("/"))
        )

    def do_POST(self) -> None:
        """Answer with completions in the format of either server."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/generate/":
            self._say(_of_trl(self.script.complete(**_plural(asked)), asked))
        elif self.path == "/v1/completions":
            self._say(_of_vllm(self.script.complete(**_plural(asked)), asked))
        else:
            self._say(None)

    def _say(self, answer: dict[str, Any] | None) -> None:
        body = json.dumps(answer).encode()
        self.send_response(404 if answer is None else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Log nothing, because the script records requests."""


def _plural(asked: dict[str, Any]) -> dict[str, Any]:
    """Return a request with its prompts under one key."""
    rest = {key: value for key, value in asked.items() if key not in ("prompt", "prompts")}
    return {"prompts": asked["prompts"] if "prompts" in asked else asked["prompt"], **rest}


def _of_trl(said: list[list[Reply]], asked: dict[str, Any]) -> dict[str, Any]:
    """Return the reply of ``trl vllm-serve``: each prompt once, one list of completions, a list per log-probability."""
    replies = [reply for replies in said for reply in replies]
    scored = asked["logprobs"] is not None
    return {
        "prompt_ids": asked["prompts"],
        "completion_ids": [reply.ids for reply in replies],
        "logprobs": [[[logp] for logp in reply.logps] for reply in replies] if scored else None,
        "logprob_token_ids": [[[token] for token in reply.ids] for reply in replies] if scored else None,
    }


def _of_vllm(said: list[list[Reply]], asked: dict[str, Any]) -> dict[str, Any]:
    """Return the reply of ``vllm serve``: choices grouped by prompt, with tokens written as ``token_id:7``."""
    choices = []
    for prompt, replies in zip(asked["prompt"], said, strict=True):
        for reply in replies:
            tokens = [f"token_id:{token}" for token in reply.ids]
            top = [{token: logp} for token, logp in zip(tokens, reply.logps, strict=True)]
            scored = {"tokens": tokens, "token_logprobs": reply.logps, "top_logprobs": top}
            choices.append(
                {
                    "prompt_token_ids": prompt,
                    "token_ids": reply.ids,
                    "logprobs": None if asked["logprobs"] is None else scored,
                }
            )
    return {"choices": choices}


@dataclass(frozen=True)
class Engine:
    """The method of vLLM's ``LLM`` that TRL calls, with replies of a script."""

    script: Script

    def generate(self, prompts: Sequence[dict[str, list[int]]], sampling_params: Any, use_tqdm: bool) -> list[Any]:
        """Return a ``RequestOutput`` per prompt with the fields that TRL reads."""
        ids = [prompt["prompt_token_ids"] for prompt in prompts]
        said = self.script.complete(ids, sampling_params.n, logprobs=sampling_params.logprobs)
        return [
            SimpleNamespace(
                prompt_token_ids=prompt,
                outputs=[
                    SimpleNamespace(token_ids=reply.ids, logprobs=_ranked(reply, sampling_params.logprobs))
                    for reply in replies
                ],
            )
            for prompt, replies in zip(ids, said, strict=True)
        ]


def _ranked(reply: Reply, logprobs: int | None) -> list[dict[int, Any]] | None:
    if logprobs is None:
        return None
    pairs = zip(reply.ids, reply.logps, strict=True)
    return [{token: SimpleNamespace(logprob=logp, rank=1)} for token, logp in pairs]
