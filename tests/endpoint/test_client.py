"""Many prompts at once: no sample is lost or doubled, the order is kept, with n or without, and all is cleaned up."""

import asyncio
import random
import time
from contextlib import aclosing
from itertools import count as counting

import pytest

from apportion.endpoint import Client, Completion, EndpointError, Usage, seed_of
from tests.endpoint.builders import asked, endpoint, run, sample, single_texts, take, texts, until
from tests.endpoint.fault_server import FaultServer, broken, malformed, n_refused, ok, refused, silent


def test_the_seed_of_a_request_is_that_of_its_first_sample():
    assert seed_of(0, "q", 0) == 48630008  # on every machine and in every version
    seeds = {seed_of(seed, key, number) for seed in range(5) for key in "abcde" for number in range(40)}
    assert len(seeds) == 1000 and all(0 <= seed < 2**31 for seed in seeds)
    found, server, client = sample(count=2, start=7)  # a server that honours n gets one request
    assert texts(found) == [f"{seed_of(0, 'q', 7)}.{place}" for place in range(2)]
    assert client.honours_n is True and [request.n for request in server.requests] == [2]


def test_the_samples_missing_from_a_short_reply_are_requested_again():
    found, server, client = sample(ok(most=3), count=8)
    assert client.honours_n is True
    assert [request.n for request in server.requests] == [8, 5, 2]
    assert texts(found) == [f"{seed_of(0, 'q', number // 3 * 3)}.{number % 3}" for number in range(8)]


@pytest.mark.parametrize(("reply", "singles"), [(ok(most=1), 3), (n_refused(400), 4), (n_refused(422), 4)])
def test_a_server_that_ignores_or_refuses_n_gets_one_request_a_sample(reply, singles):
    """The reply of one choice is kept."""
    found, server, client = sample(reply, count=4)
    assert client.honours_n is False
    assert sorted(request.n for request in server.requests) == [1] * singles + [4]
    assert texts(found) == single_texts(range(4))


@asked(lambda request: refused(400, "n must be at most 4") if request.n > 4 else ok())
async def test_a_server_that_refuses_a_larger_n_later_gets_one_request_a_sample_from_then_on(server, client):
    await take(client, "a", 4)
    assert client.honours_n is True
    assert texts(await take(client, "b", 8)) == single_texts(range(8))
    assert client.honours_n is False
    assert [request.n for request in server.requests] == [4, 8, 1, 7] + [1] * 7


@pytest.mark.parametrize("honours", [True, False])
def test_exactly_one_request_probes_and_others_go_one_by_one(honours):
    async def scenario():
        async def probe(request, send):
            await until(lambda: len(server.requests) == 9)
            await ok(most=None if honours else 1)(request, send)

        def script(request):
            return ok(delay=0.01) if request.number else probe

        async with FaultServer(script) as server, endpoint(server, concurrency=3).connect() as client:
            found = await asyncio.gather(*(take(client, f"prompt {key}", 8, key=key) for key in "abcd"))
            return found, [request.n for request in server.requests], client.honours_n

    found, asked, honours_n = run(scenario())
    assert asked[:9] == [8] + [1] * 8
    assert honours_n is honours
    if honours:
        assert sum(asked) == 32 and len(asked) < 16  # what was left went with one request a prompt
    else:
        assert asked[9:] == [1] * (1 + 31 - 9)
        assert [texts(each) for each in found] == [single_texts(range(8), key) for key in "abcd"]
    assert len({text for each in found for text in texts(each)}) == 32


@asked([refused(500)], max_retries=0)
async def test_after_a_failed_probe_it_stays_unknown_whether_n_is_honoured(server, client):
    assert not any(completion.error for completion in await take(client, "a", 4))
    assert client.honours_n is None and [request.n for request in server.requests] == [4, 1, 1, 1, 1]
    await take(client, "b", 4)
    assert client.honours_n is True


@asked(lambda request: refused(500, "n is not supported") if request.n > 1 else ok(), max_retries=0)
async def test_a_server_that_fails_for_n_twice_gets_one_request_a_sample_from_then_on(server, client):
    for key in "abc":
        await take(client, key, 2)
    assert [request.n for request in server.requests] == [2, 1, 1, 2, 1, 1, 1, 1] and client.honours_n is False


def test_samples_are_given_in_the_order_of_their_numbers_however_they_arrive():
    def script(request):
        late = {seed_of(0, "q", number): 0.03 * (8 - number) for number in range(8)}
        return ok(most=1, delay=late[request.seed or 0])

    found, _, _ = sample(script, count=8)
    assert texts(found) == single_texts(range(8))


@asked(ok(most=1, delay=0.01), concurrency=1)
async def test_prompts_take_turns_if_slots_are_few(server, client):
    await take(client, "probe", 2)
    await asyncio.gather(take(client, "long", 8), take(client, "short", 2))
    prompts = [request.prompt for request in server.requests[2:]]
    assert sorted(prompts) == ["long"] * 8 + ["short"] * 2
    assert prompts[:5].count("short") == 2


@asked(ok(most=1, delay=0.02), concurrency=3)
async def test_at_most_concurrency_requests_are_in_flight(server, client):
    await asyncio.gather(*(take(client, "a", 6, key=str(key)) for key in range(4)))
    assert len(server.requests) == 24 and server.most_in_flight == 3


def test_with_random_faults_every_sample_is_answered_once_and_no_reply_is_lost():
    generator = random.Random(0)
    given_out = counting()

    def text(request, place):
        return f"{request.prompt} {next(given_out)}"

    def script(_):
        good = ok(text, most=generator.choice([2, 3, 100]), delay=generator.uniform(0, 0.02))
        bad = [broken(ms=1), broken(503, ms=1), broken(429, ms=1), broken(409, ms=1)]
        return generator.choice([good, good, *bad])

    async def scenario():
        async with FaultServer(script) as server, endpoint(server, max_retries=40).connect() as client:
            found = await asyncio.gather(*(take(client, f"prompt {key}:", 16, key=str(key)) for key in range(10)))
            assert client.usage.requests == len(server.requests)
            first = {(request.prompt, request.n, request.seed) for request in server.requests}
            assert client.usage.retries == len(server.requests) - len(first)
            assert client.usage.completion_tokens == 5 * 10 * 16
            return found

    found = run(scenario())
    said = [text.rpartition(" ") for each in found for text in texts(each)]
    assert [prompt for prompt, *_ in said] == [f"prompt {key}:" for key in range(10) for _ in range(16)]
    assert sorted(int(number) for *_, number in said) == list(range(next(given_out))) == list(range(160))


def first_only(request):
    return ok(most=1) if request.seed == seed_of(0, "q", 0) else silent()


@asked(first_only)
async def test_leaving_early_cancels_what_is_in_flight(server, client):
    async with aclosing(client.sample("a", 4, 0, "q")) as samples:
        async for completion in samples:
            assert completion.text == single_texts(range(1))[0]
            await until(lambda: len(server.requests) == 4)
            break
    assert client.usage.cancelled == 3
    await until(lambda: len(server.left) == 3)
    assert texts(await take(client, "b", 1)) == single_texts(range(1))  # the slots are free again


@asked(first_only, concurrency=2)
async def test_samples_that_wait_for_a_slot_are_not_requested_after_leaving(server, client):
    async with aclosing(client.sample("a", 64, 0, "q")) as samples:
        await anext(samples)
        await until(lambda: len(server.requests) == 3)
    assert client.usage.cancelled == 2
    assert texts(await take(client, "b", 1)) == single_texts(range(1))
    assert len(server.requests) == 4


def test_a_cancelled_task_ends_promptly_during_a_request_and_during_a_backoff():
    async def scenario(script, requests, cancelled):
        async with FaultServer(script) as server, endpoint(server).connect() as client:
            task = asyncio.create_task(take(client, "a", 1))
            await until(lambda: len(server.requests) == requests and client.usage.requests == requests)
            await asyncio.sleep(0.05)
            task.cancel()
            started = time.monotonic()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert time.monotonic() - started < 5
            assert client.usage.cancelled == cancelled

    run(scenario([silent()], 1, 1))
    run(scenario([refused(429, headers=["Retry-After: 60"])], 1, 0))
    run(scenario([malformed()], 1, 0))


def test_closing_the_client_ends_every_request():
    async def scenario():
        async with FaultServer(first_only) as server:
            async with endpoint(server).connect() as client:
                samples = client.sample("a", 4, 0, "q")
                await anext(samples)
                await until(lambda: len(server.requests) == 4)
            await until(lambda: len(server.left) == 3)
            with pytest.raises(RuntimeError, match="after its client was closed"):
                await anext(samples)

    run(scenario())


@asked(lambda request: refused(403, "forbidden") if request.seed == seed_of(0, "q", 2) else first_only(request))
async def test_an_error_of_the_endpoint_cancels_the_other_requests_of_its_prompt(server, client):
    samples = client.sample("a", 4, 0, "q")
    assert (await anext(samples)).text == single_texts(range(1))[0]
    with pytest.raises(EndpointError, match="forbidden"):
        await anext(samples)


def test_an_error_while_leaving_is_ignored():
    async def ask(_, n, seed):
        if n == 1:
            try:
                await asyncio.Event().wait()
            finally:
                raise EndpointError("forbidden")
        return [Completion("first", 1, 1, "stop")]

    async def scenario():
        samples = Client(ask, Usage(), 4, 0).sample("a", 2, 0, "q")
        assert (await anext(samples)).text == "first"
        await asyncio.sleep(0.01)
        await samples.aclose()

    run(scenario())


@asked(refused(400, "top_k must be positive"))
async def test_a_refused_setting_ends_the_run_and_is_not_mistaken_for_a_refused_n(server, client):
    with pytest.raises(EndpointError, match="answered 400: top_k must be positive, for a plain prompt too; change"):
        await take(client, "a", 4)
    assert client.honours_n is None
    plain = [("1 + 1 =", 1)] * 3
    assert [(request.prompt, request.n) for request in server.requests] == [("a", 4), ("a", 1), *plain]


@asked(lambda request: refused(int(request.prompt[5:]), "too long") if "long" in request.prompt else ok())
async def test_a_refused_prompt_is_a_failed_sample_whether_it_comes_first_or_later(server, client):
    for status in (400, 413, 422):
        failed = await take(client, f"long {status}", 4)
        assert {(each.text, each.error) for each in failed} == {(None, f"the server answered {status}: too long")}
        assert len(failed) == 4 and None not in texts(await take(client, "a prompt", 4))
    assert client.honours_n is True and [request.prompt for request in server.requests].count("1 + 1 =") == 3
