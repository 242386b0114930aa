"""A forecast as one screen of 80 columns."""

from __future__ import annotations

from apportion.cli.lines import WIDTH, doubt_lines, wrapped
from apportion.diagnosis.statements import span
from apportion.forecast import Forecast, Probe
from apportion.forecast.statements import (
    BEST,
    CHOSEN,
    ONE_ROLLOUT,
    counted,
    dead_table,
    epoch_table,
    more_statement,
    split_statement,
)
from apportion.untrusted import one_line

MOST_DOUBT_LINES = 4


def forecast_text(probe: Probe, found: Forecast) -> str:
    """Return what a person needs to decide: what is dead, what it costs, which n, and what to set."""
    each = f"{found.least}" if found.least == found.most else f"{found.least} to {found.most}"
    rates = probe.rollouts == probe.prompts and found.least > 1
    sampled = "pass rates" if rates else counted(probe.rollouts, "rollout")
    head = (
        f"{probe.name}: {sampled} of {counted(probe.prompts, 'prompt')}; {span(found.success)} right. "
        f"Intervals are 90%, over prompts and over what {each} of each cannot tell."
    )
    best = ", ".join(f"{name} {n}" for name, n in found.best.items())
    lines = [*wrapped(one_line(head)), *doubt_lines(probe.doubts, MOST_DOUBT_LINES, "--json")]
    lines += [*(wrapped(ONE_ROLLOUT) if found.only_mean else []), dead_table(found), *wrapped(BEST.format(best))]
    lines += [epoch_table(found), *wrapped(CHOSEN.format(found.group_size))]
    lines += [line for split in found.splits for line in wrapped(split_statement(split), "  ")]
    return "\n".join([*lines, *wrapped(more_statement(found)), *_to_set(found.group_size, found)])


def _to_set(n: int, found: Forecast) -> list[str]:
    """Return what to set, as ``diagnose`` prints it."""
    if found.change is None:
        return wrapped(f"Fewer than a tenth are dead: num_generations={n} in TRL, rollout.n={n} in verl, nothing else.")
    trainer = f"AllocatedGRPOTrainer(..., args=GRPOConfig(num_generations={n}), {found.change.trl})"
    python = wrapped(f"  TRL:  {trainer}", " " * 12)
    command = f"  verl: python -m apportion.verl actor_rollout_ref.rollout.n={n} {found.change.verl} ..."
    *begun, last = wrapped(command, " " * 8, WIDTH - 2)
    verl_lines = [*(f"{each} \\" for each in begun), last, *wrapped(f"        {found.change.note}", " " * 8)]
    return ["A baseline from history lets dead groups teach, too:", *python, *verl_lines]
