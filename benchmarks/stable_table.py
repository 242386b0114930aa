"""Write the tables of the stable protocol, of the units that are complete, and the curves for its picture.

python -m benchmarks.stable_table          # reads the runs, and writes benchmarks/data/stable.json and the tables
python -m benchmarks.stable_table written  # writes the tables of that file again
"""

from __future__ import annotations

import copy
import json
import sys
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from apportion.diagnosis import drift_of
from apportion.lab.report.results import Run
from apportion.records import open_run
from apportion.replay.limits import drift
from benchmarks.common import ROOT, facts, table, write
from benchmarks.stable import (
    AGAIN,
    ARMS,
    DATA,
    KNOWN,
    MIDDLE,
    PAGES,
    SETTINGS,
    SWEEP,
    SWEEPS,
    as_run,
    collapsed,
    finished,
    stable_rate,
    stored,
)

RUN = ROOT / "examples" / "data" / "grpo_run.jsonl.gz"
CONTROL = "uniform_8"
LEVEL = 0.8
CONTRASTS = (
    ("optimal baseline, groups of 4", "four_optimal", "uniform_4"),
    ("optimal baseline, single rollouts", "single_optimal", "single_zero"),
    ("MoPPS, single rollouts", "single_mopps", "single_optimal"),
    ("single rollouts in place of groups of 4, optimal baseline", "single_optimal", "four_optimal"),
    ("optimal baseline, groups of 8", "eight_optimal", "uniform_8"),
    ("optimal baseline, groups of 2", "two_optimal", "uniform_2"),
    ("groups of 8 in place of 16, RLOO", "uniform_8", "uniform_16"),
    ("groups of 2 in place of 4, RLOO", "uniform_2", "uniform_4"),
    ("groups of 4 in place of 8, optimal baseline", "four_optimal", "eight_optimal"),
    ("groups of 2 in place of 4, optimal baseline", "two_optimal", "four_optimal"),
    ("single rollouts in place of groups of 8, optimal baseline", "single_optimal", "eight_optimal"),
    ("single rollouts in place of groups of 2, optimal baseline", "single_optimal", "two_optimal"),
    ("half of the exact rates exchanged, groups of 8", "oracle_8_half", "oracle_8"),
)
"""What changes, the arm that has it, and the one that has not."""
SIMULATED = 20_000
SAYS = (
    " A unit is a base with a seed. Differences are paired by unit, with 95% intervals over bases. `rollouts to {}` is "
    "a ratio to uniform_8's; - if a run of either never got there. `never` counts these runs, and `collapses` those "
    "that fell by more than .1 below their own best."
)


@dataclass(frozen=True)
class Estimate:
    """A mean over bases, the half width of its 95% interval, and the p-value of 0. nan with a single base."""

    mean: float
    half: float
    p: float

    @classmethod
    def of(cls, values, bases):
        """Return the estimate of ``values`` [units], whose units on one base are averaged first."""
        values, bases = np.asarray(values, float), np.asarray(bases)
        means = np.array([values[bases == base].mean() for base in np.unique(bases)])
        if len(means) < 2:
            return cls(float(means.mean()), np.nan, np.nan)
        free = len(means) - 1
        error = means.std(ddof=1) / np.sqrt(len(means))
        with np.errstate(divide="ignore", invalid="ignore"):
            p = 2 * student.sf(abs(means.mean() / error), free)
        return cls(float(means.mean()), float(student.ppf(0.975, free) * error), float(p))

    @property
    def signed(self):
        return f"{self.mean:+.3f} ± {self.half:.3f}"


def holm(p):
    """Return the p-values corrected by Holm, in their order.

    >>> holm([0.01, 0.04, 0.02]).tolist()
    [0.03, 0.04, 0.04]
    """
    p = np.asarray(p, float)
    order = np.argsort(p)
    found = np.empty(len(p))
    found[order] = np.minimum(1, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    return found.round(12)


def level(bases, seeds, share, clusters=True):
    """Return how often the interval of a difference that is 0 leaves 0 out, in simulated studies.

    ``share`` of the variance is the base's. Without ``clusters`` every unit counts as independent.
    """
    random = np.random.default_rng(0)
    of_base = random.normal(0, np.sqrt(share), (SIMULATED, bases, 1))
    values = of_base + random.normal(0, np.sqrt(1 - share), (SIMULATED, bases, seeds))
    means = values.mean(axis=2) if clusters else values.reshape(SIMULATED, -1)
    number = means.shape[1]
    ratio = means.mean(axis=1) / (means.std(axis=1, ddof=1) / np.sqrt(number))
    return float((np.abs(ratio) > student.ppf(0.975, number - 1)).mean())


def of_bases(values, bases):
    """Return the share of the variance of ``values`` that is their base's, by the analysis of variance; 0 if below.

    All bases must have as many values.

    >>> of_bases([1.0, 1.0, 3.0, 3.0], [0, 0, 1, 1])
    1.0
    """
    groups = np.array([np.asarray(values)[np.asarray(bases) == base] for base in np.unique(bases)])
    number = groups.shape[1]
    within, between = groups.var(axis=1, ddof=1).mean(), number * groups.mean(axis=1).var(ddof=1)
    return float(max(0.0, (between - within) / (between + (number - 1) * within)))


def read_runs():
    """Return what the tables need of each run, stored or ended since: by setting, arm and "base seed"."""
    found = {"facts": {}} | copy.deepcopy(stored()) | {"rates": {arm: stable_rate(arm) for arm in SWEEP.arms}}
    for name, setting in {**SWEEPS, **SETTINGS}.items():
        for arm in setting.arms:
            ended = {unit: run for unit in setting.units if (run := finished(name, arm, *unit))}
            if ended:
                found["facts"].setdefault(name, facts())
                rows = found.setdefault(name, {}).setdefault(arm, {})
                rows |= {f"{base} {seed}": _of_run(run) for (base, seed), run in ended.items()}
    return found


def _of_run(run: Run):
    mixed = run.steps["informative"]
    found = {
        "rollouts": run.rollouts.astype(int).tolist(),
        "success": run.success.round(4).tolist(),
        "pass_32": round(run.final("pass_32"), 4),
        "updates": len(mixed),
        "tokens": int(run.final("tokens")),
        "mixed": [round(float(part), 4) for part in (mixed.mean(), mixed[: len(mixed) // 4].mean())],
    }
    return found | (_moves(run) if np.isfinite(run.steps["p"]).all() else {})


def _moves(run):
    """Return visits of a prompt, and the mean and the root mean square of what its exact rate moves between two.

    Nothing if no prompt came twice. With them is the share of visits to a prompt in the middle, and the mean
    correlation and square error of a belief that chose.
    """
    order = np.argsort(run.steps["prompts"], kind="stable")
    change = np.diff(run.steps["p"][order])[np.diff(run.steps["prompts"][order]) == 0]
    visits, moves = run.revisits
    if not len(change):
        return {}
    middle = (run.steps["p"] > MIDDLE[0]) & (run.steps["p"] < MIDDLE[1])
    belief = {"belief": run.steps["belief"].reshape(-1, 2).mean(axis=0).tolist()} if "belief" in run.steps else {}
    return {"visits": visits, "moves": [float(change.mean()), moves], "middle": float(middle.mean())} | belief


def recorded_row():
    """Return the row of the recorded run: sampling noise is taken out of how far its rates move."""
    record = open_run(RUN)
    visits = np.bincount(record.prompt)
    mixed = (record.shares > 0) & (record.shares < 1)
    rise = drift_of(record).rise.value / (visits.mean() - 1)
    numbers = [mixed[record.visit < visits.max() // 4].mean(), mixed.mean(), visits.mean(), rise, drift(record, 1)]
    return ["recorded run, 1.5B, groups of 8", *map(format, numbers, (".2f", ".2f", ".1f", ".3f", ".3f"))]


class Runs:
    """The runs of a setting: by arm, and by unit, whose first word is its base. ``level`` is that of the setting.

    Runs ``beside`` are of another setting: its page has their p-values.
    """

    def __init__(self, rows, level, beside=None):
        self.own = tuple(rows)
        rows = (beside or {}) | rows
        self.rows, self.level = rows, level
        self.runs = {arm: {unit: as_run(row) for unit, row in own.items()} for arm, own in rows.items()}

    def paired(self, arm, other, value):
        """Return the estimate of the difference of ``value`` of a run, over the units that both arms have."""
        units = [unit for unit in self.runs[arm] if unit in self.runs[other]]
        less = [value(self.runs[arm][unit]) - value(self.runs[other][unit]) for unit in units]
        return Estimate.of(less, [unit.split()[0] for unit in units])

    def less(self, arm, other):
        """Return the difference of areas."""
        return self.paired(arm, other, lambda run: run.area)

    def of_bases(self, arm, other):
        """Return the share of the bases in the variance of the difference of areas."""
        units = list(self.runs[arm])
        less = [self.runs[arm][unit].area - self.runs[other][unit].area for unit in units]
        return of_bases(less, [unit.split()[0] for unit in units])

    def ratio(self, arm, other):
        """Return the rollouts to the level over those of ``other``, as text; "-" if a run never got there."""
        if self.never(arm) or self.never(other):
            return "-"
        found = self.paired(arm, other, lambda run: np.log(run.reached(self.level)))
        low, high = np.exp([found.mean - found.half, found.mean + found.half])
        return f"{np.exp(found.mean):.2f} ({low:.2f} to {high:.2f})"

    def never(self, arm):
        """Return how many runs never got to the level."""
        return sum(not np.isfinite(run.reached(self.level)) for run in self.runs[arm].values())

    def mean(self, arm, key):
        return np.mean([row[key] for row in self.rows[arm].values()], axis=0)


def arms_table(runs, rates):
    """Return the columns and rows of a setting. The p-values of the arms but the sceptic's are corrected."""
    compared = [arm for arm in runs.own if arm in ARMS and arm != CONTROL]
    corrected = dict(zip(compared, holm([runs.less(arm, CONTROL).p for arm in compared]), strict=True))
    rows = []
    for arm, own in runs.runs.items():
        rows.append(
            [
                arm,
                str(len(own)),
                f"{rates.get(arm, rates[CONTROL]):g}",
                runs.less(arm, CONTROL).signed,
                f"{corrected[arm]:.3f}" if arm in corrected else "-",
                runs.ratio(arm, CONTROL),
                str(runs.never(arm)),
                f"{np.mean([run.success[-1] for run in own.values()]):.3f}",
                f"{runs.mean(arm, 'pass_32'):.3f}",
                str(sum(map(collapsed, own.values()))),
            ]
        )
    columns = [
        "arm",
        "units",
        "rate",
        "area - uniform_8",
        "p (Holm)",
        f"rollouts to {runs.level}",
        "never",
        "end",
        "pass@32",
        "collapses",
    ]
    return columns, rows


def contrasts_table(runs):
    """Return the table of what changes one thing, with its p-values corrected among themselves."""
    known = [each for each in CONTRASTS if {*each[1:]} <= runs.runs.keys() and {*each[1:]} & {*runs.own}]
    found = [runs.less(arm, other) for _, arm, other in known]
    rows = [
        [what, each.signed, f"{p:.3f}", runs.ratio(arm, other)]
        for (what, arm, other), each, p in zip(known, found, holm([each.p for each in found]), strict=True)
    ]
    return table(["one change", "area", "p (Holm)", f"rollouts to {runs.level}"], rows)


def choices_table(runs):
    """Return the table of what a choice of prompts finds, and of how rates move in the first unit and a real run."""
    rows = []
    for arm, own in runs.rows.items():
        first = next(iter(own.values()))
        moves = (
            [f"{first['visits']:.1f}", *(f"{each:.3f}" for each in first["moves"])] if "moves" in first else ["-"] * 3
        )
        mixed, start = runs.mean(arm, "mixed")
        grouped = not arm.startswith("single")
        rows.append([arm, *([f"{start:.2f}", f"{mixed:.2f}"] if grouped else ["-"] * 2), *moves])
    rows.append(recorded_row())
    return table(["arm", "mixed, first quarter", "mixed", "visits", "rise a visit", "moves a visit"], rows)


def beliefs_table(found):
    """Return the table of how well a belief that chose agreed with exact rates, and of how often the middle was hit."""
    rows = [
        [f"{name}, {arm}", *([f"{each:.2f}" for each in row.get("belief", ())] or ["-"] * 2), f"{row['middle']:.2f}"]
        for name in SETTINGS
        for arm, own in found.get(name, {}).items()
        for row in own.values()
        if "belief" in row or (arm in KNOWN and "middle" in row)
    ]
    return table(["first unit", "correlation", "square error", "prompts with .1 < p < .9"], rows)


def main(part="all"):
    if part != "written":
        DATA.write_text(json.dumps(read_runs(), separators=(",", ":")) + "\n", encoding="utf-8")
    found = json.loads(DATA.read_text(encoding="utf-8"))
    for page, names in PAGES.items():
        known = [name for name in names if name in found]
        if known:
            _write_page(page, known, found)


def runs_of(found, name):
    """Return the runs of a setting and its rates, beside those of the setting with the same units."""
    setting = SETTINGS[name]
    beside = {arm: found[setting.like][arm] for arm in setting.beside}
    runs = Runs(found[name], setting.level, beside)
    return runs, dict.fromkeys(runs.runs, setting.rate) if setting.rate else found["rates"]


def _write_page(page, names, found):
    first, *others = names
    runs, rates = runs_of(found, first)
    columns, rows = arms_table(runs, rates)
    notes = [_says(first) + SAYS.format(SETTINGS[first].level), contrasts_table(runs)]
    notes += [beliefs_table(found)] if others else [choices_table(runs)]
    for name in others:
        notes += [_says(name), table(*arms_table(*runs_of(found, name)))]
    if first == "quick":
        notes += [
            "Areas of the sweep's units: * marks the chosen rate, and brackets a collapse.",
            _sweep_table(found),
            _level_note(runs),
        ]
    write(
        page,
        f"The stable protocol: {', '.join(names)}",
        columns,
        rows,
        notes,
        seeds=[unit.split()[1] for unit in runs.rows[CONTROL]],
        measured=found["facts"][first],
    )


def _says(name):
    setting = SETTINGS[name]
    return (
        f"Setting {name} of the protocol in benchmarks/stable.md: {setting.problems} problems, {setting.rollouts:,} "
        f"rollouts a run, {8 * (setting.prompts or 8)} an update."
    )


def _sweep_table(found):
    """Return the areas of the sweep's units at each rate."""
    rows = []
    for arm in SWEEP.arms:
        row = [arm]
        for name, sweep in SWEEPS.items():
            runs = [as_run(each) for each in found.get(name, {}).get(arm, {}).values()]
            areas = " ".join(f"{run.area:.3f}" for run in runs) or "-"
            areas = f"({areas})" if any(map(collapsed, runs)) else areas
            row.append(areas + "*" * (found["rates"][arm] == sweep.rate))
        rows.append(row)
    return table(["arm", *(f"sweep, {sweep.rate:g}" for sweep in SWEEPS.values())], rows)


def _level_note(runs):
    bases = [unit.split()[0] for unit in runs.rows[CONTROL]]
    shape = len(set(bases)), len(bases) // len(set(bases))
    ours, naive = (
        " and ".join(f"{level(*shape, share, clusters):.3f}" for share in (0.0, 0.5)) for clusters in (True, False)
    )
    note = (
        f"Level: with {shape[0]} bases of {shape[1]} units and no difference, the interval leaves 0 out in {ours} of "
        f"{SIMULATED:,} simulated studies, where none and half of the variance is the base's. Student's t over all "
        f"units does in {naive}. The A/A pair differs by {runs.less(AGAIN, CONTROL).signed}."
    )
    if min(map(bases.count, bases)) < 2:
        return note
    shares = ", ".join(
        f"{runs.of_bases(arm, CONTROL):.2f} ({arm})" for arm in ("single_optimal", "four_optimal", AGAIN)
    )
    return f"{note} Share of the base in the variance of the difference: {shares}."


if __name__ == "__main__":
    main(*sys.argv[1:])
