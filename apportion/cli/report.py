"""``apportion report``: runs and votes on one page, or as JSON."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from apportion.allocators import ALLOCATORS
from apportion.cli.errors import usage_errors
from apportion.cli.options import Columns, Outcome, Rewards, command_of, pairs_of, several
from apportion.cli.replay import rules_of
from apportion.records import RunRecord, open_run
from apportion.replay import Replay, replay
from apportion.report import json_of, page_of, read_sources, report_of
from apportion.report.page_file import check_place, write_page
from apportion.runs.waiting import waiting
from apportion.selection import SELECTORS
from apportion.untrusted import one_line


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN [RUN]",
            help="Rollout logs, imported logs, group counts, lab studies, output of TRL, or answers of votes.",
        ),
    ],
    reward: Rewards = None,
    column: Columns = None,
    outcome: Outcome = None,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and write no page.")] = False,
    advice: Annotated[
        bool, typer.Option("--advice", help="Add what would have helped, which takes seconds for a long run.")
    ] = False,
    rules: Annotated[
        list[str] | None,
        typer.Option("--rules", metavar="RULE...", help="Add what these rules would have done, such as vip mixed."),
    ] = None,
    price_per_hour: Annotated[
        float | None, typer.Option(help="The price of an hour of all GPUs of a run, to say what it cost.")
    ] = None,
) -> None:
    """Show runs and votes side by side on one page.

    It is HTML that needs no network.
    """

    with usage_errors(ValueError, OSError):
        names = several(rules)
        if rules:  # as in apportion replay, further rules may follow without an option
            further = [run for run in runs if str(run) in (ALLOCATORS | SELECTORS) and not run.exists()]
            runs, names = [run for run in runs if run not in further], [*names, *map(str, further)]
        replayed = partial(_replayed, names) if rules else None
        opened = partial(open_run, rewards=reward or [], columns=pairs_of(column, "--column"), outcome=outcome)
        if not as_json:
            check_place(out, runs)
        with waiting("reading the runs"):
            shown = report_of(read_sources(runs, advice, replayed, opened), price_per_hour)
        if as_json:
            typer.echo(json_of(shown))
            return
        write_page(out, page_of(shown))
    for name, summary in zip(shown.names, shown.summaries, strict=True):
        typer.echo(one_line(f"{name}: {summary}"))
    typer.echo(f"Written to {out}")


def _replayed(names: list[str], record: RunRecord) -> Replay:
    size = max(1, round(float(record.asked.mean())))
    return replay(record, rules_of(names, {}, size))


report_command = command_of(report)
