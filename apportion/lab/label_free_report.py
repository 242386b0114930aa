"""The report of a study without labels: what was learnt, how right the votes were, what they took, who saved what."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from apportion.lab.design import Study
from apportion.lab.display import Display
from apportion.lab.label_free_picture import draw_label_free
from apportion.lab.label_free_results import SCORES, LabelFreeArm, LabelFreeRun, summarise_label_free
from apportion.lab.pool import Pool
from apportion.lab.report import aligned, publish
from apportion.lab.results import Interval
from apportion.lab.worker import run_directory

HEADS = {
    "mean_16": "mean@16",
    "pass_16": "pass@16",
    "pass_1": "pass@1",
    "maj_16": "maj@16",
    "prompts_success": "exact, prompts",
}


def write_label_free_report(study: Study, pool: Pool, display: Display) -> None:
    """Writes ``report.md``, ``summary.json`` and the picture (PNG and SVG) of a finished study; shows the tables."""
    runs = {
        arm: [LabelFreeRun.read(run_directory(study.directory, arm, seed)) for seed in study.seeds]
        for arm in study.allocators
    }
    summary = summarise_label_free(runs, study.baseline)
    steps = study.training.steps
    lines = [
        *(accuracy_table(summary, study.baseline) if pool.gold else []),
        *vote_table(summary),
        "",
        *findings(summary, study.baseline, len(study.seeds), steps, len(pool.gold), len(pool.problems)),
    ]
    drawn = partial(draw_label_free, runs, verdict(summary, study.baseline))
    publish(study.directory, lines, summary, drawn, display)


def accuracy_table(summary: Sequence[LabelFreeArm], baseline: str) -> list[str]:
    """What was learnt: scores on the prompts, at the start and at the end, and on problems never trained on."""
    heads = ["allocator", *HEADS.values(), f"mean@16 - {baseline}", "exact, held out"]
    first = summary[0]
    rows = [["(start)", *(str(first.start[key]) for key in SCORES), "", str(first.held_out_start)]]
    rows += [
        [arm.name, *(str(arm.scores[key]) for key in SCORES), _signed(arm.mean_16_difference), str(arm.held_out)]
        for arm in summary
    ]
    return [*aligned(heads, rows), ""]


def vote_table(summary: Sequence[LabelFreeArm]) -> list[str]:
    """How right the labels were where gold is known, how the votes ended, and what they took."""
    known = bool(summary[0].scores)
    heads = [
        "allocator",
        *(["labels right", "false consensus"] if known else []),
        "no label",
        "leader's share",
        "drift",
    ]
    heads += ["rollouts", "saved", "tokens", "saved", "updates", "CPU s"]
    rows = [
        [
            arm.name,
            *([_or_dash(arm.label_accuracy), _or_dash(arm.false_consensus)] if known else []),
            str(arm.unlabelled),
            str(arm.leader_share),
            str(arm.drift),
            f"{arm.rollouts:,.0f}",
            arm.rollouts_saved.percent,
            f"{arm.tokens:,.0f}",
            arm.tokens_saved.percent,
            f"{arm.updates:.0f}",
            f"{arm.cpu_seconds:.0f}",
        ]
        for arm in summary
    ]
    return aligned(heads, rows)


def verdict(summary: Sequence[LabelFreeArm], baseline: str) -> str:
    """One sentence: who takes fewer or more rollouts than the baseline beyond noise, and at what accuracy."""
    others = [arm for arm in summary if arm.name != baseline]
    if not others:
        return "nothing to compare"
    if any(arm.rollouts_saved.half_width is None for arm in others):
        return f"one seed: no difference from {baseline} can be told from noise"
    beyond = [arm for arm in others if not arm.rollouts_saved.contains_zero]
    within = [arm.name for arm in others if arm.rollouts_saved.contains_zero]
    parts = [f"{arm.name} takes {_fewer(arm.rollouts_saved)} rollouts{_at(arm)}" for arm in beyond]
    parts += [f"as many within noise: {', '.join(within)}"] if within else []
    return f"against {baseline}: {'; '.join(parts)}"


def findings(
    summary: Sequence[LabelFreeArm], baseline: str, seeds: int, steps: int | None, known: int, prompts: int
) -> list[str]:
    """What the tables say, in sentences; and what they do not. Gold is ``known`` for so many of the ``prompts``."""
    said = verdict(summary, baseline)
    lines = [f"{said[:1].upper()}{said[1:]} ({seeds} seeds; intervals are 95%, Student's t over seeds)."]
    lines += [
        _cost(arm, baseline) for arm in summary if arm.name != baseline and arm.rollouts_saved.half_width is not None
    ]
    gains = [f"{arm.name} {arm.mean_16_gain.signed}" for arm in summary if arm.mean_16_gain is not None]
    lines += [f"Change of mean@16 from the start: {', '.join(gains)}."] if gains else []
    if steps is not None:
        lines.append(f"Every arm takes {steps} steps: what the saved rollouts would buy in further steps is not shown.")
    lines += ["", *_terms(known), _gold(known, prompts)]
    return lines


def _cost(arm: LabelFreeArm, baseline: str) -> str:
    """What one arm saves, and what its accuracy is then, each beyond noise or not."""
    saved, difference = arm.rollouts_saved, arm.mean_16_difference
    rollouts = f"{arm.name} takes {_fewer(saved)} rollouts and {_fewer(arm.tokens_saved)} tokens than {baseline}"
    rollouts += ", within noise" if saved.contains_zero else ", beyond noise"
    if difference is None:
        return f"{rollouts}; what that does to accuracy is not shown."
    if not difference.contains_zero:
        side = "lower" if difference.mean < 0 else "higher"
        return f"{rollouts}; its mean@16 is {side} beyond noise ({difference.signed})."
    loss = max(0.0, (difference.half_width or 0.0) - difference.mean)
    return (
        f"{rollouts}; its mean@16 is within noise ({difference.signed}): a loss of up to {loss:.3f} is not ruled out."
    )


def _fewer(saved: Interval) -> str:
    """A saving in words: 35.2% ± 1.4% fewer."""
    if saved.mean >= 0:
        return f"{saved.percent} fewer"
    return f"{Interval(-saved.mean, saved.half_width).percent} more"


def _at(arm: LabelFreeArm) -> str:
    return "" if arm.mean_16_difference is None else f" at mean@16 {arm.mean_16_difference.signed}"


def _or_dash(interval: Interval | None) -> str:
    return "-" if interval is None else str(interval)


def _signed(interval: Interval | None) -> str:
    return "" if interval is None else interval.signed


def _terms(known: int) -> list[str]:
    """What the columns mean."""
    terms = [
        "No label: the vote was tied or unanswered. Drift: KL to the start, in nats a completion, on held-out prompts."
    ]
    if known:
        terms.insert(
            0,
            "Labels right, and false consensus (wrong, though more than half of the samples agree), are shares of the "
            "labels over the whole run. The scores at 16 and pass@1 (greedy) are sampled at the end; exact success is "
            "computed.",
        )
    return terms


def _gold(known: int, prompts: int) -> str:
    if not known:
        return f"No right answer is given for the {prompts} prompts, so only votes and drift are shown."
    if known < prompts:
        return (
            f"Right answers are given for {known} of the {prompts} prompts: sampled scores and shares of labels are "
            "over these, exact success is over all."
        )
    return f"Right answers are known for all {prompts} prompts. The report alone reads them; no update does."
