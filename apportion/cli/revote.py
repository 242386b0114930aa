"""``apportion revote``: what another rule would have answered on the samples of a vote. No server is contacted."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apportion.cli.errors import usage_errors
from apportion.cli.lines import doubt_lines
from apportion.cli.options import Columns, Labels, RuleSettings, Target, pairs_of
from apportion.cli.vote import VoteCommand, json_fields, options_of_vote

if TYPE_CHECKING:
    from apportion.questions import Question

CHANGES = ("rule", "max_samples", "curtail", "extract", "equivalence", "equivalence_settings", "give_up", "weight")
"""The settings that decide how samples are counted, and not what is sampled."""


class RevoteCommand(VoteCommand):
    """The command, which gets its parameters and its function at first use because they are slow to import."""

    def make(self) -> Callable[..., None]:
        """Return ``revote`` with an option for each setting that may change, whose default is that of the vote."""
        own = list(signature(revote, eval_str=True).parameters.values())
        options = [each for name in CHANGES for each in options_of_vote(name)]
        changes = [each.replace(default=None, annotation=_or_none(each.annotation)) for each in options]
        ordered = (own[0], *changes, *(each for each in own[1:] if each.kind is not Parameter.VAR_KEYWORD))

        def revote_with_options(**given: Any) -> None:
            revote(**given)

        keyword = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in ordered]
        revote_with_options.__signature__ = signature(revote).replace(parameters=keyword)  # type: ignore[attr-defined]
        return revote_with_options


def revote(
    answers: Annotated[
        Path,
        typer.Argument(help="The .jsonl of the answers of a vote, with its samples beside it; or recorded answers."),
    ],
    target: Target = None,
    rule_settings: RuleSettings = None,
    questions: Annotated[Path | None, typer.Option(help="The questions, for gold answers of unfinished ones.")] = None,
    out: Annotated[Path | None, typer.Option(help="A new .jsonl for the new answers.")] = None,
    labels: Labels = None,
    column: Columns = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    **changes: Any,
) -> None:
    """Count the samples of a vote again by another rule. Nothing is requested.

    The answers that somebody else recorded are counted, too: an evaluation or a log with the answer of each sample.
    """
    from apportion.answers import AnswerFunctionError  # noqa: PLC0415
    from apportion.questions import read_questions  # noqa: PLC0415
    from apportion.toml import load  # noqa: PLC0415 - what voting needs is slow to import
    from apportion.vote.journal import settings_path  # noqa: PLC0415
    from apportion.vote.revote import revote as count_again  # noqa: PLC0415
    from apportion.vote.right import count_right, read_labels  # noqa: PLC0415

    with usage_errors(ValueError, ImportError, AnswerFunctionError):
        known: list[Question] | None = None if questions is None else read_questions(questions)
        rule_changes = load(None, rule_settings or [])
        if not settings_path(answers).exists() and answers.exists():
            changes |= {"labels": labels}
            _count_recorded(
                answers, pairs_of(column, "--column"), as_json, target, rule_changes, questions, out, changes
            )
            return
        if column:
            raise ValueError("the answers of a vote have fixed columns, got --column; leave it out")
        if changes["equivalence_settings"] is not None:
            changes["equivalence_settings"] = json_fields(changes["equivalence_settings"], "equivalence_settings")
        golds = None if labels is None else read_labels(labels)
        found = count_again(answers, known, out=out, target=target, rule_settings=rule_changes, **changes)
        if golds is not None:
            found = replace(found, right=count_right(found.ballots, golds, found.setup))
    typer.echo(found.to_json() if as_json else found.to_text(sys.stdout.isatty()))
    if found.wanting:
        typer.echo(
            f"{len(found.wanting)} questions want more samples; run the vote again with these settings and --resume to "
            "request only those",
            err=True,
        )


def _count_recorded(
    path: Path,
    columns: Mapping[str, str],
    as_json: bool,
    target: str | None,
    rule_settings: Mapping[str, Any],
    questions: Path | None,
    out: Path | None,
    changes: Mapping[str, Any],
) -> None:
    """Count the answers of another tool. Raises ValueError for options that need the texts of samples."""
    from apportion.records import open_run  # noqa: PLC0415 - slow to import
    from apportion.vote.recorded import revote_record  # noqa: PLC0415

    given = {name for name, value in {**changes, "questions": questions, "out": out}.items() if value is not None}
    if unread := sorted(given - {"rule", "max_samples", "curtail"}):
        raise ValueError(
            f"recorded answers take --rule, --set, --target, --max-samples and --curtail, got {unread[0]}; leave it out"
        )
    kept = {name: changes[name] for name in ("rule", "max_samples") if changes[name] is not None}
    if changes["curtail"] is not None:
        kept["curtail"] = changes["curtail"]
    record = open_run(path, columns=columns)
    found = revote_record(record, target=target, rule_settings=rule_settings, **kept)
    lines = [] if as_json else doubt_lines(found.doubts)
    typer.echo(found.to_json() if as_json else "\n".join([*lines, found.to_text(sys.stdout.isatty())]))


def _or_none(annotation: Any) -> Any:
    """Return the annotation of an option that may be left out."""
    return Annotated[(annotation.__origin__ | None, *annotation.__metadata__)]
