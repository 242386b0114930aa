"""``apportion evaluate``: Mean@k, Pass@k and Maj@k of rollouts that are there, as papers report them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from apportion.answers import AnswerFunctionError
from apportion.cli.errors import usage_errors
from apportion.cli.lines import doubt_lines, wrapped
from apportion.cli.options import AsJson, Columns, Rewards, command_of, read_run, several
from apportion.diagnosis.statements import as_read
from apportion.evaluation import Evaluation, Rollouts, Score, evaluate
from apportion.questions import read_questions
from apportion.records import RunRecord
from apportion.report.votes import is_vote
from apportion.runs.json_text import json_text
from apportion.runs.text_table import text_table
from apportion.runs.waiting import waiting
from apportion.scheduler.outcomes import are_verdicts
from apportion.untrusted import one_line, shown
from apportion.vote.revote import kept_rollouts
from apportion.vote.right import read_labels

GRADED = (
    "pass@k and maj@k need verdicts (1 for right, and 0 or -1 for wrong), and these rewards are graded; --reward NAME "
    "reads another column"
)
WITHOUT_ANSWERS = "maj@k needs the answer of each rollout, which is not recorded here; --column answer=COLUMN names it"


def evaluation(
    run: Annotated[
        Path, typer.Argument(help="A rollout log, another recorded run, or the .jsonl of the answers of a vote.")
    ],
    more: Annotated[list[str] | None, typer.Argument(metavar="[K]...", help="Further k.")] = None,
    k: Annotated[
        list[str] | None,
        typer.Option(
            "--k",
            metavar="K...",
            help="Several by spaces or commas. By default powers of two up to the rollouts that 90% of the problems "
            "have, and that number, at most 1024.",
            show_default=False,
        ),
    ] = None,
    steps: Annotated[
        str | None, typer.Option(metavar="FIRST[:LAST]", help="Only these steps of a training run; by default all.")
    ] = None,
    reward: Rewards = None,
    column: Columns = None,
    questions: Annotated[Path | None, typer.Option(help="The questions of a vote, for their right answers.")] = None,
    labels: Annotated[Path | None, typer.Option(help="Right answers for a vote, by id or prompt.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print Mean@k, Pass@k and Maj@k of a run or a vote.

    Nothing is sampled. Intervals resample problems, and never rollouts. To evaluate a server, sample it by
    `apportion vote --rule fixed --no-curtail --max-samples N --give-up N`, and give the answers.
    """

    with usage_errors(ValueError, ImportError, OSError, AnswerFunctionError), waiting(f"evaluating {run}"):
        ks = [_integer("k", text) for text in several(k, more)]
        if is_vote(run):
            _refuse({"steps": steps, "reward": reward, "column": column}, "a recorded run", "the answers of a vote")
            golds = None if labels is None else read_labels(labels)
            found = kept_rollouts(run, () if questions is None else read_questions(questions), golds)
        else:
            _refuse({"questions": questions, "labels": labels}, "the answers of a vote", "a recorded run")
            found = _of_record(read_run(run, reward, column), steps)
        scores = evaluate(found.rewards, found.answers, ks)
    if as_json:
        about = {"name": found.name, "failed": found.failed, "doubts": found.doubts}
        typer.echo(json_text({**about, **vars(scores)}))
    else:
        typer.echo("\n".join(_lines(found, scores)))


def _of_record(record: RunRecord, steps: str | None) -> Rollouts:
    """Return the rollouts of ``record`` at some ``steps``. Raises ValueError for steps without rewards."""

    unit = "visits" if record.visits else "steps"
    if steps is not None:
        first, colon, last = steps.partition(":")
        low, high = _integer("--steps", first), _integer("--steps", last if colon else first)
        record = record.of_groups((record.step >= low) & (record.step <= high))
    arrived = np.flatnonzero(~np.isnan(record.reward))
    if not len(arrived):
        raise ValueError(
            f"an evaluation needs rewards, got none in {record.name}"
            + ("; name their column by --reward NAME" if steps is None else f" at {unit} {shown(steps)}; choose others")
        )
    values, doubts = record.reward, list(record.doubts)
    if are_verdicts(np.unique(values)):
        values = np.where(values == 1, 1.0, 0.0)
    if (several := len(np.unique(record.step))) > 1:
        doubts.append(
            f"the rollouts are of {several:,} {unit}, and the policy changed between them, so no figure is that of one "
            "policy; --steps FIRST:LAST chooses some"
        )
    starts = np.flatnonzero(np.diff(record.step, prepend=record.step[0] - 1))
    if (np.maximum.reduceat(record.asked, starts) > np.minimum.reduceat(record.asked, starts)).any():
        doubts.append(
            "prompts of one step have unequal numbers of rollouts; if their outcomes decided them, as in HORA or "
            "AR3PO, all figures are biased"
        )
    of = np.repeat(record.prompt, np.diff(record.first))[arrived]
    rows = arrived[np.argsort(of, kind="stable")]
    ends = np.cumsum(np.unique(of, return_counts=True)[1])[:-1]
    answers = [[None if each < 0 else each for each in own.tolist()] for own in np.split(record.answer[rows], ends)]
    return Rollouts(
        name=f"{record.name} ({record.source})",
        rewards=np.split(values[rows], ends),
        answers=answers if (record.answer[rows] >= 0).any() else None,
        failed=int(record.asked.sum()) - len(arrived),
        doubts=tuple(doubts),
    )


def _lines(found: Rollouts, scores: Evaluation) -> Iterator[str]:
    """Yield the scores as lines and a table."""
    each = f"{scores.least:,}" if scores.least == scores.most else f"{scores.least:,} to {scores.most:,}"
    yield from wrapped(
        f"{one_line(found.name)}: {scores.rollouts:,} rollouts of {scores.problems:,} problems, {each} of each"
    )
    if found.failed:
        yield from wrapped(f"{found.failed:,} rollouts without a reward are left out")
    yield from doubt_lines(found.doubts)
    mean = scores.mean
    if not scores.at:
        yield f"mean@k{as_read(found.doubts)} {_cell(mean, '.4g')}"
        yield from wrapped(GRADED)
        return
    yield f"mean@k{as_read(found.doubts)} {_cell(mean)} for every k"
    rows = [
        [f"{at.k:,}", f"{at.problems:,} of {scores.problems:,}", _cell(at.passed), _cell(at.majority)]
        for at in scores.at
    ]
    width = 3 if found.answers is None else 4
    header = ["k", "problems", "pass@k", "maj@k"][:width]
    yield text_table([row[:width] for row in rows], header, align="r" * width)
    yield from wrapped("in brackets 95% intervals, which resample problems and not rollouts")
    if found.answers is None:
        yield from wrapped(WITHOUT_ANSWERS)


def _cell(score: Score | None, form: str = ".1%") -> str:
    """Return a score with its interval, if it has one."""
    if score is None:
        return ""
    mean, low, high = (format(each, form) for each in (score.mean, score.low, score.high))
    return f"{mean} ({low} to {high})" if score.low == score.low else mean


def _refuse(options: Mapping[str, object], needed: str, got: str) -> None:
    """Raise ValueError for the first of ``options`` that was given, because it is about something else."""
    for name, value in options.items():
        if value:
            raise ValueError(f"--{name} is about {needed}, got {got}; leave it out")


def _integer(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name} must be a whole number, got {shown(text)}; write one such as 8") from None


evaluate_command = command_of(evaluation)
