"""The runs of a lab study, read from their metrics: a profile of each arm over its seeds. The lab is not imported."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from apportion.records.importing.files import parsed
from apportion.replay.intervals import Spanned
from apportion.report.calibration import Calibration, calibrate
from apportion.report.curves import Curve, mean_curve, plain_curve, resampled, share_curve
from apportion.report.profile import ALL_RIGHT, ALL_WRONG, RunProfile, RunTotals, band_shares, stretches_of
from apportion.rows import json_row, text_lines
from apportion.types import Counts, Floats

METRICS = "metrics.jsonl"
SEED = re.compile(r"(.+)-seed(\d+)")

LISTS = ("p", "predicted", "counts")
"""Keys of a step that have one value per prompt."""

SHARE, COST = (0.0, 1.0), (0.0, 1e15)
BOUNDS = {
    **dict.fromkeys(("p", "predicted", "informative", "without_correct", "success"), SHARE),
    **dict.fromkeys(("counts", "rollouts", "tokens", "cpu_seconds"), COST),
    "train_reward": (-1e15, 1e15),
}
"""Least and largest number that is accepted from a file."""


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
        if run.count:
            arms.setdefault(match[1] if match else each.name, []).append(run)
    if not arms:
        raise ValueError(f"{folder} must hold runs with steps, got none so far; wait for the first step")
    return [_profile(arm, runs) for arm, runs in arms.items()]


class _LabRun:
    """The metrics of one run.

    Args:
        spent: cumulative costs at each step [S].
        groups: groups of each step [S].
        dead: share of dead groups in each step by kind [S]. All right are those neither informative nor all wrong.
        reward: mean reward of each step [S].
        stretch: the stretch of each step [S], of ``count``.
        p, predicted, counts: exact success, prediction and rollouts of every prompt of every step [N].
        held_out: exact success at the evaluations; None without any.
    """

    def __init__(self, path: Path) -> None:
        lines = [each for each in text_lines(path) if each[1].endswith(b"\n")]  # the last line may be torn
        records = [json_row(path, *each, parsed) for each in lines]
        steps = [each for each in records if "counts" in each]
        column = {key: _column(path, steps, key) for key in BOUNDS if key != "success"}
        sizes = [{len(each[key]) for key in LISTS} for each in steps]
        if any(len(size) > 1 or 0 in size for size in sizes):
            raise _other(path)
        self.spent = {key: column[key] for key in ("rollouts", "tokens")}
        self.spent["hours"] = np.cumsum(column["cpu_seconds"]) / 3600
        self.groups = np.array([np.count_nonzero(each["counts"]) for each in steps], np.int64)
        wrong = column["without_correct"]
        self.dead = {ALL_RIGHT: np.maximum(0, 1 - column["informative"] - wrong), ALL_WRONG: wrong}
        self.reward = column["train_reward"]
        self.stretch = stretches_of(self.groups)
        self.count = int(self.stretch[-1]) + 1 if steps else 0
        self.p, self.predicted, self.counts = (column[key] for key in LISTS)
        self.of_prompts = np.repeat(self.stretch, [len(each["p"]) for each in steps])
        evaluations = [each for each in records if "success" in each]
        x = {key: _column(path, evaluations, key) for key in ("rollouts", "tokens")}
        x["hours"] = np.interp(x["rollouts"], np.r_[0, self.spent["rollouts"]], np.r_[0, self.spent["hours"]])
        self.held_out = plain_curve(x, _column(path, evaluations, "success")) if evaluations else None

    def places(self) -> dict[str, Floats]:
        """Return cumulative costs at the end of each stretch [B]."""
        last = np.flatnonzero(np.diff(self.stretch, append=self.count))
        return {key: values[last] for key, values in self.spent.items()}

    def sums(self, values: Floats | Counts) -> Floats:
        """Return the sum of ``values`` of the steps in each stretch [B]."""
        return np.bincount(self.stretch, values, minlength=self.count).astype(np.float64)

    def dead_curve(self, kind: str) -> Curve:
        """Return the share of groups of one kind in each stretch, with Wilson's interval."""
        return share_curve(self.places(), self.sums(self.groups * self.dead[kind]), self.sums(self.groups))


def _profile(arm: str, runs: Sequence[_LabRun]) -> RunProfile:
    held_out = [run.held_out for run in runs if run.held_out is not None]
    single = all(run.counts.max() <= 1 for run in runs)
    kinds = () if single else (ALL_RIGHT, ALL_WRONG)
    groups = sum(int(run.groups.sum()) for run in runs)
    dead = {kind: float(sum(run.groups @ run.dead[kind] for run in runs)) / groups for kind in kinds}
    notes = ["Hours are CPU time of the steps."] + ([] if len(runs) > 1 else ["One seed, so no interval over seeds."])
    if single:
        notes.append("Groups of one rollout have no other to be equal to, so none is called dead.")
    each = [plain_curve(run.places(), run.sums(run.reward) / np.bincount(run.stretch)) for run in runs]
    success = mean_curve(each)
    return RunProfile(
        name=arm,
        source=f"lab study, {len(runs)} seed{'s' * (len(runs) > 1)}",
        totals=RunTotals(
            prompts=None,
            steps=sum(len(run.reward) for run in runs),
            rollouts=sum(int(run.spent["rollouts"][-1]) for run in runs),
            tokens=sum(int(run.spent["tokens"][-1]) for run in runs),
            hours=float(sum(run.spent["hours"][-1] for run in runs)),
            success=float(np.concatenate([run.reward for run in runs]).mean()),
            dead=None if single else Spanned(sum(dead.values()), np.nan, np.nan),
            dead_kinds=dead,
            unit="groups",
        ),
        success=success,
        held_out=mean_curve(held_out) if len(held_out) == len(runs) else None,
        dead={kind: mean_curve([run.dead_curve(kind) for run in runs]) for kind in kinds},
        places=success.x,
        bands=_bands(runs, each),
        difficulty="A prompt's difficulty is its exact probability of success at that step.",
        calibration=_calibration(runs),
        notes=tuple(notes),
    )


def _bands(runs: Sequence[_LabRun], curves: Sequence[Curve]) -> Floats:
    """Return the shares of rollouts by band of exact success, at the places where the mean of ``curves`` is drawn."""
    tables = [band_shares(run.p, run.counts, run.of_prompts, run.count) for run in runs]
    if len(tables) == 1:
        return tables[0]
    return np.stack(
        [resampled(curves, columns).mean(axis=0) for columns in zip(*(own.T for own in tables), strict=True)], 1
    )


def _calibration(runs: Sequence[_LabRun]) -> Calibration | None:
    """Return the calibration against exact success, whose interval counts each seed as a cluster.

    None if the rule predicts nothing, so that it believes 0.5 of every prompt.
    """
    predicted, p = (np.concatenate([getattr(run, name) for run in runs]) for name in ("predicted", "p"))
    if (predicted == 0.5).all():
        return None
    seed = np.repeat(np.arange(len(runs)), [len(run.p) for run in runs])
    found = calibrate(predicted, p, np.ones(len(p), np.int64), seed)
    assert found  # the caller has checked that there are predictions
    error = float(((predicted - p) ** 2).mean())
    return replace(found, error=error, error_name="mean squared error against exact success")


def _column(path: Path, records: Sequence[Mapping[str, Any]], key: str) -> Floats:
    """Return the number ``key`` of each record, or all numbers of its lists. Raises ValueError for any other value."""
    values: list[Any] = [record.get(key) for record in records]
    if key in LISTS:
        if not all(isinstance(each, list) for each in values):
            raise _other(path)
        values = list(chain.from_iterable(values))
    low, high = BOUNDS[key]
    if not all(type(value) in (int, float) and low - 1e-6 <= value <= high + 1e-6 for value in values):
        raise _other(path)
    return np.array(values, float)


def _other(path: Path) -> ValueError:
    return ValueError(f"{path} must hold the steps of a lab run, got others; check the path")
