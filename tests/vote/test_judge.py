"""The judge on a server: what it sends, what it costs, and a server that refuses."""

import asyncio

import pytest

from apportion.answers import AnswerClasses, JudgeUsage, make_equivalence
from apportion.endpoint import Endpoint, EndpointError
from apportion.vote.judge import connect_judge
from tests.endpoint.fault_server import FaultServer, ok, refused


def verdict(request, place):
    first, second = (line for line in request.prompt.splitlines() if " answer: " in line)
    return "Yes" if "Paris" in first and "Paris" in second else "No"


def test_the_judge_is_asked_on_the_server_at_temperature_zero_and_its_tokens_are_counted():
    async def judged():
        async with FaultServer([ok(verdict)]) as server:
            endpoint = Endpoint(server.url, "model", system="Be brief.", concurrency=32)
            async with connect_judge(endpoint, "large") as ask:
                judge = make_equivalence("judge", ask=ask)
                classes = AnswerClasses(judge.for_question("Where is the Louvre?"))
                found = [await classes.join(answer) for answer in ("Paris", "in Paris", "Rome", "PARIS")]
            return found, judge.usage, [request.body for request in server.requests]

    found, usage, bodies = asyncio.run(asyncio.wait_for(judged(), 30))
    assert found == ["Paris", "Paris", "Rome", "Paris"]
    assert [(body["model"], body["temperature"], len(body["messages"])) for body in bodies] == [("large", 0.0, 1)] * 2
    assert (usage.requests, usage.same, usage.failed) == (2, 1, 0) and usage.prompt_tokens and usage.completion_tokens
    assert isinstance(usage, JudgeUsage)


def test_a_server_that_refuses_the_judge_ends_the_run():
    async def judged():
        async with (
            FaultServer([refused(404, "no such model")]) as server,
            connect_judge(Endpoint(server.url, "m")) as ask,
        ):
            await make_equivalence("judge", ask=ask).for_question("?").find_equal("a b", ["c d"])

    with pytest.raises(EndpointError, match="no such model"):
        asyncio.run(asyncio.wait_for(judged(), 30))
