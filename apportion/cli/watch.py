"""``apportion watch``: follow the rollout log of a run while it trains."""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from apportion.cli.errors import FAILED, fail, usage_errors
from apportion.cli.lines import doubt_lines

if TYPE_CHECKING:
    from apportion.records import LogNews
    from apportion.records.step_summary import StepSummary

COLUMNS = {
    **{"step": 7, "success": 7, "rollouts": 8, "tokens": 10, "all right": 9, "all wrong": 9},
    **{"mixed": 6, "hard": 6, "middle": 6, "easy": 6, "per hour": 10},
}
"""The columns with their widths."""

MOST_WAIT_SECONDS = 600.0
"""How long a log without a step is waited for, if no timeout is given."""
SILENT_SECONDS, SILENT_STEPS = 60.0, 5.0
"""A log is silent if no step came for so long, and for so many times as long as its steps take."""


def watch(
    log: Annotated[Path, typer.Argument(help="The folder of the rollout log. It need not exist yet.")],
    until_step: Annotated[int | None, typer.Option(min=0, help="End when this step is there.")] = None,
    timeout: Annotated[float | None, typer.Option(min=0, metavar="SECONDS", help="End after so long.")] = None,
    every: Annotated[float, typer.Option(min=0.05, metavar="SECONDS", help="How often to look for new steps.")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each step, on its line.")] = False,
) -> None:
    """Follow a rollout log while a run writes it.

    Each step has a row: its mean reward, rollouts and tokens; the groups in which all rollouts were right, or all
    wrong; the share of the others; and the rollouts for each hard, middle and easy prompt, which have a mean reward
    below 0.25, up to 0.75, and above. The last column is the rollouts per hour at the pace of the step. Ctrl-C ends it.
    """
    from apportion.records import RecordError, follow  # noqa: PLC0415 - slow to import
    from apportion.runs.live_table import ROWS, LiveTable  # noqa: PLC0415

    started, seen, said = time.monotonic(), _Seen(), ""
    bound = MOST_WAIT_SECONDS if timeout is None else timeout
    with usage_errors(RecordError), LiveTable(tuple(COLUMNS), tuple(COLUMNS.values())) as table:
        for news in follow(log, every_seconds=every, timeout_seconds=timeout, until_step=until_step):
            if news.removed_from is not None and not as_json:
                table.say(
                    f"Steps from {news.removed_from} on were removed, because the run resumed from an earlier one."
                )
            for doubt in seen.new_doubts(news):
                typer.echo("\n".join(doubt_lines([doubt])), err=True) if as_json else table.say(f"? {doubt}")
            new, note = seen.add(news), seen.note(log)
            if as_json:
                typer.echo("".join(json.dumps(asdict(step)) + "\n" for step in seen.steps[-new:] if new), nl=False)
            else:
                table.show(seen.rows(max(new, ROWS)), new, note)
            if note != said and (as_json or not table.drawn) and not new:
                typer.echo(note, err=True)
                said = note
            if not seen.steps and time.monotonic() - started >= bound:
                raise RecordError(
                    f"a rollout log must have a step, got none in {log} after {bound:g} s; check the path"
                )
    if until_step is not None and seen.steps[-1].step < until_step:
        problem = f"{log} must have step {until_step}, got {seen.steps[-1].step} after {bound:g} s; raise --timeout"
        raise typer.Exit(fail(problem, FAILED))


class _Seen:
    """The steps of a log so far, and when the last one came."""

    def __init__(self) -> None:
        self.steps: list[StepSummary] = []
        self._came = time.time()
        self._doubts: set[str] = set()

    def new_doubts(self, news: LogNews) -> list[str]:
        """Return what may be read otherwise in the new steps and was not said yet, with whatever figures."""
        found = {re.sub(r"\d", "", doubt): doubt for record in news.records for doubt in record.doubts}
        new = [doubt for words, doubt in found.items() if words not in self._doubts]
        self._doubts |= found.keys()
        return new

    def add(self, news: LogNews) -> int:
        """Take up what changed. Return the number of new steps, which are the last ones."""
        from apportion.records.step_summary import summaries  # noqa: PLC0415

        if news.removed_from is not None:
            self.steps = [step for step in self.steps if step.step < news.removed_from]
        new = [step for record in news.records for step in summaries(record)]
        self.steps += new
        if new:
            self._came = new[-1].written or time.time()
        return len(new)

    def rows(self, last: int) -> list[tuple[str, ...]]:
        """Return the cells of the ``last`` steps."""
        shown, before = self.steps[-last:], [None, *self.steps][-last - 1 :]
        return [_cells(*pair) for pair in zip(shown, before, strict=False)]

    def note(self, log: Path) -> str:
        """Return what to say about the wait for the next step."""
        if not self.steps:
            return f"Waiting for the first step in {log}."
        times = [step.written for step in self.steps[-20:] if step.written is not None]
        paces = sorted(later - earlier for earlier, later in pairwise(times))
        pace = paces[len(paces) // 2] if paces else 0.0
        silent = time.time() - self._came
        if silent < max(SILENT_SECONDS, SILENT_STEPS * pace):
            return f"Following {log}."
        return f"No step for more than {_age(silent)}; the run has ended, or it hangs."


def _cells(step: StepSummary, before: StepSummary | None) -> tuple[str, ...]:
    """Return the row of a step. Its pace is that since the step ``before`` it."""
    pace = None
    if before is not None and step.written is not None and before.written is not None and step.written > before.written:
        pace = 3600 * step.rollouts / (step.written - before.written)
    return (
        str(step.step),
        _number(step.success, ".3f"),
        f"{step.rollouts:,}",
        _number(step.tokens, ",d"),
        str(step.all_right),
        str(step.all_wrong),
        _number(step.mixed, ".0%"),
        *(_number(asked, ".1f") for asked in (step.hard, step.middle, step.easy)),
        _number(pace, ",.0f"),
    )


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _age(seconds: float) -> str:
    """Return a time in its largest unit.

    >>> _age(61), _age(7300)
    ('1 min', '2 h')
    """
    unit, name = next((each for each in ((86400, "days"), (3600, "h"), (60, "min")) if seconds >= each[0]), (1, "s"))
    return f"{seconds // unit:.0f} {name}"
