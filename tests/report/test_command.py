"""The command: a page, tables or JSON; wrong input ends with code 2 and one line."""

import errno
import os
import stat
from dataclasses import replace

import numpy as np
import pytest

from apportion.records import write_record
from apportion.report import page_file
from tests.commands import parsed, printed, refuse_all, refused
from tests.report.builders import make_record, make_study, make_vote

pytest.importorskip("pyarrow")


@pytest.fixture
def log(tmp_path):
    write_record(make_record(steps=4, prompts=4), tmp_path / "log")
    return tmp_path / "log"


def test_a_page_is_written_and_summed_up(tmp_path, log):
    out = tmp_path / "page.html"
    study, vote = make_study(tmp_path / "study"), make_vote(tmp_path / "answers.jsonl")
    said = printed("report", log, study, vote, "--out", out)
    assert "of 100 rollouts were in dead groups" in said and f"Written to {out}" in said
    assert out.read_text().startswith("<!doctype html>")


def test_rules_are_replayed_by_name(tmp_path):
    write_record(make_record(steps=40, prompts=8), tmp_path / "log")
    given = "report", tmp_path / "log"
    tables = parsed(*given, "--rules", "vip,mixed", "--rules", "inverse_variance")["tables"]
    rules, choices = (tables[f"{kind} replayed on log"] for kind in ("Rules", "Choices"))
    assert [each["rule"] for each in rules] == ["as recorded", "vip", "inverse_variance"]
    assert [each["choice"] for each in choices] == ["shuffled", "mixed"]
    listed = parsed(*given, "--rules", "vip", "mixed", "inverse_variance")
    assert listed["tables"] == tables, "rules are listed as in apportion replay"
    assert parsed(*given, "--rules", "vip,")
    wrong = """
        mixed        => exists, got mixed
        --rules ,    => rules must name at least one rule
        --rules vipp => a rule must have a known name
    """
    refuse_all(wrong, *given)


def test_json_is_one_object_and_nothing_else(tmp_path, log, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert parsed("report", log).keys() == {"runs", "notes", "tables", "charts"}
    assert not (tmp_path / "report.html").exists()


def test_a_page_replaces_nothing_but_a_page(tmp_path, log, table, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    (tmp_path / "link").symlink_to("page.html")
    wrong = f"""
        --out pipe    => must be a file, got
        --out link    => must be a file, got
        --out .       => must be a file, got
        --out run.csv => the page must be another file than the runs
        --out {"x" * 300} => the page cannot be written
        --out missing/report.html => the folder of the page must exist
    """
    refuse_all(wrong, "report", log, table("0,a,1\n0,a,0\n"))
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode) and (tmp_path / "link").is_symlink()
    assert (tmp_path / "run.csv").read_text().startswith("step")


def test_a_page_that_cannot_be_written_is_refused_without_the_name_of_its_draft(tmp_path, monkeypatch):
    def fail(path, content):
        raise PermissionError(errno.EACCES, "Permission denied", str(path.with_name(".draft.unfinished")))

    monkeypatch.setattr(page_file, "write_whole", fail)
    with pytest.raises(
        ValueError, match=r"the page cannot be written to .*page.html \(Permission denied\); name another"
    ):
        page_file.write_page(tmp_path / "page.html", "")


@pytest.fixture
def table(tmp_path):
    """Return a function that writes rows of a step, a prompt and a reward, and returns their file."""

    def write(rows):
        (tmp_path / "run.csv").write_text(f"step,prompt,reward\n{rows}")
        return tmp_path / "run.csv"

    return write


def test_a_run_without_two_rewards_in_a_group_is_not_said_to_waste_nothing(table):
    found = printed("report", table("0,a,1\n0,b,0\n1,a,1\n"), "--json")
    assert "no group has two rewards" in found and "0 of 100" not in found and "0% of groups" not in found


def test_negative_rewards_are_never_shown_as_shares(table):
    rows = "".join(f"{step},a,{reward}\n" for step in range(8) for reward in (1, 0.5, -1))
    found = printed("report", table(rows), "--json")
    assert "0.167" in found and "17%" not in found and "16.7%" not in found


def test_rollouts_outside_the_loss_are_mentioned(tmp_path):
    record = make_record(steps=4, prompts=4)
    kept = np.arange(len(record.reward)) > 4
    write_record(replace(record, kept=kept), tmp_path / "log")
    assert f"5 of {len(kept)} rollouts were not in the loss." in printed("report", tmp_path / "log", "--json")


def test_graded_rewards_are_no_success_and_have_no_empty_charts(table):
    rows = "".join(f"{step},a{q},{0.1 * (step + q + k)}\n" for step in range(8) for q in range(3) for k in range(4))
    found = printed("report", table(rows), "--json")
    shown = found.lower().replace("predicted success", "").replace('"success": {', "")
    assert "mean reward of the rollouts" in shown and "success" not in shown
    assert "all right" not in found and "all wrong" not in found


def test_prompts_with_rewards_above_1_have_a_mean_and_no_share(table):
    rows = "".join(f"{step},a{q},{100 * q - 50 * (q + k == 1)}\n" for step in (0, 1) for q in range(3) for k in (0, 1))
    tables = parsed("report", table(rows))["tables"]
    assert tables["Prompts of run with the most rollouts in dead groups"] == [
        {"prompt": "a2", "rollouts": "4", "in dead groups": "4", "mean reward": "200"}
    ]


def test_the_page_begins_with_the_health_of_the_run_and_what_it_cost(tmp_path):
    record = make_record(steps=8, prompts=4)
    write_record(replace(record, written=3600.0 * record.step), tmp_path / "log")
    [run] = parsed("report", tmp_path / "log", "--price-per-hour", 30)["runs"]
    cost, health = run["decisions"]
    assert cost.startswith("Cost: 240.00 for 8.0 hours; ") and "dead groups, by their" in cost
    assert health.startswith("Health: no sign of sickness in")
    page = tmp_path / "page.html"
    printed("report", tmp_path / "log", "--out", page, "--price-per-hour", 30)
    assert "Cost: 240.00 for 8.0 hours; " in page.read_text()
    write_record(replace(record, written=np.full(len(record.step), np.nan)), tmp_path / "other")
    given = ["report", tmp_path / "other", "--json", "--price-per-hour"]
    assert "Cost: unknown" in printed(*given, 30)
    assert "price_per_hour must be at least 0, got -1.0" in refused(*given, -1)
