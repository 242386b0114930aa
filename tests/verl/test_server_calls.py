"""Calls at inference servers are stopped when they are given up: verl's own client and load balancer, in a real Ray."""

import asyncio
import threading
import time
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient
from verl.workers.rollout.router import GlobalRequestLoadBalancer

from apportion.verl import server_calls
from apportion.verl.server_calls import ServerCalls


@pytest.fixture(scope="module")
def actors(ray):
    """Provide a load balancer, and three servers that generate until they are told to stop."""

    class Server:
        def __init__(self):
            self.live, self.log, self.stubborn = {}, [], False

        async def begin(self, stubborn):
            self.stubborn = stubborn
            async with asyncio.timeout(60):
                while any(self.live.values()):  # of the test before
                    await asyncio.sleep(0.02)
            self.log = []

        async def generate(self, request_id, prompt_ids, sampling_params, **rest):
            ended = asyncio.Event()
            self.live.setdefault(request_id, []).append((prompt_ids[0], ended))
            try:
                await ended.wait()
            except asyncio.CancelledError:
                self.log.append(("cancelled", prompt_ids[0]))
                while self.stubborn:
                    await asyncio.sleep(0.1)
                raise
            finally:
                self.live[request_id].remove((prompt_ids[0], ended))
            extra = {"global_steps": 1}
            return SimpleNamespace(
                token_ids=[1],
                log_probs=None,
                routed_experts=None,
                num_preempted=None,
                stop_reason="completed",
                extra_fields=extra,
            )

        async def end(self, request_id, how="ended"):
            for prompt, ended in self.live.get(request_id, []):
                self.log.append((how, prompt))
                ended.set()
            return bool(self.live.get(request_id))

        async def found(self):
            return {key: [prompt for prompt, _ in each] for key, each in self.live.items() if each}, self.log

    balancer = ray.remote(num_cpus=0)(GlobalRequestLoadBalancer).remote({})
    return balancer, [ray.remote(num_cpus=0, max_concurrency=100)(Server).remote() for _ in range(3)]


@pytest.fixture
def start(ray, actors, monkeypatch):
    """Return a function that gives the servers at ``places``, and a client of them with its calls."""
    balancer, every = actors
    monkeypatch.setattr(server_calls, "ABORT_SECONDS", 30.0)  # on a slow machine too, a server is told

    def started(*places, kind=LLMServerClient, name="vllm", full_determinism=False, address=None, stubborn=False):
        servers = [every[place] for place in places]
        ray.get([server.begin.remote(stubborn) for server in servers])
        ray.get(balancer.remove_servers.remote(ray.get(balancer.get_all_servers.remote())))
        ray.get(balancer.add_servers.remote({address or str(i): server for i, server in enumerate(servers)}))
        rollout = {"name": name, "full_determinism": full_determinism, "response_length": 8}
        config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}})
        client = kind(config, balancer)
        return servers, client, ServerCalls(client)

    yield started
    ray.get([server.begin.remote(False) for server in every])


def generate(client, prompt, request_id=None):
    return client.generate(request_id or f"loop {prompt}", prompt_ids=[prompt], sampling_params={})


async def found(servers):
    """Return the prompts that are still generated for, and what happened to the others, over all servers."""
    each = await asyncio.gather(*(server.found.remote() for server in servers))
    live = sorted(prompt for own, _ in each for prompts in own.values() for prompt in prompts)
    return live, sorted(entry for _, log in each for entry in log)


async def until_live(servers, count):
    async with asyncio.timeout(60):
        while len((await found(servers))[0]) < count:
            await asyncio.sleep(0.02)


async def session(calls, *generating):
    """Do that in one session, which ends with it."""
    async with calls.session():
        await asyncio.gather(*generating)


async def until_found(servers, *expected):
    async with asyncio.timeout(60):
        while await found(servers) != expected:
            await asyncio.sleep(0.02)


def test_the_calls_of_a_given_up_session_are_stopped_and_no_others(start):
    servers, client, calls = start(0, 1, 2, kind=FullyAsyncLLMServerClient)

    async def main():
        first, second = (
            asyncio.create_task(session(calls, *(generate(client, prompt) for prompt in prompts)))
            for prompts in ((0, 1, 2), (3, 4, 5))
        )
        await until_live(servers, 6)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert await found(servers) == ([3, 4, 5], [("cancelled", prompt) for prompt in range(3)])
        second.cancel()
        with suppress(asyncio.CancelledError):
            await second
        assert await found(servers) == ([], [("cancelled", prompt) for prompt in range(6)])
        status = await client._load_balancer.get_status.remote()
        assert status["total_inflight"] == 0

    asyncio.run(main())


def test_calls_that_a_session_leaves_behind_are_stopped_when_it_ends_and_those_outside_when_cancelled(start):
    """An agent loop may fail, or return, while its tasks still generate. Validation has no sessions of ours."""
    servers, client, calls = start(0)

    async def main():
        async def failing():
            async with calls.session():
                left.append(asyncio.create_task(generate(client, 0)))
                await until_live(servers, 1)
                raise ValueError("the loop fails")

        left = []
        with pytest.raises(ValueError, match="the loop fails"):
            await failing()
        assert await found(servers) == ([], [("cancelled", 0)])
        left.append(asyncio.create_task(generate(client, 1)))
        await until_live(servers, 1)
        left[1].cancel()
        await asyncio.wait(left)
        await until_found(servers, [], [("cancelled", 0), ("cancelled", 1)])

    asyncio.run(main())


def test_a_given_up_session_makes_no_more_calls(start):
    servers, client, calls = start(0)

    async def main():
        async def going_on():
            async with calls.session():
                with suppress(asyncio.CancelledError):
                    await generate(client, 0)
                await generate(client, 1)

        task = asyncio.create_task(going_on())
        await until_live(servers, 1)
        task.cancel()
        with pytest.raises(RuntimeError, match="a session that was given up must not generate"):
            await task
        assert await found(servers) == ([], [("cancelled", 0)])

    asyncio.run(main())


def test_a_session_may_go_on_after_its_own_timeout(start):
    """The call that it gave up is stopped at once, and a next one is made."""
    servers, client, calls = start(0)

    async def main():
        async with calls.session():
            await client._acquire_server("first")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await generate(client, 0)
            task = asyncio.create_task(generate(client, 1))
            await until_live(servers, 1)
            await until_found(servers, [1], [("cancelled", 0)])
            (request,) = (await servers[0].found.remote())[0]
            await servers[0].end.remote(request)
            assert (await task).token_ids == [1]

    asyncio.run(main())


def test_a_server_that_stops_nothing_holds_up_nothing_and_is_reported_once(start, monkeypatch, caplog):
    monkeypatch.setattr(server_calls, "ABORT_SECONDS", 0.5)
    servers, client, calls = start(0, stubborn=True)

    async def main():
        task = asyncio.create_task(session(calls, generate(client, 0), generate(client, 1)))
        await until_live(servers, 2)
        before = time.monotonic()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() and 0.4 < time.monotonic() - before < 3
        assert await found(servers) == ([0, 1], [("cancelled", 0), ("cancelled", 1)])

    asyncio.run(main())
    said = [record.message.partition(";")[0] for record in caplog.records if "server_calls" in record.name]
    assert said == ["A server still serves a request that was given up"]


@contextmanager
def http_server(ray, server, status=200):
    """Serve ``/abort_request`` over HTTP as SGLang does: a JSON object whose ``rid`` is the request's id."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = OmegaConf.create(self.rfile.read(int(self.headers["Content-Length"])).decode())
            if self.path == "/abort_request" and status == 200:
                ray.get(server.end.remote(body.rid, "aborted over HTTP"))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *args):
            return None

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as own:
        thread = threading.Thread(target=own.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{own.server_port}"
        finally:
            own.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("status", "shared", "how"),
    [(200, False, "aborted over HTTP"), (500, False, "cancelled"), (200, True, "cancelled")],
)
def test_sglang_is_told_over_http_unless_others_may_share_the_id(ray, actors, start, status, shared, how):
    server = actors[1][0]

    async def main(address):
        _, client, calls = start(0, name="sglang", full_determinism=shared, address=address)
        tasks = [asyncio.create_task(session(calls, generate(client, prompt, "det-0"))) for prompt in (0, 1)]
        await until_live([server], 2)
        tasks[0].cancel()
        await asyncio.wait(tasks[:1])
        assert await found([server]) == ([1], [(how, 0)])
        tasks[1].cancel()
        await asyncio.wait(tasks)

    with http_server(ray, server, status) as address:
        asyncio.run(main(address))
