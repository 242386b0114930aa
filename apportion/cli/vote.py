"""``apportion vote``: the majority answer of a served model, at a fraction of the samples.

Most options are fields of ``Endpoint``, ``Voting`` and ``Setup``, which are imported when the command is used.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand
from typer.main import get_command

from apportion.cli.errors import usage_errors
from apportion.cli.options import Labels, RuleSettings, Target, given_settings, options_of, pairs_of
from apportion.runs.signals import code_of, run_async
from apportion.untrusted import one_line, parse_json, shown

if TYPE_CHECKING:
    from apportion.questions import Question
    from apportion.vote import Report
    from apportion.vote.setup import Setup

MAX_SHOWN, DIGITS = 5, 20


class VoteCommand(TyperCommand):
    """The command, which gets its parameters and its function at first use because they are slow to import."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters of ``vote`` with all options."""
        if not self.params:
            app = typer.Typer(add_completion=False)
            app.command()(self.make())
            command = get_command(app)
            self.params, self.callback = command.params, command.callback
        return super().get_params(ctx)

    def make(self) -> Callable[..., None]:
        """Return ``vote`` with an option for each setting in place of ``**settings``."""
        from apportion.vote.setup import SETTINGS  # noqa: PLC0415

        made = [each for _, names in SETTINGS for name in names for each in options_of_vote(name)]
        own = signature(vote, eval_str=True)
        given = [each for each in own.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
        ordered = (*made[:2], *given[:2], *made[2:], *given[2:])
        keyword = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in ordered]

        def vote_with_options(**options: Any) -> None:
            vote(**options)

        vote_with_options.__signature__ = own.replace(parameters=keyword)  # type: ignore[attr-defined]
        return vote_with_options


def vote(
    questions: Annotated[Path, typer.Option(help=".jsonl, .csv or .parquet: prompt, and if known answer and id.")],
    out: Annotated[Path, typer.Option(help="The .jsonl of the answers. If it exists, the vote continues.")],
    target: Target = None,
    rule_settings: RuleSettings = None,
    deadline: Annotated[float | None, typer.Option(help="Seconds for the whole run.")] = None,
    price_input: Annotated[float | None, typer.Option(help="The price of a million prompt tokens.")] = None,
    price_output: Annotated[float | None, typer.Option(help="The price of a million completion tokens.")] = None,
    limit: Annotated[int | None, typer.Option(help="Read only this many questions.")] = None,
    labels: Labels = None,
    max_unparsed: Annotated[
        float, typer.Option(help="End the run if a larger share of the first samples has no answer.")
    ] = 0.5,
    save_completions: Annotated[bool, typer.Option(help="Keep the texts of all samples.")] = True,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Delete the answers of earlier runs first.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Count earlier samples again by this rule; sample only what is missing.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Estimate; contact nothing, write nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    **settings: Any,
) -> None:
    """Vote on questions until a stopping rule is met."""
    from apportion.answers import AnswerFunctionError, JudgeError  # noqa: PLC0415
    from apportion.endpoint import Endpoint  # noqa: PLC0415
    from apportion.questions import read_questions  # noqa: PLC0415
    from apportion.toml import load  # noqa: PLC0415 - what voting needs is slow to import
    from apportion.vote.estimate import estimate, estimate_json, estimate_text  # noqa: PLC0415
    from apportion.vote.journal import VoteRecord, read_finished  # noqa: PLC0415
    from apportion.vote.right import check_labels, count_right, read_labels  # noqa: PLC0415
    from apportion.vote.run import ballots_of, check_run  # noqa: PLC0415
    from apportion.vote.setup import make_setup  # noqa: PLC0415
    from apportion.vote.summary import make_prices, summary_json, summary_text  # noqa: PLC0415

    with usage_errors(ValueError, ImportError):
        prices = make_prices(price_input, price_output)
        settings = given_settings(settings, Endpoint)
        wave = settings["wave"]
        wave = int(wave) if wave.isdecimal() and len(wave) < DIGITS else wave
        headers = pairs_of(settings["headers"], "--header")
        settings |= {"wave": wave, "headers": headers}
        settings |= {name: json_fields(settings[name], name) for name in ("extra_body", "equivalence_settings")}
        setup = make_setup(**settings, target=target, rule_settings=load(None, rule_settings or []))
        asked = read_questions(questions, limit)
        golds = {} if labels is None else read_labels(labels)
        if golds:
            check_labels(golds, [question.id for question in asked])
        check_run(asked, setup, deadline, max_unparsed)
        if dry_run:
            record = VoteRecord() if overwrite else read_finished(out, setup, resume)
            finished = [ballot.id for ballot in ballots_of(asked, record.ballots)]
            kept = {id: len(samples) for id, samples in record.samples.items()}
            result = estimate(asked, setup, finished, prices, kept)
            typer.echo(estimate_json(result) if as_json else estimate_text(result, sys.stdout.isatty()))
            return
    report = _run(
        asked,
        setup,
        out,
        deadline_seconds=deadline,
        max_unparsed=max_unparsed,
        save_completions=save_completions,
        overwrite=overwrite,
        resume=resume,
    )
    summary, terminal = report.summary, sys.stdout.isatty()
    if any(ballot.id in golds for ballot in report.ballots):
        with usage_errors(AnswerFunctionError, JudgeError, ValueError):
            summary = replace(summary, right=count_right(report.ballots, golds, setup))
    typer.echo(summary_json(summary, prices) if as_json else summary_text(summary, terminal, prices))
    for ballot in report.refused[:MAX_SHOWN]:
        typer.echo(one_line(f"{ballot.id} has no answer: {ballot.errors[-1]}"), err=True)
    for ballot in report.unfinished[:MAX_SHOWN]:
        typer.echo(one_line(f"{ballot.id} is not finished: {ballot.errors[-1]}"), err=True)
    if not report.complete:
        typer.echo(_how_to_continue(len(report.ballots), report.questions), err=True)
        raise typer.Exit(1)


def options_of_vote(name: str) -> tuple[Parameter, ...]:
    """Return the options for the setting ``name`` of a vote."""
    from apportion.answers import EXTRACTORS, NAMES  # noqa: PLC0415
    from apportion.stopping import RULES  # noqa: PLC0415
    from apportion.vote.setup import SETTINGS  # noqa: PLC0415

    flags = {"timeout_seconds": "--request-timeout", "headers": "--header"}
    choices: dict[str, Iterable[str]] = {"rule": RULES, "extract": EXTRACTORS, "equivalence": NAMES}
    (cls,) = (cls for cls, names in SETTINGS if name in names)
    made = options_of(cls, name, flags.get(name), choices.get(name, ()))
    return tuple(option.replace(default=None) for option in made) if name == "rule" else made


def _run(asked: list[Question], setup: Setup, out: Path, **running: Any) -> Report:
    """Return the report. End the command if the user does, or if something that was given cannot be used."""
    from apportion.answers import AnswerFunctionError, JudgeError  # noqa: PLC0415
    from apportion.endpoint import EndpointError  # noqa: PLC0415
    from apportion.vote.journal import read_finished  # noqa: PLC0415
    from apportion.vote.lines import JournalError  # noqa: PLC0415
    from apportion.vote.run import NoAnswersError, ballots_of, run  # noqa: PLC0415

    errors = (AnswerFunctionError, EndpointError, ImportError, JournalError, JudgeError, NoAnswersError)
    with usage_errors(*errors), _log_to_stderr():
        try:
            return run_async(run(asked, setup, out, progress=True, **running))
        except KeyboardInterrupt as stop:
            finished = ballots_of(asked, read_finished(out, setup, resume=True).ballots)
            typer.echo(_how_to_continue(len(finished), len(asked)), err=True)
            raise typer.Exit(code_of(stop)) from None


def _how_to_continue(finished: int, questions: int) -> str:
    return f"{finished} of {questions} finished; run the same command again to continue"


def json_fields(text: str | None, name: str) -> dict[str, Any]:
    """Return the JSON object in ``text``, the option ``name``. Raises ValueError for anything else."""
    from apportion.endpoint.secrets import is_secret_name  # noqa: PLC0415

    given = "a text that seems to hold a secret" if is_secret_name(text or "") else shown(text)
    try:
        fields = parse_json(text or "{}")
    except ValueError as error:
        raise ValueError(f"{name} must be JSON, got {given} ({error}); quote it for the shell") from error
    if not isinstance(fields, dict):
        raise ValueError(f"{name} must be a JSON object, got {given}; write '{{\"name\": value}}'")
    return fields


@contextmanager
def _log_to_stderr() -> Iterator[None]:
    """Write the log of a vote to stderr: its progress, if there is no terminal."""
    logger, handler = logging.getLogger("apportion.vote"), logging.StreamHandler()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
