"""``apportion vote``: the majority answer of a served model, at a fraction of the samples.

Most options are fields of ``Endpoint``, ``Voting`` and ``Setup``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer

from apportion.answers import EXTRACTORS, NAMES, AnswerFunctionError, JudgeError, JudgeUsage
from apportion.cli.errors import usage_errors
from apportion.cli.options import AsJson, Labels, RuleSettings, Target, command_of, given_settings, settings_options
from apportion.endpoint import EndpointError
from apportion.messages import prompt_hash
from apportion.questions import Question, read_questions
from apportion.runs.json_text import json_text
from apportion.runs.signals import code_of, run_async
from apportion.stopping import RULES
from apportion.toml import load
from apportion.untrusted import one_line
from apportion.vote import Report
from apportion.vote.estimate import Estimate, estimate, estimate_text
from apportion.vote.journal import VoteRecord, read_finished
from apportion.vote.lines import JournalError
from apportion.vote.right import check_labels, count_right, read_labels
from apportion.vote.run import NoAnswersError, ballots_of, check_run, run
from apportion.vote.setup import SETTINGS, Setup, make_setup
from apportion.vote.summary import Prices, make_prices, summary_json, summary_text

CHOICES: dict[str, Iterable[str]] = {"rule": RULES, "extract": EXTRACTORS, "equivalence": NAMES}
MAX_SHOWN = 5
CONTINUE = "{} of {} finished; run the same command again to continue"


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
    as_json: AsJson = False,
    **settings: Any,
) -> None:
    """Vote on questions until a stopping rule is met."""

    with usage_errors(ValueError, ImportError):
        prices = make_prices(price_input, price_output)
        setup = make_setup(
            **given_settings(settings, SETTINGS), target=target, rule_settings=load(None, rule_settings or [])
        )
        asked = read_questions(questions, limit)
        golds = {} if labels is None else read_labels(labels)
        if golds:
            check_labels(golds, {question.id: prompt_hash(question.prompt) for question in asked})
            golds |= {each.id: replace(golds[each.id], prompt=each.prompt) for each in asked if each.id in golds}
        check_run(asked, setup, deadline, max_unparsed)
        if dry_run:
            result = estimate_at(out, asked, setup, prices, VoteRecord() if overwrite else None, resume)
            typer.echo(json_text(result) if as_json else estimate_text(result))
            return
    running = {"deadline_seconds": deadline, "max_unparsed": max_unparsed, "save_completions": save_completions}
    report = run_vote(asked, setup, out, overwrite=overwrite, resume=resume, **running)
    summary = report.summary
    if any(ballot.id in golds for ballot in report.ballots):
        with usage_errors(AnswerFunctionError, JudgeError, ValueError):
            right, cost = count_right(report.ballots, golds, setup)
            summary = replace(summary, right=right, judge=cost and cost + (summary.judge or JudgeUsage()))
    typer.echo(summary_json(summary, prices) if as_json else summary_text(summary, prices))
    for state, ballots in (("has no answer", report.refused), ("is not finished", report.unfinished)):
        for ballot in ballots[:MAX_SHOWN]:
            typer.echo(one_line(f"{ballot.id} {state}: {ballot.errors[-1]}"), err=True)
    if not report.complete:
        typer.echo(CONTINUE.format(len(report.ballots), report.questions), err=True)
        raise typer.Exit(1)


def vote_options(own: list[Parameter]) -> list[Parameter]:
    """Return an option for each setting of a vote, and then the parameters of ``vote`` itself."""
    return [*settings_options(SETTINGS, CHOICES), *own]


def estimate_at(
    out: Path,
    asked: list[Question],
    setup: Setup,
    prices: Prices | None,
    record: VoteRecord | None = None,
    resume: bool = False,
) -> Estimate:
    """Return the estimate of what the vote still takes, beyond the samples in ``out`` or in ``record``."""
    record = read_finished(out, setup, resume) if record is None else record
    finished = [ballot.id for ballot in ballots_of(asked, record.ballots)]
    return estimate(asked, setup, finished, prices, {id: len(samples) for id, samples in record.samples.items()})


def run_vote(asked: list[Question], setup: Setup, out: Path, **running: Any) -> Report:
    """Run the vote and return its report. End the command after Ctrl-C, or if an input cannot be used."""

    errors = (AnswerFunctionError, EndpointError, ImportError, JournalError, JudgeError, NoAnswersError)
    with usage_errors(*errors), _log_to_stderr():
        try:
            return run_async(run(asked, setup, out, progress=True, **running))
        except KeyboardInterrupt as stop:
            finished = ballots_of(asked, read_finished(out, setup, resume=True).ballots)
            typer.echo(CONTINUE.format(len(finished), len(asked)), err=True)
            raise typer.Exit(code_of(stop)) from None


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


vote_command = command_of(vote, vote_options)
