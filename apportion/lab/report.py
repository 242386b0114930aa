"""The report of a study: a table, what it says and does not say, and a picture."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from apportion.lab.display import Display
from apportion.lab.picture import draw
from apportion.lab.results import BANDS, Arm, Run, summarise
from apportion.lab.worker import MEASURED, MEASURED_PROMPTS, run_directory


def write_report(directory: Path, arms: Sequence[str], seeds: Sequence[int], baseline: str, display: Display) -> None:
    """Writes ``report.md``, ``summary.json`` and the picture (PNG and SVG) under ``directory``, and shows the table."""
    runs = {arm: [Run.read(run_directory(directory, arm, seed)) for seed in seeds] for arm in arms}
    summary = summarise(runs, baseline)
    measured_file = directory / "variance.json"
    measured = json.loads(measured_file.read_text()) if measured_file.exists() else []
    lines = [*table(summary), "", *findings(summary, baseline, len(seeds), measured)]
    publish(directory, lines, summary, partial(draw, runs, summary, measured, verdict(summary, baseline)), display)


def publish(
    directory: Path,
    lines: Sequence[str],
    summary: Sequence[Any],
    drawn: Callable[[Sequence[Path]], None],
    display: Display,
) -> None:
    """Writes the ``lines`` of a report, its ``summary`` of dataclasses and what ``drawn`` draws; shows the lines."""
    text = "\n".join([f"# {directory.name}\n", *lines, ""])
    (directory / "report.md").write_text(text)
    (directory / "summary.json").write_text(json.dumps([asdict(arm) for arm in summary], indent=2) + "\n")
    pictures = [directory / "curves.png", directory / "curves.svg"]
    drawn(pictures)
    display.say("")
    for line in text.splitlines()[2:]:
        display.say(line)
    display.say(f"\nreport {directory / 'report.md'}, picture {pictures[0]}")


def table(summary: Sequence[Arm]) -> list[str]:
    """The table of a study in Markdown."""
    heads = ["allocator", "success", "area", "area - baseline", "the same over tokens", "pass@32", "informative"]
    heads += ["rollouts/prompt", "updates", "tokens", "CPU s"]
    rows = [
        [
            arm.name,
            str(arm.success),
            str(arm.area),
            arm.area_difference.signed,
            arm.token_area_difference.signed,
            str(arm.pass_32),
            str(arm.informative),
            f"{arm.rollouts_per_prompt:.2f}",
            f"{arm.updates:.0f}",
            f"{arm.tokens:,.0f}",
            f"{arm.cpu_seconds:.0f}",
        ]
        for arm in summary
    ]
    return aligned(heads, rows)


def aligned(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table whose columns stand under each other as text, too."""
    widths = [max(len(row[column]) for row in [heads, *rows]) for column in range(len(heads))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in [heads, *rows]
    ]
    return [lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]]


def verdict(summary: Sequence[Arm], baseline: str) -> str:
    """One sentence: whose area differs from the baseline's by more than its 95% interval, and whose does not."""
    others = [arm for arm in summary if arm.name != baseline]
    if not others:
        return "nothing to compare"
    if any(arm.area_difference.half_width is None for arm in others):
        return f"one seed: no difference from {baseline} can be told from noise"
    within = [arm.name for arm in others if arm.area_difference.contains_zero]
    beyond = [f"{arm.name} ({arm.area_difference.signed})" for arm in others if not arm.area_difference.contains_zero]
    parts = [f"within noise of {baseline}: {', '.join(within)}"] if within else []
    parts += [f"area differs from {baseline}'s beyond noise: {', '.join(beyond)}"] if beyond else []
    return "; ".join(parts)


def findings(summary: Sequence[Arm], baseline: str, seeds: int, measured: Sequence[dict[str, Any]]) -> list[str]:
    """What the table says, in sentences; and what it does not."""
    lines = [f"{verdict(summary, baseline).capitalize()} ({seeds} seeds; intervals are 95%, Student's t over seeds)."]
    sizes = {arm.name: arm.rollouts_per_prompt for arm in summary}
    for arm in summary:
        if not any(other != arm.name and abs(size - arm.rollouts_per_prompt) < 0.5 for other, size in sizes.items()):
            lines.append(
                f"{arm.name} has no control with as many rollouts a prompt ({arm.rollouts_per_prompt:.1f}): "
                "part of a difference may be its number of updates."
            )
    lines += ["", *measured_lines(measured)]
    lines += ["", "Rollouts a prompt by its exact success probability:", "", *_band_table(summary)]
    return lines


def _band_table(summary: Sequence[Arm]) -> list[str]:
    labels = [f"{low:g} to {high:g}" for low, high in pairwise(BANDS)]
    lines = ["| allocator | " + " | ".join(labels) + " |", "|---" * (len(labels) + 1) + "|"]
    return lines + [f"| {arm.name} | " + " | ".join(f"{n:.1f}" for n in arm.rollouts_by_band) + " |" for arm in summary]


def measured_lines(measured: Sequence[dict[str, Any]]) -> list[str]:
    """What an allocation does to the gradient and to the hits of one batch, as ``lab.variance.compare`` measured it."""
    if not measured:
        return []
    lines = [
        f"Before training, on {MEASURED_PROMPTS} fixed prompts: the measured variance of the whole gradient (RLOO, "
        f"{MEASURED['rollouts_per_prompt']} rollouts a prompt on average, {MEASURED['low']} to {MEASURED['high']} "
        "under VIP). Shuffled p is the control.",
        "",
        "| rule | gradient variance / uniform | by the paper's formula | expected hits | hits - uniform |",
        "|---|---|---|---|---|",
    ]
    for row in measured:
        ratio, formula = row["ratio"], row["formula_ratio"]
        spread = "" if ratio is None else " ({:.2f} to {:.2f})".format(*row["ratio_interval"])
        lines.append(
            f"| {row['rule']} | {'-' if ratio is None else f'{ratio:.2f}'}{spread} | "
            f"{'-' if formula is None else f'{formula:.2f}'} | {row['expected_hits']:.2f} | {row['hits_gain']:+.2f} |"
        )
    return lines
