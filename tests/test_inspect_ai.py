"""Tests of early-stopped votes in inspect_ai: the manager alone, and both parts in evaluations with its mock model.

The evaluations need inspect_ai, which asks for an older fsspec than ``constraints.txt`` has, in an environment of its
own: pip install -e '.[inspect]' pytest pytest-xdist hypothesis
"""

import asyncio
import random
from types import SimpleNamespace

import pytest

from apportion.inspect_ai import VoteStopping, answer_vote
from apportion.stopping import ESC, decide

pytestmark = pytest.mark.filterwarnings("default")  # inspect_ai leaves streams open, and warns of its own code

EPOCHS = 16


def make_streams(questions=12):
    """Return the answers of each question, epoch by epoch: from nearly unanimous ones to even races."""
    draw = random.Random(0)
    shares = [0.99 - 0.5 * q / questions for q in range(questions)]
    return {
        f"question {q}": ["42" if draw.random() < share else str(draw.randrange(7)) for _ in range(EPOCHS)]
        for q, share in enumerate(shares)
    }


def make_task(name="one", scorers=("match",)):
    return SimpleNamespace(
        task_id=name, model="mockllm/model", scorers=[SimpleNamespace(name=each) for each in scorers]
    )


def make_score(answer):
    return {"match": SimpleNamespace(score=SimpleNamespace(answer=answer))}


def started(manager, ids, epochs=EPOCHS):
    asyncio.run(manager.start_task(make_task(), [SimpleNamespace(id=each) for each in ids], epochs))
    return manager


def complete(manager, id, answers):
    for epoch, answer in answers.items():
        asyncio.run(manager.complete_sample(id, epoch, make_score(answer)))


def summary(manager):
    return asyncio.run(manager.complete_task())


def test_a_question_stops_where_the_rule_does():
    for id, stream in make_streams().items():
        manager = started(VoteStopping("esc", window=4), [id])
        complete(manager, id, dict(enumerate(stream, 1)))
        expected = decide(stream, "esc", EPOCHS, window=4, curtail=True).samples
        assert summary(manager)["stopped"] == 1
        assert manager._stopped[id] == expected


def test_an_epoch_under_way_is_a_sample_without_an_answer_until_it_is_scored():
    manager = started(VoteStopping(ESC(window=3), curtail=False), ["q"])
    complete(manager, "q", {4: "7", 2: "7", 3: "7"})
    assert not manager._stopped  # the first three epochs are one window, and the first may still say 9
    complete(manager, "q", {6: "7", 1: "9"})
    assert not manager._stopped
    complete(manager, "q", {5: "7"})
    assert manager._stopped == {"q": 6}


def test_a_failed_epoch_delays_the_stop_and_is_counted():
    manager = started(VoteStopping("esc", window=3, curtail=False), ["q", "r"])
    asyncio.run(manager.schedule_sample("q", 1))
    complete(manager, "q", dict.fromkeys(range(2, 7), "7"))
    complete(manager, "r", dict.fromkeys(range(1, 4), None) | {4: "7"})
    assert summary(manager) == {
        "rule": "ESC(window=3)",
        "questions": 2,
        "stopped": 1,
        "epochs": 9,
        "epochs_without_the_rule": 32,
        "failed": 1,
        "without_answer": 3,
    }


def test_a_blank_answer_is_a_sample_without_a_vote():
    manager = started(VoteStopping("esc", window=2, curtail=False), ["q"])
    complete(manager, "q", {1: " ", 2: "", 3: "7", 4: "7"})
    assert summary(manager)["without_answer"] == 2


def test_another_attempt_at_the_task_starts_anew():
    manager = started(VoteStopping("esc", window=3), ["q"])
    complete(manager, "q", dict.fromkeys(range(1, 4), "7"))
    assert manager._stopped
    assert not started(manager, ["q"])._stopped


@pytest.mark.parametrize(
    ("settings", "task", "epochs", "message"),
    [
        ({}, make_task(scorers=("match", "model_graded_qa")), 8, "scorer must name one of match, model_graded_qa"),
        ({}, make_task("two"), 8, "VoteStopping serves one task and model, got a second, mockllm/model"),
        ({"rule": "esc", "window": 40}, make_task(), 8, "window"),
    ],
)
def test_a_wrong_set_up_is_refused_before_the_first_sample(settings, task, epochs, message):
    manager = VoteStopping(**settings)
    if task.task_id == "two":
        started(manager, ["q"])
    with pytest.raises(ValueError, match=message):
        asyncio.run(manager.start_task(task, [SimpleNamespace(id="q")], epochs))


def test_an_unknown_scorer_is_refused():
    manager = started(VoteStopping(scorer="pattern"), ["q"])
    with pytest.raises(ValueError, match="scorer must be one of match, got 'pattern'"):
        complete(manager, "q", {1: "7"})


def evaluate(streams, folder, stopping, models=("mockllm/model",), failures=0, **settings):
    """Run the streams through inspect_ai; return its logs and how often each question was asked.

    The model answers a question's epochs in their order. The first ``failures`` requests fail.
    """
    inspect_ai = pytest.importorskip("inspect_ai")
    mocked = pytest.importorskip("inspect_ai.model")
    asked, failing = dict.fromkeys(streams, 0), iter(range(failures))

    def reply(messages, *_):
        id = messages[-1].text
        if next(failing, None) is not None:
            raise RuntimeError("the server is gone")
        asked[id] += 1
        output = mocked.ModelOutput.from_content("mockllm/model", f"ANSWER: {streams[id][asked[id] - 1]}")
        output.usage = mocked.ModelUsage()  # else it is counted by a tokenizer that is downloaded
        return output

    task = inspect_ai.Task(
        dataset=[inspect_ai.dataset.Sample(id=each, input=each, target="42") for each in streams],
        scorer=inspect_ai.scorer.pattern(r"ANSWER: (\w+)"),
        epochs=inspect_ai.Epochs(EPOCHS, answer_vote()),
        early_stopping=stopping,
    )
    built = [mocked.get_model(name, custom_outputs=reply, memoize=False) for name in models]
    return inspect_ai.eval(task, model=built, display="none", log_dir=str(folder), **settings), asked


@pytest.mark.parametrize("at_once", [1, 8])
def test_an_evaluation_runs_the_epochs_that_the_rule_needs(tmp_path, at_once):
    streams = make_streams()
    (log,), asked = evaluate(streams, tmp_path, VoteStopping("posterior_predictive", eps=0.1), max_samples=at_once)
    found = decide([*streams.values()], "posterior_predictive", EPOCHS, eps=0.1, curtail=True)
    needed = dict(zip(streams, found.samples.tolist(), strict=True))
    assert log.status == "success", log.error
    assert all(needed[id] <= asked[id] <= needed[id] + at_once - 1 for id in streams)
    stops = log.results.early_stopping
    assert stops.manager == "apportion" and stops.metadata["epochs"] == sum(asked.values())
    assert len(stops.early_stops) == EPOCHS * len(streams) - sum(asked.values()) > 0.2 * EPOCHS * len(streams)
    (reduced,) = log.reductions
    chosen = {score.sample_id: score.answer for score in reduced.samples}
    if at_once == 1:
        assert chosen == dict(zip(streams, found.answer, strict=True))
    right = sum(answer == "42" for answer in chosen.values()) / len(streams)
    assert log.results.scores[0].metrics["accuracy"].value == pytest.approx(right)


def test_the_vote_of_a_full_evaluation_is_the_majority_of_answers(tmp_path):
    streams = {"split": ["1", "2", "3", "42", "42"] * 3 + ["1"], "none": ["?"] * EPOCHS}
    (log,), _ = evaluate(streams, tmp_path, None, max_samples=1)
    split, none = log.reductions[0].samples
    assert split.answer == "42" and split.value == "C"  # most grades are wrong
    assert split.metadata["votes"] == {"1": 4, "2": 3, "3": 3, "42": 6}
    assert none.value == "I"


@pytest.mark.parametrize("after", [{"retry_on_error": 1}, {"fail_on_error": False}])
def test_a_failed_epoch_does_not_cost_the_full_vote(tmp_path, after):
    streams = {"q": ["42"] * EPOCHS, "r": ["42"] * EPOCHS}
    (log,), asked = evaluate(streams, tmp_path, VoteStopping("esc", window=3), failures=1, max_samples=1, **after)
    assert log.status == "success", log.error
    assert asked == {"q": 5, "r": 3}
    assert log.results.early_stopping.metadata["failed"] == 1  # the second try is skipped, because the rule has stopped


def test_a_second_model_needs_a_manager_of_its_own(tmp_path):
    models = ("mockllm/one", "mockllm/two")
    logs, _ = evaluate({"q": ["42"] * EPOCHS}, tmp_path, VoteStopping("esc", window=3), models)
    errors = [log.error.message for log in logs if log.status == "error"]
    assert len(errors) == 1 and "serves one task and model" in errors[0]
