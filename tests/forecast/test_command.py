"""``apportion forecast`` on files of every kind, and on a server."""

import asyncio
import json
import sys

import pytest

from tests.builders import write_jsonl
from tests.commands import printed, refuse_all
from tests.endpoint.fault_server import FaultServer, refused
from tests.vote.builders import answering, make_questions, report_of


def rows(prompts, rollouts, reward):
    return [{"prompt": f"q{q}", "reward": reward(q, i)} for q in range(prompts) for i in range(rollouts)]


KINDS = {
    "one prompt": rows(1, 2, lambda q, i: float(i)),
    "one rollout": rows(1, 1, lambda q, i: 1.0),
    "all right": rows(20, 4, lambda q, i: 1.0),
    "all wrong": rows(20, 4, lambda q, i: 0.0),
    "signed": rows(20, 4, lambda q, i: 1.0 if (q + i) % 3 else -1.0),
    "rates": rows(20, 1, lambda q, i: q / 20),
    "unequal": [row for q in range(20) for row in rows(20, 1 + q % 3, lambda q, i: float(i % 2))],
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_screen_is_80_columns_wide_and_says_what_to_set(tmp_path, kind):
    said = printed("forecast", write_jsonl(tmp_path / "sample.jsonl", KINDS[kind]))
    assert max(map(len, said.splitlines())) <= 80 and len(said.splitlines()) <= 45
    assert "num_generations=8" in said and "nan" not in said
    assert ("One rollout a prompt" in said) == (kind == "one rollout")


@pytest.mark.parametrize("column", ["rate", "pass_rate", "success_rate", "mean"])
def test_a_column_of_pass_rates_alone_is_a_sample(tmp_path, column):
    (path := tmp_path / "rates.csv").write_text(f"id,{column}\na,0.25\nb,0.75\nc,\n")
    said = printed("forecast", path)
    assert "pass rates of 2 prompts; 50%" in said and "no prompt has two rollouts" not in said
    path.write_text(f"id,{column}\na,25\n")
    refuse_all(f"{path} => {column} must be a finite number from 0 to 1, got '25'", "forecast")
    path.write_text(f"id,{column},mine\na,0.25,3\na,0.25,4\n")  # rollouts, beside the rate of their prompt
    refuse_all(f"{path} => must have a column reward or correct", "forecast")


def test_what_cannot_be_known_is_said(tmp_path):
    sample = write_jsonl(tmp_path / "sample.jsonl", rows(1, 8, lambda q, i: 1.0))
    said = printed("forecast", sample, "--tokens-per-second", "9")
    assert "8 rollouts of 1 prompt;" in said and "epoch of 1 prompt " in said
    assert "hours are not known" in said and "refilled, n 8  inf" in said and "--full" not in said
    assert "vip" not in printed("forecast", sample, "--group-size", "65")  # it gives at most 64 rollouts


def test_json_has_the_shares_of_every_size(tmp_path):
    sample = write_jsonl(tmp_path / "sample.jsonl", rows(20, 4, lambda q, i: float(i < q % 5)))
    found = json.loads(printed("forecast", sample, "--json", "--estimators", "rloo", "--group-size", "6"))
    assert [each["n"] for each in found["dead"]] == [1, 2, 4, 6, 8, 16, 32]
    assert found["dead"][2].keys() == {"n", "value", "low", "high", "all_right", "all_wrong"}
    assert found["dead"][2]["value"] == pytest.approx(0.4) and list(found["signal"]) == ["rloo"]


def test_wrong_input_is_refused_before_anything_is_paid_for(tmp_path):
    sample = write_jsonl(tmp_path / "sample.jsonl", rows(4, 4, lambda q, i: 0.3 * i))
    unlabelled = write_jsonl(tmp_path / "unlabelled.jsonl", [{"prompt": "1 + 1?"}])
    server = f"--base-url http://127.0.0.1:9/v1 --model m --questions {unlabelled}"
    refuse_all(
        f"""
        => a forecast needs a sample, or --base-url
        {sample} {server} => a forecast needs a sample, or --base-url
        --base-url http://127.0.0.1:9/v1 => a forecast needs a sample
        {sample} --epoch 0 => --epoch must be an integer of at least 1, got 0
        {sample} => got graded rewards in sample
        nothing.jsonl => the sample must exist
        {sample} --price-per-hour 2 => --price-per-hour needs --tokens-per-second
        {sample} --estimators gae => estimators must be one of
        {sample} --group-size 5000 => group_size must be at most 1,024
        {server} => a question needs a right answer, got none
        """,
        "forecast",
    )


def test_a_server_is_sampled_after_its_price_and_goes_on_where_it_stopped(tmp_path):
    questions = make_questions(12)
    given = [{"id": each.id, "prompt": each.prompt, "answer": each.gold} for each in questions]
    path = write_jsonl(tmp_path / "questions.jsonl", given)

    async def forecast(server, *more):
        arguments = [sys.executable, "-m", "apportion", "forecast", "--base-url", server.url, "--model", "tiny"]
        arguments += ["--questions", str(path), "--prompts", "8", "--equivalence", "exact", "--json", *more]
        command = await asyncio.create_subprocess_exec(*arguments, cwd=tmp_path, stdout=-1, stderr=-1)
        said, errors = await command.communicate()
        assert command.returncode == 0, errors
        return json.loads(said), errors.decode()

    async def scenario():
        async with FaultServer(lambda _: answering()) as server, asyncio.timeout(120):
            price, _ = await forecast(server, "--dry-run", "--no-temperature")
            assert (price["most_samples"], server.requests) == (32, [])
            first, said = await forecast(server)
            asked = len(server.requests)
            again, _ = await forecast(server, "--rollouts", "6")
            asked = len(server.requests) - asked
            write_jsonl(path, [each | {"id": f"other {each['id']}"} for each in given[:4]])  # in the same file
            other, _ = await forecast(server)
            return first, said, asked, again, other, server.requests

    first, said, asked, again, other, requests = asyncio.run(scenario())
    assert said.index("samples") < said.index("tokens") and "32 to 32" in said
    assert (first["rollouts"], first["probed"], first["prompts"]) == (32, 8, 12)
    assert first["tokens"] > 0 and (again["rollouts"], asked) == (48, 16)
    assert (other["rollouts"], other["probed"], other["doubts"]) == (16, 4, [])
    assert {request.body["temperature"] for request in requests} == {1.0}


def test_questions_that_a_server_refuses_leave_a_forecast_from_the_others(tmp_path):
    questions = [{"id": each.id, "prompt": each.prompt, "answer": each.gold} for each in make_questions(4)]
    path = write_jsonl(tmp_path / "questions.jsonl", questions)

    def replies(request):
        return refused(500) if request.prompt.startswith("Question 0") else answering()

    async def scenario():
        async with FaultServer(replies) as server, asyncio.timeout(120):
            arguments = [
                "forecast",
                "--base-url",
                server.url,
                "--model",
                "tiny",
                "--questions",
                str(path),
                "--max-retries",
                "0",
            ]
            command = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "apportion", *arguments, cwd=tmp_path, stdout=-1, stderr=-1
            )
            return (await command.communicate())[1].decode(), command.returncode

    said, code = asyncio.run(scenario())
    assert code == 1 and "or forecast from what came: apportion forecast forecast.jsonl" in said
    assert "12 rollouts of 3 prompts" in printed("forecast", tmp_path / "forecast.jsonl")


def test_the_answers_of_a_vote_are_a_sample(tmp_path):
    out = tmp_path / "answers.jsonl"
    report_of(lambda _: answering(), out, make_questions(12), rule="fixed", max_samples=4, curtail=False)
    found = json.loads(printed("forecast", out, "--json"))
    assert (found["probed"], found["rollouts"]) == (12, 48) and found["dead"][2]["value"] > 0


def test_figures_beside_a_doubt_that_changes_them_say_so(tmp_path):
    some = [row | {"group_rewards": [0, 1] * 4} for row in rows(20, 2, lambda q, i: float((q + i) % 2))]
    assert "Figures, but not of the run (see ?)." in printed("forecast", write_jsonl(tmp_path / "run.jsonl", some))
