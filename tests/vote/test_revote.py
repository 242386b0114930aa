from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from subprocess import CompletedProcess, run
from typing import Any

import pytest

from apportion.endpoint import seed_of
from apportion.stopping import decide
from apportion.vote import Question, Report, read_recorded, revote
from apportion.vote.journal import samples_path, settings_path
from apportion.vote.lines import JournalError
from tests.endpoint.fault_server import Behaviour, FaultServer, Request, ok, silent
from tests.vote.builders import answering, make_questions, make_sample, stream_of
from tests.vote.test_run import Poll, report_of, serve

QUESTIONS = make_questions(6)


@pytest.fixture
def full(tmp_path: Path) -> Path:
    """A vote of 32 samples of each question."""
    out = tmp_path / "answers.jsonl"
    report_of(lambda request: answering(), out, QUESTIONS, rule="fixed", max_samples=32, curtail=False)
    return out


@pytest.mark.parametrize(
    ("rule", "settings"), [("posterior_predictive", {}), ("optpo", {"min_samples": 8}), ("esc", {"window": 4})]
)
def test_a_revote_is_a_replay_of_the_samples(full: Path, rule: str, settings: dict[str, Any]) -> None:
    before = full.read_bytes(), samples_path(full).read_bytes()
    found = revote(full, rule=rule, rule_settings=settings, curtail=True)
    replayed = decide([stream_of(question, 32) for question in QUESTIONS], rule, 32, curtail=True, **settings)
    votes = {ballot.id: ballot for ballot in found.ballots}
    for question, decision in zip(QUESTIONS, replayed, strict=True):
        ballot = votes[question.id]
        assert (ballot.samples, ballot.answer) == (decision.samples, decision.answer)
        assert ballot.votes == Counter(a for a in stream_of(question)[: ballot.samples] if a is not None)
        assert ballot.correct == (ballot.answer == question.gold)
    old = read_recorded(full).ballots
    assert found.compared == 6 and found.same == sum(votes[id].answer == old[id].answer for id in votes)
    assert not found.wanting and (full.read_bytes(), samples_path(full).read_bytes()) == before


def test_the_same_settings_give_the_same_ballots(full: Path) -> None:
    found = {ballot.id: ballot for ballot in revote(full).ballots}
    for id, ballot in read_recorded(full).ballots.items():
        assert (found[id].votes, found[id].answer, found[id].correct) == (ballot.votes, ballot.answer, ballot.correct)
        assert found[id].completion_tokens == ballot.completion_tokens and found[id].texts == ballot.texts


def test_a_rule_that_wants_more_says_how_much_and_a_resumed_vote_asks_for_just_that(tmp_path: Path) -> None:
    out = tmp_path / "answers.jsonl"

    async def body(poll: Poll, server: FaultServer) -> tuple[Report, Any, Report, int]:
        first = await poll(QUESTIONS, max_samples=32)
        asked = len(server.requests)
        more = revote(out, QUESTIONS, rule="fixed", curtail=False, max_samples=40)
        again = await poll(QUESTIONS, rule="fixed", curtail=False, max_samples=40, resume=True)
        return first, more, again, len(server.requests) - asked

    first, more, again, requests = serve(lambda request: answering(), out, body)
    assert more.wanting == {ballot.id: 40 - ballot.samples for ballot in first.ballots} and not more.ballots
    assert requests == sum(more.wanting.values()) and again.complete
    assert f"at least {requests} for 6 questions" in more.to_text(terminal=False)
    assert not revote(out).wanting


def test_texts_are_read_again_by_another_extractor(tmp_path: Path) -> None:
    out = tmp_path / "answers.jsonl"
    report = report_of(lambda request: ok("Of 12 eggs 7 are left"), out, make_questions(1), rule="fixed", max_samples=4)
    assert report.ballots[0].votes == {} and report.ballots[0].unparsed == 4
    (ballot,) = revote(out, extract="last_number").ballots
    assert ballot.votes == {"7": 2} and ballot.unparsed == 0  # curtailed: a tie is won by the first


def test_without_texts_another_extractor_is_refused_and_another_rule_is_not(tmp_path: Path) -> None:
    out = tmp_path / "answers.jsonl"
    report_of(lambda request: answering(), out, QUESTIONS, max_samples=16, save_completions=False)
    with pytest.raises(JournalError, match="must hold the texts to read other answers in them, got none in line 1"):
        revote(out, extract="last_number")
    assert revote(out, rule="curtailment").ballots


def test_failed_samples_are_failed_again(tmp_path: Path) -> None:
    """Else a rule with windows would stop elsewhere."""
    from tests.endpoint.fault_server import broken  # noqa: PLC0415 - beside its only use

    out, lost = tmp_path / "answers.jsonl", {seed_of(0, "q0", number) for number in (1, 3)}

    def script(request: Request) -> Behaviour:
        return broken() if request.seed in lost and request.n == 1 else ok(r"\boxed{0}", most=1)

    settings: dict[str, Any] = {"rule": "fixed", "max_samples": 6, "curtail": False, "wave": 2, "max_retries": 0}
    (first,) = report_of(script, out, make_questions(1), **settings).ballots
    (again,) = revote(out).ballots
    assert (again.samples, again.failed, again.votes) == (first.samples, first.failed, first.votes) == (8, 2, {"0": 6})


def test_an_unfinished_question_is_counted_too_and_has_gold_if_questions_are_given(tmp_path: Path) -> None:
    out, first = tmp_path / "answers.jsonl", {seed_of(0, "q0", number) for number in range(5)}

    def script(request: Request) -> Behaviour:
        return ok(r"\boxed{0}", most=1) if request.seed in first else silent()

    report_of(script, out, make_questions(1), rule="fixed", wave=1, deadline_seconds=1.5)
    (ballot,) = revote(out, make_questions(1), rule="posterior_predictive", rule_settings={"eps": 0.2}).ballots
    assert ballot.correct is True and ballot.samples <= 5
    (ballot,) = revote(out, rule="posterior_predictive", rule_settings={"eps": 0.2}).ballots
    assert ballot.correct is None


def test_a_question_whose_text_has_changed_is_refused(full: Path) -> None:
    with pytest.raises(JournalError, match="got another text for 'q0'"):
        revote(full, [Question("q0", "Another?", "0")])


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"rule": "opt"}, "rule must be known, got 'opt'; did you mean 'optpo'"),
        ({"rule_settings": {"eps": 1}}, "has no key 'eps'; use one of samples"),
        ({"max_samples": 0}, "max_samples must be an integer of at least 1"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(full: Path, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        revote(full, **changes)


def test_a_file_without_samples_is_refused(full: Path) -> None:
    samples_path(full).unlink()
    with pytest.raises(JournalError, match="must have its samples beside it to count them again, got none"):
        revote(full)


def test_new_answers_are_written_to_a_new_file(full: Path) -> None:
    new = full.with_name("new.jsonl")
    found = revote(full, rule="curtailment", out=new)
    assert tuple(read_recorded(new).ballots.values()) == found.ballots
    with pytest.raises(JournalError, match=r"must go to a new file, got .*new\.jsonl, which exists; name another"):
        revote(full, out=new)


def command(*arguments: str) -> CompletedProcess[str]:
    return run([sys.executable, "-m", "apportion", "revote", *arguments], capture_output=True, text=True, timeout=60)


def test_the_command_line(full: Path) -> None:
    done = command(str(full), "--rule", "posterior_predictive", "--set", "eps=0.1", "--curtail", "--json")
    assert done.returncode == 0, done.stderr
    expected = revote(full, rule="posterior_predictive", rule_settings={"eps": 0.1}, curtail=True)
    said = json.loads(done.stdout)
    assert said["samples"] == sum(ballot.samples for ballot in expected.ballots) and said["wanting"] == {}
    assert said["same_answers"] == expected.same and said["accuracy"]["mean"] == expected.summary.accuracy.mean
    more = command(str(full), "--max-samples", "40")
    assert "more samples wanted" in more.stdout and "6 questions want more samples; run the vote again" in more.stderr
    wrong = command(str(full.with_name("no.jsonl")))
    assert wrong.returncode == 2 and wrong.stderr.count("\n") == 1
    assert "answers must be in a file that exists" in wrong.stderr


def test_a_torn_last_sample_is_left_out_and_stays(full: Path) -> None:
    """A revote may run while a vote writes."""
    with samples_path(full).open("a") as file:
        file.write(make_sample("q0", 99).to_json()[:-5])
    before = samples_path(full).read_bytes()
    assert len(revote(full).ballots) == 6 and samples_path(full).read_bytes() == before


def test_settings_beside_the_answers_name_no_code_to_run(full: Path, tmp_path: Path) -> None:
    """The folder may be somebody else's. The function must be named again by who runs the command."""
    marker = tmp_path / "ran"
    (tmp_path / "theirs.py").write_text(
        f"import pathlib\npathlib.Path({str(marker)!r}).touch()\ndef read(text): return '7'\n"
    )
    settings = settings_path(full)
    for name in ("extract", "equivalence"):
        started = json.loads(settings.read_text()) | {name: f"{tmp_path / 'theirs.py'}:read"}
        settings.write_text(json.dumps(started))
        with pytest.raises(JournalError, match=f"{name} must be given again, because a file may not name code to run"):
            revote(full)
        settings.write_text(json.dumps(started | {name: "auto" if name == "extract" else "exact"}))
    assert not marker.exists()
    assert revote(full, extract=f"{tmp_path / 'theirs.py'}:read").ballots and marker.exists()


@pytest.mark.parametrize("name", ["base_url", "model", "extract"])
@pytest.mark.parametrize("value", [None, 7])
def test_settings_that_are_no_text_are_refused_in_one_line(full: Path, name: str, value: object) -> None:
    settings = settings_path(full)
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {name: value}))
    with pytest.raises((JournalError, ValueError), match=rf"{name} must be"):
        revote(full)
