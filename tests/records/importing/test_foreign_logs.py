"""Logs as other tools and people write them: read as they are, counted by plain Python, or doubted, or refused."""

import gzip
import json
import re

import numpy as np
import pytest

from apportion.records import RecordError, open_run
from apportion.records.importing.names import is_evaluation
from tests.cases import lines
from tests.records.importing.tables import jsonl, renamed, rollouts, said, without
from tests.records.importing.test_doubts import DOUBTED

ROWS = rollouts()
GROUPS = {
    (s, q): [row for row in ROWS if (row["step"], row["prompt"][8]) == (s, str(q))] for s in range(3) for q in range(3)
}
ONE = [row | {"step": 0} for row in ROWS if row["step"] == 0]


def counted(rows, by=("step", "prompt")):
    """Return the groups, rollouts and dead groups, and the sum of the rewards, as plain Python counts them."""
    groups = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in by), []).append(row["reward"])
    dead = sum(len(own) > 1 and len(set(own)) == 1 for own in groups.values())
    return len(groups), len(rows), dead, sum(row["reward"] for row in rows)


def test_a_flag_that_is_true_is_no_number_1_whichever_is_read_first():
    for _ in range(2):
        assert [is_evaluation("x", cell) for cell in (True, 1, 1.0, False, 0)] == [True, None, None, False, None]


def figures(run):
    return len(run.step), int(run.trials.sum()), int(run.dead.sum()), float(np.nansum(run.reward))


def each(made):
    """Return what ``made`` makes of a rollout, its place in its group, and its own place in its file."""
    return [made(row, place % 4, place) for place, row in enumerate(ROWS)]


def scored(made):
    """Return rollouts without a reward, each with what ``made`` makes of its reward and its place in its group."""
    rows = without("reward", ROWS)
    return [row | made(whole["reward"], n % 4) for n, (row, whole) in enumerate(zip(rows, ROWS, strict=True))]


def of_groups(made):
    """Return a row for each group: its step and prompt, and what ``made`` makes of its rewards."""
    return [
        {"step": s, "prompt": own[0]["prompt"]} | made([row["reward"] for row in own]) for (s, _), own in GROUPS.items()
    ]


FLAGS = """["validate", true, false]
["is_val", 1, 0]
["is_validation", "True", "False"]
["is_eval", "yes", "no"]
["eval", true, false]
["split", "held_out", "train"]
["subset", "test", "train"]
["is_train", false, true]
["training", 0, 1]
["source", "eval", "train"]
["data_source", "aime_test", "dapo_train"]
["eval_only", true, false]
["heldout", true, false]
["stage", "evaluation", "rollout"]
["prefix", "val-core", "train"]
["test", true, false]"""


@pytest.mark.parametrize("flag", FLAGS.splitlines())
@pytest.mark.parametrize("late", [False, True])
def test_rows_of_a_validation_are_left_out_under_any_flag(opened, flag, late):
    name, yes, no = json.loads(flag)
    rows, other = rollouts(steps=40, **{name: no}), rollouts(steps=40, **{name: yes})
    if late and name in ("validate", "is_val", "is_eval", "eval"):  # a flag of those rows alone
        rows = without(name, rows)
    run = opened(rows + [row | {"prompt": "v"} for row in other])
    assert figures(run) == counted(rows) and said(run, "480 of 960 rows are of evaluations")
    assert len(opened(rows + other, columns={"split": "", "group": ""}).reward) == 960


def test_a_column_that_may_be_a_flag_but_is_none_leaves_no_row_out(opened):
    for column in ({"mode": "greedy"}, {"test": 0.5}, {"valid": True}, {"phase": 1}, {"source": "test"}, {"tests": 1}):
        assert figures(opened([row | column for row in ROWS])) == counted(ROWS)


FORMS = """
    rewards of a task in a text => {"reward": RIGHT, "task": "sums", "rewards": {"format": PLACE, "total": RIGHT}}
    traces in a text            => {"reward": RIGHT, "traces": "so"}
    a verdict in an evaluation => {"sample_score": {"score": {"value": {"acc": RIGHT}, "extracted_prediction": ""}}}
    a score and an answer       => {"score": {"answer": PLACE, "value": RIGHT}}
    a verdict in words within   => {"grading": {"verdict": "WORD"}}
    a status that is no verdict => {"reward": RIGHT, "status": "completed", "result": "so"}
    tests of a rollout          => {"reward": RIGHT, "passed": PLACE, "total": 3}
    a number beside verdicts    => {"correct": RIGHT, "n": 4}
    a share of one rollout      => {"accuracy": RIGHT}
"""
"""What is beside the step and the prompt of a rollout: RIGHT is its reward, PLACE its place in its group."""


def formatted(form):
    def made(reward, place):
        word = "pass" if reward else "fail"
        return json.loads(form.replace("RIGHT", str(reward)).replace("PLACE", str(place)).replace("WORD", word))

    return scored(made)


FORMATS = {name: formatted(form) for name, form in lines(FORMS)} | {
    "example_id and global_step": renamed(rollouts(task="a"), step="global_step", prompt="example_id")
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_table_is_known_by_its_whole_content(opened, name):
    run = opened(FORMATS[name])
    assert figures(run) == counted(ROWS) and run.source == "table of rollouts"


SHARES = {key: sum(row["reward"] for row in own) / 4 for key, own in GROUPS.items()}
COUNTS = {
    "and their share": of_groups(lambda own: {"correct": int(sum(own)), "total": 4, "accuracy": sum(own) / 4}),
    "shares of visits": [{"id": q, "pass_rates": [SHARES[s, q] for s in range(3)], "n": 4} for q in range(3)],
    "counts of visits": [{"id": q, "correct": [int(4 * SHARES[s, q]) for s in range(3)], "total": 4} for q in range(3)],
    "shares of prompts": [
        {"step": s, "prompts": ["a", "b", "c"], "n": 4, "pass_rates": [SHARES[s, q] for q in range(3)]}
        for s in range(3)
    ],
}


@pytest.mark.parametrize("name", COUNTS)
def test_counts_and_shares_are_groups(opened, name):
    run = opened(COUNTS[name])
    assert figures(run) == counted(ROWS) and run.source == f"group counts per {'visit' if run.visits else 'step'}"
    assert run.visits == ("visits" in name)


NAMES = """n c, trials correct, trials num_correct, num_samples n_correct, n k, k c, total correct, attempts passes,
tries success, n pass_rate, n pass@1, group_size accuracy"""


@pytest.mark.parametrize("names", NAMES.split(","))
def test_counts_and_shares_are_read_by_their_usual_names(opened, names):
    trials, counted_as = names.split()
    share = 4 if counted_as in ("pass_rate", "pass@1", "accuracy") else 1
    rows = of_groups(lambda own: {trials: 4, counted_as: sum(own) / share})
    for run in (opened(rows), opened(rows, "run.csv")):
        assert figures(run) == counted(ROWS) and not run.ordered


WORDS = """outcome success failure => status success fail => result pass fail => verdict correct incorrect =>
score C I => grade CORRECT INCORRECT => correct T F => is_correct y n => correct ✓ ✗ => reward Success Failure =>
success true false =>
judgement right wrong => verdict accepted rejected => status resolved unresolved =>
outcome solved unsolved"""


@pytest.mark.parametrize("words", [words.strip() for words in WORDS.split("=>")])
def test_verdicts_are_words(opened, words):
    column, right, wrong = words.split()
    rows = scored(lambda reward, _: {column: right if reward else wrong})
    for run in (opened(rows), opened(rows, "run.parquet")):
        assert figures(run) == counted(ROWS)


def turns(column, reward, **more):
    """Return a row for each of two or three turns of each rollout, with the reward in ``reward``, "all" or "last"."""
    rows = []
    for place, row in enumerate(ROWS):
        last = 1 + place % 2
        own = {
            name: row["step"] if value == "step" else place % value if value else place for name, value in more.items()
        }
        rows += [
            {column: turn, "task_id": row["prompt"], "tokens": 5, **own}
            | {"reward": row["reward"] if reward == "all" or turn == last else 0.0}
            for turn in range(last + 1)
        ]
    return rows


TURNS = {
    "of a step": ({"column": "step", "rollout_id": 0, "global_step": "step"}, ("step", "prompt")),
    "of the only step": ({"column": "step", "rollout_id": 0}, ("prompt",)),
    "without ids": ({"column": "turn", "step": "step"}, ("step", "prompt")),
    "with ids within a group": ({"column": "step", "rollout_idx": 4, "iteration": "step"}, ("step", "prompt")),
    "of trajectories": ({"column": "step_idx", "traj_uid": 0, "train_step": "step"}, ("step", "prompt")),
}


@pytest.mark.parametrize("name", TURNS)
@pytest.mark.parametrize("reward", ["last", "all"])
def test_a_step_that_begins_again_with_each_rollout_is_a_turn(opened, name, reward):
    made, by = TURNS[name]
    rows = turns(reward=reward, **made)
    run = opened(rows)
    assert figures(run) == counted(ROWS, by) and run.tokens.tolist().count(10) == 18
    how = "that of each turn" if reward == "all" else "the sum of those of its turns"
    assert said(run, "is the turn of a rollout", how)
    assert len(opened(rows, columns={"turn": ""}).reward) == len(rows)


def test_steps_of_training_are_no_turns(opened):
    for rows in (
        rollouts(size=1),
        sorted(ROWS, key=lambda row: row["prompt"]),
        each(lambda row, k, n: row | {"rollout_idx": k, "id": row["prompt"]}),
        each(lambda row, k, n: row | {"rollout_id": n, "turn": 2}),
        each(lambda row, k, n: row | {"sample_id": row["prompt"]}),
    ):
        run = opened(rows)
        assert len(run.reward) == len(rows) and len(run.step) == 9 and not said(run, "turn of")


def test_the_prompt_of_a_chat_is_all_up_to_its_last_question(opened):
    def chat(row):
        asked = [{"role": "system", "content": "Think."}, {"role": "user", "content": row["prompt"]}]
        return [*asked, {"role": "assistant", "content": str(row["reward"])}]

    run = opened(each(lambda row, k, n: without("prompt", [row])[0] | {"messages": chat(row)}))
    assert figures(run) == counted(ROWS) and said(run, "prompt=messages")


def test_a_column_that_is_neither_a_flag_nor_a_reason_does_not_say_that_a_completion_was_cut(opened):
    for more in (
        {"reward_clipped": 1},
        {"stop_reason": 151645},
        {"truncation_length": 512},
        {"status": "completed"},
        {"truncated_text": "a text of any length " * 9},
    ):
        assert np.isnan(opened([row | more for row in ROWS]).truncated).all(), more


def test_a_remedy_names_a_column_that_can_be_what_is_missing(tmp_path):
    rows = [{"iteration": row["step"], "task": row["prompt"], "grade": "A"} for row in ROWS]
    with pytest.raises(RecordError, match=r"as in id=task$"):
        open_run(jsonl(tmp_path / "run.jsonl", rows))
    with pytest.raises(RecordError, match=r"as in reward=COLUMN$"):
        open_run(jsonl(tmp_path / "run.jsonl", renamed(rows, task="prompt")))


def lm_eval(responses, kept, name="exact_match", filters=("maj",), verdict=1.0):
    return [
        {
            "doc_id": q,
            "arguments": [[f"q{q}"]],
            "target": "7",
            "resps": responses,
            "filtered_resps": kept,
            "filter": each,
        }
        | {"metrics": [name], name: verdict}
        for each in filters
        for q in range(3)
    ]


def test_one_verdict_of_several_responses_is_one(opened):
    one = {"doc": {"id": "a", "query": "q"}, "metric": {"em": 1.0}, "model_response": {"text": ["a", "b"]}}
    for run, number in (
        (opened(lm_eval([["7"] * 6], ["7"])), 6),
        (opened(lm_eval([["7"]] * 4, ["7"] * 4)), 4),
        (opened([one], "run.parquet"), 2),
        (opened([{"prompt": f"q{q}", "responses": ["a"] * 3, "correct": q % 2} for q in range(8)]), 3),
    ):
        assert run.trials.max() == 1 and said(run, f"responses holds {number} values where groups have 1 rows")


def test_a_share_of_all_responses_is_that_of_their_verdicts(opened):
    run = opened(lm_eval([["7"] * 4], [["7"] * 4], "pass@1", verdict=0.75))
    assert run.trials.tolist() == [4] * 3 and run.totals.tolist() == [3] * 3


def test_two_filters_of_one_response_are_one_rollout(opened):
    rows = lm_eval([["7"]], ["7"], filters=("strict", "flexible"))
    flat = [
        {"doc_id": q, "question": f"q{q}", "filter": name, "acc": 1}
        for name in ("strict", "flexible")
        for q in range(3)
    ]
    for each_row in (rows, flat):
        run = opened(each_row)
        assert run.trials.tolist() == [1] * 3
        assert said(run, "rows of the filter flexible are left out")


@pytest.mark.parametrize(
    "names", ["grpo dapo vip", "seed0 seed1 seed2", "a/1 a/2 b/1 b/2", "run-1 run-2", "lr1e-5 lr3e-6"]
)
@pytest.mark.parametrize("step", ["step", "no"])
def test_several_runs_in_a_folder_are_refused_with_their_names(tmp_path, names, step):
    for name in names.split():
        jsonl(tmp_path / "logs" / f"{name}.jsonl", renamed(ROWS, step=step))
    listed = ", ".join(sorted({name.partition("/")[0] for name in names.split()}))
    with pytest.raises(
        RecordError, match=rf"several with the same prompts at the same steps: {listed}; .* --column run="
    ):
        open_run(tmp_path / "logs")
    assert len(open_run(tmp_path / "logs", columns={"run": ""}).reward) == 36 * len(names.split())


@pytest.mark.parametrize(
    "names", ["rank_0 rank_1", "part-00000-of-2 part-00001-of-2", "0 1", "train.rank0 train.rank1"]
)
def test_files_that_differ_in_a_number_are_parts_of_one_run(tmp_path, names):
    for place, name in enumerate(names.split()):
        jsonl(tmp_path / f"{name}.jsonl", ROWS[place::2])
    assert figures(open_run(tmp_path, columns={"step": "step"})) == counted(ROWS)


def test_files_of_other_prompts_are_one_run_and_that_is_said(tmp_path):
    for name in ("sums", "products"):
        jsonl(tmp_path / f"{name}.jsonl", [row | {"prompt": f"{name} {row['prompt']}"} for row in ROWS])
    assert said(open_run(tmp_path), "files of one step are one run")


def test_runs_of_a_column_are_told_apart(opened):
    rows = [row | {"seed": seed} for row in ROWS for seed in (1, 2)]
    assert figures(opened(rows)) == counted(rows, ("step", "prompt", "seed"))


LINES = "".join(f"{json.dumps(row)}\n" for row in ROWS)
NESTED = "".join(f"{json.dumps(row)}\n" for row in of_groups(lambda own: {"rewards": own}))
TABLE = "step,prompt,reward\n" + "".join(f'{row["step"]},"{row["prompt"]}",{row["reward"]}\n' for row in ROWS)


TORN = """
    a.jsonl    => {"step": 1, "pro
    a.jsonl    => {"step": 1, "prompt": "é
    a.jsonl.gz => {"step": 1, "pro
    a.jsonl    => {"step": 9, "prompt": "a", "rewards": [1
    a.csv      => 2,What
    a.csv      => 2,"What is
"""


@pytest.mark.parametrize(("name", "torn"), lines(TORN))
def test_a_last_row_that_is_not_whole_is_said_and_the_rest_is_read(tmp_path, name, torn):
    whole = TABLE if "csv" in name else NESTED if "rewards" in torn else LINES
    content = (whole + torn).encode()[: -1 if "é" in torn else None]
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    run = open_run(path)
    assert figures(run) == counted(ROWS) and sum("the last row is not whole" in doubt for doubt in run.doubts) == 1


def test_a_damaged_row_before_the_last_is_refused(tmp_path):
    for name, content in (
        ("a.jsonl", LINES.replace("}\n", "\n", 1)),
        ("a.csv", TABLE + "2,What\n"),
        ("b.csv", TABLE.replace('?"', "?", 1)),
        ("b.jsonl", '{"step": 1, "pro'),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(RecordError, match="line"):
            open_run(tmp_path / name)


def test_a_file_of_half_a_row_is_left_out_beside_others(tmp_path):
    for step in range(3):
        jsonl(tmp_path / f"{step}.jsonl", [row for row in ROWS if row["step"] == step])
    (tmp_path / "3.jsonl").write_text('{"step": 3, "pro')
    run = open_run(tmp_path)
    assert figures(run) == counted(ROWS) and said(run, "the last row is not whole")


def twice(order):
    """Return rows of 8 prompts a step, of which two are drawn twice, in the ``order`` of the groups of a step."""
    return [
        row | {"prompt": row["prompt"].replace("8", "0").replace("9", "1"), "draw": row["prompt"]}
        for step in range(4)
        for group in order([rollouts(1, 10, step=step)[4 * q : 4 * q + 4] for q in range(10)])
        for row in group
    ]


def test_a_prompt_that_was_drawn_again_in_a_step_is_another_group(opened):
    for order in (lambda groups: groups, lambda groups: groups[::-1]):
        rows = twice(order)
        run = opened(rows)
        assert figures(run) == counted(rows, ("step", "draw"))
        assert said(run, "8 prompts were drawn several times in a step")
        assert len(opened(rows, columns={"group": ""}).step) == 32


def test_a_group_of_rows_that_follow_each_other_stays_one_with_the_other_figure(opened):
    rows = twice(lambda groups: sorted(groups, key=lambda own: int(own[0]["prompt"][8]) % 8))
    run, other = opened(rows), opened(rows, columns={"group": "4"})
    assert figures(run) == counted(rows) and figures(other) == counted(rows, ("step", "draw"))
    dead, found = (f"{each.dead.mean():.0%}" for each in (other, run))
    assert said(run, f"--column group=4 makes groups of 4, and {dead} would be dead in place of {found}")


def test_steps_and_flags_in_an_object_of_a_row_are_found(opened):
    rows = [
        {
            "attributes": {"step": row["step"], "validate": late},
            "prompt": row["prompt"],
            "output": {"reward": row["reward"]},
        }
        for late in (False, True)
        for row in ROWS
    ]
    run = opened(rows)
    assert figures(run) == counted(ROWS) and said(run, "36 of 72 rows are of evaluations")


def test_runs_of_a_document_and_of_folders_are_told_apart_or_refused(tmp_path):
    (tmp_path / "runs.json").write_text(json.dumps({"grpo": ROWS, "dapo": ROWS}))
    run = open_run(tmp_path / "runs.json")
    assert len(run.step) == 18 and said(run, "rows of 2 runs or models")
    for name in ("grpo", "dapo"):
        jsonl(tmp_path / "logs" / name / "rollouts.jsonl", ROWS)
    with pytest.raises(RecordError, match="but folders: dapo, grpo; name one"):
        open_run(tmp_path / "logs")


REMEDIES = {
    **DOUBTED,
    **FORMATS,
    **COUNTS,
    **{name: turns(reward="all", **made) for name, (made, _) in TURNS.items()},
    "drawn again": twice(lambda groups: groups),
    "counts of another name": of_groups(lambda own: {"correct": int(sum(own)) + 1, "draws": 5}),
    "no name of a reward": renamed(ROWS, reward="pts"),
    "an empty name of a reward": renamed(ROWS, reward=""),
    "two values": [row | {"reward": row["reward"] * 2} for row in ROWS],
    "a step beside": [row | {"iteration": row["step"] // 2} for row in ROWS],
}


@pytest.mark.parametrize("name", REMEDIES)
def test_every_remedy_that_is_printed_is_accepted(opened, name):
    rows = REMEDIES[name]
    try:
        printed = opened(rows).doubts
    except RecordError as error:
        printed = [str(error)]
    for text in printed:
        for role, column in re.findall(r"(?:--column |as in )(\w+)=([^\s;,)]*)", text):
            if not column.isupper():
                opened(rows, columns={role: column})
        for column in re.findall(r"--reward ([^\s;,)=]+)", text):
            if not column.isupper():
                opened(rows, rewards=[column])
