"""``apportion watch``: follow the rollout log of a run while it trains."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from apportion.cli.errors import FAILED, fail, usage_errors
from apportion.cli.lines import doubt_lines
from apportion.cli.options import command_of
from apportion.diagnosis.phantoms import shaping_steps
from apportion.records import RecordError, follow
from apportion.records.step_summary import StepSummary, summaries
from apportion.scheduler.shaping import REMEDY, ShapingAlarm

COLUMNS = {
    **{"step": 5, "success": 7, "rollouts": 8, "tokens": 9, "right": 5, "wrong": 5},
    **{"mixed": 5, "hard": 5, "middle": 6, "easy": 5, "per hour": 8},
}
"""The columns and their widths, which add up to 80."""

ROWS = 40
"""Rows below each header."""

MOST_WAIT_SECONDS = 600.0
"""Default time limit, in seconds, for the first step of a log."""
SILENT_SECONDS, SILENT_STEPS = 60.0, 5.0
"""A log counts as silent after SILENT_SECONDS without a step, and after SILENT_STEPS times its slowest step."""


def watch(
    log: Annotated[Path, typer.Argument(help="The folder of the rollout log. It need not exist yet.")],
    until_step: Annotated[int | None, typer.Option(min=0, help="End when this step is there.")] = None,
    timeout: Annotated[float | None, typer.Option(min=0, metavar="SECONDS", help="End after so long.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each step, on its line.")] = False,
) -> None:
    """Follow a rollout log while a run writes it.

    Each step has a row: its mean reward, rollouts and tokens; the groups in which all rollouts were right, or all
    wrong; the share of the others; and the rollouts for each hard, middle and easy prompt, which have a mean reward
    below 0.25, up to 0.75, and above. The last column is the rollouts per hour at the pace of the step. Ctrl-C ends it.
    """

    bound = MOST_WAIT_SECONDS if timeout is None else timeout
    started, came, told = time.monotonic(), time.time(), set[str]()
    shown, wait_said, slowest = 0, False, 0.0
    last: StepSummary | None = None
    alarm = ShapingAlarm()
    with usage_errors(RecordError):
        for news in follow(log, timeout_seconds=timeout, until_step=until_step):
            if news.removed_from is not None:
                last, alarm = None, ShapingAlarm()
                line = f"Steps from {news.removed_from} on were removed, because the run resumed from an earlier one."
                typer.echo(line, err=as_json)
            for doubt in dict.fromkeys(doubt for record in news.records for doubt in record.doubts):
                if (words := re.sub(r"\d", "", doubt)) not in told:  # whatever its figures
                    typer.echo("\n".join(doubt_lines([doubt])), err=as_json)
                    told.add(words)
            for at, found in (each for record in news.records for each in shaping_steps(record)):
                if said := alarm.add(found, at):
                    typer.echo(f"SICK (shaping): {said}. {REMEDY}", err=as_json)
            for step in (step for record in news.records for step in summaries(record)):
                if not as_json and shown % ROWS == 0:
                    typer.echo(_line(COLUMNS))
                before = None if last is None else last.written
                seconds = 0.0 if before is None or step.written is None else step.written - before
                typer.echo(json.dumps(asdict(step)) if as_json else _line(_cells(step, seconds)))
                shown, last, wait_said, slowest = shown + 1, step, False, max(slowest, seconds)
                came = step.written or time.time()
            if not shown and not wait_said:
                typer.echo(f"Waiting for the first step in {log}.", err=True)
                wait_said = True
            if not shown and time.monotonic() - started >= bound:
                raise RecordError(
                    f"a rollout log must have a step, got none in {log} after {bound:g} s; check the path"
                )
            if not wait_said and time.time() - came > (most := max(SILENT_SECONDS, SILENT_STEPS * slowest)):
                typer.echo(f"No step for more than {most:.0f} s; the run has ended, or it hangs.", err=True)
                wait_said = True
    if until_step is not None and (last is None or last.step < until_step):
        got = "none" if last is None else last.step
        problem = f"{log} must have step {until_step}, got {got} after {bound:g} s; raise --timeout"
        raise typer.Exit(fail(problem, FAILED))


def _cells(step: StepSummary, seconds: float) -> list[str]:
    """Return the row of a step that took ``seconds``; unknown if that is not above 0."""
    return [
        str(step.step),
        _number(step.success, ".3f"),
        f"{step.rollouts:,}",
        _number(step.tokens, ",d"),
        str(step.all_right),
        str(step.all_wrong),
        _number(step.mixed, ".0%"),
        *(_number(asked, ".1f") for asked in (step.hard, step.middle, step.easy)),
        _number(3600 * step.rollouts / seconds if seconds > 0 else None, ",.0f"),
    ]


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _line(cells: Iterable[str]) -> str:
    return " ".join(cell.rjust(width) for cell, width in zip(cells, COLUMNS.values(), strict=True))


watch_command = command_of(watch)
