"""A diagnosis as text: what would help first, then tables of what it rests on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from apportion.cli.lines import code_lines, doubt_lines, wrapped
from apportion.diagnosis import Diagnosis
from apportion.diagnosis.advice import LEAST_SAVING, AdviceList
from apportion.diagnosis.beliefs import VISITS, Foresight, ForesightCell
from apportion.diagnosis.drift import RateDrift
from apportion.diagnosis.statements import as_read, health_statements, span, waste_statements
from apportion.diagnosis.waste import DEAD, KINDS, UNREWARDED, GroupTally
from apportion.presets import ADVICE
from apportion.records.importing import NO_STEP
from apportion.replay.intervals import share
from apportion.runs.text_table import text_table

JOINED = "Steps were joined to 8 groups each, because a step has fewer. "
CHANGES = (
    "Try one change at a time, beside a run without it. TRL: replace GRPOTrainer by AllocatedGRPOTrainer, keep its "
    "other arguments, and pip install '.[trl]' in a clone. verl: replace python -m verl.trainer.main_ppo by python -m "
    "apportion.verl, keep your other overrides, and pip install '.[verl]'. Under allocation=uniform say "
    "algorithm.adv_estimator too, because its default becomes apportion_rloo."
)


def diagnosis_text(found: Diagnosis) -> str:
    """Return the diagnosis as a text of sections."""
    read = as_read(found.doubts)
    sections = [
        [told_head(found)],
        doubt_lines(found.doubts),
        [_wrapped(each, "   ") for each in health_statements(found.health)],
        ["Advice", *_advice(found.advice)],
        [f"Dead groups{read}", *_waste(found)],
        [f"Coverage{read}", _coverage(found)],
        [f"Drift{read}", _drift(found.drift)],
        [f"Foresight{read}", *_foresight(found.foresight)],
        ["What to change", *_changes(found.advice)] if found.advice.recommended else [],
    ]
    return "\n\n".join("\n".join(map(_wrapped, lines)) for lines in sections if lines)


def told_head(found: Diagnosis) -> str:
    """Return the size of the run in one sentence."""
    held = found.coverage
    unit = "visits of each at most" if found.visits else "step" if held.steps == 1 else "steps"
    unit += " (no column is a step)" if any(doubt.startswith(NO_STEP) for doubt in found.doubts) else ""
    return (
        f"{found.name} ({found.source}): {held.groups:,} groups of {held.visited:,} prompts in {held.steps:,} {unit}, "
        f"{held.arrived:,} rollouts"
    )


def _advice(found: AdviceList) -> Iterator[str]:
    if found.problem:
        yield f"No advice: {found.problem}."
        return
    if not found.recommended:
        yield "Nothing here would help this run."
    told: dict[str, int] = {}
    for number, each in enumerate(found.recommended, 1):
        first = told.setdefault(each.condition, number)
        condition = each.condition if first == number else f"What is said of {first}. holds here, too."
        yield f"{number}. {each.text} Learning: {each.learning.text}."
        yield f"   {condition}"
    for each in found.considered:
        yield f"-  {each.text}"
    yield (
        f"Measured on {'a random sample of ' * found.sampled}{found.prompts:,} prompts and {found.groups:,} "
        "groups. Each decision knew only what came before, and its outcome is the recorded group. Intervals are "
        f"{found.confidence:.1%}, by bootstrap over prompts. {JOINED * found.joined}A change is recommended if its "
        f"interval is above {LEAST_SAVING:.0%}."
    )
    yield ADVICE


def _waste(diagnosis: Diagnosis) -> Iterator[str]:
    found, visits = diagnosis.waste, diagnosis.visits
    yield from waste_statements(found, diagnosis.phantoms, diagnosis.doubts)
    if found.compared:
        tokens = "unknown" if found.tokens is None else f"{span(found.tokens)} of the known tokens"
        yield f"Tokens of dead groups: {tokens}."
    yield _tallies(found.over_time, "visits" if visits else "steps")
    if found.by_difficulty:
        yield _tallies(found.by_difficulty, "mean reward of the prompt")
    if found.compared:
        yield (
            f"{found.never_mixed:,} of {found.compared:,} prompts never had a mixed group. They took "
            f"{found.never_mixed_rollouts:,} rollouts."
        )


def _tallies(parts: Sequence[GroupTally], label: str) -> str:
    kinds = [kind for kind in range(len(KINDS)) if any(part.groups[kind] for part in parts)]
    header = [label, "groups", *(KINDS[kind] for kind in kinds), "dead", "rollouts in dead"]
    header += ["tokens in dead"] * any(part.tokens is not None for part in parts)
    rows = []
    for part in parts:
        row = [part.label, f"{sum(part.groups):,}", *(f"{part.groups[kind]:,}" for kind in kinds)]
        row += [share(part.dead_share), f"{sum(part.rollouts[kind] for kind in DEAD):,}"]
        if part.tokens is None:
            row.append("unknown")
        else:
            row.append(f"{sum(part.tokens[kind] for kind in DEAD):,.0f}{'+' * bool(part.lengths_unknown)}")
        rows.append(row[: len(header)])
    return text_table(rows, header)


def _coverage(found: Diagnosis) -> str:
    held = found.coverage
    low, middle, high = held.visits
    text = (
        f"A prompt was visited {middle:g} times at the median ({low:g} to {high:g}); {held.once:,} were visited once."
    )
    if held.waits is not None:
        middle, late, most = held.waits
        text += (
            f" {middle:g} steps lie between two visits at the median, {late:g} at the 90% quantile, {most:g} at most."
        )
    if held.never_right is not None:
        text += f" {held.never_right:,} prompts were never answered right, {held.always_right:,} always."
    if lost := held.asked - held.arrived:
        text += f" {lost:,} of {held.asked:,} rollouts did not arrive."
    if unrewarded := found.waste.whole.groups[UNREWARDED]:
        text += f" {unrewarded:,} groups have no reward."
    if held.kept < held.arrived:
        text += f" {held.arrived - held.kept:,} rollouts were not in the loss."
    return text


def _drift(found: RateDrift) -> str:
    text = "" if found.means is None else f"The mean reward went from {found.means[0]:.3f} to {found.means[1]:.3f}. "
    if found.problem:
        return text + _sentence(found.problem)
    if found.ratio is not None:
        text += (
            f"The squared change between neighbouring visits is {found.ratio.value:.2f} "
            f"[{found.ratio.low:.2f}, {found.ratio.high:.2f}] times what the noise of groups explains. "
        )
    if found.rise is not None:
        verb = "rose" if found.rise.value >= 0 else "fell"
        text += (
            f"From its first to its last group the mean reward of a prompt {verb} "
            f"by {abs(found.rise.value):.3f} [{found.rise.low:+.3f}, {found.rise.high:+.3f}]. "
        )
    if found.half_life is not None:
        text += f"Half of what is known about a prompt is left after {found.half_life:.0f} visits."
    elif found.lags:
        last = found.lags[-1]
        text += f"After {last.lag} visits {last.kept:.0%} of what was known about a prompt is left."
    return text


def _foresight(found: Foresight) -> Iterator[str]:
    if found.problem:
        yield _sentence(found.problem)
        return
    visits = [cell.visit for cell in max(found.predictors, key=lambda each: len(each.cells)).cells]
    names = ["all" if visit is None else f"visit {visit}" for visit in visits]
    seeds = f"; the first {VISITS} visits at most, mean over {found.seeds} random orders of the prompts"
    notes = (
        f"Squared error of the predicted mean reward of the next group, whose own noise is in it. {found.prompts:,} "
        f"prompts, {found.groups:,} groups{', a random sample' * found.sampled}{seeds * (found.seeds > 1)}."
    )
    notes += " Neighbouring steps are put into one batch, because there are very many." * found.merged
    notes += " The control shuffles over steps joined to 8 groups, because a step has fewer." * found.joined
    yield notes
    for title, shown in (("squared error", _error), ("correlation, calibration error", _quality)):
        rows = []
        for each in found.predictors:
            cells = {cell.visit: shown(cell) for cell in each.cells}
            rows.append([each.predictor, *(cells.get(visit, "-") for visit in visits)])
        yield text_table(rows, [title, *names])
    errors = {each.predictor: each.cells[-1].error for each in found.predictors if each.cells}
    for name, error in errors.items():
        control = errors.get(f"{name}, shuffled")
        if control is not None and control.low <= error.value:
            yield f"{name} knows nothing about single prompts here: its shuffled control is as good."


def _error(cell: ForesightCell) -> str:
    return f"{cell.error.value:.3f} [{cell.error.low:.3f}, {cell.error.high:.3f}]"


def _quality(cell: ForesightCell) -> str:
    return f"{'-' if cell.correlation is None else f'{cell.correlation:.3f}'}, {cell.calibration:.3f}"


def _changes(found: AdviceList) -> Iterator[str]:
    """Yield the code of each recommended change. It is printed last, where a reader of a terminal looks first."""
    yield CHANGES
    for number, each in enumerate(found.recommended, 1):
        yield "\n".join([f"{number}. {each.change}", *code_lines(each.code)])


def _sentence(problem: str) -> str:
    return f"{problem[0].upper()}{problem[1:]}."


def _wrapped(text: str, indent: str = "") -> str:
    """Return a sentence in lines; a table, or what is in lines already, as it is."""
    return text if "\n" in text else "\n".join(wrapped(text, indent))
