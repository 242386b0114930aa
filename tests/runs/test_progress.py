import io
import json
import queue
import time

from rich.console import Console

from apportion.runs import progress as progress_module
from apportion.runs.progress import Display
from tests.cases import lines

RUNS = ["uniform, seed 0", "vip, seed 0"]
RECORDS = """
    uniform, seed 0 => {"rollouts": 0}
    uniform, seed 0 => {"rollouts": 50, "success": 0.25, "informative": 0.5}
    vip, seed 0     => {"rollouts": 100, "success": 0.5, "counts": [3, 9, 4]}
    uniform, seed 0 => {"rollouts": 100, "success": 0.75, "informative": 0.5}
"""


def shown(terminal, records=RECORDS, unit="rollouts"):
    written = io.StringIO()
    console = Console(file=written, force_terminal=terminal, width=160, highlight=False, soft_wrap=not terminal)
    told = queue.Queue()
    with Display(100, unit, console).training(told, RUNS):
        for name, record in lines(records):
            told.put((name, json.loads(record)))
        while not told.empty():
            time.sleep(0.01)
    return written.getvalue()


def test_without_a_terminal_each_finished_run_is_one_plain_line():
    text = shown(terminal=False)
    first, last = text.splitlines()
    assert first.startswith("150 of 200 rollouts, about ")
    assert first.endswith("vip, seed 0: finished, success 0.500, 3 to 9 rollouts a prompt")
    ended = "uniform, seed 0: finished, success 0.750, mixed groups 0.500"
    assert last == f"200 of 200 rollouts, about 0.0 minutes left; {ended}" and "\x1b" not in text


def test_progress_is_counted_in_the_unit_that_ends_a_run():
    """The other run, which took fewer rollouts, is as far as this one."""
    records = """
        uniform, seed 0 => {"step": 60, "rollouts": 900}
        uniform, seed 0 => {"step": 100, "rollouts": 1500, "mean_16": 0.5}
        vip, seed 0     => {"step": 100, "rollouts": 700}
    """
    first, last = shown(False, records, "step").splitlines()
    assert first.startswith("100 of 200 steps, about ")
    assert first.endswith("uniform, seed 0: finished, mean_16 0.500")
    assert last.startswith(("200 of 200 steps, starting", "200 of 200 steps, about 0.0"))


def test_without_a_terminal_a_long_run_prints_a_line_now_and_then(monkeypatch):
    monkeypatch.setattr(progress_module, "LINE_EVERY_SECONDS", 0.0)
    assert len(shown(terminal=False).splitlines()) == len(lines(RECORDS))


def test_on_a_terminal_there_are_bars():
    text = shown(terminal=True)
    assert "all runs" in text and "200/200" in text


def test_markup_is_printed_as_text():
    written = io.StringIO()
    Display(1, console=Console(file=written, soft_wrap=True)).say("[bold]plain[/bold] [/x]")
    assert written.getvalue() == "[bold]plain[/bold] [/x]\n"
