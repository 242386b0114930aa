"""Nothing is silently wrong: each way to read a table otherwise is said, with its figure, and a flag chooses it."""

import json
import re

import numpy as np
import pytest

from apportion.records import open_run, write_record
from apportion.records.importing import import_run
from tests.cases import lines
from tests.records.importing.tables import jsonl, renamed, rollouts, said, without


def dead(run):
    return run.dead.sum() / (run.dead.sum() + run.mixed.sum())


def added(form, **given):
    """Return rollouts with the columns of ``form``: ROW counts rows, PLACE those of a group; NEXT is the step after."""
    rows = []
    for n, row in enumerate(rollouts(**given)):
        values = {"ROW": n, "PLACE": n % 4, "PROMPT": row["prompt"], "STEP": row["step"], "NEXT": row["step"] + 1}
        rows.append(row | json.loads(re.sub("|".join(values), lambda m, own=values: str(own[m[0]]), form)))
    return rows


ADDED = """
    images of one text => {"images": ["PROMPT.png"], "prompt": "What is shown?"}
    answers that differ in every row => {"target": "ROW"}
    ids of rows        => {"id": ROW}
    ids of one text    => {"id": "PROMPT", "prompt": "same"}
    models of rows     => {"run_id": ROW}
    two steps          => {"step": NEXT, "global_step": STEP}
    turn               => {"turn": PLACE}
    turn_number        => {"turn_number": PLACE}
    groups of rows     => {"group_idx": PLACE}
"""
DRAWN = [row | {"draw": k} for step in range(6) for k in (0, 1) for row in rollouts(steps=1, step=step)]
GOLDS = renamed(without("tokens", rollouts(input="Find x.", output="so")), prompt="gts", reward="score")
RESTART = [
    row | {"id": (row["step"] + n // 4) % 3, "prompt": f"{row['prompt']} {row['step'] % 2}"}
    for n, row in enumerate(rollouts(steps=6))
]
DOUBTED = {name: added(form) for name, form in lines(ADDED)} | {
    "known answers of one text": GOLDS,
    "ids that restart": RESTART,
    "rows twice": [row for row in rollouts(steps=8) for _ in (0, 1)],
    "prompts twice": DRAWN,
    "models": [row | {"model": name} for row in rollouts() for name in ("base", "tuned")],
    **{
        name: [row | {name: split} for split in ("train", "eval/sums") for row in rollouts()]
        for name in ("split", "mode")
    },
    "turns that do not count": [row | {"turn": n % 3} for n, row in enumerate(rollouts())],
    "a selection": rollouts(size=2, group_rewards=[0, 1, 0, 1]),
}
READINGS = """
    known answers of one text => 9 4 3 => known answers|3 prompts|by text alone 1|--column gold= => gold= => 3 12 1
    images of one text => 9 4 3 => images|--column gold= => gold= => 3 12 1
    answers that differ in every row => 9 4 3 => torn => => 9 4 3
    ids that restart => 18 4 6 => id is the place in a batch|6 in all|by id there are 3 => prompt= => 18 4 3
    ids of rows      => 9 4 3  => id differs in every row => prompt= => 36 1 36
    ids of one text  => 9 4 3  => texts have several ids|by text there are 1|--column id= => id= => 3 12 1
    rows twice       => 24 8 3 => is there 2 times => => 24 8 3
    prompts twice    => 18 8 3 => 4 at a time, 2 times in a step: one group|group=4 => group=4 => 36 4 3
    models           => 18 4 3 => rows of 2 runs|18 in all|--column run= joins them to 9 => run= => 9 8 3
    models of rows   => 9 4 3  => differs within groups|not read => => 9 4 3
    two steps        => 9 4 3  => global_step differs|--column step=global_step => step=global_step => 9 4 3
    split            => 9 4 3  => 36 of 72 rows are of evaluations => split= => 18 4 3
    mode             => 9 4 3  => 36 of 72 rows are of evaluations => split= => 18 4 3
    turn             => 9 1 3  => is the turn of a rollout => turn= => 9 4 3
    turn_number      => 9 1 3  => is the turn of a rollout => turn= => 9 4 3
    turns that do not count => 9 4 3 => turn is not read: if a rollout has a row a turn => => 9 4 3
    groups of rows   => 9 4 3  => the column of groups differs in every => => 9 4 3
    a selection      => 9 2 3  => group_rewards holds 4 values where groups have 2 rows|selection => => 9 2 3
"""
"""Of each: groups, rollouts in each and prompts, what is said, another column, and the groups that this gives."""


@pytest.mark.parametrize(("name", "groups", "words", "column", "others"), lines(READINGS))
def test_what_may_be_read_otherwise_is_said_and_can_be_chosen(opened, name, groups, words, column, others):
    run = opened(DOUBTED[name])
    other = opened(DOUBTED[name], columns=dict([column.split("=")] if column else []))
    for found, expected in ((run, groups), (other, others)):
        number, size, prompts = map(int, expected.split())
        assert found.trials.tolist() == [size] * number and len(set(found.ids)) == len(found.ids) == prompts
    assert said(run, *words.split("|")) and not (column and said(other, *words.split("|")))
    if size == 1:
        assert said(other, "no prompt has two rollouts in a step")


QUIET = {
    "nothing": rollouts(),
    "equal rewards": [row | {"correct": bool(row["reward"])} for row in rollouts()],
    "equal steps": added('{"global_step": STEP}'),
    "even groups": [{"step": s, "id": q, "reward": k % 2} for s in range(6) for q in range(6) for k in range(8)],
    "evaluations alone": rollouts(split="eval"),
}


@pytest.mark.parametrize("name", QUIET)
def test_what_is_clear_is_not_doubted(opened, name):
    run = opened(QUIET[name])
    assert run.doubts == ("columns not read: global_step",) * (name == "equal steps")
    assert len(run.reward) == len(QUIET[name])
    other = opened([row | {"model": "base", "x": [1, 2]} for row in QUIET[name]])
    assert [doubt.partition(":")[0] for doubt in other.doubts] == ["read as", "columns not read"]


def test_the_trained_reward_goes_before_the_verdict_and_the_other_figure_is_said(opened, tmp_path):
    rows = [row | {"correct": True, "reward": row["reward"] + row["tokens"] / 100} for row in rollouts()]
    run = opened(rows)
    assert dead(run) == 0 and said(run, "the reward is reward (0%", "by correct 100%", "--reward correct")
    verdict = opened(rows, rewards=["correct"])
    assert dead(verdict) == 1 and not said(verdict, "the reward is")
    rows[0] |= {"reward": None}
    write_record(opened(rows), tmp_path / "log")
    for reward in ("reward", "correct"):  # the log says what the table does
        table, log = opened(rows, rewards=[reward]), open_run(tmp_path / "log", [reward])
        np.testing.assert_array_equal(log.reward, table.reward)
        assert said(log, "the reward is") == (reward == "reward")


@pytest.mark.parametrize("column", [{"score_norm": "speed"}, {"group": "speed"}, {"answer": "speed"}])
def test_a_column_that_is_named_is_read(opened, column):
    rows = [row | {"speed": place // 2} for place, row in enumerate(rollouts(steps=1))]
    run = opened(rows, columns=column)
    assert not said(run, "not read") and (run.trials.tolist() == [2] * 6 if "group" in column else True)
    assert said(opened(rows), "columns not read: speed")


def test_a_column_that_is_named_in_vain_is_refused(refuse):
    rows, vain = [row | {"many": 4} for row in rollouts()], {"trials": "many"}
    refuse("trials is not read from table of rollouts, got --column trials=many; leave", rows, columns=vain)
    refuse("the reward must be named once", rows, rewards=["reward"], columns={"correct": "reward"})


@pytest.mark.parametrize("late", [1, 150])
def test_a_column_that_the_first_rows_lack_is_read(opened, late):
    rows = rollouts(steps=20)
    for row in rows[:late]:
        del row["tokens"]
    run = opened(rows)
    assert np.isnan(run.tokens).sum() == late and not said(run, "tokens")


def test_an_answer_that_right_and_wrong_rollouts_share_is_the_known_one(opened):
    rows = rollouts(answer="7")
    run = opened(rows)
    assert (run.answer == -1).all() and said(run, "answer is no sample's answer", "9 of 9 groups", "--column answer=")
    assert (opened(rows, columns={"answer": "answer"}).answer >= 0).all()


def late(rows):
    rows.insert(20, rows.pop(2))
    return rows


SPREAD = {
    "one file twice": ([rollouts() * 2], 18, "first from 2 to 0: 2 runs in one"),
    "an epoch each": ([rollouts(size=8) * 25], 225, "25 runs in one"),
    "a resumed run": ([rollouts(), rollouts(steps=4)[12:]], 18, "2 runs in one, or a resumed one?"),
    "a file for each process": ([rollouts()[place::2] for place in (0, 1)], 9, "are one group; if these are several"),
    "processes one after the other": (
        [[row for place in range(4) for row in rollouts(prompts=6)[place::4]]],
        18,
        "are one group",
    ),
    "prompts split between processes": (
        [[row for q in range(3) for row in rollouts() if str(q) in row["prompt"]]],
        9,
        "",
    ),
    "files of one step": ([rollouts(steps=1, size=8)] * 2, 3, "2 files of one step: rows of one prompt at one step"),
    "rows that came late": ([late(rollouts(size=8))], 9, ""),
    "sorted by prompt": ([sorted(rollouts(steps=6), key=lambda row: row["prompt"])], 18, ""),
    "another run, of other prompts": (
        [rollouts(size=8) + [row | {"prompt": f"{row['prompt']} Again."} for row in rollouts(size=8)]],
        18,
        "first from 2 to 0, to other prompts: one run, whose steps have all",
    ),
    "random": ([[rollouts()[place] for place in np.random.default_rng(0).permutation(36)]], 9, ""),
}


@pytest.mark.parametrize("name", SPREAD)
def test_a_step_that_goes_back_is_a_run_again_only_if_its_groups_would_be_larger(tmp_path, name):
    files, groups, doubt = SPREAD[name]
    for place, rows in enumerate(files):
        jsonl(tmp_path / f"part{place}.jsonl", rows)
    run = open_run(tmp_path)
    assert len(run.step) == groups and (said(run, "step", doubt) if doubt else run.doubts == ())
    joined = open_run(tmp_path, columns={"group": ""})
    assert len(joined.step) == len(set(zip(joined.step.tolist(), joined.prompt.tolist(), strict=True)))


def test_lists_of_which_a_prompt_has_several_in_a_step_may_be_parts_of_a_reward(opened):
    rows = [without("reward", [row])[0] | {"rewards": [row["reward"], 1.0]} for row in rollouts()]
    assert said(opened(rows), "each list of 2 values is a group, and prompts have 4 of them in a step")
    assert not said(opened(rows[::4]), "each list of")


@pytest.mark.parametrize("names", [("train.jsonl", "eval.jsonl"), ("rollout/1.jsonl", "validation/1.jsonl")])
def test_files_of_an_evaluation_are_left_out_beside_others(tmp_path, names):
    for name in names:
        jsonl(tmp_path / name, rollouts())
    files = [tmp_path / name for name in names]
    run = import_run(files)[0]
    assert run.trials.tolist() == [4] * 9 and said(run, "36 of 72 rows are of evaluations", "--column split=")
    assert len(import_run(files, columns={"split": ""})[0].reward) == 72
    assert len(import_run(files[1:])[0].reward) == 36


def test_a_group_that_has_no_prompt_is_one_of_its_own(opened):
    rows = [row | {"group_idx": place // 4 % 3} for place, row in enumerate(rollouts())]
    run = opened(without("prompt", rows))
    assert run.trials.tolist() == [4] * 9 and len(set(run.ids)) == 9 and said(run, "no column names prompts")


def test_a_few_groups_of_several_times_the_usual_size_are_said(opened):
    rows = [*rollouts(steps=4), *(row | {"step": 9} for row in rollouts(steps=1, prompts=1, size=16))]
    assert said(opened(rows), "1 groups have up to 16 rollouts where most have 4")
    twice = [row | {"prompt": row["prompt"].replace("2", "1")} for row in rollouts(prompts=4)]
    assert said(opened(twice), "3 groups have up to 8 rollouts where most have 4")
    assert not opened([{"step": 0, "id": q, "correct": 0, "trials": 4 * (q == 0)} for q in range(3)]).doubts


@pytest.mark.parametrize("name", ["run.jsonl", "run.parquet"])
def test_the_order_of_keys_in_a_message_makes_no_other_prompt(opened, name):
    forms = ({"role": "user", "content": "2 + 2?"}, {"content": "2 + 2?", "role": "user"})
    run = opened([{"step": 0, "reward": place % 2, "prompt": [forms[place % 2]]} for place in range(4)], name)
    assert run.trials.tolist() == [4] and run.texts == ['[{"role": "user", "content": "2 + 2?"}]']


def test_rewards_of_two_values_are_verdicts_unless_they_are_named(opened):
    rows = [row | {"reward": 2 * row["reward"] - 1} for row in rollouts()]
    run = opened(rows)
    assert run.binary and said(run, "reward has the values -1 and 1", "--reward reward")
    kept = opened(rows, rewards=["reward"])
    assert set(kept.reward) == {-1.0, 1.0}
