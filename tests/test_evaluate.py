"""The command ``apportion evaluate``: figures by hand, what is left out, and what is refused."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from apportion.vote import Question
from tests import commands
from tests.commands import parsed, printed
from tests.endpoint.fault_server import broken, ok
from tests.records.importing.tables import jsonl
from tests.vote.builders import answering, make_questions, stream_of
from tests.vote.test_run import report_of

ROOT = Path(__file__).parents[1]
VOTE = {"rule": "fixed", "curtail": False, "max_samples": 8}
QUESTIONS = make_questions(6)


def said(*arguments):
    return " ".join(printed("evaluate", *arguments).split())


def numbers(*arguments):
    return parsed("evaluate", *arguments)


def refused(*arguments):
    return commands.refused("evaluate", *arguments)


def means(found, name):
    return [at[name]["mean"] for at in found["at"]]


def rows(*groups):
    """Rows of rollouts: each group has an id, and lists of rewards, answers or steps."""
    made = []
    for group in groups:
        columns = {name: cells for name, cells in group.items() if name != "id"}
        made += [
            {"id": group["id"]} | dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
        ]
    return made


@pytest.fixture
def recorded(tmp_path):
    """Two problems: 2 of 4 right with a wrong majority of the first three, and 0 of 2 of which one has no answer."""
    found = rows(
        {"id": "a", "reward": [0, 1, 0, 1], "answer": ["8", "7", "9", "7"]},
        {"id": "b", "reward": [0, 0], "answer": ["1", None]},
    )
    return jsonl(tmp_path / "run.jsonl", found)


def test_recorded_answers_have_the_figures_of_a_hand(recorded):
    found = numbers(recorded, "--k", "1", "2", "4")
    assert found["mean"]["mean"] == pytest.approx(1 / 4) and (found["problems"], found["rollouts"]) == (2, 6)
    assert [(at["k"], at["problems"]) for at in found["at"]] == [(1, 2), (2, 2), (4, 1)]
    assert means(found, "passed") == pytest.approx([1 / 4, 5 / 12, 1])
    assert means(found, "majority") == pytest.approx([1 / 4, 1 / 2 * 3 / 6, 1])  # 7 7, and half of each tie of 7
    text = said(recorded, "--k", "1,4")
    assert "6 rollouts of 2 problems, 2 to 4 of each" in text and found["at"][2]["passed"]["low"] is None
    assert "as read (see ?) 25.0% (0.0% to 50.0%) for every k" in text and "4 1 of 2 100.0% 100.0% in brackets" in text


def test_a_k_that_is_no_number_is_refused(recorded):
    assert "k must be a whole number, got 'many'; write one such as 8" in refused(recorded, "--k", "2", "many")


def test_the_recorded_run_has_no_answers_and_many_policies():
    log = ROOT / "examples" / "data" / "grpo_run.jsonl.gz"
    text = said(log, "--k", "8")
    assert "are of 57 visits, and the policy changed" in text
    assert "maj@k needs the answer of each rollout" in text and "pass@k maj@k" not in text
    found = numbers(log, "--steps", "0", "--k", "1", "8")
    assert (found["problems"], found["most"], found["doubts"]) == (1209, 8, []) and found["at"][0]["majority"] is None
    assert means(found, "passed")[0] == pytest.approx(found["mean"]["mean"])
    assert found["at"][1]["passed"]["low"] < means(found, "passed")[1] < found["at"][1]["passed"]["high"]


def test_steps_choose_rollouts_and_those_without_a_reward_are_counted(tmp_path):
    found = rows({"id": "a", "reward": [-1, -1, 1, None, 1, 1], "step": [0, 0, 0, 0, 1, 2]})
    path = jsonl(tmp_path / "run.jsonl", found)
    first = numbers(path, "--steps", "0", "--reward", "reward")
    assert (first["mean"]["mean"], first["failed"], first["most"]) == (pytest.approx(1 / 3), 1, 3)
    later = numbers(path, "--steps", "1:2")
    assert (later["mean"]["mean"], later["problems"], later["most"]) == (1, 1, 2)
    assert "1 rollouts without a reward are left out ? " in said(path) and "are of 3 steps" in said(path)
    assert "got none in run at steps '7'; choose others" in refused(path, "--steps", "7")
    assert "--steps must be a whole number, got ''" in refused(path, "--steps", "1:")


@pytest.mark.parametrize(("sizes", "doubted"), [((2, 4), True), ((4, 4), False)])
def test_unequal_numbers_of_rollouts_in_a_step_are_doubted(tmp_path, sizes, doubted):
    groups = [{"id": str(q), "reward": [q % 2] * size, "step": [0] * size} for q, size in enumerate(sizes)]
    text = said(jsonl(tmp_path / "run.jsonl", rows(*groups)))
    assert ("prompts of one step have unequal numbers of rollouts" in text) == doubted


def test_an_empty_file_and_options_of_the_other_kind_are_refused(recorded, tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    assert "a run must have at least one row, got none" in refused(tmp_path / "empty.jsonl")
    assert "a run must exist" in refused(tmp_path / "nothing.jsonl")
    assert "--labels is about the answers of a vote, got a recorded run; leave it out" in refused(
        recorded, "--labels", recorded
    )


def test_a_kept_vote_is_evaluated_by_its_samples(tmp_path):
    out = tmp_path / "answers.jsonl"
    report_of(answering(), out, QUESTIONS, **VOTE)
    found = numbers(out, "--k", "1", "3", "8")
    streams = [stream_of(question, 8) for question in QUESTIONS]
    right = [[answer == question.gold for answer in own] for own, question in zip(streams, QUESTIONS, strict=True)]
    assert 0 < found["mean"]["mean"] < 1 and found["mean"]["mean"] == pytest.approx(np.mean(right))
    assert found["doubts"] == [] and found["failed"] == 0
    passed = [any(three) for own in right for three in combinations(own, 3)]
    assert means(found, "passed")[1:] == pytest.approx([np.mean(passed), np.mean([any(own) for own in right])])
    won = [max(answers := [a for a in own if a], key=answers.count) == str(q) for q, own in enumerate(streams)]
    assert means(found, "majority")[2] == pytest.approx(np.mean(won))
    assert "--column is about a recorded run, got the answers of a vote" in refused(out, "--column", "a=b")


def test_right_answers_come_from_labels_or_questions_and_others_are_left_out(tmp_path):
    out, labels = tmp_path / "answers.jsonl", tmp_path / "labels.jsonl"
    report_of(ok(r"\boxed{7}"), out, [Question(id, f"{id}?") for id in "abc"], **VOTE)
    assert "needs samples with a right answer, got none of 3 questions" in refused(out)
    jsonl(labels, [{"id": "a", "answer": "7"}, {"id": "b", "answer": "8"}])
    found = numbers(out, "--labels", labels)
    assert (found["mean"]["mean"], found["problems"]) == (0.5, 2)
    assert found["doubts"] == ["1 question without a known right answer is left out"]
    others = jsonl(tmp_path / "others.jsonl", [{"id": "a", "prompt": "Of another data set?", "answer": "7"}])
    assert "a label must be of the question with its id, got another text for 'a'" in refused(out, "--labels", others)
    questions = jsonl(tmp_path / "q.jsonl", [{"id": id, "prompt": f"{id}?", "answer": "7"} for id in "abc"])
    assert numbers(out, "--questions", questions)["mean"]["mean"] == 1
    assert numbers(out, "--questions", questions, "--labels", labels)["mean"]["mean"] == pytest.approx(2 / 3)


def test_a_vote_that_stopped_by_its_answers_or_lost_samples_says_so(tmp_path):
    out = tmp_path / "answers.jsonl"

    def script(request):
        if request.prompt.startswith("Question 1") and request.seed and request.seed % 3 == 0 and request.n == 1:
            return broken()
        return ok("I do not know." if request.prompt.startswith("Question 0") else r"\boxed{1}", most=1)

    report_of(script, out, make_questions(2), max_samples=16, max_retries=0, give_up=4)
    found = numbers(out)
    assert "the vote stopped by its answers (calibrated, curtailed)" in found["doubts"][0]
    assert "1 questions ended after 4 samples or more without an answer" in found["doubts"][1]
    assert found["failed"] > 0 and found["mean"]["mean"] == 0.5
