"""What a report shows of one run: totals, curves along the run, rollouts by difficulty, and calibration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from apportion.diagnosis.advice import AdviceList, advice_of
from apportion.diagnosis.health import RunHealth, health_of
from apportion.diagnosis.phantoms import Phantoms, phantoms_of
from apportion.diagnosis.statements import as_read
from apportion.diagnosis.waste import KINDS, kinds_of, waste_of
from apportion.forecast.forecast import SIZES, dead_groups
from apportion.forecast.probe import probe_of
from apportion.forecast.rates import fit_rates
from apportion.records import RunRecord
from apportion.records.run_record import ratio
from apportion.replay.intervals import Spanned
from apportion.replay.population import OutcomePopulation
from apportion.replay.results import Replay
from apportion.report.calibration import Calibration, calibrate
from apportion.report.curves import Curve, share_curve
from apportion.report.wasted import WastedPrompt, wasted_prompts
from apportion.types import Counts, Floats

STRETCHES = 60
"""Most stretches that a run is divided into. Each is one point of its curves."""

STRETCH_GROUPS, FEWEST_STRETCHES = 128, 12
"""A stretch has this many groups on average, unless that would make fewer stretches than these."""

BANDS = (0.0, 0.05, 0.2, 0.5, 0.8, 0.95, 1.0)
"""Edges of the bands of difficulty, by a prompt's share of right rollouts."""

BAND_NAMES = ("under 5%", "5 to 20%", "20 to 50%", "50 to 80%", "80 to 95%", "over 95%")

VISITS = 2
"""A prompt's success at a visit is estimated from its groups up to so many visits before and after."""

ALL_RIGHT, ALL_WRONG, ALL_EQUAL = "all right", "all wrong", "all equal"
DEAD_KINDS = {ALL_RIGHT: "all right", ALL_WRONG: "all wrong", ALL_EQUAL: "equal"}
"""Kinds of dead groups, with their names in a diagnosis. Rewards of ``ALL_EQUAL`` are graded."""


Replayer = Callable[[RunRecord], Replay]
"""Replays some rules along a record."""


@dataclass(frozen=True)
class RunTotals:
    """Totals of a run, or of all its seeds together. None is unknown.

    ``dead`` is the share of the ``unit``, rollouts or groups, in dead groups, whose rewards are all equal, with its 95%
    interval over prompts if it is known. It is None if no group has two rewards. ``dead_kinds`` are its parts by kind,
    and ``dead_tokens`` is the share of the tokens.
    """

    prompts: int | None
    steps: int
    rollouts: int
    tokens: int | None
    hours: float | None
    success: float | None
    dead: Spanned | None
    dead_kinds: Mapping[str, float]
    unit: str = "rollouts"
    dead_tokens: float | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class RunProfile:
    """One run, or one arm of a study over its seeds, as the report shows it.

    Args:
        name: what it is called on the page.
        source: where it comes from.
        totals: totals.
        success: mean reward of the prompts in each stretch.
        shares: whether all rewards are from 0 to 1, so that a mean is shown as a share.
        held_out: exact success on held-out problems; None if it was not measured.
        dead: shares of the groups whose rewards are all equal, by kind.
        places: cumulative costs at the end of each stretch [B].
        bands: share of the rollouts of each stretch by band of difficulty [B, 6]; None if it is unknown.
        difficulty: what the difficulty of a prompt is here, in words.
        by_size: the share of dead groups by their size, at the first policy; None for graded rewards.
        calibration: predicted against observed success; None without predictions.
        advice: what would have helped; None if it was not asked for.
        replay: what other rules would have done; None if none was asked for.
        wasted: prompts with the most rollouts in dead groups.
        binary: whether rewards are 0 and 1, so that their mean is a success rate.
        health: signs that the run is sick; None if it was not looked at.
        phantoms: groups of equal outcomes and different rewards; None if these are not told apart.
        read: what is said of its figures if a doubt may change them, as ``as_read`` says it.
        notes: what is unknown, in sentences.
        style: its place on the page, which decides how it is drawn.
    """

    name: str
    source: str
    totals: RunTotals
    success: Curve
    held_out: Curve | None = None
    dead: Mapping[str, Curve]
    places: Mapping[str, Floats]
    bands: Floats | None
    difficulty: str = ""
    by_size: Curve | None = None
    calibration: Calibration | None
    shares: bool = True
    advice: AdviceList | None = None
    replay: Replay | None = None
    wasted: tuple[WastedPrompt, ...] = ()
    binary: bool = True
    health: RunHealth | None = None
    phantoms: Phantoms | None = None
    read: str = ""
    notes: tuple[str, ...] = ()
    style: int = 0


def profile_of(record: RunRecord, name: str, advice: bool = False, replayed: Replayer | None = None) -> RunProfile:
    """Return the profile of a recorded run, called ``name``. With ``advice`` it says what would have helped.

    ``replayed`` replays rules along the record.
    """
    stretch = _stretches(record.step)
    count = int(stretch.max(initial=-1)) + 1
    ends, middles = _costs(record, stretch, count)
    groups = np.bincount(stretch[record.trials > 1], minlength=count).astype(float)
    kinds = kinds_of(record)
    dead = {
        kind: np.bincount(stretch[kinds == KINDS.index(name)], minlength=count).astype(float)
        for kind, name in DEAD_KINDS.items()
    }
    health = health_of(record)
    return RunProfile(
        name=name,
        source=record.source,
        totals=_totals(record, ends),
        read=as_read(record.doubts, "the notes"),
        success=_success(record, stretch, count, middles),
        shares=not ((record.reward < 0) | (record.reward > 1)).any(),
        dead={
            kind: share_curve(middles, number, groups)
            for kind, number in dead.items()
            if number.any() or (record.binary and kind != ALL_EQUAL)
        },
        places=ends,
        bands=_bands(record, stretch, count),
        difficulty=(
            f"A prompt's difficulty is its share of right rollouts in this group and in its groups up to {VISITS} "
            "visits before and after."
        ),
        by_size=_by_size(record),
        calibration=_calibration(record),
        advice=advice_of(record, health=health) if advice else None,
        replay=None if replayed is None else replayed(record),
        wasted=wasted_prompts(record),
        binary=record.binary,
        health=health,
        phantoms=phantoms_of(record),
        notes=tuple(_notes(record, ends)),
    )


def band_of(success: Floats) -> Counts:
    """Return the band of difficulty of each success.

    >>> band_of(np.array([0.0, 0.05, 0.5, 0.96, 1.0])).tolist()
    [0, 1, 3, 5, 5]
    """
    return np.clip(np.searchsorted(BANDS, success, side="right") - 1, 0, len(BANDS) - 2)


def band_shares(success: Floats, rollouts: Floats, stretch: Counts, count: int) -> Floats:
    """Return the share of each stretch's rollouts by band of difficulty, [B, 6]; 0 where there are none."""
    width = len(BANDS) - 1
    table = np.bincount(stretch * width + band_of(success), rollouts, minlength=count * width).reshape(count, width)
    total = table.sum(axis=1, keepdims=True)
    return np.divide(table, total, out=np.zeros_like(table), where=total > 0)


def stretches_of(sizes: Counts) -> Counts:
    """Return the stretch of each step, given the number of groups of each [S]. Stretches have about equal numbers.

    >>> stretches_of(np.array([9, 9, 9, 1, 1])).tolist()
    [0, 1, 2, 3, 3]
    """
    total = int(sizes.sum())
    count = min(len(sizes), STRETCHES, max(total // STRETCH_GROUPS, FEWEST_STRETCHES))
    middles = np.cumsum(sizes) - sizes / 2
    return np.unique((middles * count / max(total, 1)).astype(int), return_inverse=True)[1].reshape(-1)


def _stretches(step: Counts) -> Counts:
    """Return the stretch of each group [N]."""
    _, at, sizes = np.unique(step, return_inverse=True, return_counts=True)
    return stretches_of(sizes)[at.reshape(-1)]


def _costs(record: RunRecord, stretch: Counts, count: int) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Return the known cumulative costs at the end of each stretch [B], and at its middle."""
    spent: dict[str, Floats] = {"rollouts": np.bincount(stretch, record.asked, minlength=count).astype(np.float64)}
    if len(record.tokens) and not np.isnan(record.tokens).any():
        spent["tokens"] = np.bincount(stretch, record.sums(record.tokens), minlength=count).astype(np.float64)
    ends: dict[str, Floats] = {key: np.cumsum(values) for key, values in spent.items()}
    middles = {key: ends[key] - values / 2 for key, values in spent.items()}
    if len(record.written) and not np.isnan(record.written).any():
        latest = np.full(count, -np.inf)
        np.maximum.at(latest, stretch, (record.written - record.written.min()) / 3600)
        ends["hours"] = middles["hours"] = np.maximum.accumulate(latest)
    return ends, middles


def _success(record: RunRecord, stretch: Counts, count: int, places: Mapping[str, Floats]) -> Curve:
    """Return the mean over groups of their mean rewards, with the 95% interval of a mean over groups."""
    known = record.trials > 0
    at, shares = stretch[known], record.shares[known]
    number = np.bincount(at, minlength=count)
    mean = ratio(np.bincount(at, shares, minlength=count), number)
    squares = np.bincount(at, (shares - mean[at]) ** 2, minlength=count)
    half = 1.96 * np.sqrt(ratio(squares, number * np.maximum(number - 1, 0)))
    low, high = mean - half, mean + half
    if record.binary:
        low, high = np.maximum(low, 0), np.minimum(high, 1)
    return Curve(places, mean, low, high)


def _bands(record: RunRecord, stretch: Counts, count: int) -> Floats | None:
    if not record.binary or not len(record.step):
        return None
    success = OutcomePopulation.pools(record, VISITS).rate
    known = ~np.isnan(success)
    return band_shares(success[known], record.asked[known].astype(float), stretch[known], count)


def _by_size(record: RunRecord) -> Curve | None:
    """Return the share of dead groups by group size, forecast from the first group of each prompt."""
    if not record.binary or not record.trials.any():
        return None
    sample = probe_of(record).sample
    found = dead_groups(sample, fit_rates(sample), SIZES[1:])
    y, low, high = np.array([(each.value, each.low, each.high) for each in found]).T
    return Curve({"": np.array(SIZES[1:], np.float64)}, y, low, high)


def _calibration(record: RunRecord) -> Calibration | None:
    """Return the calibration of the recorded predictions; None without any."""
    return calibrate(record.predicted, record.totals, record.trials, record.prompt) if record.binary else None


def _totals(record: RunRecord, ends: Mapping[str, Floats]) -> RunTotals:
    """Return the totals, given the costs at the ``ends`` of the stretches [B]."""
    waste = waste_of(record)
    lost = dict(zip(KINDS, waste.whole.rollouts, strict=True))
    return RunTotals(
        prompts=len(np.unique(record.prompt)),
        steps=len(np.unique(record.step)),
        rollouts=int(record.asked.sum()),
        tokens=int(ends["tokens"][-1]) if "tokens" in ends else None,
        hours=float(ends["hours"][-1]) if "hours" in ends else None,
        success=float(np.nanmean(record.shares)) if (record.trials > 0).any() else None,
        dead=waste.rollouts if (record.trials > 1).any() else None,
        dead_kinds={kind: lost[name] / max(len(record.reward), 1) for kind, name in DEAD_KINDS.items()},
        dead_tokens=waste.tokens.value if "tokens" in ends and waste.tokens is not None else None,
    )


def _notes(record: RunRecord, ends: Mapping[str, Floats]) -> Iterator[str]:
    yield from (f"{doubt[:1].upper()}{doubt[1:]}." for doubt in record.doubts)
    if record.visits:
        yield "Steps are visits of each prompt, because the batches of training were not recorded."
    if "tokens" not in ends:
        yield "Tokens were not recorded."
    if "hours" not in ends:
        yield "The time of the steps was not recorded."
    if left := np.count_nonzero(~record.kept):
        yield (
            f"{left:,} of {len(record.kept):,} rollouts were not in the loss. They are counted by the rewards of their "
            "group, like the others."
        )
    if not record.binary:
        yield "Rewards are graded, so neither difficulty nor predicted success is shown."
