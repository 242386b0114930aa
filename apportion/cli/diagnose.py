"""``apportion diagnose``: what a recorded run wasted, what could have been known before, and what would help."""

from pathlib import Path
from typing import Annotated

import typer

from apportion.cli.diagnosis_screen import scalars_text, screen
from apportion.cli.diagnosis_text import diagnosis_text
from apportion.cli.errors import usage_errors
from apportion.cli.options import AsJson, Columns, Outcome, Rewards, command_of, read_run
from apportion.diagnosis import diagnose, health_of
from apportion.diagnosis.given import embedder_of, rates_of
from apportion.records import ScalarsOnlyError, scalars_at
from apportion.runs.json_text import json_text
from apportion.runs.waiting import waiting


def diagnosis(
    log: Annotated[Path, typer.Argument(help="A rollout log, or another recorded run.")],
    reward: Rewards = None,
    column: Columns = None,
    outcome: Outcome = None,
    embeddings: Annotated[
        str | None,
        typer.Option(
            help="minilm for the prompts' texts, or a .npy or .npz file [Q, d]: for predictors that read them."
        ),
    ] = None,
    rates: Annotated[
        Path | None, typer.Option(help="JSON lines with id and rate: known success rates, such as another model's.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Print all tables, and not the first screen only.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say what a recorded run wasted and what would help.

    Nothing is sampled. A sick run is told first, and is advised nothing else. The first screen has what decides;
    --full has all tables, --json all numbers. Files without rollouts are read, too: TRL's trainer state, events of
    TensorBoard, and histories of W&B.
    """

    with usage_errors(ValueError, OSError, ImportError), waiting(f"diagnosing {log}"):
        try:
            record = read_run(log, reward, column, outcome)
        except ScalarsOnlyError as error:
            scalars = error.scalars
            health = health_of(None, scalars)
            said = scalars_text(scalars, health)
            content = {"name": scalars.name, "source": scalars.source, "health": health}
            typer.echo(json_text(content, indent=1) if as_json else said)
            return
        found = diagnose(
            record,
            embedder=None if embeddings is None else embedder_of(embeddings, record),
            rates=None if rates is None else rates_of(rates, record),
            scalars=scalars_at(log) if log.is_dir() else None,
        )
    if as_json:
        typer.echo(json_text(found, indent=1))
    else:
        unread = embeddings is None and any(text is not None for text in record.texts)
        typer.echo(diagnosis_text(found) if full else screen(found, unread))


diagnose_command = command_of(diagnosis)
