"""The command: a page, tables or JSON; wrong input ends with code 2 and one line; a run is followed to a clean end."""

import json
import signal
import subprocess
import sys
import threading
import time

import pytest
from typer.testing import CliRunner

from apportion.cli import app
from apportion.records import write_record
from apportion.report import follow
from tests.report.builders import make_record, make_study, make_vote, write_run

pytest.importorskip("pyarrow")


def invoke(*arguments):
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


@pytest.fixture
def log(tmp_path):
    write_record(make_record(steps=4, prompts=4), tmp_path / "log")
    return tmp_path / "log"


def test_a_page_is_written_and_summed_up(tmp_path, log):
    out = tmp_path / "page.html"
    found = invoke(log, make_study(tmp_path / "study"), make_vote(tmp_path / "answers.jsonl"), "--out", out)
    assert found.exit_code == 0, found.output
    assert "of 100 rollouts were in groups that taught nothing" in found.output and f"Written to {out}" in found.output
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_rules_are_replayed_by_name(tmp_path):
    write_record(make_record(steps=40, prompts=8), tmp_path / "log")
    found = invoke(tmp_path / "log", "--rules", "vip,mixed", "--rules", "inverse_variance", "--json")
    charts = json.loads(found.stdout)["charts"]
    assert [each["name"] for each in charts["rules_1"]["series"]] == ["vip", "inverse_variance"]
    assert [each["name"] for each in charts["choices_1"]["series"]] == ["mixed"]
    unknown = invoke(tmp_path / "log", "--rules", "vipp")
    assert unknown.exit_code == 2 and "a rule must have a known name" in unknown.output


def test_json_is_one_object_and_nothing_else(tmp_path, log, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = invoke(log, "--json")
    assert json.loads(found.stdout).keys() == {"runs", "notes", "tables", "charts"}
    assert not (tmp_path / "report.html").exists()


def test_tables_are_printed_as_text(tmp_path, log, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = invoke(log, "--text").stdout
    assert "Groups that were all wrong" in text and "predicted  observed" in text
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--text", "--json"], "leave one out"),
        (["--timeout", "1"], "need --refresh"),
        (["--refresh", "1", "--text"], "leave one out"),
        (["--refresh", "0"], "refresh must be a positive number"),
        (["--refresh", "nan"], "refresh must be a positive number"),
        (["--out", "missing/folder/report.html"], "No such file or directory"),
    ],
)
def test_options_that_do_not_go_together_are_refused(log, options, problem, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = invoke(log, *options)
    assert found.exit_code == 2 and problem in found.output and len(found.output.strip().splitlines()) == 1


def test_what_is_no_run_is_refused_in_one_line(tmp_path):
    (tmp_path / "notes.jsonl").write_text("hello\n", encoding="utf-8")
    for path in (tmp_path / "missing", tmp_path / "notes.jsonl"):
        found = invoke(path)
        assert found.exit_code == 2 and len(found.output.strip().splitlines()) == 1


def test_a_run_is_followed_until_a_step(tmp_path):
    run, out = tmp_path / "run", tmp_path / "page.html"
    write_run(run, 3)
    lengths = iter([3, 6, 9])  # nothing changes at the first look
    waits = []

    def wait(seconds):
        waits.append(seconds)
        (run / "metrics.jsonl").unlink()
        run.rmdir()
        write_run(run, next(lengths))

    reports = [
        (report.last_step, "refresh" in out.read_text("utf-8")) for report in follow([run], out, 5, 9, wait=wait)
    ]
    assert [step for step, _ in reports][-2:] == [6, 9] and all(refreshes for _, refreshes in reports)
    assert waits == [5, 5, 5]
    assert 'http-equiv="refresh"' not in out.read_text("utf-8")


def test_following_ends_after_its_time(tmp_path, log):
    started = time.monotonic()
    reports = list(follow([log], tmp_path / "page.html", 0.05, timeout=0.3))
    assert len(reports) == 1 and 0.3 <= time.monotonic() - started < 5


def test_ctrl_c_ends_it_with_its_code_and_a_whole_page(tmp_path, log):
    out = tmp_path / "page.html"
    command = [sys.executable, "-m", "apportion", "report", str(log), "--out", str(out), "--refresh", "0.1"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    ) as process:
        killer = threading.Timer(60, process.kill)
        killer.start()
        assert "step 3" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
        killer.cancel()
    assert process.returncode == 130 and errors == "Stopped.\n"
    assert out.read_text("utf-8").endswith("</html>\n") and not list(tmp_path.glob(".*unfinished"))
