"""Judges of HORA's claims about pass@K, and what they share with the judges of its other claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from apportion.lab.report.results import SeedInterval
from benchmarks.evidence.claim import Finding, Values, Verdict, difference, interval, sign
from benchmarks.evidence.learning import PASS_AT

LARGEST = PASS_AT[-1]
COMPARABLE = 0.015
"""Pass@1 counts as preserved if it falls by less. The paper calls changes of -0.014 to +0.015 comparable."""


def pass_at(values: Values, k: int) -> list[float]:
    """Return exact pass@k by seed."""
    return [each[str(k)] for each in values["pass_at"]]


def gains(mine: Values, control: Values) -> dict[int, SeedInterval]:
    """Return the interval of the difference in pass@k by k. The control is trained too, or is a start for all seeds."""
    trained = isinstance(control["pass_at"], list)
    return {
        k: difference(pass_at(mine, k), pass_at(control, k))
        if trained
        else SeedInterval.of([value - control["pass_at"][str(k)] for value in pass_at(mine, k)])
        for k in PASS_AT
    }


def tally(signs: Sequence[int]) -> Verdict:
    """Return the verdict of several settings, each with the sign 1 if the claim holds there and -1 if it fails."""
    if min(signs) > 0:
        return Verdict.HOLDS
    if max(signs) > 0:
        return Verdict.CONDITIONS
    return Verdict.FAILS if min(signs) < 0 else Verdict.OPEN


def direction(found: Mapping[int, SeedInterval]) -> Verdict:
    """Return whether pass@K is larger: at the largest K, and at no K smaller. Ahead at some K only is a condition."""
    signs = {k: sign(each) for k, each in found.items()}
    if signs[LARGEST] > 0 and min(signs.values()) >= 0:
        return Verdict.HOLDS
    if max(signs.values()) > 0:
        return Verdict.CONDITIONS
    return Verdict.FAILS if min(signs.values()) < 0 else Verdict.OPEN


def at(found: Mapping[int, SeedInterval], wanted: int) -> str:
    """Return the values of K at which a difference has the sign ``wanted``: "K = 64, 128", "no K" or "every K"."""
    right = [f"{k:,}" for k, each in found.items() if sign(each) == wanted]
    return "every K" if len(right) == len(found) else f"K = {', '.join(right)}" if right else "no K"


def curve_rows(columns: Mapping[str, Values | Mapping[int, SeedInterval]]) -> list[list[object]]:
    """Return a row for each k: pass@k of runs or of a start, or a difference."""
    rows: list[list[object]] = []
    for k in PASS_AT:
        row: list[object] = [f"{k:,}"]
        for column in columns.values():
            if k in column:
                row.append(column[k].signed)
            elif isinstance(column["pass_at"], list):
                row.append(interval(pass_at(column, k)))
            else:
                row.append(f"{column['pass_at'][str(k)]:.3f}")
        rows.append(row)
    return rows


def better_pass_at(estimator: str, values: Mapping[str, Values]) -> Finding:
    mine, control = values[f"hora.{estimator}"], values[f"controls.uniform_8_{estimator}"]
    found, start = gains(mine, control), values["controls.start"]
    shown = ", ".join(f"K = {k:,}: {found[k].signed}" for k in (8, 64, 256, LARGEST))
    why = (
        f"HORA is clearly ahead at {at(found, 1)} and clearly behind at {at(found, -1)}. "
        f"At K = 1,024 a gain of {found[LARGEST].half_width:.3f} could be told from none. "
        f"The rates are {mine['rate']:g} and {control['rate']:g}. The areas under the learning curves differ by "
        f"{difference(mine['area'], control['area']).signed}."
    )
    name = estimator.upper()
    columns = {f"uniform 8, {name}": control, f"HORA, {name}": mine, "difference": found}
    return Finding(shown, direction(found), why, ("K", "base", *columns), curve_rows({"base": start, **columns}))


def same_pass_at_1(values: Mapping[str, Values]) -> Finding:
    found = {name: gains(values[f"hora.{name}"], values[f"controls.uniform_8_{name}"])[1] for name in ("grpo", "rloo")}
    kept = [name.upper() for name, each in found.items() if each.mean - each.half_width > -COMPARABLE]
    lost = [name.upper() for name, each in found.items() if each.mean + each.half_width < -COMPARABLE]
    return Finding(
        ", ".join(f"{name.upper()} {each.signed}" for name, each in found.items()),
        tally([1 if name.upper() in kept else -1 if name.upper() in lost else 0 for name in found]),
        f"Pass@1 counts as preserved if the whole interval of the difference lies above -{COMPARABLE}. It does under "
        f"{' and '.join(kept) or 'neither'}.",
    )


def above_base(rule: str, start: str, values: Mapping[str, Values]) -> Finding:
    found = gains(values[rule], values[start])
    signs = [sign(each) for each in found.values()]
    verdict = (
        Verdict.HOLDS
        if min(signs) > 0
        else Verdict.FAILS
        if min(signs) < 0
        else Verdict.CONDITIONS
        if max(signs) > 0
        else Verdict.OPEN
    )
    ours = f"K = 1: {found[1].signed}, K = 1,024: {found[LARGEST].signed}"
    return Finding(ours, verdict, f"It is clearly above the base at {at(found, 1)}, clearly below at {at(found, -1)}.")


def falls_below_base(values: Mapping[str, Values]) -> Finding:
    lines, verdicts = [], []
    for name, rule, start in (
        ("hard base, GRPO", "controls.uniform_8_grpo", "controls.start"),
        ("hard base, RLOO", "controls.uniform_8_rloo", "controls.start"),
        ("forks base, RLOO", "hora.forks_uniform", "hora.forks_start"),
    ):
        found = gains(values[rule], values[start])[LARGEST]
        lines.append(f"{name} {found.signed}")
        verdicts.append(-sign(found))
    return Finding(
        "pass@1,024 less the base's: " + ", ".join(lines),
        tally(verdicts),
        f"The base reaches pass@1,024 of {values['controls.start']['pass_at']['1024']:.3f} on hard and "
        f"{values['hora.forks_start']['pass_at']['1024']:.3f} on forks. The paper's base reaches 0.700 on AIME 2025, "
        "so it has more to lose and more to gain.",
    )


def forks_pass_at(values: Mapping[str, Values]) -> Finding:
    mine, control, start = (values[f"hora.forks_{name}"] for name in ("pre_4", "uniform", "start"))
    found = gains(mine, control)
    columns = {"uniform 8": control, "HORA": mine, "difference": found}
    return Finding(
        ", ".join(f"K = {k:,}: {found[k].signed}" for k in (1, 64, LARGEST)),
        direction(found),
        f"HORA is clearly ahead at {at(found, 1)} and clearly behind at {at(found, -1)}. Three seeds give wide "
        f"intervals: at K = 1,024 a gain of {found[LARGEST].half_width:.3f} could be told from none.",
        ("K", "base", *columns),
        curve_rows({"base": start, **columns}),
    )
