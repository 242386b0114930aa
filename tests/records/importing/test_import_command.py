"""``apportion import``, and the options for columns of all commands."""

import re

import pytest

from apportion.records import open_run
from tests.commands import parsed, printed, refused
from tests.records.importing.tables import comma_separated, jsonl, rollouts


def test_the_command_prints_one_json_object_and_takes_other_columns(tmp_path):
    path = comma_separated(tmp_path / "run.csv", [row | {"score": 0.5} for row in rollouts()])
    found = parsed("import", path, "--out", tmp_path / "log", "--column", "reward=score")
    assert found["rows"] == found["rollouts"] == 36 and found["ignored"] == [] and found["files"] == 1
    assert set(open_run(tmp_path / "log").reward) == {0.5}


def test_wrong_options_end_with_one_line(tmp_path):
    path = jsonl(tmp_path / "run.jsonl", rollouts())
    for extra in (["--column", "reward"], ["--reward", "none"], ["--reward", "reward=x"]):
        refused("import", path, "--out", tmp_path / "log", *extra)
        assert not (tmp_path / "log").exists()


COMMANDS = """diagnose --json
replay --rules uniform --json
report --json
forecast --json"""


@pytest.mark.parametrize("command", COMMANDS.splitlines())
def test_every_command_takes_the_reward_and_the_columns_of_a_table(tmp_path, command):
    command = command.split()
    rows = [{"epoch": row.pop("step"), "other": 1 - row["reward"], "spare": "x", **row} for row in rollouts()]
    renamed = jsonl(tmp_path / "renamed.jsonl", rows)
    plain = jsonl(tmp_path / "plain.jsonl", [row | {"step": row["epoch"], "reward": row["other"]} for row in rows])
    found = []
    for path, extra in ((renamed, ["--reward", "other", "--column", "step=epoch"]), (plain, [])):
        said = printed(*command, path, *extra)
        found.append(re.sub(r'_seconds": \{[^}]*\}', "", said.replace(path.stem, "run")))
    assert len({re.sub("not read: [a-z, ]+", "", each) for each in found}) == 1
    wrong = refused(*command, renamed, "--reward", "speed", "--column", "step=epoch")
    assert "must have the reward column speed" in wrong


def test_options_for_columns_are_refused_where_nothing_reads_them(tmp_path):
    log = tmp_path / "log"
    path = jsonl(tmp_path / "run.jsonl", rollouts())
    printed("import", path, "--out", log)
    for command in (["diagnose", log], ["forecast", log]):
        assert "leave" in refused(*command, "--reward", "speed")
