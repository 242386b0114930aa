"""Rows that hold several rollouts, and the logs of evaluation harnesses."""

import json
import re
import zipfile

import numpy as np
import pytest

from apportion.records import RecordError, open_run
from tests.cases import check_refused, lines
from tests.records.importing.tables import said, saved

RIGHT = [[True, False, True, True], [False] * 4, [True] * 4]
"""Verdicts of three prompts."""


def document(path, value):
    path.write_text(json.dumps(value))
    return path


def check(run, answers=None):
    assert run.trials.tolist() == [4] * 3 and run.reward.tolist() == [float(each) for row in RIGHT for each in row]
    assert set(run.step) == {0} and run.dead.tolist() == [False, True, True]
    assert (run.answer >= 0).all() == (answers is not None)
    if answers is not None:
        assert [len(set(own)) for own in run.answer.reshape(3, 4).tolist()] == [len(set(own)) for own in answers]


ANSWERS = [["4", "5", "4", "4"], ["1", "2", "3", "4"], ["9"] * 4]
PROMPTS = [(f"q{q}", answers, own) for q, (answers, own) in enumerate(zip(ANSWERS, RIGHT, strict=True))]
FLAT = [{"problem": prompt, "correct": each} for prompt, _, own in PROMPTS for each in own]
LISTS = [
    {"idx": prompt, "question": prompt, "answer": "4", "pred": answers, "score": own}
    for prompt, answers, own in PROMPTS
]
COLUMNS = {name: [row[name] for row in FLAT] for name in FLAT[0]}
DEEP = [
    {"question": prompt, "completions": [{"model_answer": a, "score": s} for a, s in zip(answers, own, strict=True)]}
    for prompt, answers, own in PROMPTS
]


def rolled(made):
    """Return a row for each rollout: its prompt, and what ``made`` makes of its verdict."""
    return [{"prompt": row["problem"], **made(float(row["correct"]))} for row in FLAT]


def filled(form, right):
    return form.replace("RIGHT", str(float(right))).replace("TRUE", str(right).lower())


def rows_of(form):
    """Return the rows of a form: a verdict is RIGHT, or TRUE; ``[item ...]`` has one item for each rollout."""
    rows = []
    for prompt, _, own in PROMPTS:
        each = re.sub(r"\[(.*?) \.\.\.\]", lambda m, own=own: f"[{', '.join(filled(m[1], r) for r in own)}]", form)
        verdicts = own if each == form else own[:1]
        rows += [{"prompt": prompt} | json.loads(filled(each, right)) for right in verdicts]
    return rows


ROWS = """
    objects            => {"n_rollouts": 4, "rollouts": [{"text": "so", "correct": TRUE} ...]}
    lists and a mean   => {"reward": 0.5, "rewards": [TRUE ...]}
    objects and a mean => {"reward": 0.5, "rollouts": [{"reward": TRUE} ...]}
    tests of a rollout => {"reward": RIGHT, "tests": [{"passed": false}]}
    completions and rewards => {"completions": ["so" ...], "rewards": [TRUE ...]}
    words              => {"correct": ["TRUE" ...]}
    a list of one      => {"step": 0, "reward": [RIGHT]}
    parts in an object => {"rewards": {"right": RIGHT, "format": 1.0}}
    parts beside a completion => {"completion": "so", "rewards": [RIGHT, 1.0]}
    parts beside messages     => {"completion": [{"role": "assistant"}], "rewards": [RIGHT, 1.0]}
    a total            => {"reward": {"format": 1.0, "total": RIGHT}}
    an object of verl  => {"score": {"score": RIGHT, "acc": TRUE}}
    an object around it => {"type": "rollout", "data": {"reward": RIGHT}}
"""
FORMS = {name: rows_of(form) for name, form in lines(ROWS)} | {
    "lists under the prompts": {prompt: [{"correct": each} for each in own] for prompt, _, own in PROMPTS},
    "a mean around all": {"model": "m", "score": 0.5, "results": FLAT},
    "columns": COLUMNS,
    "columns of pandas": {name: dict(enumerate(cells)) for name, cells in COLUMNS.items()},
    "a table": {"columns": list(FLAT[0]), "data": [list(row.values()) for row in FLAT]},  # of W&B, or pandas' split
}
"""Rows as JSON lines, and documents."""


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_rollouts_is_read(tmp_path, opened, name):
    form = FORMS[name]
    check(opened(form) if isinstance(form, list) else open_run(document(tmp_path / "run.json", form)))


@pytest.mark.parametrize("name", ["lists.jsonl", "lists.parquet", "lists.json", "lists.csv", "deep.json"])
def test_answers_beside_verdicts_are_those_of_the_rollouts(tmp_path, name):
    deep = {"model": "m", "categories": [{"name": "sums", "datasets": [{"name": "easy", "results": DEEP}]}]}
    make = document if name.endswith("json") else saved
    run = open_run(make(tmp_path / name, deep if name == "deep.json" else LISTS))
    check(run, ANSWERS)
    assert run.texts == ["q0", "q1", "q2"]


def test_what_the_user_names_goes_before_the_rollouts_inside(opened):
    rows = [row | {"n_correct": sum(own)} for row, own in zip(FORMS["objects"], RIGHT, strict=True)]
    counts = opened(rows, columns={"correct": "n_correct", "trials": "n_rollouts"})
    assert counts.source == "group counts per step" and counts.totals.tolist() == [3, 0, 4] and not counts.ordered
    check(opened(rows_of('{"math_verify": [TRUE ...]}'), columns={"correct": "math_verify"}))


def test_steps_and_splits_around_rollouts_tell_them_apart(tmp_path, opened):
    groups = rows_of('{"rollouts": [{"reward": TRUE} ...]}')
    inside = opened([{"step": step, "groups": groups} for step in (3, 12)])
    for run in (inside, open_run(document(tmp_path / "steps.json", {f"step_{step}": FLAT for step in (3, 12)}))):
        assert run.step.tolist() == [3] * 3 + [12] * 3 and run.totals.tolist() == [3, 0, 4] * 2
    splits = open_run(document(tmp_path / "splits.json", {"train": FLAT, "validation": FLAT[:4]}))
    check(splits)
    assert said(splits, "4 of 16 rows are of evaluations")


def test_parts_of_which_none_is_the_whole_must_be_named(opened, refuse):
    rows = [{"prompt": f"q{k // 4}", "rewards": {"right": k % 2, "short": k % 3}} for k in range(12)]
    refuse(r"may be the reward, .* got rewards.right, rewards.short; name one by --reward", rows)
    both = opened(rows, rewards=["rewards.right", "rewards.short=0.5"]).reward
    assert both.tolist() == [k % 2 + k % 3 / 2 for k in range(12)]


@pytest.mark.parametrize("completion", [{"output_response": "so"}, {"messages": [{"role": "assistant"}]}])
def test_rewards_of_tokens_or_turns_are_no_rollouts(opened, refuse, completion):
    run = opened(rolled(lambda right: completion | {"rewards": [0.0] * 9 + [right]}))
    check(run)
    assert run.doubts[1].startswith("the reward is rewards.9; equal in every group: rewards.0")
    longer = [{"prompt": "q", "rewards": [0.0] * (2 + place)} | completion for place in range(12)]
    refuse(r"same parts in every rollout, got lists of 2 and 3 values in .* line 2", longer)


def samples():
    return [
        {
            **{"id": q, "epoch": k + 1, "input": [{"role": "user", "content": f"q{q}"}], "target": "4"},
            "output": {"usage": {"output_tokens": 7}},
            "scores": {"match": {"value": "C" if right else "I", "answer": answer}, "style": {"value": 0.5}},
        }
        for q, (answers, own) in enumerate(zip(ANSWERS, RIGHT, strict=True))
        for k, (answer, right) in enumerate(zip(answers, own, strict=True))
    ]


def test_epochs_of_inspect_are_groups(tmp_path):
    run = open_run(document(tmp_path / "log.json", {"version": 2, "eval": {"task": "sums"}, "samples": samples()}))
    check(run, ANSWERS)
    assert (run.tokens == 7).all()
    with zipfile.ZipFile(tmp_path / "log.eval", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", "{}")
        for each in samples():
            archive.writestr(f"samples/{each['id']}_epoch_{each['epoch']}.json", json.dumps(each))
    check(open_run(tmp_path / "log.eval"), ANSWERS)
    (tmp_path / "bad.eval").write_bytes(b"PK nothing")
    with pytest.raises(RecordError, match=r"must be a log of inspect_ai, got .*; convert it by inspect log convert"):
        open_run(tmp_path / "bad.eval")


@pytest.mark.parametrize("repeats", [False, True])
def test_samples_of_lm_evaluation_harness_are_read(opened, repeats):
    rows = []
    for q, own in enumerate(RIGHT):
        for each in [own] if repeats else [[right] for right in own]:
            made = {"doc_id": q, "doc": {}, "target": "4", "arguments": {"gen_args_0": {"arg_0": f"q{q}"}}}
            made |= {"resps": [["a"] * len(each)], "filtered_resps": [["a"] * len(each)], "metrics": ["exact_match"]}
            rows += [made | {"filter": name, "exact_match": np.mean(each)} for name in ("strict", "flexible")]
    run = opened(rows, "samples_gsm8k.jsonl")
    assert run.totals.tolist() == [3, 0, 4] and run.texts == ["q0", "q1", "q2"]


@pytest.mark.parametrize("form", ["new", "old"])
def test_results_of_evalplus_are_read(tmp_path, form):
    words = [["pass" if each else "fail" for each in own] for own in RIGHT]
    new = {f"T/{q}": [{"base_status": "pass", "plus_status": word} for word in own] for q, own in enumerate(words)}
    old = {f"T/{q}": {"base": [], "plus": [[word, []] for word in own]} for q, own in enumerate(words)}
    path = document(tmp_path / "eval_results.json", {"date": "x", "eval": new if form == "new" else old})
    check(open_run(path))


@pytest.mark.parametrize("count", [lambda place: place % 4 + 1, lambda _: 4])
def test_a_share_of_one_rollout_beside_a_number_is_no_group(opened, refuse, count):
    rows = [row | {"n": count(place)} for place, row in enumerate(rolled(lambda right: {"accuracy": right}))]
    refuse(r"a column reward or correct, .* as in reward=accuracy", rows)
    check(opened(rows, columns={"reward": "accuracy"}))


@pytest.mark.parametrize("name", ["is_correct", "success", "passed", "pass", "acc", "resolved", "score"])
@pytest.mark.parametrize("words", [(True, False), ("yes", "no"), ("PASS", "FAIL"), (1, 0), (1, -1)])
def test_verdicts_have_many_names_and_forms(opened, refuse, name, words):
    rows = rolled(lambda right: {name: words[0] if right else words[1]})
    if words == (1, -1) and name != "score":
        refuse(f"{name} must be a whole number from 0 to 1, got -1", rows)
    else:
        check(opened(rows))


NO_RUNS = r"""
    [1, 2] => a run must be a list of objects, or hold one with verdicts, got
    {}     => a run must be a list of objects
    {      => must be one JSON document, got
           => must be one JSON document, got
"""


def test_a_document_without_rollouts_is_refused_in_one_line(tmp_path):
    def read(content):
        (tmp_path / "a.json").write_text(content)
        open_run(tmp_path / "a.json")

    deep = "[" * 5000 + "]" * 5000
    nested = [(deep, "levels of nesting"), (f'{{"a": NaN, "b": {deep}}}', "levels of nesting")]
    check_refused(RecordError, read, lines(NO_RUNS) + nested)
