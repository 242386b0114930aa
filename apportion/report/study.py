"""The runs of a lab study, read from their metrics: a profile of each arm over its seeds. The lab is not imported."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from apportion.evaluation import seed_interval
from apportion.records.importing.files import parsed
from apportion.report.calibration import Calibration
from apportion.report.curves import Curve, mean_curve, plain_curve, share_curve
from apportion.report.profile import ALL_RIGHT, ALL_WRONG, RunProfile, RunTotals, band_shares, stretches_of
from apportion.rows import chunks, json_rows
from apportion.types import Counts, Floats
from apportion.untrusted import read_config

METRICS, CONFIG = "metrics.jsonl", "config.toml"
MOST = 1e15
"""The largest number that is taken from a file."""

SEED = re.compile(r"(.+)-seed(\d+)")

Steps = Sequence[Mapping[str, Any]]


def is_study(folder: Path) -> bool:
    """Return whether ``folder`` holds a lab study, or one run of one."""
    return (folder / METRICS).is_file() or any(folder.glob(f"*-seed*/{METRICS}"))


def study_profiles(folder: Path) -> list[RunProfile]:
    """Return a profile of each arm of the study in ``folder``, or of the one run in it.

    Raises ValueError for metrics that are no metrics, or without a step, and OSError.
    """
    folders = [folder] if (folder / METRICS).is_file() else sorted(path.parent for path in folder.glob(f"*/{METRICS}"))
    arms: dict[str, list[_LabRun]] = {}
    for each in folders:
        match = SEED.fullmatch(each.name)
        run = _LabRun(each / METRICS)
        if run.steps:
            arms.setdefault(match[1] if match else each.name, []).append(run)
    if not arms:
        raise ValueError(f"{folder} must hold runs with steps, got none so far; wait for the first step")
    baseline = _baseline(folder)
    before = arms.get(baseline or "")
    found = [_profile(arm, runs, None if arm == baseline else before, baseline) for arm, runs in arms.items()]
    return sorted(found, key=lambda profile: profile.name != baseline)


class _LabRun:
    """The metrics of one run: ``steps``, and the evaluations at the start and along the way."""

    def __init__(self, path: Path) -> None:
        records = _read(path)
        self.steps: Steps = [each for each in records if "counts" in each]
        self.evaluations: Steps = [each for each in records if "success" in each]
        if not (all(map(_is_step, self.steps)) and all(map(_is_evaluation, self.evaluations))):
            raise ValueError(f"{path} must hold the steps of a lab run, got others; check the path")
        self.rollouts, self.tokens = _column(self.steps, "rollouts"), _column(self.steps, "tokens")
        self.hours = np.cumsum(_column(self.steps, "cpu_seconds")) / 3600
        self.stretch = stretches_of(np.array([np.count_nonzero(each["counts"]) for each in self.steps], np.int64))
        self.count = int(self.stretch[-1]) + 1 if len(self.stretch) else 0

    def places(self) -> dict[str, Floats]:
        """Return cumulative costs at the end of each stretch [B]."""
        last = np.searchsorted(self.stretch, np.arange(self.count), side="right") - 1
        return {"rollouts": self.rollouts[last], "tokens": self.tokens[last], "hours": self.hours[last]}

    def mean(self, key: str) -> Curve:
        """Return the mean of a value of the steps in each stretch."""
        sums = np.bincount(self.stretch, _column(self.steps, key), minlength=self.count)
        return plain_curve(self.places(), sums / np.bincount(self.stretch, minlength=self.count))

    def held_out(self) -> Curve:
        """Return the exact success at the evaluations."""
        x = {key: _column(self.evaluations, key) for key in ("rollouts", "tokens")}
        hours = np.interp(x["rollouts"], np.r_[0, self.rollouts], np.r_[0, self.hours])
        return plain_curve(x | {"hours": hours}, _column(self.evaluations, "success"))

    def prompts(self) -> tuple[Floats, Floats, Floats, Counts]:
        """Return exact p, prediction, rollouts and stretch of every prompt of every step."""
        sizes = [len(each["p"]) for each in self.steps]
        p, predicted, counts = (
            np.concatenate([np.asarray(each[key], float) for each in self.steps])
            for key in ("p", "predicted", "counts")
        )
        return p, predicted, counts, np.repeat(self.stretch, sizes)


def _profile(arm: str, runs: Sequence[_LabRun], before: Sequence[_LabRun] | None, baseline: str | None) -> RunProfile:
    totals = _totals(runs)
    held_out = mean_curve([run.held_out() for run in runs]) if all(run.evaluations for run in runs) else None
    single = _is_single(runs)
    notes = ["Hours are CPU time of the steps."] + ([] if len(runs) > 1 else ["One seed, so no interval over seeds."])
    if single:
        notes.append("Groups of one rollout have no other to be equal to, so none is called dead.")
    return RunProfile(
        name=arm,
        source=f"lab study, {len(runs)} seed{'s' * (len(runs) > 1)}",
        totals=totals,
        success=mean_curve([run.mean("train_reward") for run in runs]),
        held_out=held_out,
        dead={} if single else _dead(runs),
        places=mean_curve([plain_curve(run.places(), run.places()["rollouts"]) for run in runs]).x,
        bands=_bands(runs),
        difficulty="A prompt's difficulty is its exact probability of success at that step.",
        calibration=_calibration(runs),
        saved=None if before is None else _saved(runs, before),
        baseline=None if before is None else baseline,
        notes=tuple(notes),
    )


def _totals(runs: Sequence[_LabRun]) -> RunTotals:
    last = [run.steps[-1] for run in runs]
    return RunTotals(
        seeds=len(runs),
        prompts=None,
        steps=sum(len(run.steps) for run in runs),
        last_step=max(len(run.steps) for run in runs),
        groups=sum(int(np.count_nonzero(each["counts"])) for run in runs for each in run.steps),
        rollouts=sum(int(each["rollouts"]) for each in last),
        tokens=sum(int(each["tokens"]) for each in last),
        hours=float(sum(run.hours[-1] for run in runs)),
        success=float(np.mean([each["train_reward"] for run in runs for each in run.steps])),
        dead_groups={}
        if _is_single(runs)
        else {
            kind: float(
                sum(share * np.count_nonzero(step["counts"]) for run in runs for share, step in _shares(run, kind))
            )
            for kind in (ALL_RIGHT, ALL_WRONG)
        },
    )


def _is_single(runs: Sequence[_LabRun]) -> bool:
    """Return whether no group has more than one rollout."""
    return all(max(each["counts"], default=0) <= 1 for run in runs for each in run.steps)


def _shares(run: _LabRun, kind: str) -> list[tuple[float, Mapping[str, Any]]]:
    return [(_dead_share(step, kind), step) for step in run.steps]


def _dead_share(step: Mapping[str, Any], kind: str) -> float:
    """Return the share of a step's groups of ``kind``. All right are those neither informative nor all wrong."""
    wrong = float(step["without_correct"])
    return wrong if kind == ALL_WRONG else max(0.0, 1 - float(step["informative"]) - wrong)


def _dead(runs: Sequence[_LabRun]) -> dict[str, Curve]:
    """Return the shares of dead groups by kind, with Student's interval over seeds; Wilson's for one seed."""
    found = {}
    for kind in (ALL_RIGHT, ALL_WRONG):
        curves = []
        for run in runs:
            groups = np.array([np.count_nonzero(step["counts"]) for step in run.steps], float)
            dead = groups * np.array([share for share, _ in _shares(run, kind)])
            number, of = (
                np.bincount(run.stretch, values, minlength=run.count).astype(np.float64) for values in (dead, groups)
            )
            curves.append(share_curve(run.places(), number, of))
        found[kind] = mean_curve(curves)
    return found


def _bands(runs: Sequence[_LabRun]) -> Floats:
    """Return the shares of the rollouts by band of exact success, at the places of the mean over seeds."""
    tables = []
    for run in runs:
        p, _, counts, stretch = run.prompts()
        tables.append(band_shares(p, counts, stretch, run.count))
    if len(tables) == 1:
        return tables[0]
    columns = [
        mean_curve([plain_curve({}, table[:, band]) for table in tables]).y for band in range(tables[0].shape[1])
    ]
    return np.stack(columns, axis=1)


def _calibration(runs: Sequence[_LabRun]) -> Calibration | None:
    """Return the mean exact success in each tenth of the prediction, with Student's interval over seeds."""
    tables, errors = [], []
    for run in runs:
        p, predicted, _, _ = run.prompts()
        tenth = np.clip((predicted * 10).astype(int), 0, 9)
        tables.append([np.bincount(tenth, values, minlength=10) for values in (np.ones(len(p)), predicted, p)])
        errors.append(((predicted - p) ** 2).mean())
    sums = np.array(tables)  # [S, 3, 10]
    groups = sums[:, 0].sum(axis=0)
    has = groups > 0
    full = (sums[:, 0] > 0).all(axis=0)  # an interval needs every seed
    means = np.divide(sums[:, 2], sums[:, 0], out=np.zeros_like(sums[:, 2]), where=sums[:, 0] > 0)
    half = np.where(full, seed_interval(means)[1], np.nan)[has]
    observed = sums[:, 2].sum(axis=0)[has] / groups[has]
    return Calibration(
        predicted=sums[:, 1].sum(axis=0)[has] / groups[has],
        observed=observed,
        low=np.maximum(observed - half, 0),
        high=np.minimum(observed + half, 1),
        groups=groups[has].astype(np.int64),
        error=float(np.mean(errors)),
        error_name="mean squared error against exact success",
    )


def _saved(runs: Sequence[_LabRun], before: Sequence[_LabRun]) -> tuple[float, float, float] | None:
    """Return the share of the baseline's rollouts that were not needed to reach its final success, by pairs of seeds.

    Returns None if the numbers of seeds differ, if a seed never reaches it, or if the baseline did not learn.
    """
    if len(runs) != len(before) or not all(run.evaluations for run in (*runs, *before)):
        return None
    shares = []
    for run, base in zip(runs, before, strict=True):
        mine, other = run.held_out(), base.held_out()
        reached = np.flatnonzero(mine.y >= other.y[-1])
        if not reached.size or other.y[-1] <= other.y[0]:
            return None
        around = slice(max(0, reached[0] - 1), reached[0] + 1)
        place = np.interp(other.y[-1], mine.y[around], mine.x["rollouts"][around])
        shares.append(1 - place / other.x["rollouts"][-1])
    mean, half = seed_interval(np.array(shares))
    return float(mean), float(mean - half), float(mean + half)


def _read(path: Path) -> list[dict[str, Any]]:
    """Return the records at ``path``, without a torn last line."""
    return [
        record
        for line, content in chunks(path)
        for _, record in json_rows(path, line, content[: content.rfind(b"\n") + 1], parsed)
    ]


def _baseline(folder: Path) -> str | None:
    """Return the baseline that the study's configuration names; None without any."""
    path = folder / CONFIG
    if not path.is_file():
        return None
    named = tomllib.loads(read_config(path)).get("baseline")
    return named if isinstance(named, str) else None


def _column(records: Steps, key: str) -> Floats:
    return np.array([each[key] for each in records], float)


def _is_step(record: Mapping[str, Any]) -> bool:
    """Return whether ``record`` has what is read of a step, within bounds."""
    lists = [record.get(key) for key in ("p", "predicted", "counts")]
    if not all(isinstance(values, list) and len(values) == len(record["p"]) > 0 for values in lists):
        return False
    p, predicted, counts = lists
    shares = [record.get(key) for key in ("informative", "without_correct")]
    costs = [record.get(key) for key in ("rollouts", "tokens", "cpu_seconds")]
    return (
        all(_is_within(value, 0, 1) for values in (p, predicted, shares) for value in values or ())
        and all(_is_within(value, 0, MOST) for values in (counts, costs) for value in values or ())
        and _is_within(record.get("train_reward"), -MOST, MOST)
    )


def _is_evaluation(record: Mapping[str, Any]) -> bool:
    """Return whether ``record`` has what is read of an evaluation, within bounds."""
    costs = (record.get("rollouts"), record.get("tokens"))
    return _is_within(record.get("success"), 0, 1) and all(_is_within(value, 0, MOST) for value in costs)


def _is_within(value: Any, low: float, high: float) -> bool:
    return type(value) in (int, float) and low - 1e-6 <= value <= high + 1e-6
