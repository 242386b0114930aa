"""A judge on the server of a vote: its settings, and how the equivalence "judge" sends it prompts.

The judge is the model that answers, unless another is named. It samples at temperature 0 and has its own connection, so
its tokens are not among those of the vote.
"""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

from apportion.answers.judge import Ask
from apportion.endpoint import Completion, Endpoint

CONCURRENCY = 8
"""Most requests to the judge in flight, beside those of the vote."""
MAX_TOKENS = 1024
"""Longest reply. Yes or no is one token, but some models reason before it."""


def judge_endpoint(endpoint: Endpoint, model: str | None = None) -> Endpoint:
    """Return the settings of the judge: those of ``endpoint``, greedy, without its system prompt, and with ``model``.

    >>> judge = judge_endpoint(Endpoint("http://localhost:8000/v1", "small"), "large")
    >>> judge.model, judge.temperature
    ('large', 0.0)
    """
    return replace(
        endpoint,
        model=model or endpoint.model,
        temperature=0.0,
        top_p=None,
        max_tokens=None if endpoint.max_tokens is None else MAX_TOKENS,
        system=None,
        concurrency=min(endpoint.concurrency, CONCURRENCY),
    )


@asynccontextmanager
async def connect_judge(endpoint: Endpoint, model: str | None = None) -> AsyncIterator[Ask]:
    """Connect to the judge for the length of an ``async with``, and give the ``ask`` of ``make_equivalence``.

        async with connect_judge(setup.endpoint) as ask:
            equivalence = make_equivalence("judge", ask=ask)

    ``ask`` raises EndpointError if the server refuses every request. Errors of connecting are those of ``Endpoint``.
    """
    async with judge_endpoint(endpoint, model).connect() as client:

        async def ask(prompt: str) -> Completion:
            async with aclosing(client.sample(prompt, 1, key=prompt)) as completions:
                return await anext(completions)

        yield ask
