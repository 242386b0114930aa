import asyncio
import json
import os
import random
import time
from collections import Counter

import pytest

from apportion.answers import AnswerFunctionError
from apportion.endpoint import EndpointError, seed_of
from apportion.stopping import USUAL_RULE, decide
from apportion.vote import NoAnswersError, Question, revote, vote
from apportion.vote.journal import samples_path
from apportion.vote.lines import JournalError
from tests import cases
from tests.endpoint.fault_server import broken, ok, refused, silent
from tests.soak import case
from tests.vote.builders import answering, expect_replay, make_questions, report_of, stream_of, voted

FULL = {"rule": "fixed", "curtail": False, "wave": 1}
"""A full vote that asks for a sample when it has the one before."""

PLACES = {seed_of(0, "q0", number): number for number in range(64)}
"""The numbers of the samples of question 0 by their seeds."""

zero, never = ok(r"\boxed{0}", most=1), silent()


@pytest.fixture
def out(tmp_path):
    return tmp_path / "answers.jsonl"


@pytest.fixture
def ask(out):
    """Return a function that votes on some questions before a server with this script, and returns the report."""
    return lambda script, count=1, **settings: report_of(script, out, make_questions(count), **settings)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def samples_of(out):
    return lines(samples_path(out))


def asked(requests):
    """Return the ids of the questions in these requests."""
    return {f"q{request.prompt.split()[1]}" for request in requests}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "settings", "wave"),
    [
        case("posterior_predictive", {"eps": 0.05}, 8, suite=True),
        case("optpo", {"min_samples": 8}, "free", suite=True),
        case("esc", {"window": 4}, 3, suite=True),
        case("adaptive_consistency_beta", {}, 64, suite=False),
        case("fixed", {"samples": 12}, "free", suite=False),
    ],
)
def test_a_vote_agrees_with_a_replay_of_its_answers(out, rule, settings, wave):
    """Free waves cancel nothing, and take as many round trips as the replay."""
    given = {"rule": rule, "rule_settings": settings, "wave": wave}
    questions = make_questions(6)
    report, requests = voted(answering(0.005), out, questions, **given)
    expect_replay(report.ballots, questions, rule, **settings)
    assert report.complete and [ballot.id for ballot in report.ballots] == [question.id for question in questions]
    for ballot in report.ballots:
        assert ballot.stopped == ("rule" if ballot.samples < 64 else "max_samples")
        assert ballot.completion_tokens == 5 * ballot.samples
    if wave == "free":
        replayed = decide([stream_of(q) for q in questions], rule, 64, wave="free", curtail=True, **settings)
        assert [ballot.waves for ballot in report.ballots] == replayed.waves.tolist()
        assert len(requests) == sum(ballot.samples for ballot in report.ballots)
        assert not any(ballot.cancelled for ballot in report.ballots)


def test_samples_that_are_no_longer_needed_are_cancelled(out):
    """The first samples agree, and the rest of the wave of 32 is still in flight."""
    enough = decide(["0"] * 64, USUAL_RULE).samples

    def script(request):
        return zero if PLACES[request.seed] < enough or request.n > 1 else never

    report, requests = voted(script, out, make_questions(1), wave=32)
    (ballot,) = report.ballots
    assert (ballot.samples, ballot.cancelled, ballot.waves, ballot.answer) == (enough, 32 - enough, 1, "0")
    assert report.seconds < 15 and sum(request.left for request in requests) == 32 - enough


@pytest.mark.parametrize("most", [None, 3])
def test_each_choice_of_a_server_that_honours_n_or_a_part_of_it_is_counted(ask, most):
    given = []

    def text(request, place):
        given.append(random.Random(f"{request.seed} {place}").choice("AAB"))
        return rf"\boxed{{{given[-1]}}}"

    settings = FULL | {"wave": "free", "max_samples": 20, "give_up": 20}
    (ballot,) = ask(ok(text, most=most), **settings).ballots
    assert ballot.votes == Counter(given) and (ballot.samples, ballot.failed) == (20, 0)
    assert ballot.prompt_tokens is not None and ballot.completion_tokens == 100


def test_completions_that_arrived_unneeded_are_reported_kept_and_used_by_a_rule_that_wants_more(ask, out):
    """A server that honours n has generated the whole wave by the time the rule stops within it."""
    settings = {"wave": 32, "max_samples": 32, "curtail": False, "concurrency": 1}
    report = ask(ok(r"\boxed{0}"), 2, **settings)
    taken = sum(ballot.samples for ballot in report.ballots)
    assert report.usage.requests == 2 and report.usage.completion_tokens == 2 * 32 * 5
    assert report.uncounted_tokens == report.summary.uncounted_completion_tokens == (2 * 32 - taken) * 5 > 0
    assert [ballot.cancelled for ballot in report.ballots] == [32 - ballot.samples for ballot in report.ballots]
    again, requests = voted((), out, make_questions(2), **settings, rule="fixed", resume=True)
    assert [ballot.samples for ballot in again.ballots] == [32, 32] and not requests


def test_another_sample_takes_the_place_of_one_that_failed(ask, out):
    def script(request):
        return broken() if PLACES[request.seed] in (1, 3) and request.n == 1 else zero

    (ballot,) = ask(script, **FULL | {"wave": 2}, max_samples=6, max_retries=0).ballots
    assert (ballot.samples, ballot.failed, dict(ballot.votes)) == (8, 2, {"0": 6})
    assert ballot.errors == ("the server answered 500: the engine has crashed",)
    assert ballot.completion_tokens == 30 and ballot.stopped == "max_samples"
    (again,) = revote(out).ballots
    assert (again.samples, again.failed, again.votes) == (8, 2, {"0": 6})


def test_a_failed_sample_is_in_no_window(ask):
    def script(request):
        return broken() if PLACES[request.seed] == 6 else zero if request.n == 1 else ok("?", most=1)

    settings = {"rule": "esc", "wave": 5, "max_samples": 40, "curtail": False, "max_retries": 0}
    (ballot,) = ask(script, **settings).ballots
    assert (ballot.samples, ballot.failed, ballot.unparsed, dict(ballot.votes)) == (11, 1, 1, {"0": 9})


def test_a_full_vote_in_one_request_pays_for_one_prompt(ask):
    """If the server honours n, the full vote is one request, so three requests save no prompt."""
    report = ask(ok(r"\boxed{0}"), 2, rule="fixed", wave=8, max_samples=24)
    first, second = report.ballots
    assert first.prompt_length and first.prompt_tokens == first.waves * first.prompt_length
    assert first.shares_prompts and second.prompt_length
    assert report.summary.full_prompt_tokens == first.prompt_length + second.prompt_length


def test_a_question_that_failures_ended_is_reported_and_asked_again(ask, out):
    """The server crashes at question 1, and answers the others. Finished questions are never asked again."""

    def script(request):
        return broken(ms=1) if "Question 1" in request.prompt else answering()

    settings = {"max_samples": 16, "max_retries": 1}
    first = ask(script, 3, **settings)
    assert not first.complete and [ballot.id for ballot in first.ballots] == ["q0", "q2"]
    assert [ballot.id for ballot in first.unfinished] == ["q1"] and "crashed" in first.unfinished[0].errors[0]
    assert revote(out).wanting == {"q1": 1}
    second, requests = voted(answering(), out, make_questions(3), **settings)
    assert second.complete and asked(requests) == {"q1"} and lines(out)[-1]["id"] == "q1"
    third, requests = voted((), out, make_questions(3), **settings)
    assert third.ballots == second.ballots and third.complete and not requests


def test_a_refused_question_is_final(ask, out):
    """The server refuses question 1, as it would one that is too long. It is asked once, and never again."""

    def script(request):
        return refused(400, "too long") if "Question 1" in request.prompt else answering()

    first = ask(script, 3, max_samples=16, wave=1)
    second, requests = voted(script, out, make_questions(3), max_samples=16, wave=1)
    assert first.complete and second.ballots == first.ballots and not requests
    ballot = first.ballots[1]
    assert (ballot.stopped, ballot.answer, ballot.samples, ballot.failed) == ("refused", None, 1, 1)
    assert [ballot.id for ballot in first.refused] == ["q1"] and not second.refused
    assert first.summary.refused == second.summary.refused == 1


def test_votes_before_the_server_failed_are_no_answer(ask, out):
    """Two votes and then nothing but errors: another run must not take that for a finished question."""

    def script(request):
        return zero if PLACES.get(request.seed, 2) < 2 else broken(ms=1)

    with pytest.raises(EndpointError, match="nothing but failures for 'q0' and for a plain prompt"):
        ask(script, wave=1, max_retries=1)
    assert lines(out) == []


@pytest.mark.slow
def test_a_run_that_the_deadline_ended_can_be_continued(ask, out):
    """Question 2 hangs, and question 0 hangs after three samples. The next run requests only what hung."""

    def script(request):
        stuck = "Question 2" in request.prompt or PLACES.get(request.seed, 0) > 2
        return never if stuck else ok(f"\\boxed{{{request.prompt.split()[1]}}}", most=1)

    settings = FULL | {"max_samples": 6}
    first = ask(script, 3, deadline_seconds=1.0, **settings)
    assert not first.complete and [b.id for b in first.ballots] == ["q1"] and first.seconds < 5
    assert first.uncounted_tokens == 15
    assert first.uncounted_prompt_tokens == first.usage.prompt_tokens - first.ballots[0].prompt_tokens > 0
    second, requests = voted(zero, out, make_questions(3), deadline_seconds=60.0, **settings)
    assert second.complete and second.ballots[1] == first.ballots[0] and second.uncounted_tokens == 0
    assert [PLACES[request.seed] for request in requests if "Question 0" in request.prompt] == [3, 4, 5]
    assert second.ballots[0].votes == {"0": 6} and asked(requests) == {"q0", "q2"}
    assert second.summary.finished == 3 and second.summary.samples == sum(b.samples for b in second.ballots)


def test_questions_are_added_to_a_finished_run_and_none_is_changed(out):
    report_of(answering(), out, make_questions(4)[:2], max_samples=8)
    report, requests = voted(answering(), out, make_questions(4), max_samples=8)
    assert report.complete and asked(requests) == {"q2", "q3"}
    for other, problem in (
        (Question("q0", "Another?", "0"), "another text for 'q0'"),
        (Question("q0", "Question 0 of 4?"), "gold answer"),
    ):
        with pytest.raises(JournalError, match=problem):
            report_of((), out, [other], max_samples=8)


def test_other_samples_under_the_same_id_are_refused(ask, out):
    """Question 0 is cut off after a sample. Another text under its id must not be counted with it."""
    settings = {"deadline_seconds": 0.5, "wave": 1}
    ask(lambda request: never if PLACES[request.seed] else zero, **settings)
    with pytest.raises(JournalError, match="must be what was sampled under its id, got another text for 'q0'"):
        report_of((), out, [Question("q0", "Another?", "0")], **settings)


def test_an_endpoint_error_ends_the_run_and_keeps_what_is_finished(ask, out):
    def script(request):
        return refused(401, "no such key") if "Question 1" in request.prompt else answering()

    with pytest.raises(EndpointError, match="no such key"):
        ask(script, 2, concurrency=1)
    assert [line["id"] for line in lines(out)] == ["q0"]


SETTINGS = """
    template = "no place"    => template must contain {question}, got 'no place'
    extract = "regex"        => extract must be one of auto,
    extract = "math:nothing" => extract must be in its module, got 'math:nothing'
    equivalence = "fuzzy"    => equivalence must be one of exact, math, phrase, judge, or
    equivalence = "math", equivalence_settings = {timeout = 1} => settings that it knows, got timeout
    judge_model = "big"      => judge_model must be left out under another equivalence, got 'big'
    rule = "opt"             => rule must be known, got 'opt'; did you mean 'optpo'
    rule_settings = {epsilon = 0.1} => has no key 'epsilon'; did you mean 'eps'
    rule = "optpo", rule_settings = {min_samples = 2.5} => min_samples must be an integer, got 2.5
    wave = 0                 => wave must be an integer of at least 1
    max_samples = 0          => max_samples must be an integer of at least 1
    temperature = -1.0       => temperature must be at least 0
    weight = "length"        => weight must be one of votes, tokens, got 'length'
    give_up = 0              => give_up must be at least 1, got 0; 8 is usual
    max_unparsed = 2         => max_unparsed must be a share from 0 to 1, got 2
    deadline_seconds = 0     => deadline must be above 0 seconds, got 0
    base_url = "http://me:secret@localhost/v1" => base_url must not hold a name or password
"""


def test_settings_are_refused_before_anything_is_asked(ask, out):
    requests = []

    def asked_under(settings):
        ask(lambda _: requests.append(1) or zero, **cases.settings_of(settings))

    cases.refuse_lines(asked_under, SETTINGS)
    with pytest.raises(ValueError, match=r"questions must each be a Question, got '6 x 7\?'"):
        vote(["6 x 7?"], base_url="http://localhost:1/v1", model="tiny", out=out)
    with pytest.raises(ValueError, match=r"settings must be Unicode, got '\\udcff' in one"):
        vote(make_questions(1), base_url="http://localhost:1/v1", model="tiny", template="\udcff {question}", out=out)
    with pytest.raises(ValueError, match="a letter from A to J under extract = choice, got '0' for 'q0'"):
        ask((), extract="choice")
    assert not requests and not out.exists()


def test_a_question_without_any_answer_ends_early(ask):
    report = ask(ok("I do not know."), 2, wave=4, give_up=8)
    for ballot in report.ballots:
        assert (ballot.samples, ballot.unparsed, ballot.stopped, ballot.answer) == (8, 8, "unanswered", None)
        assert ballot.disagreement == pytest.approx(1 - 9 / 65) and ballot.finish_reasons == {"stop": 8}
    assert report.complete and report.summary.unanswered == 2


@pytest.mark.parametrize(
    ("text", "reason", "problem"),
    [
        ("Let me think", "length", r"none in \d+ of \d+, and \d+ were cut off at 77 tokens; raise max_"),
        ("I do not know.", "stop", r"none in (\d+) of \1; look at the samples and choose another extract"),
    ],
)
def test_a_run_whose_answers_do_not_parse_ends_after_its_first_questions(ask, out, text, reason, problem):
    requests = []
    script = lambda request: requests.append(request) or ok(text, finish_reason=reason)  # noqa: E731
    with pytest.raises(NoAnswersError, match=problem):
        ask(script, 100, max_tokens=77, concurrency=4)
    assert sum(request.n for request in requests) <= 2 * 4 * 3 * 8 and len(samples_of(out)) >= 24


def test_a_run_whose_answers_do_not_parse_goes_on_if_it_may(ask):
    report = ask(ok("I do not know."), 12, max_unparsed=1.0)
    assert report.complete and report.summary.unparsed == 12 * 8


def test_a_sample_that_the_users_function_cannot_read_is_never_counted_as_one_without_an_answer(ask, tmp_path):
    """Without texts it is requested again, because its answer could not be read later."""
    code, own = "def read(text):\n    {}return text[7:-1]\n", tmp_path / "own.py"
    settings = FULL | {"extract": f"{own}:read", "save_completions": False, "max_samples": 4}
    own.write_text(code.format("raise ValueError('today'); "))
    with pytest.raises(AnswerFunctionError, match="raised ValueError: today"):
        ask(zero, **settings)
    own.write_text(code.format(""))
    (ballot,) = ask(zero, **settings).ballots
    assert (ballot.votes, ballot.unparsed) == ({"0": 4}, 0)


@pytest.mark.slow
def test_answers_that_mean_the_same_are_one_vote(out):
    """The first words are kept. Gold answers are compared in the same way. The filled template is sent."""
    words = [r"\frac{1}{2}", "0.5", "2", "1/2", "2.0", "0.50"]
    by_seed = {seed_of(0, "half", number): word for number, word in enumerate(words)}
    half = Question("half", "What is a half?", "50/100")
    settings = FULL | {"equivalence": "math", "max_samples": len(words), "template": "{question}\n{}"}
    report, requests = voted(lambda each: ok(rf"\boxed{{{by_seed[each.seed]}}}", most=1), out, [half], **settings)
    (ballot,) = report.ballots
    assert (ballot.votes, ballot.answer, ballot.correct) == ({r"\frac{1}{2}": 4, "2": 2}, r"\frac{1}{2}", True)
    assert {request.prompt for request in requests} == {"What is a half?\n{}"}


@pytest.mark.slow
def test_a_slow_question_does_not_hold_up_the_others(ask, out):
    script = lambda each: ok(r"\boxed{0}", most=1, delay=0.5 * ("Question 0" in each.prompt))  # noqa: E731
    ask(script, 12, concurrency=4, wave=1, max_samples=4)
    assert lines(out)[-1]["id"] == "q0"


def test_samples_arrive_while_the_disk_is_slow_and_questions_are_written_together(ask, out, monkeypatch):
    to_disk, calls = os.fsync, []

    def slow(file):
        calls.append(file)
        until = time.monotonic() + 20
        while 0 < len(samples_of(out)) < 24 and time.monotonic() < until:
            time.sleep(0.05)
        to_disk(file)

    monkeypatch.setattr(os, "fsync", slow)
    started = time.monotonic()
    report = ask(zero, 24, concurrency=24, max_samples=1, rule="fixed")
    assert report.complete and len(lines(out)) == 24
    assert len(calls) < 24 and time.monotonic() - started < 20


def test_a_vote_within_an_event_loop_is_told_to_await(out):
    async def within():
        vote(make_questions(1), base_url="http://localhost:1/v1", model="tiny", out=out)

    with pytest.raises(RuntimeError, match=r"got one; await vote_async\(\.\.\.\) instead"):
        asyncio.run(within())
    assert not out.exists()


def test_votes_weighted_by_tokens_choose_the_answer_with_the_most_tokens(ask):
    """Two long completions say 1, three short ones say 0. The rule still counts votes."""

    def script(request):
        long = PLACES[request.seed] in (1, 3)
        return ok(rf"\boxed{{{int(long)}}}", most=1, tokens=50 if long else 10)

    settings = FULL | {"max_samples": 5}
    (weighted,) = ask(script, weight="tokens", **settings).ballots
    (plain,) = ask((), resume=True, **settings).ballots
    assert weighted.votes == plain.votes == {"0": 3, "1": 2}
    assert (weighted.answer, plain.answer) == ("1", "0") and weighted.disagreement == 1.0


def test_votes_cannot_be_weighted_by_tokens_that_the_server_does_not_count(ask, out):
    script = ok(r"\boxed{0}", most=1, tokens=None)
    with pytest.raises(EndpointError, match="tokens must be counted to weigh votes by them, got no usage for 'q0'"):
        ask(script, **FULL, max_samples=3, weight="tokens")
    assert len(samples_of(out)) == 1
