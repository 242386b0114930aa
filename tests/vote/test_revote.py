import json
import shutil

import pytest

from apportion.endpoint import seed_of
from apportion.vote import Question, read_recorded, revote
from apportion.vote.journal import samples_path, settings_path
from apportion.vote.lines import JournalError
from apportion.vote.revote import kept_rollouts
from tests.cases import check_refused, refuse_lines, settings_of
from tests.endpoint.fault_server import ok, silent
from tests.vote.builders import answering, expect_replay, make_questions, make_sample, report_of, voted

QUESTIONS = make_questions(6)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A vote of 32 samples of each question. A revote leaves it as it is."""
    out = tmp_path_factory.mktemp("recorded") / "answers.jsonl"
    report_of(answering(), out, QUESTIONS, rule="fixed", max_samples=32, curtail=False)
    return out


@pytest.fixture
def full(recorded, tmp_path):
    """A copy that a test may change."""
    shutil.copytree(recorded.parent, tmp_path, dirs_exist_ok=True)
    return tmp_path / recorded.name


@pytest.fixture
def out(tmp_path):
    return tmp_path / "answers.jsonl"


@pytest.mark.parametrize(("rule", "settings"), [("optpo", {"min_samples": 8}), ("esc", {"window": 4})])
def test_a_revote_is_a_replay_of_the_samples(recorded, rule, settings):
    before = recorded.read_bytes(), samples_path(recorded).read_bytes()
    found = revote(recorded, rule=rule, rule_settings=settings, curtail=True)
    expect_replay(found.ballots, QUESTIONS, rule, 32, **settings)
    old = read_recorded(recorded).ballots
    assert found.compared == 6 and found.same == sum(each.answer == old[each.id].answer for each in found.ballots)
    assert not found.wanting and (recorded.read_bytes(), samples_path(recorded).read_bytes()) == before


def test_the_same_settings_give_the_same_ballots_in_a_new_file(full):
    new = full.with_name("new.jsonl")
    found = {ballot.id: ballot for ballot in revote(full, out=new).ballots}
    for id, ballot in read_recorded(full).ballots.items():
        assert (found[id].votes, found[id].answer, found[id].correct) == (ballot.votes, ballot.answer, ballot.correct)
        assert found[id].completion_tokens == ballot.completion_tokens and found[id].texts == ballot.texts
    assert read_recorded(new).ballots == found
    with pytest.raises(JournalError, match=r"must go to a new file, got .*new\.jsonl, which exists; name another"):
        revote(full, out=new)


def test_a_rule_that_wants_more_says_how_much_and_a_resumed_vote_asks_for_just_that(out):
    first = report_of(answering(), out, QUESTIONS, max_samples=32)
    wanted = {"rule": "fixed", "curtail": False, "max_samples": 40}
    more = revote(out, QUESTIONS, **wanted)
    again, requests = voted(answering(), out, QUESTIONS, **wanted, resume=True)
    assert more.wanting == {ballot.id: 40 - ballot.samples for ballot in first.ballots} and not more.ballots
    assert len(requests) == sum(more.wanting.values()) and again.complete
    assert f"at least {len(requests)} for 6 questions" in more.to_text()
    assert not revote(out).wanting


def test_texts_are_read_again_by_another_extractor(out):
    report = report_of(ok("Of 12 eggs 7 are left"), out, QUESTIONS[:1], rule="fixed", max_samples=4)
    assert report.ballots[0].votes == {} and report.ballots[0].unparsed == 4
    (ballot,) = revote(out, extract="last_number").ballots
    assert ballot.votes == {"7": 2} and ballot.unparsed == 0  # curtailed: a tie is won by the first


def test_without_texts_another_extractor_is_refused_and_another_rule_is_not(out):
    report_of(answering(), out, QUESTIONS, max_samples=16, save_completions=False)
    with pytest.raises(JournalError, match="must hold the texts to read other answers in them, got none in line 1"):
        revote(out, extract="last_number")
    assert revote(out, rule="curtailment").ballots


def test_an_unfinished_question_is_counted_too_and_has_gold_if_questions_are_given(out):
    first = {seed_of(0, "q0", number) for number in range(5)}

    def script(request):
        return ok(r"\boxed{0}", most=1) if request.seed in first else silent()

    report_of(script, out, make_questions(1), rule="fixed", wave=1, deadline_seconds=1.5)
    for given, correct in ((make_questions(1), True), ((), None)):
        (ballot,) = revote(out, given, rule="posterior_predictive", rule_settings={"eps": 0.2}).ballots
        assert ballot.correct is correct and ballot.samples <= 5


def test_what_cannot_be_counted_is_refused(full):
    wrong = """
        rule = "opt"             => rule must be known, got 'opt'; did you mean 'optpo'
        rule_settings = {eps = 1} => has no key 'eps'; use one of samples
        max_samples = 0          => max_samples must be an integer of at least 1
    """
    refuse_lines(lambda settings: revote(full, **settings_of(settings)), wrong)
    new, unknown = full.with_name("new.jsonl"), {"z": Question("z", "z", "1")}
    with pytest.raises(ValueError, match="labels must be of questions that are finished"):
        revote(full, out=new, labels=unknown)
    assert not new.exists()
    with pytest.raises(JournalError, match="got another text for 'q0'"):
        revote(full, [Question("q0", "Another?", "0")])
    samples_path(full).unlink()
    with pytest.raises(JournalError, match="must have its samples beside it to count them again, got none"):
        revote(full)


def test_settings_that_cannot_be_are_refused(full):
    settings = settings_path(full)
    started = json.loads(settings.read_text())

    def counted(name, value):
        settings.write_text(json.dumps(started | {name: value}))
        revote(full)

    wrong = [("base_url", None), ("model", 7), ("extract", None), ("extract", 7)]
    check_refused(ValueError, counted, [(name, value, f"{name} must be") for name, value in wrong])


def test_answers_whose_samples_were_lost_are_counted_as_wanting_and_not_left_out(full):
    kept = [line for line in samples_path(full).read_text().splitlines(True) if json.loads(line)["id"] < "q4"]
    samples_path(full).write_text("".join(kept))
    found = revote(full, rule="curtailment")
    assert len(found.ballots) == 4 and found.summary.questions == 6
    assert found.wanting.keys() == {"q4", "q5"} and min(found.wanting.values()) > 1
    assert "2 questions without a sample are left out" in kept_rollouts(full).doubts


def test_new_answers_that_cannot_be_written_are_one_error(full):
    with pytest.raises(JournalError, match=r"answers cannot be written to /proc/new\.jsonl .*; change the path"):
        revote(full, out="/proc/new.jsonl")


def test_a_torn_last_sample_is_left_out_and_stays(full):
    """A revote may run while a vote writes."""
    with samples_path(full).open("a") as file:
        file.write(make_sample("q0", 99).to_json()[:-5])
    before = samples_path(full).read_bytes()
    assert len(revote(full).ballots) == 6 and samples_path(full).read_bytes() == before


def test_settings_beside_the_answers_name_no_code_to_run(full, tmp_path):
    """The folder may be somebody else's. The function must be named again by who runs the command."""
    marker, own = tmp_path / "ran", tmp_path / "theirs.py"
    own.write_text(f"import pathlib\npathlib.Path({str(marker)!r}).touch()\ndef read(text): return '7'\n")
    settings = settings_path(full)
    started = json.loads(settings.read_text())
    for name in ("extract", "equivalence"):
        settings.write_text(json.dumps(started | {name: f"{own}:read"}))
        with pytest.raises(JournalError, match=f"{name} must be given again, because a file may not name code to run"):
            revote(full)
    assert not marker.exists()
    settings.write_text(json.dumps(started | {"extract": f"{own}:read"}))
    assert revote(full, extract=f"{own}:read").ballots and marker.exists()
