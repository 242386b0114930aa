"""Inputs as people have them reach the server as they are meant, and no secret reaches the disk."""

import asyncio

import pytest

from apportion.vote import Question, read_questions
from tests.builders import write_jsonl
from tests.endpoint.fault_server import FaultServer, ok
from tests.vote.builders import report_of, voted
from tests.warm import cold

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
    asked = read_questions(write_jsonl(path, rows))
    secrets = {"headers": {"X-Auth": "Bearer header-secret"}, "extra_body": {"api_key": "body-secret"}}
    settings = secrets | {"system": "Be brief.", "max_samples": 4}
    _, requests = voted(ok("\\boxed{Paris, France}"), out, asked, **settings)
    report = report_of((), out, asked, **settings)  # finds everything in the files of the first run
    assert [ballot.correct for ballot in report.ballots] == [True, None, None]
    system, *sent = next(each.body["messages"] for each in requests if len(each.body["messages"]) > 2)
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
        async with FaultServer(ok("\\boxed{2}")) as server:
            options = f"--base-url {server.url} --model tiny --max-samples 2 --header X-A=b=c --header X-B=d --no-seed"
            words = f"-m apportion vote --questions {path} --out {tmp_path}/answers.jsonl {options}".split()
            done = await asyncio.to_thread(cold, *words, "--no-temperature", "--no-top-p", "--no-max-tokens")
            assert done.returncode == 0, done.stderr
            return server.requests[0]

    request = asyncio.run(scenario())
    assert (request.headers["x-a"], request.headers["x-b"]) == ("b=c", "d")
    assert request.body.keys() <= {"model", "messages", "n"}
