"""Plain tables of rollouts, and what is refused in them."""

import gzip
import json

import numpy as np
import pytest

from apportion.records import RecordError, open_run
from apportion.records.importing import import_run
from tests.cases import check_refused, lines
from tests.records.importing.tables import comma_separated, jsonl, renamed, rollouts, said, saved, without

FILES = ["run.jsonl", "run.jsonl.gz", "run.csv", "run.csv.gz", "run.parquet"]


@pytest.mark.parametrize("name", FILES)
def test_every_kind_of_file_gives_the_same_run(opened, name):
    rows = [row | {"answer": "7" if row["reward"] else "8"} for row in rollouts()]
    found = opened(rows, name)
    assert found.step.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2] and found.trials.tolist() == [4] * 9
    assert found.reward.tolist() == [row["reward"] for row in rows]
    assert found.tokens.tolist() == [row["tokens"] for row in rows]
    assert found.texts == ["What is 0?", "What is 1?", "What is 2?"] and found.prompt.tolist() == [0, 1, 2] * 3
    assert found.ids == [prompt.id for prompt in found.prompts] and set(found.answer) == {0, 1}
    assert found.ordered and not found.visits and np.isnan(found.score_norm).all()


def totals_of(run):
    """Return the sum of the rewards of each group by its step and text."""
    keys = zip(run.step, [run.texts[q] for q in run.prompt], strict=True)
    return dict(zip(keys, run.totals, strict=True))


@pytest.mark.parametrize("name", FILES)
def test_rows_in_any_order_give_the_same_groups(opened, name):
    rows = rollouts(steps=4)
    shuffled = opened(np.random.default_rng(0).permutation(rows).tolist(), name)
    assert totals_of(shuffled) == totals_of(opened(rows)) and shuffled.trials.tolist() == [4] * 12


def test_ids_go_before_texts_and_columns_can_be_renamed(tmp_path):
    rows = [row | {"problem": "p"} for row in renamed(rollouts(prompts=1), prompt="question", reward="score")]
    path = comma_separated(tmp_path / "run.csv", rows)
    found, summary = import_run([path], columns={"id": "problem", "prompt": "question", "reward": "score"})
    assert found.ids == ["p"] and found.texts == ["What is 0?"] and summary.ignored == ()


def test_correct_goes_before_reward_and_missing_rewards_are_counted(tmp_path):
    rows = rollouts(steps=1, prompts=1)
    rows = [row | {"correct": correct} for row, correct in zip(rows, [True, False, None, None], strict=True)]
    rows[3]["reward"] = None
    found, summary = import_run([jsonl(tmp_path / "run.jsonl", rows)])
    assert found.reward[:3].tolist() == [1, 0, 0] and np.isnan(found.reward[3])
    assert summary.without_reward == 1 and summary.rows == summary.rollouts == 4


def test_answers_are_compared_as_texts_and_other_columns_reach_the_groups(tmp_path):
    more = {"asked": 6, "predicted": 0.25, "time": 10.0, "score_norm": 2.0, "note": 1}
    answers = zip(rollouts(steps=1, prompts=1), ["b", "a", None, "b"], strict=True)
    rows = [row | {"answer": answer} | more for row, answer in answers]
    for name in FILES:
        found, summary = import_run([saved(tmp_path / name, rows)])
        assert summary.ignored == ("note",) and found.score_norm.tolist() == [2.0] * 4
        assert found.asked.tolist() == [6] and found.predicted.tolist() == [0.25] and found.written.tolist() == [10.0]
        if "csv" not in name:  # CSV has no null: an empty answer is a text
            assert found.answer.tolist() == [0, 1, -1, 0]


WRONG = r"""
    {"reward": "abc"}  => reward must be a finite number .*, got 'abc' in .*line 3
    {"reward": NaN}    => reward must be a finite number .* line 3.*leave it empty for a missing one
    {"reward": [1]}    => reward must be a finite number .*, got '?\[1\]'? in .*line 3
    {"reward": 1e300}  => reward must be a finite number from -1e.12
    {"step": -1}       => step must be a whole number from 0 .*, got '?-1'? in .* line 3
    {"step": 0.5}      => step must be a whole number
    {"step": "step_1.5"} => step must be a whole number .*, got 'step_1.5'
    {"step": null}     => step must be given in every row, got nothing in .* line 3
    {"prompt": null}   => prompt must be given in every row, got nothing in .* line 3
    {"tokens": 1.5}    => tokens must be a whole number
"""


@pytest.mark.parametrize(("name", "place"), [("run.jsonl", 2), ("run.csv", 1)])
def test_a_wrong_cell_is_named_by_file_line_and_column(opened, name, place):
    def read(cell):
        rows = rollouts()
        rows[place] |= json.loads(cell)
        opened(rows, name)

    check_refused(RecordError, read, lines(WRONG))


def test_a_wrong_cell_of_parquet_is_named_by_its_row(refuse):
    rows = rollouts()
    rows[2]["reward"] = float("nan")
    refuse(r"got nan in .*run.parquet row 3", rows, "run.parquet")


REFUSED = """
    => at least one row
    {"step": 0, "prompt": "a", "reward": 1}&{"step": 0, "pro& => got Unterminated .* line 2
    {"step": 0, "prompt": "a", "reward": 1}{}&               => must be JSON, got Extra data in .*line 1
    {"prompt": "a", "reward": 1}&{"prompt": "a", "reward": 1, "id": "b"}& => in every row, .* line 1; .* --column id=
    {"step": 0, "prompt": "a"}&     => a column reward or correct, got step, prompt; name it by --column, as in
    {"step": 0, "reward": 1}&       => a column prompt or id, got step, reward
    {"step": 1, "promt": "a", "points": 1}& => a column prompt or id and a column reward .* as in prompt=promt
    {"step": 0, "prompt": "a", "reward": null}& => must have rewards, got none in 1 rows
    {"prompt": "a", "reward": 1, "time": "2026-01-02T03:04:05Z"}& => leave the column out by --column time=
    {"prompt": "a", "reward": 1, "tokens": [1, 2]}&          => leave the column out by --column tokens=
    {"prompt": "a", "correct": 3, "tokens": 10}&    => name the number of rollouts by --column trials=
    {"id": 1, "correct": 2, "trials": "correct"}&   => trials must be a whole number
    {"id": 1, "correct": "pass", "tokens": "fail"}& => tokens must be a whole number
    {"id": "a", "correct": 3, "trials": 4}&{"id": "b", "correct": 5, "trials": 4}& => most trials, got 5 of 4 .*line 2
    {"id": "a", "correct": 100000000, "trials": 1000000000}& => at most 100,000,000 rollouts
    {"id": "a", "n": 4, "pass_rate": 0.3}&      => a whole number of rollouts, .*, got 0.3 of 4 in .* line 1; correct it
    {"id": "a", "correct_of_8": [3, 8]}&{"id": "b", "correct_of_8": [9]}&   => at most trials, got 9 of 8 in .* line 2
    {"id": "a", "correct_of_8": [3, 8]}&{"id": "b", "correct_of_8": [0.5]}& => counted must be .*, got 0.5 in .* line 2
    {"id": "a", "correct_of_8": [3, 8]}&{"correct_of_8": [3]}&              => id must be given in every row, .* line 2
"""
"""What tests/test_tables.py refuses is refused here by the same reader."""


def test_what_cannot_be_read_is_refused(tmp_path):
    def read(content):
        (tmp_path / "run.jsonl").write_text(content.replace("&", "\n"))
        open_run(tmp_path / "run.jsonl")

    check_refused(RecordError, read, lines(REFUSED))


@pytest.mark.parametrize(
    "change",
    [
        lambda b: b"\xef\xbb\xbf" + b,
        lambda b: b.replace(b"\n", b"\r\n"),
        lambda b: b[:-1],
        gzip.compress,
        lambda b: gzip.compress(b[:50]) + gzip.compress(b[50:]),
    ],
)
@pytest.mark.parametrize("name", ["run.jsonl", "run.csv"])
def test_a_byte_order_mark_and_other_ends_of_lines_lose_no_row(tmp_path, name, change):
    path = saved(tmp_path / name, rollouts())
    path.write_bytes(change(path.read_bytes().replace(b"\r\n", b"\n")))
    assert open_run(path).trials.sum() == 36


FORMS = {
    "a float for an id": ("id", lambda q, k: (int, float)[k % 2](q)),
    "a float for an id in text": ("id", lambda q, k: f"{q}{'.0' * (k % 2)}"),
    "two forms of one letter": ("prompt", lambda q, k: ("\xe9", "e\u0301")[k % 2] + str(q)),
}


@pytest.mark.parametrize("name", ["run.jsonl", "run.csv"])
@pytest.mark.parametrize("form", FORMS)
def test_one_prompt_in_two_forms_is_one(opened, name, form):
    column, made = FORMS[form]
    rows = [{"step": s, column: made(q, k), "reward": k // 2} for s in (0, 1) for q in (3, 4) for k in range(4)]
    run = opened(rows, name)
    assert run.trials.tolist() == [4] * 4 and len(run.ids) == 2 and run.doubts == ()


@pytest.mark.parametrize(
    "name", ["step_{}.jsonl", "{}.jsonl", "global_step_{}/rank_0.jsonl", "step-{}/part-0.jsonl.gz", "{0}/{0}7.jsonl"]
)
def test_a_step_is_in_the_name_of_the_file_if_no_column_is_one(tmp_path, name):
    for step in (9, 10):
        jsonl(tmp_path / name.format(step), without("step", rollouts(steps=1)))
    run = open_run(tmp_path)
    assert run.step.tolist() == [9] * 3 + [10] * 3 and said(run, "the number in the name of a file")
    assert set(open_run(tmp_path, columns={"step": ""}).step) == {0}


def test_the_step_of_a_table_of_wandb_is_read(opened):
    assert set(opened(renamed(rollouts(), step="_step")).step) == {0, 1, 2}


def test_a_step_may_be_written_as_text(opened):
    rows = [row | {"step": f"global_step_{row['step'] + 9}"} for row in rollouts()]
    assert opened(rows).step.tolist() == [9] * 3 + [10] * 3 + [11] * 3


@pytest.mark.parametrize("word", ["nan", "NA", "None", "null"])
def test_a_word_for_a_missing_cell_of_csv_has_a_remedy_that_csv_has(opened, refuse, word):
    first, *rows = rollouts()
    remedy = f"got '{word}' in .* line 2; correct it, or leave it empty for a missing one"
    refuse(remedy, [first | {"reward": word}, *rows], "run.csv")
    assert opened([first | {"reward": ""}, *rows], "run.csv").trials[0] == 3


def test_cells_of_several_types_in_one_column_are_read(opened):
    rows = rollouts()
    rows[5]["reward"], rows[6]["prompt"] = "1.0", 7
    found = opened([row | {"extra": float("nan")} for row in rows])
    assert found.reward.tolist()[5] == 1.0 and "7" in found.texts and len(found.reward) == 36


def test_names_of_columns_inside_cells_are_no_columns(opened):
    call = {"role": "assistant", "tool_calls": [{"id": "c1", "answer": 4}]}
    rows = [row | {"prompt": [{"role": "user", "content": row["prompt"]}, call]} for row in rollouts()]
    assert opened(rows).trials.tolist() == [4] * 9


def test_files_of_different_formats_are_refused(tmp_path):
    jsonl(tmp_path / "a.jsonl", rollouts())
    comma_separated(tmp_path / "b.csv", rollouts())
    with pytest.raises(RecordError, match=r"must have one format, got plain in .*b.csv and plain in .*a.jsonl"):
        open_run(tmp_path)


def test_a_file_that_unpacks_to_far_more_than_its_size_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("apportion.rows.PACKED_BYTES", 2**16)
    row = b'{"step": 0, "prompt": "a", "reward": 1}\n'
    (tmp_path / "run.jsonl.gz").write_bytes(gzip.compress(row + b"\n" * 10**7))
    with pytest.raises(RecordError, match=r"unpacks to more than .* unpack it first"):
        open_run(tmp_path / "run.jsonl.gz")


@pytest.mark.parametrize("quotes", ['"a, and\nb"', '"a ""b"""', "a"])
def test_quoted_texts_of_csv_keep_their_lines(tmp_path, quotes):
    (tmp_path / "run.csv").write_text(f"step,prompt,reward\n0,{quotes},1\n1,{quotes},0\n")
    assert open_run(tmp_path / "run.csv").trials.tolist() == [1, 1]
    (tmp_path / "run.csv").write_text(f"step,prompt,reward\n0,{quotes},1\n1,{quotes},x\n")
    line = 5 if "\n" in quotes else 3
    with pytest.raises(RecordError, match=f"got 'x' in .* line {line}"):
        open_run(tmp_path / "run.csv")
