"""``apportion revote``: what another rule would have answered on the samples of a vote. No server is contacted."""

from __future__ import annotations

from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer

from apportion.answers import AnswerFunctionError
from apportion.cli.errors import usage_errors
from apportion.cli.lines import doubt_lines
from apportion.cli.options import AsJson, Columns, Labels, RuleSettings, Target, command_of, json_fields, read_run
from apportion.cli.vote import vote_options
from apportion.questions import Question, read_questions
from apportion.report.votes import is_vote
from apportion.toml import load
from apportion.vote.recorded import revote_record
from apportion.vote.revote import revote as count_again
from apportion.vote.right import read_labels

CHANGES = ("rule", "max_samples", "curtail", "extract", "equivalence", "equivalence_settings", "give_up", "weight")
"""Settings that decide how samples are counted. They do not change what is sampled."""

OF_RECORDED = ("rule", "max_samples", "curtail")
"""The settings among ``CHANGES`` that need no completions, only recorded answers."""


def revote_options(own: list[Parameter]) -> list[Parameter]:
    """Return an option for each setting of ``CHANGES``, with the vote's own value as default, and the other options."""
    changes = {each.name: each for each in vote_options([]) if each.name in CHANGES}
    made = (changes[name] for name in CHANGES)
    return [*(each.replace(default=None, annotation=_or_none(each.annotation)) for each in made), *own]


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
    as_json: AsJson = False,
    **changes: Any,
) -> None:
    """Count the samples of a vote again by another rule. Nothing is requested.

    The answers that somebody else recorded are counted, too: an evaluation or a log with the answer of each sample.
    """
    with usage_errors(ValueError, ImportError, AnswerFunctionError):
        known: list[Question] | None = None if questions is None else read_questions(questions)
        rule = {"target": target, "rule_settings": load(None, rule_settings or [])}
        if answers.exists() and not is_vote(answers):
            others = {"labels": labels, "questions": questions, "out": out}
            _count_recorded(answers, column, as_json, changes | others, rule)
            return
        if column:
            raise ValueError("the answers of a vote have fixed columns, got --column; leave it out")
        if changes["equivalence_settings"] is not None:
            changes["equivalence_settings"] = json_fields(changes["equivalence_settings"], "equivalence_settings")
        golds = None if labels is None else read_labels(labels)
        found = count_again(answers, known, out=out, labels=golds, **rule, **changes)
    typer.echo(found.to_json() if as_json else found.to_text())
    if found.wanting:
        typer.echo(
            f"{len(found.wanting)} questions want more samples; run the vote again with these settings and --resume to "
            "request only those",
            err=True,
        )


def _count_recorded(
    path: Path, column: list[str] | None, as_json: bool, options: dict[str, Any], rule: dict[str, Any]
) -> None:
    """Count the recorded answers of another tool. Raise ValueError for options that need the completions."""
    given = {name: value for name, value in options.items() if value is not None}
    if unread := sorted(given.keys() - OF_RECORDED):
        raise ValueError(
            f"recorded answers take --rule, --set, --target, --max-samples and --curtail, got {unread[0]}; leave it out"
        )
    found = revote_record(read_run(path, None, column), **rule, **given)
    if as_json:
        typer.echo(found.to_json())
    else:
        typer.echo("\n".join([*doubt_lines(found.doubts), found.to_text()]))


def _or_none(annotation: Any) -> Any:
    """Return the annotation of an option that may be omitted."""
    return Annotated[(annotation.__origin__ | None, *annotation.__metadata__)]


revote_command = command_of(revote, revote_options)
