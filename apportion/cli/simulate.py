"""``apportion simulate``: rules on populations of prompts whose truth is known."""

from inspect import Parameter
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import typer

from apportion.cli.errors import usage_errors
from apportion.cli.options import (
    AsJson,
    Columns,
    FurtherRules,
    Rewards,
    SettingsOfRules,
    command_of,
    read_run,
    settings_options,
    several,
)
from apportion.cli.simulation_text import simulation_json, simulation_text
from apportion.records import write_record
from apportion.simulation import Population, make_rule, named_shape, simulate, simulated_record
from apportion.toml import load

LINE_EVERY_SECONDS = 15.0
MOST_SEEDS = 1000
MOST_STEPS = 1_000_000
POPULATIONS = ("bimodal", "easy", "hard", "like-the-run", "uniform")
PEOPLE = (
    "prompts",
    "drift",
    "half_life",
    "trend",
    "embedding_size",
    "embedding_signal",
    "rate_correlation",
    "false_positive",
    "false_negative",
    "failures",
)
"""The settings of a population that are options."""

USUAL_RULES = ("vip", "hora", "uniform+mixed", "vip+mixed")


def simulation(
    further: FurtherRules = None,
    rules: Annotated[
        list[str] | None,
        typer.Option(
            help="ALLOCATOR[:PREDICTOR][+SELECTION[:PREDICTOR]], such as vip:counts+mixed; several by spaces or commas."
            f" By default {', '.join(USUAL_RULES)}. uniform and vip:oracle are always there.",
            show_default=False,
        ),
    ] = None,
    settings: SettingsOfRules = None,
    population: Annotated[
        str | None, typer.Option(help=f"One of {', '.join(POPULATIONS)}; by default like-the-run.", show_default=False)
    ] = None,
    like: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Or success probabilities as in the first groups of this run.")
    ] = None,
    reward: Rewards = None,
    column: Columns = None,
    steps: Annotated[int, typer.Option(help="Steps.")] = 50,
    prompts_per_step: Annotated[int, typer.Option(help="Prompts of a batch.")] = 128,
    rollouts: Annotated[int, typer.Option(help="Rollouts per prompt, on average, of rules that take a budget.")] = 8,
    seeds: Annotated[int, typer.Option(help="Number of populations; two or more give intervals.")] = 3,
    log: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write the run of one rule as a rollout log, and no table.")
    ] = None,
    as_json: AsJson = False,
    **people: Any,
) -> None:
    """Compare rules where the truth is known.

    Prompts are drawn from a population with known success probabilities. Nothing is trained.
    """

    named = several(rules, further)
    with usage_errors(ValueError):
        if not 1 <= seeds <= MOST_SEEDS:
            raise ValueError(f"seeds must be 1 to {MOST_SEEDS:,}, got {seeds:,}; three give an interval")
        if steps > MOST_STEPS:
            raise ValueError(f"steps must be at most {MOST_STEPS:,}, got {steps:,}; 50 show most")
        tables = load(None, settings or [])
        if like is not None and not like.exists():
            raise ValueError(f"--like must be the path of a run, got {like}, which does not exist; check it")
        if like is None and (reward or column):
            raise ValueError("--reward and --column are about the run of --like, got none; leave them out")
        if like is not None and population is not None:
            raise ValueError(
                f"a population is one of --population or --like, got {population} and {like}; leave one out"
            )
        if like is None:
            drawn = Population(shape=named_shape(population or "like-the-run"), **people)
        else:
            drawn = Population.like(read_run(like, reward, column), **people)
        if log is not None:
            if len(named) != 1:
                raise ValueError(f"--log writes the run of one rule, got {len(named)}; name one with --rules")
            rule = make_rule(named[0], drawn, rollouts, tables.get(named[0]))
            record = simulated_record(drawn, rule, steps, prompts_per_step)
            write_record(record, log)
            typer.echo(f"{len(record.step):,} groups and {len(record.reward):,} rollouts are in {log}", err=as_json)
            return
        found = simulate(
            drawn, named or USUAL_RULES, steps, prompts_per_step, range(seeds), rollouts, tables, _Progress()
        )
    typer.echo(simulation_json(found) if as_json else simulation_text(found))


def simulation_options(own: list[Parameter]) -> list[Parameter]:
    """Return the parameters of ``simulation`` itself, and an option for what a population can be."""

    made = settings_options([(Population, PEOPLE)], {})
    return [*own[:-2], made[0].replace(default=10_000), *made[1:], *own[-2:]]


class _Progress:
    """Says on stderr, now and then, how many courses are done."""

    def __init__(self) -> None:
        self.said = monotonic()

    def __call__(self, done: int, total: int) -> None:
        if monotonic() - self.said > LINE_EVERY_SECONDS and done < total:
            self.said = monotonic()
            typer.echo(f"{done} of {total} courses of a rule on a population are done", err=True)


simulate_command = command_of(simulation, simulation_options)
