"""Signs that a run is sick. They come before any advice, because better sampling deepens what is wrong.

Each sign needs a large and lasting change, so that noise, a run that saturates honestly, and data that get harder raise
none. The last quarter of a run is compared with its start. See docs/diagnose.md for what the thresholds cost on real
logs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from apportion.records.run_record import RunRecord
from apportion.records.scalars import Scalars
from apportion.replay.intervals import per_unit
from apportion.types import Counts, Floats

NAMES = ("reward", "cut", "length", "kl", "entropy")
"""The series that are looked at; ``cut`` is the share of completions at the limit."""
LEAST_STEPS = 8
"""Steps that a statement about a change needs."""
WINDOWS = 40
"""Windows into which a run is cut, at most."""
CUT, CUT_AT_START, LONG = 0.5, 0.1, 16
"""The share of completions at the limit; that at the start of a run; tokens of a limit that is no short answer."""
GROWTH, TOGETHER = 1.5, 0.5
"""By which the length grows, and its correlation with the reward within groups."""
FALL, STILL, SUDDEN, NOISES = 0.5, 0.75, 0.1, 6.0
"""The share of a reward that is lost; the share of its range at which one is high; the share of the run on each side of
a fall; and how many standard errors a fall must be."""
KL = 1.0
"""Nats a token from the reference policy."""
ENTROPY_GROWTH, ENTROPY_LEAST, ENTROPY_LEFT = 3.0, 0.5, 0.02
FARMED = 0.95
REPEATED = 0.2
LEAST_PROMPTS = 10
"""Prompts seen before and after a fall that tell a sick policy from harder data."""

REMEDIES = {
    "truncation": "Raise the limit of completion tokens, mask cut completions, or stop rewarding length.",
    "length": "Read long completions: take length out of the reward, or penalise it (Dr. GRPO, overlong shaping).",
    "collapse": "Go back to the checkpoint before it; lower the learning rate, or raise the KL coefficient.",
    "farming": "Go back; weigh the rewards again, or make the one that fell a condition of the other.",
    "kl": "Go back; lower the learning rate, or raise the KL coefficient.",
    "entropy": "Go back; lower the learning rate, or the temperature that you train with.",
    "frozen": "Lower the learning rate, or add an entropy bonus, before the policy gives one answer only.",
    "repeats": "Remove duplicates from the data, or let the sampler draw without replacement.",
}


@dataclass(frozen=True)
class Sign:
    """One sign.

    Args:
        kind: a key of ``REMEDIES``.
        onset: the step from which on it holds.
        evidence: what was measured.
        remedy: what to do.
    """

    kind: str
    onset: int
    evidence: str
    remedy: str


@dataclass(frozen=True)
class RunHealth:
    """The signs of a run, the earliest first, what was looked at, and what was not recorded, or at too few steps."""

    signs: tuple[Sign, ...]
    looked_at: tuple[str, ...]
    unknown: tuple[str, ...]
    short: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Series:
    """Values [S] at rising steps [S]."""

    steps: Counts
    values: Floats

    @property
    def usable(self) -> bool:
        return len(self.steps) >= LEAST_STEPS

    @property
    def smooth(self) -> Floats:
        """The mean of the window before and at each step, [S]."""
        ends = np.arange(1, len(self.values) + 1)
        return self.mean(np.maximum(0, ends - max(1, math.ceil(len(self.values) / WINDOWS))), ends)

    @property
    def start(self) -> float:
        """The mean of the first eighth."""
        return float(self.values[: max(1, len(self.values) // 8)].mean())

    @property
    def end(self) -> float:
        """The mean of the last quarter."""
        return float(self.values[-max(1, len(self.values) // 4) :].mean())

    @property
    def noise(self) -> float:
        """The standard error of one step, from differences of neighbours."""
        return float(np.sqrt((np.diff(self.values) ** 2).mean() / 2)) if len(self.values) > 1 else 0.0

    def mean(self, first: Counts, last: Counts) -> Floats:
        """Return the means of the values from each ``first`` to before each ``last``."""
        total = np.r_[0.0, np.cumsum(self.values)]
        return np.asarray((total[last] - total[first]) / (last - first))

    def onset(self, above: float) -> int:
        """Return the first step at which the smooth values reach ``above``."""
        return int(self.steps[int((self.smooth >= above).argmax())])


def health_of(record: RunRecord | None, scalars: Scalars | None = None) -> RunHealth:
    """Return the signs in the rollouts of a run, in what its framework logged of each step, or in both."""
    found: dict[str, Series] = {}
    components: dict[str, Series] = {}
    signs: list[Sign] = []
    if record is not None and len(record.step):
        found, components = _series_of(record)
        signs += [sign for sign in (_length(record, found.get("length")), _repeats(record)) if sign]
    if scalars is not None:
        logged = {name: Series(*own) for name in NAMES if (own := scalars.series(name)) is not None}
        found = logged | found | {name: each for name, each in logged.items() if name == "cut"}  # which knows the limit
        components = components or {name: Series(*own) for name, own in scalars.components.items()}
    usable = {name: each for name, each in found.items() if each.usable}
    reward = usable.get("reward")
    signs += [
        sign
        for sign in (
            _truncation(usable.get("cut"), record, scalars),
            _collapse(reward, record),
            _farming({name: each for name, each in components.items() if each.usable}),
            _kl(usable.get("kl")),
            *_entropy(usable.get("entropy"), reward),
        )
        if sign
    ]
    names = [*usable, *(["components"] if len(components) > 1 else []), *(["repeats"] if record is not None else [])]
    unknown, short = (
        tuple(name for name in NAMES if name not in usable and (name in found) == there) for there in (False, True)
    )
    return RunHealth(tuple(sorted(signs, key=lambda sign: sign.onset)), tuple(names), unknown, short)


def _series_of(record: RunRecord) -> tuple[dict[str, Series], dict[str, Series]]:
    """Return the means of steps, and those of each component of the reward."""
    steps, of_group = np.unique(record.step, return_inverse=True)
    of_rollout = np.repeat(of_group, np.diff(record.first))

    def means(values: Floats) -> Series | None:
        known = ~np.isnan(values)
        counts = np.bincount(of_rollout[known], minlength=len(steps))
        sums = np.bincount(of_rollout[known], values[known], len(steps))
        there = counts > 0
        return Series(steps[there], sums[there] / counts[there]) if there.any() else None

    tokens = record.tokens
    found = {"reward": means(record.reward), "length": means(tokens)}
    known = tokens[~np.isnan(tokens)]
    if len(known) and known.min() < known.max():
        found["cut"] = means(np.where(np.isnan(tokens), np.nan, tokens == known.max()))
    components = {name: each for name, values in record.components.items() if (each := means(values)) is not None}
    return {name: each for name, each in found.items() if each is not None}, components


def _truncation(cut: Series | None, record: RunRecord | None, scalars: Scalars | None) -> Sign | None:
    if cut is None or cut.end < CUT:
        return None
    logged = scalars is not None and scalars.series("cut") is not None
    limit = "the limit"
    if record is not None and not np.isnan(record.tokens).all():
        longest = float(np.nanmax(record.tokens))
        if longest < LONG and cut.start > CUT_AT_START and not logged:
            return None  # short answers have few lengths
        limit = f"the largest length, {longest:,.0f} tokens"
    evidence = f"{cut.end:.0%} of the completions are cut at {limit}; {cut.start:.0%} at the start"
    return _sign("truncation", cut.onset(CUT), evidence)


def _length(record: RunRecord, lengths: Series | None) -> Sign | None:
    """Return a sign if completions grow while the longer ones of each group earn more."""
    tokens, sizes = record.tokens, np.diff(record.first)
    known = ~np.isnan(tokens) & ~np.isnan(record.reward)
    if lengths is None or not known.any() or not lengths.usable or lengths.smooth.max() < GROWTH * lengths.start:
        return None
    groups = np.repeat(np.arange(len(sizes)), sizes)[known]
    both = np.stack([tokens[known], record.reward[known]], axis=1)
    counts = np.maximum(1, np.bincount(groups, minlength=len(sizes)))
    centred = both - (per_unit(groups, both, len(sizes)) / counts[:, None])[groups]
    growing = lengths.steps[(lengths.smooth >= 1.1 * lengths.start)]
    peak = lengths.steps[int(lengths.smooth.argmax())]
    some = np.isin(record.step[groups], growing[growing <= peak])
    products = centred[some].T @ centred[some]
    if min(products[0, 0], products[1, 1]) <= 0:
        return None
    together = float(products[0, 1] / math.sqrt(products[0, 0] * products[1, 1]))
    if together < TOGETHER:
        return None
    evidence = (
        f"completions grew from {lengths.start:,.0f} to {lengths.smooth.max():,.0f} tokens, and within a group the "
        f"longer ones earn more (correlation {together:.2f})"
    )
    return _sign("length", lengths.onset(GROWTH * lengths.start), evidence)


def _collapse(reward: Series | None, record: RunRecord | None) -> Sign | None:
    """Return a sign if the reward falls suddenly and stays down, and not because the data got harder."""
    if reward is None:
        return None
    size = len(reward.values)
    width, split = max(2, math.ceil(SUDDEN * size)), np.arange(1, size - max(2, size // 8) + 1)
    before, after, soon = (
        reward.mean(np.maximum(0, split - width), split),
        reward.mean(split, np.full(len(split), size)),
        reward.mean(split, np.minimum(size, split + width)),
    )
    low, drop = float(reward.smooth.min()), before - after
    error = reward.noise * np.sqrt(1 / np.minimum(split, width) + 1 / (size - split))
    least = FALL * np.maximum(np.abs(before), before - low)
    falls = (drop > 0) & (drop >= least) & (before - soon >= least) & (drop >= NOISES * error)
    if not falls.any():
        return None
    # of all splits that show a fall, the one at which the steps on both sides differ most
    place = int(np.argmax(np.where(falls, drop * np.sqrt(split * (size - split)), -np.inf)))
    onset, said = int(reward.steps[split[place]]), ""
    if record is not None:
        fall = _fall_of_prompts(record, onset)
        if fall is not None and fall < FALL * drop[place]:
            return None
        said = "" if fall is not None else "; other prompts came at that time, and harder ones would look alike"
    evidence = f"the mean reward fell from {before[place]:.3g} to {after[place]:.3g} and stayed there{said}"
    return _sign("collapse", onset, evidence)


def _fall_of_prompts(record: RunRecord, onset: int) -> float | None:
    """Return how far the mean reward of prompts fell that were seen on both sides of ``onset``; None for too few."""
    sides = []
    for side in (record.step < onset, record.step >= onset):
        some = side & (record.trials > 0)
        counts = np.bincount(record.prompt[some], minlength=len(record.ids))
        sums = np.bincount(record.prompt[some], record.shares[some], len(record.ids))
        sides.append(np.divide(sums, counts, out=np.full(len(counts), np.nan), where=counts > 0))
    changes = sides[0] - sides[1]
    known = changes[~np.isnan(changes)]
    return float(known.mean()) if len(known) >= LEAST_PROMPTS else None


def _farming(components: Mapping[str, Series]) -> Sign | None:
    """Return a sign if one reward is at its best while another has fallen."""
    for name, own in components.items():
        best, low = float(own.values.max()), float(own.values.min())
        if best <= low or own.end < low + FARMED * (best - low) or own.start > low + STILL * (best - low):
            continue
        for other, each in components.items():
            top = max(each.start, float(each.smooth.max()))
            drop = top - each.end
            if other != name and drop >= FALL * abs(top) > 0 and drop >= NOISES * each.noise:
                evidence = (
                    f"the reward {name} rose from {own.start:.3g} to {own.end:.3g}, its best, while {other} fell from "
                    f"{top:.3g} to {each.end:.3g}"
                )
                return _sign("farming", own.onset(low + STILL * (best - low)), evidence)
    return None


def _kl(kl: Series | None) -> Sign | None:
    if kl is None or kl.smooth.max() < KL:
        return None
    evidence = (
        f"the KL divergence from the reference reached {kl.smooth.max():.2g} nats a token, {kl.end:.2g} at the end"
    )
    return _sign("kl", kl.onset(KL), evidence)


def _entropy(entropy: Series | None, reward: Series | None) -> list[Sign]:
    if entropy is None:
        return []
    top = float(entropy.smooth.max())
    if top >= max(ENTROPY_GROWTH * entropy.start, entropy.start + ENTROPY_LEAST):
        evidence = f"the entropy rose from {entropy.start:.2g} to {top:.2g} nats a token: answers become noise"
        return [_sign("entropy", entropy.onset(ENTROPY_GROWTH * entropy.start), evidence)]
    stuck = reward is not None and reward.end < STILL * float(reward.smooth.max())
    if entropy.start > 0 and entropy.end < ENTROPY_LEFT * entropy.start and stuck:
        fallen = np.flatnonzero(entropy.smooth <= ENTROPY_LEFT * entropy.start)
        evidence = f"the entropy fell from {entropy.start:.2g} to {entropy.end:.2g} while the reward fell"
        return [_sign("frozen", int(entropy.steps[fallen[0]]) if len(fallen) else int(entropy.steps[-1]), evidence)]
    return []


def _repeats(record: RunRecord) -> Sign | None:
    """Return a sign if many groups of a step have the same prompt."""
    if record.visits:
        return None
    pairs, counts = np.unique(np.stack([record.step, record.prompt], axis=1), axis=0, return_counts=True)
    repeated = int((counts - 1).sum())
    if not repeated or repeated < REPEATED * len(record.step):
        return None
    evidence = f"{repeated:,} of {len(record.step):,} groups have a prompt that another group of their step has"
    return _sign("repeats", int(pairs[counts > 1][0][0]), evidence)


def _sign(kind: str, onset: int, evidence: str) -> Sign:
    return Sign(kind, onset, evidence, REMEDIES[kind])
