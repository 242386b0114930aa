"""The judge on a server: what it sends, what it costs, and a server that refuses."""

import asyncio

import pytest

from apportion.answers import AnswerClasses, make_equivalence
from apportion.endpoint import Endpoint, EndpointError
from apportion.vote import Question
from apportion.vote.judge import connect_judge, keep_verdicts
from apportion.vote.lines import JournalError
from apportion.vote.right import count_right
from apportion.vote.run import vote_async
from apportion.vote.setup import make_setup
from tests.endpoint.builders import run
from tests.endpoint.fault_server import FaultServer, ok, refused
from tests.vote.builders import make_ballot


def verdict(request, place):
    first, second = (line for line in request.prompt.splitlines() if " answer: " in line)
    return "Yes" if "Paris" in first and "Paris" in second else "No"


def test_the_judge_is_asked_on_the_server_at_temperature_zero_and_its_tokens_are_counted():
    async def judged():
        async with FaultServer(ok(verdict)) as server:
            endpoint = Endpoint(server.url, "model", system="Be brief.", concurrency=32)
            async with connect_judge(endpoint, "large") as ask:
                judge = make_equivalence("judge", ask=ask)
                classes = AnswerClasses(judge.for_question("Where is the Louvre?"))
                found = [await classes.join(answer) for answer in ("Paris", "in Paris", "Rome", "PARIS")]
            return found, judge.usage, [request.body for request in server.requests]

    found, usage, bodies = run(judged())
    assert found == ["Paris", "Paris", "Rome", "Paris"]
    assert [(body["model"], body["temperature"], len(body["messages"])) for body in bodies] == [("large", 0.0, 1)] * 2
    assert (usage.requests, usage.same, usage.failed) == (2, 1, 0) and usage.prompt_tokens and usage.completion_tokens


def test_comparing_winners_with_labels_is_counted_as_the_cost_of_the_judge():
    async def counted():
        async with FaultServer(ok(verdict)) as server:
            setup = make_setup(server.url, "m", equivalence="judge")
            ballot = make_ballot("a", answer="Paris", votes={"Paris": 4})
            labels = {"a": Question("a", "a", "in Paris")}
            return await asyncio.to_thread(count_right, [ballot], labels, setup)

    right, cost = run(counted())
    assert right.right == 1 and cost.requests == 1 and (cost + cost).prompt_tokens == 2 * cost.prompt_tokens > 0


def test_a_vote_with_a_judge_keeps_its_verdicts_and_does_not_pay_for_them_again(tmp_path):
    def text(request, place):
        if " answer: " in request.prompt:
            return verdict(request, place)
        return f"The answer is {('Paris', 'in Paris', 'Rome')[(request.seed or 0) % 3]}."

    async def voted(out, rule="fixed", **more):
        async with FaultServer(ok(text, most=1)) as server:
            report = await vote_async(
                [Question("q", "Where is the Louvre?")],
                base_url=server.url, model="m", out=out, rule=rule, max_samples=12, template="{question}",
                equivalence="judge", extract="answer_line", **more
            )  # fmt: skip
            judged = sum(" answer: " in request.prompt for request in server.requests)
        return report.ballots[0].votes, judged, report.judge.requests

    out, kept = tmp_path / "answers.jsonl", tmp_path / "answers.judge.jsonl"
    votes, judged, counted = run(voted(out))
    lines = kept.read_bytes().splitlines(keepends=True)
    assert judged == counted == len(lines) and len(votes) == 2
    kept.write_bytes(b"".join(lines) + lines[0][:20])  # torn by a kill
    again, judged, counted = run(voted(out, overwrite=True))
    assert (again, judged, counted) == (votes, 0, 0) and kept.read_bytes() == b"".join(lines)
    *_, counted = run(voted(out, overwrite=True, judge_model="other"))
    assert counted == len(lines) and len(kept.read_bytes().splitlines()) == 2 * len(lines)


def test_a_file_of_something_else_is_not_taken_for_verdicts(tmp_path):
    path = tmp_path / "answers.judge.jsonl"
    path.write_text('{"id": "q", "prompt": "What is it?"}\n')
    with (
        pytest.raises(
            JournalError, match="must hold verdicts of a judge of apportion vote, got something else in line 1"
        ),
        keep_verdicts(path, "m"),
    ):
        pass
    assert path.read_text() == '{"id": "q", "prompt": "What is it?"}\n'


def test_a_server_that_refuses_the_judge_ends_the_run():
    async def judged():
        async with (
            FaultServer(refused(404, "no such model")) as server,
            connect_judge(Endpoint(server.url, "m")) as ask,
        ):
            await make_equivalence("judge", ask=ask).for_question("?").find_equal("a b", ["c d"])

    with pytest.raises(EndpointError, match="no such model"):
        run(judged())
