"""The report of a study with right answers: what was learnt, and from how many rollouts."""

from collections.abc import Sequence

from apportion.lab.report.measures import (
    CPU_SECONDS,
    TOKENS,
    Arm,
    Measure,
    arm_table,
    final,
    mean,
    over,
    paired,
    summarise,
    verdict,
)
from apportion.lab.report.results import Run, Runs, SeedInterval


def _token_area_difference(
    runs: Sequence[Run], baseline: Sequence[Run], of_seed: Sequence[Sequence[Run]]
) -> SeedInterval:
    """Return the difference of areas over tokens, up to the fewest tokens that any arm used with the same seed."""
    fewest = [min(run.tokens[-1] for run in each) for each in of_seed]
    pairs = zip(runs, baseline, fewest, strict=True)
    return SeedInterval.of([run.area_to(tokens) - other.area_to(tokens) for run, other, tokens in pairs])


FIRST = 20
"""The share of the steps that counts as the start."""
AREA = Measure("area_difference", paired(lambda run, other: run.area - other.area), "area - baseline", "+.3f")
MEASURES = (
    Measure("success", final("success"), "success"),
    Measure("area", over(lambda run: run.area), "area"),
    AREA,
    Measure("token_area_difference", _token_area_difference, "the same over tokens", "+.3f"),
    Measure("pass_32", final("pass_32"), "pass@32"),
    Measure("informative", over(lambda run: run.steps["informative"].mean()), "mixed"),
    Measure("dead_at_start", over(lambda run: 1 - run.steps["informative"][:FIRST].mean()), "dead at start"),
    Measure("visits", over(lambda run: run.revisits[0]), "visits", ".1f"),
    Measure("drift", over(lambda run: run.revisits[1]), "moves a visit"),
    Measure("rollouts_per_prompt", mean(lambda run: run.rollouts_per_prompt), "rollouts/prompt", ".2f"),
    Measure("updates", mean(lambda run: len(run.steps["rows"])), "updates", ".0f"),
    TOKENS,
    CPU_SECONDS,
)


def report(runs: Runs, baseline: str) -> tuple[list[Arm], list[str]]:
    """Return the measures of every arm, and the report: their table and its explanation."""
    summary = summarise(MEASURES, runs, baseline)
    found = verdict(summary, AREA, "area differs from", baseline, len(runs[baseline]))
    lines = [*arm_table(MEASURES, summary), "", found]
    sizes = {arm.name: arm.rollouts_per_prompt for arm in summary}
    for name, size in sizes.items():
        if not any(other != name and abs(theirs - size) < 0.5 for other, theirs in sizes.items()):
            lines.append(
                f"{name} has no control with as many rollouts a prompt ({size:.1f}): "
                "part of a difference may be its number of updates."
            )
    return summary, lines
