"""Settings become the fields of a request. Invalid ones are refused before anything is sent."""

import json
import logging
from traceback import format_exception

import pytest

from apportion.endpoint import Endpoint, EndpointError, seed_of
from apportion.messages import make_messages
from tests.cases import check_all, lines, settings_of
from tests.endpoint.builders import endpoint, run, sample, single_texts, take, texts
from tests.endpoint.fault_server import FaultServer, refused
from tests.warm import cold

USER = {"role": "user", "content": "3 + 3?"}


def test_a_chat_request_holds_the_prompt_and_every_setting():
    found, server, _ = sample(count=3, extra_body={"top_k": 20, "chat_template_kwargs": {"enable_thinking": False}})
    assert server.requests[0].path == "/v1/chat/completions"
    asked = """{"model": "tiny", "messages": [{"role": "user", "content": "2 + 2 ="}], "temperature": 0.6,
    "top_p": 0.95, "max_tokens": 2048, "n": 3, "top_k": 20, "chat_template_kwargs": {"enable_thinking": false}}"""
    assert server.requests[0].body == json.loads(asked) | {"seed": seed_of(0, "q", 0)} and len(found) == 3


def test_a_completions_request_holds_the_raw_prompt():
    found, server, _ = sample(api="completions")
    assert server.requests[0].path == "/v1/completions"
    assert server.requests[0].body["prompt"] == "2 + 2 ="
    assert texts(found) == single_texts(range(1))


def test_settings_that_are_none_are_left_to_the_server():
    settings = dict.fromkeys(("temperature", "top_p", "max_tokens", "seed"))
    _, server, _ = sample(**settings, extra_body={"max_completion_tokens": 9})
    assert server.requests[0].body.keys() == {"model", "messages", "max_completion_tokens"}


WRONG = """
    base_url = "localhost:8000"
    base_url = "http://"
    base_url = "http://localhost/v1/chat/completions"
    base_url = "http://localhost:80x0/v1"
    base_url = "http://me:secret@localhost/v1"
    base_url = "http://me:secret@localhost:80x0/v1"
    base_url = "ftp://me:secret@localhost/v1?key=secret"
    base_url = "http://localhost:80x0/v1?key=secret"
    model = ""
    api = "responses"
    temperature = -0.1
    temperature = nan
    top_p = 0.0
    max_tokens = 0
    concurrency = 0
    timeout_seconds = 0.0
    max_retries = -1
    extra_body = {n = 2}
    headers = {"X Key" = "secret"}
    headers = {"Content-Type" = "secret"}
    headers = {X-Key = "secret\\n"}
    headers = {X-Key = "secret\\u2026"}
"""
UNWRITABLE = [{"extra_body": {"stop": {1, 2}}}, {"extra_body": {"api_key": {"secret"}}}]


def test_invalid_settings_are_refused():
    def check(settings):
        with pytest.raises(ValueError, match=next(iter(settings))) as caught:
            Endpoint(**{"base_url": "http://localhost/v1", "model": "tiny"} | settings)
        assert "secret" not in str(caught.value).replace("'api_key': 'secret'", "")

    check_all(check, [(settings_of(text),) for (text,) in lines(WRONG)] + [(settings,) for settings in UNWRITABLE])


def test_a_system_prompt_needs_chat():
    with pytest.raises(ValueError, match='system must go with api="chat", got api="completions"'):
        Endpoint("http://localhost/v1", "tiny", api="completions", system="Be brief.")


def test_chat_messages_are_sent_as_they_are_after_the_system_prompt():
    asked = make_messages([{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}, USER])

    async def scenario():
        async with FaultServer() as server:
            for settings in ({}, {"system": "Be brief."}):
                async with endpoint(server, **settings).connect() as client:
                    assert (await take(client, asked, 1))[0].text
                    assert (await take(client, "2 + 2?", 1))[0].text
            return [request.body["messages"] for request in server.requests]

    system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}
    assert run(scenario()) == [list(asked), [user], [system, *asked], [system, user]]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"api": "completions"}, 'chat messages must go to api="chat"'),
        ({"system": "no"}, "one system message, got 'be'"),
    ],
)
def test_messages_that_cannot_be_sent_are_refused(settings, problem):
    asked = make_messages([{"role": "system", "content": "be"}, USER])

    async def scenario():
        async with FaultServer() as server:
            chosen = endpoint(server, **settings)
            with pytest.raises(ValueError, match=problem):
                chosen.check_prompt(asked)
            async with chosen.connect() as client:
                with pytest.raises(EndpointError, match=problem):
                    await take(client, asked, 1)
            assert not server.requests

    run(scenario())


BODY = {"options": {"api_key": "hush-in-body"}, "top_k": 20, "max_completion_tokens": 9}
HEADERS = {"X-Auth": "Bearer hush-in-header"}


def secretive(server, **settings):
    """Return settings with a secret in each place that may hold one. All secrets begin with hush."""
    url = f"{server.url}?api-key=hush-in-query&version=2"
    return Endpoint(url, "tiny", headers=HEADERS, extra_body=BODY, max_retries=0, **settings)


def test_headers_and_the_query_are_sent_with_each_request():
    async def scenario():
        async with FaultServer() as server, secretive(server).connect() as client:
            assert (await take(client, "a", 1))[0].text
            return server.requests[0]

    request = run(scenario())
    assert request.path == "/v1/chat/completions?api-key=hush-in-query&version=2"
    assert request.headers["x-auth"] == HEADERS["X-Auth"]
    assert request.body["options"] == BODY["options"]


def test_public_settings_hold_no_secret():
    server = FaultServer()
    server._port = 9
    chosen = secretive(server)
    public = chosen.public_settings()
    assert public["extra_body"]["options"] == {"api_key": "secret"} and "headers" not in public
    assert public["base_url"] == "http://127.0.0.1:9/v1" and public["extra_body"]["top_k"] == 20
    assert "hush" not in json.dumps(public) + repr(chosen) and "tiny" in repr(chosen)


@pytest.mark.parametrize("before", ["", "x" * 290], ids=["whole", "cut"])
@pytest.mark.parametrize("status", [401, 400, 500, 200, 404])
def test_no_secret_is_in_an_error_a_log_or_a_representation(status, before, caplog, monkeypatch):
    """Also where a long message is cut within one."""
    monkeypatch.setenv("MY_KEY", "hush-as-key")
    caplog.set_level(logging.DEBUG)

    async def echo(request, send):
        keys = request.headers["authorization"], request.headers["x-auth"], request.body["options"]
        await refused(status, f"{before}{keys} and {request.path}")(request, send)

    async def scenario():
        async with FaultServer(echo) as server, secretive(server, api_key_env="MY_KEY").connect() as client:
            shown = repr(client) + repr(vars(client))
            try:
                return shown + repr(await take(client, "a", 2))
            except EndpointError as error:
                return shown + "".join(format_exception(error))  # with its causes

    text = run(scenario())
    assert (before or ("[key]" in text and "[secret]" in text)) and "hush" not in text + caplog.text


def test_only_connecting_imports_openai_and_its_absence_is_reported():
    code = (
        "import asyncio, sys\n"
        "from apportion.endpoint import Endpoint\n"
        "assert not {'openai', 'httpx', 'httpx2'} & sys.modules.keys()\n"
        "sys.modules['openai'] = None\n"
        "async def main():\n"
        "    async with Endpoint('http://localhost/v1', 'tiny').connect(): pass\n"
        "asyncio.run(main())\n"
    )
    assert "sampling needs openai, which cannot be imported; pip install 'apportion[vote]'" in cold("-c", code).stderr
