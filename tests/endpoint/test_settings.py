"""Settings become the fields of a request. Invalid ones are refused before anything is sent."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from apportion.endpoint import Endpoint, seed_of
from tests.endpoint.builders import sample, single_texts, texts


def test_a_chat_request_holds_the_prompt_and_every_setting() -> None:
    found, server, _ = sample(count=3, extra_body={"top_k": 20, "chat_template_kwargs": {"enable_thinking": False}})
    assert server.requests[0].path == "/v1/chat/completions"
    assert server.requests[0].body == {
        "model": "tiny",
        "messages": [{"role": "user", "content": "2 + 2 ="}],
        "temperature": 0.6,
        "top_p": 0.95,
        "max_tokens": 2048,
        "n": 3,
        "seed": seed_of(0, "q", 0),
        "top_k": 20,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    assert len(found) == 3


def test_a_completions_request_holds_the_raw_prompt() -> None:
    found, server, _ = sample(api="completions")
    assert server.requests[0].path == "/v1/completions"
    assert server.requests[0].body["prompt"] == "2 + 2 ="
    assert texts(found) == single_texts(range(1))


def test_settings_that_are_none_are_left_to_the_server() -> None:
    settings: dict[str, Any] = dict.fromkeys(("temperature", "top_p", "max_tokens", "seed"))
    _, server, _ = sample(**settings, extra_body={"max_completion_tokens": 9})
    assert server.requests[0].body.keys() == {"model", "messages", "max_completion_tokens"}


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("base_url", "localhost:8000"),
        ("base_url", "http://"),
        ("base_url", "http://localhost:80x0/v1"),
        ("base_url", "http://me:secret@localhost/v1"),
        ("model", ""),
        ("api", "responses"),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_p", 0.0),
        ("max_tokens", 0),
        ("concurrency", 0),
        ("timeout_seconds", 0.0),
        ("max_retries", -1),
        ("extra_body", {"n": 2}),
        ("extra_body", {"stop": {1, 2}}),
    ],
)
def test_invalid_settings_are_refused(setting: str, value: object) -> None:
    settings: dict[str, Any] = {"base_url": "http://localhost/v1", "model": "tiny", setting: value}
    with pytest.raises(ValueError, match=setting) as caught:
        Endpoint(**settings)
    assert "secret" not in str(caught.value)


def test_only_connecting_imports_openai_and_its_absence_is_reported() -> None:
    code = (
        "import asyncio, sys\n"
        "from apportion.endpoint import Endpoint\n"
        "assert not {'openai', 'httpx', 'httpx2'} & sys.modules.keys()\n"
        "sys.modules['openai'] = None\n"
        "async def main():\n"
        "    async with Endpoint('http://localhost/v1', 'tiny').connect(): pass\n"
        "asyncio.run(main())\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "sampling needs openai, which cannot be imported; pip install 'apportion[vote]'" in ended.stderr
