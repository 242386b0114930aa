"""A forecast as one screen of 80 columns."""

from __future__ import annotations

from dataclasses import replace

from apportion.cli.lines import code_lines, doubt_lines, wrapped
from apportion.diagnosis.statements import as_read, span
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
from apportion.records.doubts import SPOILT
from apportion.untrusted import one_line

MOST_DOUBT_LINES = 4


def forecast_text(probe: Probe, found: Forecast) -> str:
    """Return what a person needs to decide: what is dead, what it costs, which n, and what to set."""
    each = f"{found.least}" if found.least == found.most else f"{found.least} to {found.most}"
    rates = probe.rollouts == probe.prompts and found.least > 1
    sampled = "pass rates" if rates else counted(probe.rollouts, "rollout")
    read = as_read([doubt for doubt in probe.doubts if SPOILT in doubt or "would be dead" in doubt])
    head = (
        f"{probe.name}: {sampled} of {counted(probe.prompts, 'prompt')}; {span(found.success)} right. "
        f"{f'Figures{read}. ' * bool(read)}Intervals are 90%, over prompts and over what {each} of each cannot tell."
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
    change = replace(
        found.change,
        imports=(),
        trl=f"args=GRPOConfig(num_generations={n}), {found.change.trl}",
        verl=f"actor_rollout_ref.rollout.n={n} {found.change.verl}",
    )
    return ["A baseline from history lets dead groups teach, too:", *code_lines(change)]
