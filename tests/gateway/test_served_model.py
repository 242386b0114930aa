"""The gateway before a real server, `transformers serve` with a tiny policy."""

import asyncio

import pytest

from benchmarks.served_model import problems, serving, train_model
from tests.endpoint.builders import run
from tests.gateway.builders import ballot, gateway, openai

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("served_model")]  # one worker process, so that one server runs

SETTINGS = {"extract": "last_number", "max_samples": 16, "request_seconds": 60.0, "deadline_seconds": 60.0}
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "max_tokens": 16}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gateway") / "model"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder.parent / "cache"))
        train_model(folder)
    with serving(folder) as found:
        yield found


@pytest.mark.parametrize("upstream_stream", [True, False])
def test_votes_on_a_served_model(served, upstream_stream):
    """Every sample is one request of the server, all tokens are counted, and most answers are right."""
    asked = problems(6)

    async def scenario():
        async with gateway(url=served.base_url, upstream_stream=upstream_stream, **SETTINGS) as place:

            async def vote(text):
                messages = [{"role": "user", "content": text}]
                completion = await place.ask(model=served.model, messages=messages, **SAMPLING)
                found = ballot(completion)
                assert found["answer"] == completion.choices[0].message.content.split()[-1]
                assert found["uncounted"] == found["failed"] == 0
                assert completion.usage.prompt_tokens == 4 * found["samples"]
                return str(found["answer"]), found, completion.usage.completion_tokens

            before = served.answered
            found = await asyncio.gather(*(vote(problem.text) for problem in asked))
            taken = sum(each["samples"] for _, each, _ in found)
            assert served.answered - before == taken < 6 * 16
            assert all(tokens >= each["samples"] for _, each, tokens in found)
            right = [answer == problem.answer[-1] for (answer, _, _), problem in zip(found, asked, strict=True)]
            assert sum(right) >= 3

    run(scenario(), seconds=120)


def test_a_stream_and_an_unknown_model(served):
    async def scenario():
        async with gateway(url=served.base_url, **SETTINGS) as place:
            messages = [{"role": "user", "content": problems(1)[0].text}]
            stream = await place.ask(model=served.model, messages=messages, stream=True, **SAMPLING)
            chunks = [chunk async for chunk in stream]
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
            assert text.split()[-1] == ballot(chunks[-1])["answer"]
            with pytest.raises(openai.APIStatusError, match="pinned"):
                await place.ask(model="another", messages=messages)

    run(scenario(), seconds=120)
