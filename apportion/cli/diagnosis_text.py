"""A diagnosis as text: what would help first, then tables of what it rests on."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from apportion.cli.lines import doubt_lines
from apportion.diagnosis import Diagnosis
from apportion.diagnosis.advice import LEAST_SAVING, AdviceList
from apportion.diagnosis.assumptions import VipAssumptions
from apportion.diagnosis.beliefs import VISITS, Foresight
from apportion.diagnosis.bias import RuleBias
from apportion.diagnosis.drift import RateDrift
from apportion.diagnosis.health import RunHealth
from apportion.diagnosis.statements import health_statements
from apportion.diagnosis.waste import DEAD, KINDS, UNREWARDED, GroupTally, Waste
from apportion.presets import ADVICE
from apportion.records.importing import NO_STEP
from apportion.replay.intervals import Spanned
from apportion.runs.text_table import text_table

WIDTH = 118
JOINED = "Steps were joined to 8 groups each, because a step has fewer. "
CHANGES = (
    "Try one change at a time, beside a run without it. TRL: replace GRPOTrainer by AllocatedGRPOTrainer, keep its "
    "other arguments, and pip install 'apportion[trl]'. verl: replace python -m verl.trainer.main_ppo by python -m "
    "apportion.verl, keep your other overrides, and pip install 'apportion[verl]'. Say algorithm.adv_estimator there, "
    "because its default becomes apportion_rloo."
)


def diagnosis_text(found: Diagnosis, terminal: bool = False) -> str:
    """Return the diagnosis as a text of sections, with drawn tables for a ``terminal``."""
    parts = [
        told_head(found),
        "\n".join(doubt_lines(found.doubts)),
        _health(found.health),
        _advice(found.advice),
        _waste(found.waste, found.visits, terminal),
        _coverage(found),
        _drift(found.drift),
        _foresight(found.foresight, terminal),
        _bias(found.bias, terminal),
        _assumptions(found.assumptions, terminal),
        _changes(found.advice),
    ]
    return "\n\n".join(part for part in parts if part)


def share(value: float) -> str:
    """Return a share as a percentage without a minus before 0; "-" if it is not known."""
    return "-" if math.isnan(value) else f"{value + 0.0:.0%}".replace("-0%", "0%")


def told_head(found: Diagnosis) -> str:
    """Return the size of the run in one sentence."""
    held = found.coverage
    unit = "visits of each at most" if found.visits else "step" if held.steps == 1 else "steps"
    unit += " (no column is a step)" if any(doubt.startswith(NO_STEP) for doubt in found.doubts) else ""
    return (
        f"{found.name} ({found.source}): {held.groups:,} groups of {held.visited:,} prompts in {held.steps:,} {unit}, "
        f"{held.arrived:,} rollouts"
    )


def _health(found: RunHealth) -> str:
    return "\n".join(_wrapped(each, "   ") for each in health_statements(found))


def _advice(found: AdviceList) -> str:
    if found.problem:
        return f"Advice\n{_wrapped('No advice: ' + found.problem + '.')}"
    lines = ["Advice"]
    if not found.recommended:
        lines.append("Nothing here would help this run.")
    told: dict[str, int] = {}
    for number, each in enumerate(found.recommended, 1):
        first = told.setdefault(each.condition, number)
        condition = each.condition if first == number else f"What is said of {first}. holds here, too."
        said = f"{number}. {each.text} Learning: {each.learning.text}."
        lines += [_wrapped(said, "   "), _wrapped(f"   {condition}", "   ")]
    lines += [_wrapped(f"-  {each.text}", "   ") for each in found.considered]
    lines.append(
        _wrapped(
            f"Measured on {'a random sample of ' * found.sampled}{found.prompts:,} prompts and {found.groups:,} "
            "groups. Each decision knew only what came before, and its outcome is the recorded group. Intervals are "
            f"{found.confidence:.1%}, by bootstrap over prompts. {JOINED * found.joined}A change is recommended if its "
            f"interval is above {LEAST_SAVING:.0%}."
        )
    )
    lines.append(_wrapped(ADVICE))
    return "\n".join(lines)


def _waste(found: Waste, visits: bool, terminal: bool) -> str:
    tokens = "their tokens are unknown" if found.tokens is None else f"{span(found.tokens)} of the known tokens"
    lines = [
        "Dead groups",
        _wrapped(
            f"{span(found.dead)} of the groups with two rewards or more had equal rewards. They took "
            f"{span(found.rollouts)} of the rollouts; {tokens}."
            if found.compared
            else "No group has two rewards or more, so none can be said to be dead."
        ),
        _tallies(found.over_time, "visits" if visits else "steps", terminal),
    ]
    if found.by_difficulty:
        lines.append(_tallies(found.by_difficulty, "mean reward of the prompt", terminal))
    if found.compared:
        lines.append(
            _wrapped(
                f"{found.never_mixed:,} of {found.compared:,} prompts never had a mixed group. They took "
                f"{found.never_mixed_rollouts:,} rollouts."
            )
        )
    return "\n".join(lines)


def _tallies(parts: Sequence[GroupTally], label: str, terminal: bool) -> str:
    kinds = [kind for kind in range(len(KINDS)) if any(part.groups[kind] for part in parts)]
    known = any(part.tokens is not None for part in parts)
    header = [label, "groups", *(KINDS[kind] for kind in kinds), "dead", "rollouts in dead"]
    header += ["tokens in dead"] * known
    rows = []
    for part in parts:
        dead = sum(part.rollouts[kind] for kind in DEAD)
        row = [part.label, f"{sum(part.groups):,}", *(f"{part.groups[kind]:,}" for kind in kinds)]
        row += [share(part.dead_share), f"{dead:,}"]
        if known:
            total = None if part.tokens is None else sum(part.tokens[kind] for kind in DEAD)
            row.append("unknown" if total is None else f"{total:,.0f}{'+' * bool(part.lengths_unknown)}")
        rows.append(row)
    return text_table(rows, header, align="l" + "r" * (len(header) - 1), terminal=terminal)


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
    lost = held.asked - held.arrived
    text += f" {lost:,} of {held.asked:,} rollouts did not arrive" if lost else ""
    text += "." if lost else ""
    unrewarded = found.waste.whole.groups[UNREWARDED]
    text += f" {unrewarded:,} groups have no reward." if unrewarded else ""
    text += f" {held.arrived - held.kept:,} rollouts were not in the loss." if held.kept < held.arrived else ""
    return f"Coverage\n{_wrapped(text)}"


def _drift(found: RateDrift) -> str:
    text = "" if found.means is None else f"The mean reward went from {found.means[0]:.3f} to {found.means[1]:.3f}. "
    if found.problem:
        return f"Drift\n{_wrapped(text + found.problem[0].upper() + found.problem[1:] + '.')}"
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
    return f"Drift\n{_wrapped(text.strip())}"


def _foresight(found: Foresight, terminal: bool) -> str:
    if found.problem:
        return f"Foresight\n{_wrapped(found.problem[0].upper() + found.problem[1:] + '.')}"
    visits = [cell.visit for cell in max(found.predictors, key=lambda each: len(each.cells)).cells]
    names = ["all" if visit is None else f"visit {visit}" for visit in visits]

    def table(title: str, form: str) -> str:
        rows = []
        for each in found.predictors:
            cells = {cell.visit: cell for cell in each.cells}
            row = [each.predictor]
            for visit in visits:
                cell = cells.get(visit)
                together = "-" if cell is None or cell.correlation is None else f"{cell.correlation:.3f}"
                if cell is None:
                    row.append("-")
                elif form == "error":
                    row.append(f"{cell.error.value:.3f} [{cell.error.low:.3f}, {cell.error.high:.3f}]")
                else:
                    row.append(f"{together}, {cell.calibration:.3f}")
            rows.append(row)
        return text_table(rows, [title, *names], align="l" + "r" * len(names), terminal=terminal)

    notes = (
        f"Squared error of the predicted mean reward of the next group, whose own noise is in it. {found.prompts:,} "
    )
    notes += f"prompts, {found.groups:,} groups{', a random sample' * found.sampled}"
    notes += (
        f"; the first {VISITS} visits at most, mean over {found.seeds} random orders of the prompts."
        if found.seeds > 1
        else "."
    )
    notes += " Neighbouring steps are put into one batch, because there are very many." if found.merged else ""
    notes += " The control shuffles over steps joined to 8 groups, because a step has fewer." if found.joined else ""
    return "\n".join(
        [
            "Foresight",
            _wrapped(notes),
            table("squared error", "error"),
            table("correlation, calibration error", "quality"),
            *(_wrapped(each) for each in _no_better(found)),
        ]
    )


def _no_better(found: Foresight) -> list[str]:
    """Return a sentence for each predictor whose shuffled control is as good over all visits."""
    errors = {each.predictor: each.cells[-1].error for each in found.predictors if each.cells}
    return [
        f"{name} knows nothing about single prompts here: its shuffled control is as good."
        for name, error in errors.items()
        if (control := errors.get(f"{name}, shuffled")) is not None and control.low <= error.value
    ]


def _bias(found: Sequence[RuleBias], terminal: bool) -> str:
    if not found:
        return ""
    rates = found[0].rates
    header = ["rule, RLOO's expected estimate / truth at p", *(f"{each.rate:g}" for each in rates), "cosine"]
    rows = [[each.rule, *(f"{cell.ratio:.2f}" for cell in each.rates), f"{each.cosine:.3f}"] for each in found]
    rows.append(["share of your prompts", *(share(each.share) for each in rates), ""])
    lines = ["Bias of the rule", text_table(rows, header, align="l" + "r" * (len(header) - 1), terminal=terminal)]
    for each in found:
        if each.fixed:
            lines.append(f"{each.rule}: counts are fixed by earlier batches, so it has no bias.")
        elif each.remedy:
            lines.append(_wrapped(f"{each.rule}: {each.remedy}."))
    lines.append("From docs/allocators.md; not measured on this run.")
    return "\n".join(dict.fromkeys(lines))


def _assumptions(found: VipAssumptions, terminal: bool) -> str:
    if found.problem:
        return f"VIP's assumptions\n{_wrapped(found.problem + '.')}"
    rows = [
        [each.name, each.part, f"{each.groups:,}", f"{each.statistic:.4g}", f"{each.p_value:.2g}", f"{each.effect:.2f}"]
        for each in found.tests
    ]
    lines = [
        "VIP's assumptions",
        text_table(rows, ["test", "part", "groups", "statistic", "p", "effect"], align="llrrrr", terminal=terminal),
    ]
    lines += [
        _wrapped(f"{each.name}: {each.meaning} (Tested: {each.null}.)") for each in found.tests if each.part == "all"
    ]
    return "\n".join(lines)


def _changes(found: AdviceList) -> str:
    """Return each recommended change as code, last on the page, where a reader of a terminal looks first."""
    if not found.recommended:
        return ""
    lines = ["What to change", _wrapped(CHANGES)]
    for number, each in enumerate(found.recommended, 1):
        first, *rest = [*each.code.imports, each.code.trainer]
        lines += [f"{number}. {each.change}", f"   TRL:  {first}", *(f"         {line}" for line in rest)]
        lines += [f"   verl: {each.code.command}"]
        lines += [_wrapped(f"   {each.code.note}", "   ")] if each.code.note else []
    return "\n".join(lines)


def span(found: Spanned) -> str:
    """Return a share with its interval."""
    interval = "" if math.isnan(found.low) else f" [{share(found.low)}, {share(found.high)}]"
    return f"{share(found.value)}{interval}"


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
