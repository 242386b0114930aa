"""``apportion vote``: the majority answer of a served model, at a fraction of the samples."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from apportion.cli.errors import usage_errors

if TYPE_CHECKING:
    from apportion.stopping import Wave
    from apportion.vote import Ballot, Question, Report
    from apportion.vote.setup import Setup
    from apportion.vote.summary import Prices

RULES = (
    "fixed, optpo, adaptive_consistency_beta, adaptive_consistency_dirichlet, esc, sprt, msprt, p_value, curtailment, "
    "posterior_predictive"
)
MOST_SHOWN = 5
INTERRUPTED = 130


def vote(
    base_url: Annotated[str, typer.Option(help="An OpenAI-compatible server, /v1 included where it has it.")],
    model: Annotated[str, typer.Option(help="The name under which the server offers the model.")],
    questions: Annotated[Path, typer.Option(help=".jsonl, .csv or .parquet: prompt, and if known answer and id.")],
    out: Annotated[Path, typer.Option(help="The .jsonl of the answers; one that is there is gone on with.")],
    rule: Annotated[str, typer.Option(help=f"When to stop, one of {RULES}.")] = "posterior_predictive",
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="The rule's own.")] = None,
    max_samples: Annotated[int, typer.Option(help="Samples of a question at the most.")] = 64,
    wave: Annotated[str, typer.Option(help="Samples asked for at a time; free: those surely needed.")] = "free",
    curtail: Annotated[bool, typer.Option(help="Stop also where nothing can change the majority.")] = True,
    temperature: Annotated[float, typer.Option()] = 0.6,
    top_p: Annotated[float, typer.Option()] = 0.95,
    max_tokens: Annotated[int, typer.Option(help="Tokens of a completion at the most.")] = 2048,
    seed: Annotated[int, typer.Option(help="Each request's own seed is derived from it.")] = 0,
    api: Annotated[str, typer.Option(help="chat or completions.")] = "chat",
    extra_body: Annotated[
        str | None, typer.Option(metavar="JSON", help='More fields of each request, such as {"top_k": 20}.')
    ] = None,
    template: Annotated[
        str | None, typer.Option(help="Prompt with {question}; by default one for mathematics.")
    ] = None,
    extract: Annotated[
        str, typer.Option(help="Where the answer is: boxed, answer_line, choice, ... or auto.")
    ] = "auto",
    equivalence: Annotated[str, typer.Option(help="Which answers are one: math or exact.")] = "math",
    concurrency: Annotated[int, typer.Option(help="Requests in flight at the most.")] = 32,
    request_timeout: Annotated[float, typer.Option(help="Seconds for one request.")] = 600.0,
    deadline: Annotated[float | None, typer.Option(help="Seconds for the whole run.")] = None,
    max_retries: Annotated[int, typer.Option(help="Of one request.")] = 5,
    api_key_env: Annotated[str, typer.Option(help="The environment variable with the key.")] = "OPENAI_API_KEY",
    price_input: Annotated[float | None, typer.Option(help="Of a million prompt tokens.")] = None,
    price_output: Annotated[float | None, typer.Option(help="Of a million completion tokens.")] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first so many questions.")] = None,
    save_completions: Annotated[bool, typer.Option("--save-completions", help="Keep all texts.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Begin the answers afresh.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Estimate; contact nothing, write nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Votes on each question until a stopping rule is content, and writes each answer at once; a rerun goes on."""
    from apportion.questions import TEMPLATE, read_questions  # noqa: PLC0415
    from apportion.toml import load  # noqa: PLC0415 - what voting needs is slow to import
    from apportion.vote.run import check_run  # noqa: PLC0415
    from apportion.vote.setup import make_setup  # noqa: PLC0415
    from apportion.vote.summary import make_prices  # noqa: PLC0415

    with usage_errors(ValueError):
        prices = make_prices(price_input, price_output)
        setup = make_setup(
            base_url,
            model,
            rule=rule,
            rule_settings=load(None, settings or []),
            max_samples=max_samples,
            wave=_wave(wave),
            curtail=curtail,
            template=TEMPLATE if template is None else template,
            extract=extract,
            equivalence=equivalence,
            api=api,
            temperature=temperature,
            top_p=top_p,
            max_tokens=max_tokens,
            seed=seed,
            concurrency=concurrency,
            timeout_seconds=request_timeout,
            max_retries=max_retries,
            api_key_env=api_key_env,
            extra_body=_fields(extra_body),
        )
        asked = read_questions(questions, limit)
        check_run(asked, deadline)
        if dry_run:
            typer.echo(_estimate(asked, setup, out, overwrite, prices, as_json))
            return
    running = {"deadline_seconds": deadline, "save_completions": save_completions, "overwrite": overwrite}
    report = _run(asked, setup, out, **running)
    typer.echo(_summary(report, prices, as_json))
    for ballot in report.unfinished[:MOST_SHOWN]:
        typer.echo(f"{ballot.id} is not finished: {ballot.errors[-1]}", err=True)
    if not report.complete:
        typer.echo(_so_far(len(report.ballots), report.questions), err=True)
        raise typer.Exit(1)


def _estimate(
    asked: list[Question], setup: Setup, out: Path, overwrite: bool, prices: Prices | None, as_json: bool
) -> str:
    from apportion.vote.estimate import estimate, estimate_json, estimate_text  # noqa: PLC0415

    done = [] if overwrite else _finished(asked, setup, out)
    result = estimate(asked, setup, [ballot.id for ballot in done], prices)
    return estimate_json(result) if as_json else estimate_text(result, sys.stdout.isatty())


def _run(asked: list[Question], setup: Setup, out: Path, **running: Any) -> Report:
    """The report; ends the command where the user does, or what the user gave cannot be used."""
    from apportion.samplers import EndpointError  # noqa: PLC0415
    from apportion.vote.journal import JournalError  # noqa: PLC0415
    from apportion.vote.run import run  # noqa: PLC0415

    with usage_errors(EndpointError, JournalError, ImportError), _log_on_stderr():
        try:
            return asyncio.run(run(asked, setup, out, progress=True, **running))
        except KeyboardInterrupt:
            typer.echo(_so_far(len(_finished(asked, setup, out)), len(asked)), err=True)
            raise typer.Exit(INTERRUPTED) from None


def _summary(report: Report, prices: Prices | None, as_json: bool) -> str:
    from apportion.vote.summary import summary_json, summary_text  # noqa: PLC0415

    if as_json:
        return summary_json(report.summary, prices)
    return summary_text(report.summary, sys.stdout.isatty(), prices)


def _finished(asked: list[Question], setup: Setup, out: Path) -> tuple[Ballot, ...]:
    from apportion.vote.journal import finished  # noqa: PLC0415
    from apportion.vote.run import finished_among  # noqa: PLC0415

    return finished_among(asked, finished(out, setup.resolved()))


def _so_far(finished: int, questions: int) -> str:
    return f"{finished} of {questions} finished; run the same command again to go on"


def _wave(text: str) -> Wave:
    """The wave that ``text`` says; what is no number is left to be refused by its name."""
    return cast("Wave", int(text) if text.isdecimal() else text)


def _fields(text: str | None) -> dict[str, Any]:
    """The fields that ``text`` says as a JSON object; ValueError where it is none."""
    try:
        fields = json.loads(text or "{}")
    except json.JSONDecodeError as error:
        raise ValueError(f"extra_body must be JSON, got {text!r} ({error.msg}); quote it for the shell") from error
    if not isinstance(fields, dict):
        raise ValueError(f"extra_body must be a JSON object, got {text!r}; write '{{\"name\": value}}'")
    return fields


@contextmanager
def _log_on_stderr() -> Iterator[None]:
    """Shows on stderr what voting logs: its progress, where there is no terminal to draw on."""
    logger, handler = logging.getLogger("apportion.vote"), logging.StreamHandler()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
