"""Inputs as people have them reach the server as they are meant, and no secret reaches the disk."""

import asyncio
import sys

import pytest

from apportion.vote import Question, read_questions, vote_async
from tests.builders import write_jsonl
from tests.endpoint.fault_server import (
    FaultServer,
    ok,
)
from tests.vote.builders import report_of

pytest.importorskip("openai")

MESSAGES = [
    {"role": "user", "content": "The capital of France?"},
    {"role": "assistant", "content": "Paris."},
    {"role": "user", "content": "And in full?"},
]


def test_messages_and_several_gold_answers_are_voted_on_and_no_secret_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "key-secret")
    path, out = tmp_path / "questions.jsonl", tmp_path / "answers.jsonl"
    rows = [{"prompt": MESSAGES, "answer": ["Paris", "Paris, France"]}, {"prompt": "same"}, {"prompt": "same"}]
    write_jsonl(path, rows)
    secrets = {
        "headers": {"X-Auth": "Bearer header-secret"},
        "extra_body": {"api_key": "body-secret"},
    }

    async def scenario():
        async with FaultServer(lambda _: ok("\\boxed{Paris, France}")) as server:
            url = f"{server.url}?key=query-secret"
            asked = read_questions(path)
            for _ in range(2):  # the second run finds everything in the files of the first
                report = await vote_async(
                    asked, base_url=url, model="tiny", out=out, equivalence="exact", max_samples=4,
                    system="Be brief.", **secrets,
                )  # fmt: skip
            return report, server.requests

    report, requests = asyncio.run(scenario())
    assert [ballot.correct for ballot in report.ballots] == [True, None, None]
    system, *sent = next(each for each in (request.body["messages"] for request in requests) if len(each) > 2)
    assert system == {"role": "system", "content": "Be brief."} and sent[:2] == MESSAGES[:2]
    assert sent[2]["content"].startswith("And in full?\n\nPlease reason")
    written = {each: each.read_text() for each in tmp_path.iterdir()}
    assert any("Be brief." in text for text in written.values())
    assert not any("-secret" in text for text in written.values())


def test_prompts_that_cannot_be_sent_are_refused_before_anything_is(tmp_path):
    requests, asked = [], [Question("", tuple(MESSAGES))]
    with pytest.raises(ValueError, match='chat messages must go to api="chat"'):
        report_of(requests.append, tmp_path / "answers.jsonl", asked, api="completions")
    assert not requests and not list(tmp_path.iterdir())


def test_options_can_leave_settings_to_the_server_and_add_headers(tmp_path):
    path = tmp_path / "questions.jsonl"
    path.write_text('{"prompt": "1 + 1?"}\n')

    async def scenario():
        async with FaultServer(lambda _: ok("\\boxed{2}")) as server:
            given = ["--base-url", server.url, "--model", "tiny", "--questions", str(path), "--max-samples", "2"]
            files = ["--out", str(tmp_path / "answers.jsonl"), "--header", "X-A=b=c", "--header", "X-B=d"]
            off = ["--no-seed", "--no-temperature", "--no-top-p", "--no-max-tokens"]
            arguments = [sys.executable, "-m", "apportion", "vote", *given, *files, *off]
            async with asyncio.timeout(60):
                command = await asyncio.create_subprocess_exec(*arguments, stdout=-1, stderr=-1)
                _, errors = await command.communicate()
            assert command.returncode == 0, errors
            return server.requests[0]

    request = asyncio.run(scenario())
    assert (request.headers["x-a"], request.headers["x-b"]) == ("b=c", "d")
    assert request.body.keys() <= {"model", "messages", "n"}
