"""``apportion forecast``: what the first epoch will be, from a few rollouts of the first policy."""

from __future__ import annotations

import math
from dataclasses import replace
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer

from apportion.answers import AnswerFunctionError
from apportion.checks import check_integer
from apportion.cli.errors import usage_errors
from apportion.cli.forecast_text import forecast_text
from apportion.cli.options import (
    AsJson,
    Columns,
    Rewards,
    command_of,
    given_settings,
    read_run,
    settings_options,
    several,
)
from apportion.cli.vote import CHOICES, CONTINUE, estimate_at, run_vote
from apportion.endpoint import Endpoint
from apportion.forecast import ESTIMATORS, RateSample, forecast, probe_of
from apportion.forecast.sampling import drawn_questions, probe_of_vote, sampling_setup
from apportion.questions import Question, read_questions
from apportion.report.votes import is_vote
from apportion.runs.json_text import json_text, plain
from apportion.runs.waiting import waiting
from apportion.untrusted import shown
from apportion.vote.estimate import estimate_text
from apportion.vote.run import check_run
from apportion.vote.setup import SETTINGS, Setup
from apportion.vote.summary import make_prices

NO_LENGTHS = "hours are not known, because the sample has no lengths of completions; --column tokens=COLUMN names them"
OF_A_SAMPLE = (
    (Endpoint, tuple(name for name in SETTINGS[0][1] if name not in ("base_url", "model"))),
    (Setup, ("template", "extract", "equivalence")),
)
"""What decides how a server samples."""
AS_TRAINED = {"temperature": 1.0, "top_p": 1.0}
"""Sampling settings that TRL and verl have by default in training, and a vote has not."""


def forecasting(
    sample: Annotated[
        Path | None,
        typer.Argument(help="A run, an evaluation, pass rates, or the answers of a vote: a sample of the prompts."),
    ] = None,
    reward: Rewards = None,
    column: Columns = None,
    base_url: Annotated[str | None, typer.Option(help="Or a server to sample: its URL.")] = None,
    model: Annotated[str | None, typer.Option(help="The name of the model there.")] = None,
    questions: Annotated[
        Path | None, typer.Option(help="Questions with right answers, of which a random part is sampled.")
    ] = None,
    prompts: Annotated[int, typer.Option(help="Questions to sample.")] = 400,
    rollouts: Annotated[int, typer.Option(help="Rollouts of each.")] = 4,
    out: Annotated[Path, typer.Option(help="Where samples are kept. If it exists, sampling continues.")] = Path(
        "forecast.jsonl"
    ),
    price_input: Annotated[float | None, typer.Option(help="The price of a million prompt tokens.")] = None,
    price_output: Annotated[float | None, typer.Option(help="The price of a million completion tokens.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Estimate the price of sampling; contact nothing.")
    ] = False,
    group_size: Annotated[int, typer.Option(help="Rollouts of a group in your run.")] = 8,
    estimators: Annotated[
        list[str] | None, typer.Option(metavar="NAME[,NAME]", help=f"Any of {', '.join(ESTIMATORS)}; by default all.")
    ] = None,
    epoch: Annotated[
        int | None, typer.Option(help="Prompts of an epoch; by default those of the sample, or all questions.")
    ] = None,
    tokens_per_second: Annotated[float | None, typer.Option(help="Of all GPUs, to say hours.")] = None,
    price_per_hour: Annotated[float | None, typer.Option(help="Of all GPUs, to say money.")] = None,
    as_json: AsJson = False,
    **settings: Any,
) -> None:
    """Say what the first epoch will be.

    From a few rollouts of the first policy: dead groups, what they cost, what would help. With --base-url the
    rollouts are sampled first, and their price is said before.
    """

    asked: dict[str, Any] = {"estimators": several(estimators) or ESTIMATORS, "group_size": group_size}
    asked |= {"prompts": epoch, "tokens_per_second": tokens_per_second, "price_per_hour": price_per_hour}
    every: list[Question] = []
    chosen: list[Question] = []
    with usage_errors(ValueError, OSError, ImportError, AnswerFunctionError):
        if price_per_hour is not None and tokens_per_second is None:
            raise ValueError("--price-per-hour needs --tokens-per-second, got none; give how fast all GPUs are")
        if epoch is not None:
            check_integer("--epoch", epoch, 1, "an epoch has a prompt")
        forecast(RateSample.of([0, 1], [1, 1]), **asked)  # refuses settings before anything is read or paid for
        if base_url and model and questions and sample is None:
            every, given = read_questions(questions), given_settings(settings, OF_A_SAMPLE, AS_TRAINED)
            setup, chosen = sampling_setup(base_url, model, rollouts, **given), drawn_questions(every, prompts)
            check_run(chosen, setup)
            price = estimate_at(out, chosen, setup, make_prices(price_input, price_output), resume=True)
            typer.echo(json_text(price) if dry_run and as_json else estimate_text(price), err=not dry_run)
            if dry_run:
                return
            asked["prompts"] = epoch or len(every)
        elif sample is not None and not (base_url or model or questions):
            if not sample.exists():
                raise ValueError(f"the sample must exist, got {shown(str(sample))}; check the path")
            with waiting(f"reading {sample}"):
                probe = probe_of_vote(sample) if is_vote(sample) else probe_of(read_run(sample, reward, column))
        else:
            raise ValueError("a forecast needs a sample, or --base-url, --model and --questions; give one of these")
    if chosen:
        report = run_vote(chosen, setup, out, resume=True, max_unparsed=1.0)
        if not report.complete:
            go_on = CONTINUE.format(len(report.ballots), report.questions)
            typer.echo(f"{go_on}, or forecast from what came: apportion forecast {out}", err=True)
            raise typer.Exit(1)
        used, arrived = report.summary.completion_tokens, report.summary.samples - report.summary.failed
        with usage_errors(ValueError):
            probe = probe_of_vote(out, used / arrived if used and arrived else math.nan, every)
    if tokens_per_second is not None and math.isnan(probe.tokens):
        probe = replace(probe, doubts=(NO_LENGTHS, *probe.doubts))
    with waiting("fitting the success rates"):
        found = forecast(probe.sample, tokens=probe.tokens, **asked)
    about = {"name": probe.name, "rollouts": probe.rollouts, "tokens": probe.tokens, "doubts": probe.doubts}
    typer.echo(json_text(about | plain(found), indent=1) if as_json else forecast_text(probe, found))


def forecast_options(own: list[Parameter]) -> list[Parameter]:
    """Return the parameters of ``forecasting`` itself, and an option for what decides how a server samples."""
    made = settings_options(OF_A_SAMPLE, CHOICES)
    return [*own, *(each.replace(default=AS_TRAINED.get(each.name, each.default)) for each in made)]


forecast_command = command_of(forecasting, forecast_options)
