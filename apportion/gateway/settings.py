"""The settings of a gateway, checked before it is started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from apportion.allocators import Voting
from apportion.answers import EQUIVALENCES, Extractor, check_equivalence, make_extractor
from apportion.checks import check_least, check_numbers, check_positive
from apportion.endpoint.settings import check_url

MEBIBYTE = 2**20


@dataclass(frozen=True)
class UpstreamSettings:
    """The server that computes completions, and how it is asked.

    Attributes:
        upstream: the URL of an OpenAI-compatible server, with /v1 if that is part of it.
        upstream_stream: whether completions are streamed from upstream. More servers stop computing when a stream is
            closed than when a plain request is.
        api_key_env: the environment variable with the key for requests without one; without it they have none.
        connections: maximum number of upstream requests in flight, over all votes.
        request_seconds: deadline of one upstream request.
        max_retries: maximum number of retries of one upstream request.
        max_reply_bytes: largest reply of the upstream server.
    """

    upstream: str
    upstream_stream: bool = True
    api_key_env: str | None = None
    connections: int = 64
    request_seconds: float = 600.0
    max_retries: int = 2
    max_reply_bytes: int = 8 * MEBIBYTE

    def __post_init__(self) -> None:
        check_numbers(self)
        check_url("upstream", self.upstream, query=False)
        check_least(self, connections=1, max_retries=0, max_reply_bytes=1)
        check_positive(self, "request_seconds")


@dataclass(frozen=True)
class GatewayLimits:
    """Bounds on what clients can make the gateway do.

    Attributes:
        max_votes: maximum number of votes at the same time.
        max_queue: maximum number of requests that wait for a vote; further ones are answered with 429.
        queue_seconds: longest wait in the queue.
        deadline_seconds: longest vote; then the best answer so far is returned.
        max_body_bytes: largest body of a request.
        body_seconds: longest time in which the body of a request must arrive.
        keep_alive_seconds: time between two comments in a stream while the vote goes on.
        shutdown_seconds: time that votes have to end after a signal.
    """

    max_votes: int = 64
    max_queue: int = 256
    queue_seconds: float = 60.0
    deadline_seconds: float = 600.0
    max_body_bytes: int = 8 * MEBIBYTE
    body_seconds: float = 30.0
    keep_alive_seconds: float = 5.0
    shutdown_seconds: float = 10.0

    def __post_init__(self) -> None:
        check_numbers(self)
        check_least(self, max_votes=1, max_queue=0, max_body_bytes=1)
        check_positive(
            self, "queue_seconds", "deadline_seconds", "body_seconds", "keep_alive_seconds", "shutdown_seconds"
        )


@dataclass(frozen=True)
class GatewaySettings:
    """How a gateway votes, where, and within which bounds.

    Attributes:
        upstream: the server that computes completions.
        voting: the rule and the samples of a request, which may ask for another rule and fewer samples.
        extract: where the answer is in a completion: a name, or "module:function".
        equivalence: which answers are the same: a name, or "module:function".
        equivalence_settings: the settings of the equivalence, such as {"timeout_seconds": 9} of "math".
        give_up: number of samples without any answer after which a vote ends.
        greedy_temperature: the temperature at which requests with temperature 0 are voted on. Without it they are not
            voted on, because all samples would be the same.
        limits: bounds on what clients can ask for.
    """

    upstream: UpstreamSettings
    voting: Voting = field(default_factory=Voting)
    extract: str = "auto"
    equivalence: str = "math"
    equivalence_settings: Mapping[str, Any] = field(default_factory=dict)
    give_up: int = 8
    greedy_temperature: float | None = None
    limits: GatewayLimits = field(default_factory=GatewayLimits)

    def __post_init__(self) -> None:
        check_numbers(self)
        make_extractor(self.extract)
        if self.equivalence == "judge":
            raise ValueError(f"equivalence must be one of {', '.join(EQUIVALENCES)} here, got 'judge'; choose one")
        check_equivalence(self.equivalence, **self.equivalence_settings)
        check_least(self, give_up=1)
        check_positive(self, "greedy_temperature")

    @cached_property
    def extractor(self) -> Extractor:
        """The function that reads the answer of a text."""
        return make_extractor(self.extract)
