"""``apportion import``: write a run that another tool recorded as a rollout log."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from apportion.cli.errors import usage_errors
from apportion.cli.lines import doubt_lines
from apportion.cli.options import AsJson, Columns, Rewards, command_of, pairs_of
from apportion.records import RecordError, check_new_folder, write_record
from apportion.records.importing import ImportSummary, import_run
from apportion.runs.waiting import waiting


def import_(
    sources: Annotated[list[Path], typer.Argument(help="Files or folders of one run.", show_default=False)],
    out: Annotated[Path, typer.Option(help="A new folder for the rollout log.", show_default=False)],
    reward: Rewards = None,
    column: Columns = None,
    as_json: AsJson = False,
) -> None:
    """Write a run of another tool as a rollout log.

    Runs of TRL, verl, prime-rl and plain tables are read. The command says what it read.
    """

    with usage_errors(RecordError, ValueError), waiting("reading the run"):
        check_new_folder(out)
        record, found = import_run(sources, reward or [], pairs_of(column, "--column"))
        write_record(record, out)
    content = asdict(found) | {"doubts": list(record.doubts)}
    typer.echo(json.dumps(content) if as_json else _text(found, record.doubts, out))


def _text(found: ImportSummary, doubts: tuple[str, ...], out: Path) -> str:
    """Return in a few lines how many rows, rollouts, groups and prompts were read."""
    lines = [
        f"{found.format}: {found.rows:,} rows in {found.files:,} files",
        f"{found.rollouts:,} rollouts in {found.groups:,} groups of {found.prompts:,} prompts, "
        f"{found.without_reward:,} without a reward",
        *doubt_lines(doubts),
    ]
    if found.repeated:
        lines.append(f"{found.repeated:,} rows left out: TRL wrote the same rollouts again at a later step")
    if found.left:
        lines.append(f"files not read: {len(found.left):,}, such as {found.left[0]}")
    return "\n".join([*lines, f"written to {out}"])


import_command = command_of(import_)
