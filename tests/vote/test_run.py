from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from apportion.answers import AnswerFunctionError
from apportion.endpoint import EndpointError, seed_of
from apportion.stopping import USUAL_RULE, decide
from apportion.vote import NoAnswersError, Question, Report, vote, vote_async
from apportion.vote.journal import samples_path
from apportion.vote.lines import JournalError
from tests.endpoint.fault_server import (
    Behaviour,
    FaultServer,
    Request,
    Script,
    broken,
    cut_before,
    cut_inside,
    malformed,
    n_short,
    no_choices,
    null_content,
    ok,
    rate_limited,
    refused,
    silent,
)
from tests.vote.builders import answering, make_questions, stream_of

Poll = Callable[..., Awaitable[Report]]


def serve(script: Script, out: Path, body: Callable[[Poll, FaultServer], Awaitable[Any]]) -> Any:
    """Return what ``body`` returns for a vote on a server with this ``script``, and the server."""

    async def inner() -> Any:
        async with FaultServer(script) as server:

            async def poll(questions: Sequence[Question], **settings: Any) -> Report:
                given = {"base_url": server.url, "model": "tiny", "out": out, "equivalence": "exact"} | settings
                return await vote_async(questions, **given)

            async with asyncio.timeout(60):
                return await body(poll, server)

    return asyncio.run(inner())


def report_of(script: Script, out: Path, questions: Sequence[Question], **settings: Any) -> Report:
    return serve(script, out, lambda poll, server: poll(questions, **settings))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "answers.jsonl"


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def key_of(request: Request) -> str:
    """Return the id of the question in a request."""
    return f"q{request.prompt.split()[1]}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "settings", "wave"),
    [
        ("posterior_predictive", {}, "free"),
        ("posterior_predictive", {"eps": 0.05}, 8),
        ("optpo", {"min_samples": 8}, "free"),
        ("esc", {"window": 4}, 3),
        ("adaptive_consistency_beta", {}, 64),
        ("fixed", {"samples": 12}, "free"),
    ],
)
def test_a_vote_agrees_with_a_replay_of_its_answers(out: Path, rule: str, settings: dict[str, Any], wave: Any) -> None:
    questions = make_questions(6)
    report = report_of(
        lambda request: answering(delay=0.005), out, questions, rule=rule, rule_settings=settings, wave=wave
    )
    streams = [stream_of(question) for question in questions]
    replayed = decide(streams, rule, 64, curtail=True, **settings)
    assert report.complete and [ballot.id for ballot in report.ballots] == [question.id for question in questions]
    for ballot, decision, stream, question in zip(report.ballots, replayed, streams, questions, strict=True):
        assert (ballot.samples, ballot.answer) == (decision.samples, decision.answer)
        assert ballot.votes == Counter(answer for answer in stream[: ballot.samples] if answer is not None)
        assert ballot.unparsed == stream[: ballot.samples].count(None) and ballot.failed == 0
        assert ballot.correct == (decision.answer == question.gold)
        assert ballot.stopped == ("rule" if ballot.samples < 64 else "max_samples")
        assert ballot.completion_tokens == 5 * ballot.samples


def test_free_waves_cancel_nothing_and_take_as_many_round_trips_as_the_replay(out: Path) -> None:
    questions = make_questions(5)
    report, requests = serve(
        lambda request: answering(),
        out,
        lambda poll, server: _with_requests(poll(questions, wave="free"), server),
    )
    replayed = decide([stream_of(q) for q in questions], USUAL_RULE, 64, wave="free", curtail=True)
    assert [ballot.waves for ballot in report.ballots] == replayed.waves.tolist()
    assert sum(ballot.cancelled for ballot in report.ballots) == 0
    assert len(requests) == sum(ballot.samples for ballot in report.ballots)


async def _with_requests(report: Awaitable[Report], server: FaultServer) -> tuple[Report, list[Request]]:
    return await report, server.requests


def test_samples_that_are_no_longer_needed_are_cancelled(out: Path) -> None:
    """The first samples agree, and the rest of the wave of 32 is still in flight."""
    enough = decide(["0"] * 64, USUAL_RULE).samples

    def script(request: Request) -> Behaviour:
        slow = request.seed not in {seed_of(0, "q0", number) for number in range(enough)}
        return ok(r"\boxed{0}", most=1, delay=30.0 if slow and request.n == 1 else 0.0)

    report, requests = serve(script, out, lambda poll, server: _with_requests(poll(make_questions(1), wave=32), server))
    (ballot,) = report.ballots
    assert (ballot.samples, ballot.cancelled, ballot.waves, ballot.answer) == (enough, 32 - enough, 1, "0")
    assert report.seconds < 15 and sum(request.left for request in requests) == 32 - enough


def faulty(request: Request) -> Behaviour:
    """Two of five requests fail, each in one of several ways. Their retries may succeed."""
    faults = [
        rate_limited(ms=1),
        broken(ms=1),
        broken(503, ms=1),
        cut_before(),
        cut_inside(),
        malformed(),
        no_choices(),
    ]
    draw = random.Random(request.number)
    return draw.choice(faults[:3] if draw.random() < 0.8 else faults) if draw.random() < 0.4 else answering()


@pytest.mark.slow
def test_a_mix_of_faults_changes_no_vote(out: Path) -> None:
    questions = make_questions(6)
    report = report_of(faulty, out, questions, max_samples=16, max_retries=12, concurrency=16)
    assert report.complete and not report.unfinished
    assert len(lines(out)) == len({line["id"] for line in lines(out)}) == 6
    replayed = decide([stream_of(q) for q in questions], USUAL_RULE, 16, curtail=True)
    for ballot, decision, question in zip(report.ballots, replayed, questions, strict=True):
        assert (ballot.samples, ballot.answer) == (decision.samples, decision.answer)
        assert ballot.votes == Counter(a for a in stream_of(question)[: ballot.samples] if a is not None)


def test_each_choice_of_a_server_that_honours_n_is_counted(out: Path) -> None:
    given: list[str] = []

    def text(request: Request, place: int) -> str:
        given.append(random.Random(f"{request.seed} {place}").choice("AAB"))
        return rf"\boxed{{{given[-1]}}}"

    report = report_of(lambda request: ok(text), out, make_questions(1), rule="fixed", max_samples=20, curtail=False)
    (ballot,) = report.ballots
    assert ballot.votes == Counter(given) and ballot.samples == 20
    assert ballot.prompt_tokens is not None and ballot.completion_tokens == 100


def test_completions_that_arrived_unneeded_are_reported(out: Path) -> None:
    """A server that honours n has generated the whole wave by the time the rule stops within it."""
    report = report_of(lambda request: ok(r"\boxed{0}"), out, make_questions(2), wave=32, concurrency=1)
    taken = sum(ballot.samples for ballot in report.ballots)
    assert report.usage.requests == 2 and report.usage.completion_tokens == 2 * 32 * 5
    assert report.uncounted_tokens == report.summary.uncounted_completion_tokens == (2 * 32 - taken) * 5 > 0
    assert [ballot.cancelled for ballot in report.ballots] == [32 - ballot.samples for ballot in report.ballots]


def test_a_choice_list_shorter_than_n_loses_nothing(out: Path) -> None:
    settings: dict[str, Any] = {"rule": "fixed", "max_samples": 20, "curtail": False, "give_up": 20}
    report = report_of([n_short(3)] * 99, out, make_questions(1), **settings)
    assert report.ballots[0].samples == 20 and report.ballots[0].failed == 0


def test_another_sample_takes_the_place_of_one_that_failed(out: Path) -> None:
    def script(request: Request) -> Behaviour:
        lost = {seed_of(0, "q0", number) for number in (1, 3)}
        return broken() if request.seed in lost and request.n == 1 else ok(r"\boxed{0}", most=1)

    report = report_of(
        script, out, make_questions(1), rule="fixed", max_samples=6, curtail=False, wave=2, max_retries=0
    )
    (ballot,) = report.ballots
    assert (ballot.samples, ballot.failed, dict(ballot.votes)) == (8, 2, {"0": 6})
    assert ballot.errors == ("the server answered 500: the engine has crashed",)
    assert ballot.completion_tokens == 30 and ballot.stopped == "max_samples"


def test_a_failed_sample_is_in_no_window(out: Path) -> None:
    def script(request: Request) -> Behaviour:
        return broken() if request.seed == seed_of(0, "q0", 6) else ok(r"\boxed{0}" if request.n == 1 else "?", most=1)

    settings: dict[str, Any] = {"rule": "esc", "wave": 5, "max_samples": 40, "curtail": False, "max_retries": 0}
    (ballot,) = report_of(script, out, make_questions(1), **settings).ballots
    assert (ballot.samples, ballot.failed, ballot.unparsed, dict(ballot.votes)) == (11, 1, 1, {"0": 9})


def test_a_full_vote_in_one_request_pays_for_one_prompt(out: Path) -> None:
    """If the server honours n, the full vote is one request, so three requests save no prompt."""
    report = report_of(lambda request: ok(r"\boxed{0}"), out, make_questions(2), rule="fixed", wave=8, max_samples=24)
    (first, second), summary = report.ballots, report.summary
    assert first.prompt_length and first.prompt_tokens == first.waves * first.prompt_length
    assert first.shares_prompts and second.prompt_length
    assert summary.full_prompt_tokens == first.prompt_length + second.prompt_length


def test_empty_texts_hold_no_answer_and_end_the_question(out: Path) -> None:
    report = report_of(lambda request: null_content(), out, make_questions(1), max_samples=8)
    (ballot,) = report.ballots
    assert (ballot.answer, ballot.correct, ballot.unparsed, ballot.stopped) == (None, False, 8, "max_samples")
    assert report.complete and len(lines(out)) == 1


def test_a_question_that_failures_ended_is_reported_and_asked_again(out: Path) -> None:
    """The server crashes at question 1, and answers the others."""
    crashing = True

    def script(request: Request) -> Behaviour:
        return broken(ms=1) if crashing and "Question 1" in request.prompt else answering()

    async def body(poll: Poll, server: FaultServer) -> tuple[Report, Report, list[Request]]:
        nonlocal crashing
        first = await poll(make_questions(3), max_samples=16, max_retries=1)
        crashing, asked = False, len(server.requests)
        return first, await poll(make_questions(3), max_samples=16, max_retries=1), server.requests[asked:]

    first, second, requests = serve(script, out, body)
    assert not first.complete and [ballot.id for ballot in first.ballots] == ["q0", "q2"]
    assert [ballot.id for ballot in first.unfinished] == ["q1"] and "crashed" in first.unfinished[0].errors[0]
    assert second.complete and {key_of(request) for request in requests} == {"q1"}
    assert [line["id"] for line in lines(out)][-1] == "q1"


def test_a_refused_question_is_final(out: Path) -> None:
    """The server refuses question 1, as it would one that is too long. It is asked once, and never again."""

    def script(request: Request) -> Behaviour:
        return refused(400, "too long") if "Question 1" in request.prompt else answering()

    async def body(poll: Poll, server: FaultServer) -> tuple[Report, int, Report, int]:
        first = await poll(make_questions(3), max_samples=16, wave=1)
        asked = len(server.requests)
        return first, asked, await poll(make_questions(3), max_samples=16, wave=1), len(server.requests)

    first, asked, second, asked_in_all = serve(script, out, body)
    assert first.complete and asked == asked_in_all and second.ballots == first.ballots
    ballot = first.ballots[1]
    assert (ballot.stopped, ballot.answer, ballot.samples, ballot.failed) == ("refused", None, 1, 1)
    assert [ballot.id for ballot in first.refused] == ["q1"] and not second.refused
    assert first.summary.refused == second.summary.refused == 1


def test_votes_before_the_server_failed_are_no_answer(out: Path) -> None:
    """Two votes and then nothing but errors: another run must not take that for a finished question."""

    def script(request: Request) -> Behaviour:
        first = {seed_of(0, "q0", number) for number in range(2)}
        return ok(r"\boxed{0}", most=1) if request.seed in first else broken(ms=1)

    with pytest.raises(EndpointError, match="nothing but failures for 'q0' and for a plain prompt"):
        report_of(script, out, make_questions(1), wave=1, max_retries=1)
    assert lines(out) == []


@pytest.mark.slow
def test_a_run_that_the_deadline_ended_can_be_continued(out: Path) -> None:
    stuck = True

    def script(request: Request) -> Behaviour:
        return silent() if stuck and "Question 2" in request.prompt else answering()

    async def body(poll: Poll, server: FaultServer) -> tuple[Report, Report]:
        nonlocal stuck
        first = await poll(make_questions(3), deadline_seconds=2.0)
        stuck = False
        return first, await poll(make_questions(3), deadline_seconds=60.0)

    first, second = serve(script, out, body)
    assert not first.complete and [b.id for b in first.ballots] == ["q0", "q1"] and first.seconds < 5
    assert second.complete and second.ballots[:2] == first.ballots
    assert second.summary.finished == 3 and second.summary.samples == sum(b.samples for b in second.ballots)


def test_finished_questions_are_not_asked_again(out: Path) -> None:
    async def body(poll: Poll, server: FaultServer) -> tuple[Report, int, Report, int]:
        first = await poll(make_questions(4), max_samples=8)
        asked = len(server.requests)
        return first, asked, await poll(make_questions(4), max_samples=8), len(server.requests)

    first, before, second, after = serve(lambda request: answering(), out, body)
    assert before == after and first.ballots == second.ballots and second.complete


def test_more_questions_can_be_added_to_a_finished_run(out: Path) -> None:
    async def body(poll: Poll, server: FaultServer) -> tuple[Report, list[Request]]:
        await poll(make_questions(4)[:2], max_samples=8)
        asked = len(server.requests)
        return await poll(make_questions(4), max_samples=8), server.requests[asked:]

    report, requests = serve(lambda request: answering(), out, body)
    assert report.complete and {key_of(request) for request in requests} == {"q2", "q3"}


@pytest.mark.parametrize(
    ("other", "problem"),
    [(Question("q0", "Another?", "0"), "another text for 'q0'"), (Question("q0", "Question 0 of 1?"), "gold answer")],
)
def test_another_question_under_the_same_id_is_refused(out: Path, other: Question, problem: str) -> None:
    async def body(poll: Poll, server: FaultServer) -> Report:
        await poll(make_questions(1), max_samples=8)
        return await poll([other], max_samples=8)

    with pytest.raises(JournalError, match=problem):
        serve(lambda request: answering(), out, body)


def test_an_endpoint_error_ends_the_run_and_keeps_what_is_finished(out: Path) -> None:
    def script(request: Request) -> Behaviour:
        return refused(401, "no such key") if "Question 1" in request.prompt else answering()

    with pytest.raises(EndpointError, match="no such key"):
        report_of(script, out, make_questions(2), concurrency=1)
    assert [line["id"] for line in lines(out)] == ["q0"]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"template": "no place"}, r"template must contain \{question\}, got 'no place'"),
        ({"extract": "regex"}, "extract must be one of auto, "),
        (
            {"equivalence": "fuzzy"},
            "equivalence must be one of exact, math, phrase, embedding, judge, or .*, got 'fuzzy'",
        ),
        ({"rule": "opt"}, "rule must be known, got 'opt'; did you mean 'optpo'"),
        ({"rule_settings": {"epsilon": 0.1}}, "has no key 'epsilon'; did you mean 'eps'"),
        ({"rule": "optpo", "rule_settings": {"min_samples": 2.5}}, "min_samples must be an integer, got 2.5"),
        ({"wave": 0}, "wave must be an integer of at least 1"),
        ({"max_samples": 0}, "max_samples must be an integer of at least 1"),
        ({"temperature": -1.0}, "temperature must be at least 0"),
        ({"judge_model": "big"}, "judge_model must be left out under another equivalence, got 'big'"),
        ({"extract": "math:nothing"}, "extract must be in its module, got 'math:nothing'"),
        ({"equivalence": "embedding", "equivalence_settings": {"treshold": 1}}, "settings that it knows, got treshold"),
        ({"weight": "length"}, "weight must be one of votes, tokens, got 'length'"),
        ({"give_up": 0}, "give_up must be an integer of at least 1, got 0"),
        ({"max_unparsed": 2}, "max_unparsed must be a share from 0 to 1, got 2"),
        ({"deadline_seconds": 0}, "deadline must be above 0 seconds, got 0"),
        ({"base_url": "http://me:secret@localhost/v1"}, "base_url must not hold a name or password"),
    ],
)
def test_settings_are_refused_before_anything_is_asked(out: Path, settings: dict[str, Any], problem: str) -> None:
    async def body(poll: Poll, server: FaultServer) -> int:
        with pytest.raises(ValueError, match=problem):
            await poll(make_questions(1), **settings)
        return len(server.requests)

    assert serve([], out, body) == 0 and not out.exists()


def samples_of(out: Path) -> list[dict[str, Any]]:
    return lines(samples_path(out))


@pytest.mark.parametrize("kept", [True, False])
def test_every_sample_is_kept_with_its_text_unless_texts_are_not_wanted(out: Path, kept: bool) -> None:
    (question,) = make_questions(1)
    report = report_of(lambda request: answering(0.005), out, [question], max_samples=8, wave=4, save_completions=kept)
    samples = sorted(samples_of(out), key=itemgetter("number"))
    assert [sample.get("answer") for sample in samples] == stream_of(question)[: len(samples)]
    assert len(samples) >= report.ballots[0].samples
    assert samples[0].get("text") == ("So it is \\boxed{0}." if kept else None)
    assert samples[0]["seed"] == seed_of(0, "q0", 0) and samples[0]["tokens"] == 5


def test_samples_that_arrived_unneeded_are_kept_and_used_by_a_rule_that_wants_more(out: Path) -> None:
    """A server that honours n has generated the whole wave of 32 by the time the rule stops."""

    async def body(poll: Poll, server: FaultServer) -> tuple[Report, Report, int]:
        settings: dict[str, Any] = {"wave": 32, "max_samples": 32, "curtail": False, "concurrency": 1}
        first = await poll(make_questions(2), **settings)
        asked = len(server.requests)
        again = await poll(make_questions(2), **settings | {"rule": "fixed", "resume": True})
        return first, again, len(server.requests) - asked

    first, again, requests = serve(lambda request: ok(r"\boxed{0}"), out, body)
    assert [ballot.samples for ballot in again.ballots] == [32, 32] and requests == 0
    assert all(ballot.samples < 32 for ballot in first.ballots)


def test_a_rule_that_wants_more_asks_for_the_missing_samples_alone(out: Path) -> None:
    questions = make_questions(4)

    async def body(poll: Poll, server: FaultServer) -> tuple[Report, Report, list[Request]]:
        first = await poll(questions)
        asked = len(server.requests)
        return first, await poll(questions, rule="fixed", curtail=False, resume=True), server.requests[asked:]

    first, again, requests = serve(lambda request: answering(), out, body)
    assert len(requests) == 4 * 64 - sum(ballot.samples for ballot in first.ballots)
    for ballot, question in zip(again.ballots, questions, strict=True):
        assert ballot.votes == Counter(answer for answer in stream_of(question) if answer is not None)
    assert sorted((each["id"], each["number"]) for each in samples_of(out)) == sorted(
        (question.id, number) for question in questions for number in range(64)
    )


def test_what_a_deadline_cut_off_is_continued_from_its_samples(out: Path) -> None:
    """Three samples arrive, the others hang. The next run requests only those."""
    stuck, first_three = True, {seed_of(0, "q0", number) for number in range(3)}

    def script(request: Request) -> Behaviour:
        return silent() if stuck and request.seed not in first_three else ok(r"\boxed{0}", most=1)

    async def body(poll: Poll, server: FaultServer) -> tuple[Report, Report, list[Request]]:
        nonlocal stuck
        settings: dict[str, Any] = {"rule": "fixed", "wave": 1, "max_samples": 6, "curtail": False}
        first = await poll(make_questions(1), deadline_seconds=1.0, **settings)
        stuck, asked = False, len(server.requests)
        return first, await poll(make_questions(1), **settings), server.requests[asked:]

    first, second, requests = serve(script, out, body)
    assert not first.complete and first.uncounted_tokens == 15
    assert second.complete and [request.seed for request in requests] == [seed_of(0, "q0", k) for k in (3, 4, 5)]
    assert second.ballots[0].votes == {"0": 6} and second.uncounted_tokens == 0


def test_a_question_without_any_answer_ends_early(out: Path) -> None:
    report = report_of(lambda request: ok("I do not know."), out, make_questions(2), wave=4, give_up=8)
    for ballot in report.ballots:
        assert (ballot.samples, ballot.unparsed, ballot.stopped, ballot.answer) == (8, 8, "unanswered", None)
        assert ballot.disagreement == pytest.approx(1 - 9 / 65) and ballot.finish_reasons == {"stop": 8}
    assert report.complete and report.summary.unanswered == 2


@pytest.mark.parametrize(
    ("behaviour", "problem"),
    [
        (
            ok("Let me think", finish_reason="length"),
            r"none in \d+ of \d+, and \d+ were cut off at 77 tokens; raise max_",
        ),
        (ok("I do not know."), r"none in (\d+) of \1; look at the samples and choose another extract"),
    ],
)
def test_a_run_whose_answers_do_not_parse_ends_after_its_first_questions(
    out: Path, behaviour: Behaviour, problem: str
) -> None:
    async def body(poll: Poll, server: FaultServer) -> int:
        with pytest.raises(NoAnswersError, match=problem):
            await poll(make_questions(100), max_tokens=77, concurrency=4)
        return sum(request.n for request in server.requests)

    assert serve(lambda request: behaviour, out, body) <= 2 * 4 * 3 * 8
    assert len(samples_of(out)) >= 24


def test_a_run_whose_answers_do_not_parse_goes_on_if_it_may(out: Path) -> None:
    report = report_of(lambda request: ok("I do not know."), out, make_questions(12), max_unparsed=1.0)
    assert report.complete and report.summary.unparsed == 12 * 8


def test_other_samples_under_the_same_id_are_refused(out: Path) -> None:
    """Question 0 is cut off after some samples. Another text under its id must not be counted with them."""

    def script(request: Request) -> Behaviour:
        return ok(r"\boxed{0}", most=1) if request.seed == seed_of(0, "q0", 0) else silent()

    async def body(poll: Poll, server: FaultServer) -> Report:
        await poll(make_questions(1), deadline_seconds=0.5, wave=1)
        return await poll([Question("q0", "Another?", "0")], deadline_seconds=0.5, wave=1)

    with pytest.raises(JournalError, match="must be what was sampled under its id, got another text for 'q0'"):
        serve(script, out, body)


def test_a_sample_that_the_users_function_cannot_read_is_never_counted_as_one_without_an_answer(
    out: Path, tmp_path: Path
) -> None:
    """Without texts it is requested again, because its answer could not be read later."""
    code = "def read(text):\n    {}return text[7:-1]\n"
    own, settings = tmp_path / "own.py", {"rule": "fixed", "max_samples": 4, "curtail": False, "wave": 1}

    async def body(poll: Poll, server: FaultServer) -> Report:
        given = {"extract": f"{own}:read", "save_completions": False, **settings}
        own.write_text(code.format("raise ValueError('today'); "))
        with pytest.raises(AnswerFunctionError, match="raised ValueError: today"):
            await poll(make_questions(1), **given)
        own.write_text(code.format(""))
        return await poll(make_questions(1), **given)

    (ballot,) = serve(lambda request: ok(r"\boxed{0}", most=1), out, body).ballots
    assert (ballot.votes, ballot.unparsed) == ({"0": 4}, 0)


@pytest.mark.slow
def test_answers_that_mean_the_same_are_one_vote(out: Path) -> None:
    """The first words are kept. Gold answers are compared in the same way."""
    words = [r"\frac{1}{2}", "0.5", "2", "1/2", "2.0", "0.50"]
    by_seed = {seed_of(0, "half", number): word for number, word in enumerate(words)}

    def script(request: Request) -> Behaviour:
        return ok(rf"\boxed{{{by_seed[request.seed or 0]}}}", most=1)

    half = Question("half", "What is a half?", "50/100")
    report = report_of(
        script, out, [half], equivalence="math", rule="fixed", max_samples=len(words), curtail=False, wave=1
    )
    (ballot,) = report.ballots
    assert (ballot.votes, ballot.answer, ballot.correct) == ({r"\frac{1}{2}": 4, "2": 2}, r"\frac{1}{2}", True)


def test_the_filled_template_is_sent(out: Path) -> None:
    report, requests = serve(
        lambda request: answering(),
        out,
        lambda poll, server: _with_requests(poll(make_questions(1), template="{question}\n{}", max_samples=8), server),
    )
    assert report.complete and {request.prompt for request in requests} == {"Question 0 of 1?\n{}"}


def test_the_key_is_nowhere_on_disk(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-a-secret-of-ours")

    def script(request: Request) -> Behaviour:
        said = refused(500, f"bad key {request.headers['authorization']}", ["Retry-After-Ms: 1"])
        return said if request.seed == seed_of(0, "q0", 1) else ok(r"\boxed{0}", most=1)

    report = report_of(script, out, make_questions(1), rule="fixed", max_samples=4, curtail=False, max_retries=0)
    assert report.ballots[0].failed >= 1 and "[key]" in report.ballots[0].errors[0]
    for path in out.parent.iterdir():
        assert "sk-a-secret-of-ours" not in path.read_text()


@pytest.mark.slow
def test_a_slow_question_does_not_hold_up_the_others(out: Path) -> None:
    """One slow question does not hold up the others."""

    def script(request: Request) -> Behaviour:
        return ok(r"\boxed{0}", most=1, delay=0.5 if "Question 0" in request.prompt else 0.0)

    serve(script, out, lambda poll, server: poll(make_questions(12), concurrency=4, wave=1))
    assert lines(out)[-1]["id"] == "q0"


@pytest.mark.slow
def test_something_other_than_a_question_is_refused(out: Path) -> None:
    with pytest.raises(ValueError, match=r"questions must each be a Question, got '6 x 7\?'"):
        vote(["6 x 7?"], base_url="http://localhost:1/v1", model="tiny", out=out)  # type: ignore[list-item]
    assert not out.exists()


def test_a_vote_within_an_event_loop_is_told_to_await(out: Path) -> None:
    async def within() -> None:
        vote(make_questions(1), base_url="http://localhost:1/v1", model="tiny", out=out)

    with pytest.raises(RuntimeError, match=r"got one; await vote_async\(\.\.\.\) instead"):
        asyncio.run(within())
    assert not out.exists()


def test_votes_weighted_by_tokens_choose_the_answer_with_the_most_tokens(out: Path) -> None:
    """Two long completions say 1, three short ones say 0. The rule still counts votes."""
    long = {seed_of(0, "q0", number) for number in (1, 3)}

    def script(request: Request) -> Behaviour:
        return ok(r"\boxed{1}", most=1, tokens=50) if request.seed in long else ok(r"\boxed{0}", most=1, tokens=10)

    settings: dict[str, Any] = {"rule": "fixed", "max_samples": 5, "curtail": False, "wave": 1}

    async def body(poll: Poll, server: FaultServer) -> list[Report]:
        weighted = await poll(make_questions(1), weight="tokens", **settings)
        return [weighted, await poll(make_questions(1), resume=True, **settings)]

    (weighted,), (plain,) = (report.ballots for report in serve(script, out, body))
    assert weighted.votes == plain.votes == {"0": 3, "1": 2}
    assert (weighted.answer, plain.answer) == ("1", "0") and weighted.disagreement == 1.0


def test_votes_cannot_be_weighted_by_tokens_that_the_server_does_not_count(out: Path) -> None:
    settings: dict[str, Any] = {"rule": "fixed", "max_samples": 3, "wave": 1, "weight": "tokens"}
    with pytest.raises(EndpointError, match="tokens must be counted to weigh votes by them, got no usage for 'q0'"):
        report_of(lambda request: ok(r"\boxed{0}", most=1, tokens=None), out, make_questions(1), **settings)
    assert len(samples_of(out)) == 1
