"""The voting client and the gateway on a real server, and one run of the command from questions to answers."""

import asyncio
import json

import pytest

from apportion.vote import read_recorded
from benchmarks.served_model import problems, serving, train_model
from tests.builders import write_jsonl
from tests.endpoint.builders import run
from tests.gateway.builders import ballot, gateway
from tests.warm import cold

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("served_model")]  # one worker process, so that one server runs


@pytest.fixture(scope="session")
def served_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "model"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder.parent / "cache"))
        train_model(folder)
    with serving(folder) as served:
        yield served


def test_a_vote_from_the_command_line(served_model, tmp_path):
    """Each sample is asked for once, and most questions have the right answer."""
    asked, out, most = problems(4), tmp_path / "answers.jsonl", 32
    gold = {problem.text: problem.answer[-1] for problem in asked}  # the last number of a completion
    rows = [{"id": text, "prompt": text, "answer": answer} for text, answer in gold.items()]
    write_jsonl(tmp_path / "questions.jsonl", rows)
    before = served_model.answered
    server = f"--base-url {served_model.base_url} --model {served_model.model}"
    given = f"--questions {tmp_path}/questions.jsonl --out {out} --max-samples {most} --max-tokens 16"
    more = "--template {question} --extract last_number --json"
    ended = cold(*f"-m apportion vote {server} {given} {more}".split())
    assert ended.returncode == 0, ended.stderr
    summary, kept = json.loads(ended.stdout), read_recorded(out)
    ballots = kept.ballots.values()
    paid = [len(kept.stream(ballot.id)) for ballot in ballots]
    assert [ballot.samples for ballot in ballots] == paid and summary["failed"] == summary["cancelled"] == 0
    assert summary["samples"] == sum(paid) == served_model.answered - before < summary["full_samples"] == 4 * most
    right = [ballot.answer == gold[ballot.id] for ballot in ballots]
    assert [ballot.correct for ballot in ballots] == right and summary["accuracy"]["mean"] == sum(right) / 4 > 0.4


GATEWAY = {"extract": "last_number", "max_samples": 16, "request_seconds": 60.0, "deadline_seconds": 60.0}
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "max_tokens": 16}


def test_the_gateway_votes_on_a_served_model(served_model):
    """Every sample is one request of the server, all tokens are counted, and most answers are right."""
    questions = problems(6)

    async def scenario():
        async with gateway(url=served_model.base_url, **GATEWAY) as place:

            async def vote(text):
                messages = [{"role": "user", "content": text}]
                completion = await place.ask(model=served_model.model, messages=messages, **SAMPLING)
                found = ballot(completion)
                assert found["answer"] == completion.choices[0].message.content.split()[-1]
                assert found["uncounted"] == found["failed"] == 0
                assert completion.usage.prompt_tokens == 4 * found["samples"] <= 4 * completion.usage.completion_tokens
                return str(found["answer"]), found["samples"]

            before = served_model.answered
            answers, samples = zip(*await asyncio.gather(*(vote(each.text) for each in questions)), strict=True)
            assert served_model.answered - before == sum(samples) < 6 * 16
            assert sum(answer == problem.answer[-1] for answer, problem in zip(answers, questions, strict=True)) >= 3

    run(scenario(), seconds=120)
