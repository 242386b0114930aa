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
def shared_server(ray):
    """Provide a server that generates until it is told to stop."""

    class Server:
        def __init__(self):
            self.live, self.log, self.stubborn = {}, [], False

        async def cling(self):
            self.stubborn = True

        async def generate(self, request_id, prompt_ids, sampling_params, **rest):
            (prompt,), ended = prompt_ids, asyncio.Event()
            self.live[prompt] = request_id, ended
            try:
                await ended.wait()
            except asyncio.CancelledError:
                self.log.append(("cancelled", prompt))
                while self.stubborn:
                    await asyncio.sleep(0.1)
                raise
            finally:
                del self.live[prompt]
            return SimpleNamespace(token_ids=[1], stop_reason="completed", extra_fields={"global_steps": 1})

        async def end(self, asked, how):
            for prompt, (request, ended) in self.live.items():
                if asked in (prompt, request):
                    self.log.append((how, prompt))
                    ended.set()

        async def found(self):
            return sorted(self.live), sorted(self.log)

        async def begin_anew(self):
            self.stubborn = False
            for _, ended in self.live.values():
                ended.set()
            while self.live:
                await asyncio.sleep(0.02)
            self.log.clear()

    return ray.remote(num_cpus=0, max_concurrency=100)(Server).remote()


@pytest.fixture
def server(ray, shared_server):
    """Provide that server, which serves nothing yet."""
    ray.get(shared_server.begin_anew.remote())
    return shared_server


@pytest.fixture(scope="module")
def balancer(ray):
    return ray.remote(num_cpus=0)(GlobalRequestLoadBalancer).remote({})


@pytest.fixture
def start(ray, balancer, server, monkeypatch):
    """Return a function that gives a client of the server, and its calls."""
    monkeypatch.setattr(server_calls, "ABORT_SECONDS", 30.0)  # on a slow machine too, a server is told

    def started(kind=LLMServerClient, name="vllm", full_determinism=False, address="0"):
        ray.get(balancer.remove_servers.remote(ray.get(balancer.get_all_servers.remote())))
        ray.get(balancer.add_servers.remote({address: server}))
        rollout = {"name": name, "full_determinism": full_determinism, "response_length": 8}
        client = kind(OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}}), balancer)
        return client, ServerCalls(client)

    return started


def generate(client, prompt, request_id=None):
    return client.generate(request_id or f"loop {prompt}", prompt_ids=[prompt], sampling_params={})


async def session(calls, *generating):
    """Do that in one session, which ends with it."""
    async with calls.session():
        await asyncio.gather(*generating)


async def found(server):
    """Return the prompts that are still generated for, and what happened to the others."""
    return await server.found.remote()


async def until_found(server, *expected):
    async with asyncio.timeout(60):
        while await found(server) != expected:
            await asyncio.sleep(0.02)


def cancelled(*prompts):
    return [("cancelled", prompt) for prompt in prompts]


def test_calls_that_a_session_leaves_behind_are_stopped_when_it_ends_and_those_outside_when_cancelled(server, start):
    """An agent loop may fail, or return, while its tasks still generate. Validation has no sessions of ours."""
    client, calls = start(FullyAsyncLLMServerClient)

    async def main():
        async def failing():
            async with calls.session():
                left.append(asyncio.create_task(generate(client, 0)))
                await until_found(server, [0], [])
                raise ValueError("the loop fails")

        left = []
        with pytest.raises(ValueError, match="the loop fails"):
            await failing()
        assert await found(server) == ([], cancelled(0))
        left.append(asyncio.create_task(generate(client, 1)))
        await until_found(server, [1], cancelled(0))
        left[1].cancel()
        await asyncio.wait(left)
        await until_found(server, [], cancelled(0, 1))

    asyncio.run(main())


def test_a_given_up_session_makes_no_more_calls(server, start):
    client, calls = start()

    async def main():
        async def going_on():
            async with calls.session():
                with suppress(asyncio.CancelledError):
                    await generate(client, 0)
                await generate(client, 1)

        task = asyncio.create_task(going_on())
        await until_found(server, [0], [])
        task.cancel()
        with pytest.raises(RuntimeError, match="a session that was given up must not generate"):
            await task
        assert await found(server) == ([], cancelled(0))

    asyncio.run(main())


def test_a_session_may_go_on_after_its_own_timeout(server, start):
    """The call that it gave up is stopped at once, and a next one is made."""
    client, calls = start()

    async def timed_out():
        async def end_once_begun(limit):
            await until_found(server, [0], [])
            limit.reschedule(asyncio.get_running_loop().time())

        async with asyncio.timeout(None) as limit, asyncio.TaskGroup() as tasks:
            tasks.create_task(end_once_begun(limit))
            await generate(client, 0)

    async def main():
        async with calls.session():
            await client._acquire_server("first")
            with pytest.raises(TimeoutError):
                await timed_out()
            task = asyncio.create_task(generate(client, 1))
            await until_found(server, [1], cancelled(0))
            await server.end.remote(1, "ended")
            assert (await task).token_ids == [1]

    asyncio.run(main())


def test_a_server_that_stops_nothing_holds_up_nothing_and_is_reported_once(server, start, monkeypatch, caplog):
    client, calls = start()
    monkeypatch.setattr(server_calls, "ABORT_SECONDS", 0.5)

    async def main():
        await server.cling.remote()
        task = asyncio.create_task(session(calls, generate(client, 0), generate(client, 1)))
        await until_found(server, [0, 1], [])
        before = time.monotonic()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() and 0.4 < time.monotonic() - before < 3
        assert await found(server) == ([0, 1], cancelled(0, 1))

    asyncio.run(main())
    said = [record.message.partition(";")[0] for record in caplog.records if "server_calls" in record.name]
    assert said == ["A server still serves a request that was given up"]


@contextmanager
def http_server(ray, server, status):
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
def test_sglang_is_told_over_http_unless_others_may_share_the_id(ray, server, start, status, shared, how):
    async def main(address):
        client, calls = start(name="sglang", full_determinism=shared, address=address)
        tasks = [asyncio.create_task(session(calls, generate(client, prompt, "det-0"))) for prompt in (0, 1)]
        await until_found(server, [0, 1], [])
        tasks[0].cancel()
        await asyncio.wait(tasks[:1])
        assert await found(server) == ([1], [(how, 0)])
        tasks[1].cancel()
        await asyncio.wait(tasks)

    with http_server(ray, server, status) as address:
        asyncio.run(main(address))
