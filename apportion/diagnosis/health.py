"""Signs that a run is sick, or that nothing can be learned from it. They come before any advice.

Better sampling deepens what is wrong. Each sign needs a large and lasting change, so that noise, outliers, an honest
rise and data that get harder raise none. docs/diagnose.md has the thresholds, and what they cost on real logs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from apportion.diagnosis.phantoms import SHAPING, shaping_steps
from apportion.diagnosis.series import BLOCKS, LASTING, NAMES, RunSeries, Series
from apportion.records.run_record import RunRecord, ratio
from apportion.records.scalars import Scalars
from apportion.replay.intervals import per_unit
from apportion.scheduler.shaping import REMEDY, ShapingAlarm
from apportion.types import Counts, Floats, Mask

WRONG, RIGHT, DEAD = 0.005, 0.985, 0.98
"""Success rates up to which nothing is rewarded, and from which on everything is; and the share of zero-variance
groups. One success in 200 still teaches: a sparse reward of .01 in groups of 8 has 8% mixed groups."""
RARE = 0.1
"""Largest share of NaN or infinite steps that is a sign if finite ones follow. Above it, the value was not recorded."""
CUT = 0.5
"""The share of truncated completions from which on it is a sign."""
GROWTH, TOGETHER = 1.5, 0.5
"""The growth of the mean length from which on it is a sign, and its correlation with the reward within groups."""
FALL, DECLINE, LOST = 0.5, 0.3, 0.25
"""The share of a reward that must be lost: suddenly, slowly, or while another reward rises."""
NOISES = 6.0
"""How many standard errors a sudden fall must be, because all splits of a run are tried."""
LEFT = 0.1
"""If no prompt was seen before a sudden fall, the reward must fall to this share of its level to be a sign."""
BEST, LOW = 0.85, 0.5
"""Within the range of a reward: the share from which on it is at its best, and below which it started."""
KL = 1.0
"""Divergence from the reference policy, in nats per token, from which on it is a sign."""
ENTROPY_GROWTH, ENTROPY_LEAST, ENTROPY_LEFT, STILL = 3.0, 0.5, 0.02, 0.75
"""The factor by which the entropy grows and the least growth; the share of it that is left if it freezes, and of the
reward then."""
REPEATED = 0.2
LEAST_PROMPTS = 10
"""Least number of prompts seen both before and after a fall, to tell a sick policy from harder data."""

REGROUPED = re.compile(r"\b(?:group|run)=|runs in one|copies")
"""The doubt that is shown if repeated prompts in a step may be several runs, or one group."""


@dataclass(frozen=True)
class Sign:
    """One sign.

    Args:
        kind: a key of ``SIGNS``.
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
    """The signs of a sick run, the earliest first, and the measurements that were checked.

    ``unknown`` were not recorded, and ``short`` were recorded at too few steps. ``unclear`` are changes that may come
    from the data: the log cannot tell.
    """

    signs: tuple[Sign, ...]
    looked_at: tuple[str, ...]
    unknown: tuple[str, ...]
    short: tuple[str, ...]
    unclear: tuple[Sign, ...] = ()


class Found(NamedTuple):
    """The result of a detector: onset, evidence, and whether it is a sign or may be harder data."""

    onset: int
    evidence: str
    sure: bool = True


def health_of(record: RunRecord | None, scalars: Scalars | None = None) -> RunHealth:
    """Return the signs in the rollouts of a run, in what its framework logged of each step, or in both."""
    run = RunSeries.of(record, scalars)
    signs: dict[bool, list[Sign]] = {True: [], False: []}
    for kind, (look, remedy) in SIGNS.items():
        if (seen := look(run)) is not None:
            back = "Start again" if seen.onset <= run.first else f"Go back to a checkpoint before step {seen.onset}"
            signs[seen.sure].append(Sign(kind, seen.onset, seen.evidence, remedy.format(back=back)))
    usable = [name for name in NAMES if run.usable(name)]
    names = [*usable, *["components"] * (len(run.rewards) > 1), *["repeats"] * (record is not None)]
    unknown = tuple(name for name in NAMES if name not in run.found)
    short = tuple(name for name in NAMES if name in run.found and name not in usable)
    begins = min((sign.onset for sign in signs[True] if sign.kind not in UNLEARNABLE), default=math.inf)
    signs[True] = [each for each in signs[True] if each.kind not in UNLEARNABLE[1:] or each.onset <= begins]
    sure, unclear = (tuple(sorted(signs[each], key=lambda sign: sign.onset)) for each in (True, False))
    return RunHealth(sure, tuple(names), unknown, short, unclear)


def _not_finite(run: RunSeries) -> Found | None:
    """Return a sign if values are NaN or infinite until the end, or at a few steps.

    One infinite norm of a gradient is the overflow that mixed precision skips. Rollouts of a few steps may fail.
    """
    steps: list[int] = []
    told: list[str] = []
    for name, each in run.logged.items():
        broken = ~np.isfinite(each.values)
        at_end = len(broken) if broken.all() else int(broken[::-1].argmin())
        may_be_few = name != "gradient" and (name != "reward" or run.record is None)
        if at_end >= max(2, LASTING * len(broken)) or (may_be_few and 0 < broken.mean() <= RARE):
            steps.append(int(each.steps[broken.argmax()]))
            told.append(f"{name} at {broken.sum()} of {len(broken)} steps")
    return Found(min(steps), f"NaN, infinite or missing: {', '.join(told)}") if steps else None


def _success(run: RunSeries) -> Series | None:
    """Return the success rate of each step, from binary rewards or from means in [0, 1] or [-1, 1].

    None if too few are known.
    """
    reward, dead = run.level("reward"), run.level("dead")
    if reward is None or (dead and dead.end < 1 / 2):
        return None
    values = reward.values if run.record is None else run.record.reward[~np.isnan(run.record.reward)]
    low = -1 if values.min() < 0 else 0
    if values.min() < -1 or values.max() > 1 or (run.record is not None and not np.isin(values, (low, 1)).all()):
        return None
    return Series(reward.steps, (reward.values - low) / (1 - low))


def _unlearnable(run: RunSeries) -> dict[str, Found]:
    """Return the one kind of which nothing can be learned; none of a run whose groups differ in their rewards."""
    success, dead = _success(run), run.level("dead")
    if success and max(float(success.values.mean()), success.end) <= WRONG:
        said = f"nothing is rewarded: {run.dead_groups(run.first)}, so every advantage is 0"
        return {"all wrong": Found(run.first, said)}
    if success and success.end >= RIGHT:
        onset = success.onset(RIGHT)
        said = f"everything is rewarded: {success.end:.1%} at the end, {run.dead_groups(onset)}"
        return {"all right": Found(onset, said)}
    if dead and dead.end >= DEAD:
        onset = dead.onset(DEAD)
        return {"zero variance": Found(onset, f"rewards are equal within groups: {run.dead_groups(onset)}")}
    return {}


def _truncation(run: RunSeries) -> Found | None:
    cut = run.level("cut")
    if cut is None or cut.end < CUT:
        return None
    said = f"{cut.end:.0%} of the completions are cut at {run.limit}; {cut.start:.0%} at the start"
    return Found(cut.onset(CUT), said)


def _length(run: RunSeries) -> Found | None:
    """Return a sign if completions grow while the longer ones of each group earn more."""
    record, lengths = run.record, run.usable("length")
    if record is None or lengths is None or lengths.lasting.max() < GROWTH * lengths.start:
        return None
    size, known = len(record.step), ~np.isnan(record.tokens) & ~np.isnan(record.reward)
    groups = record.group[known]
    both = np.stack([record.tokens[known], record.reward[known]], axis=1)
    counts = np.maximum(1, np.bincount(groups, minlength=size))
    centred = both - (per_unit(groups, both, size) / counts[:, None])[groups]
    peak = int(lengths.lasting.argmax())
    growing = lengths.steps[: peak + 1][lengths.lasting[: peak + 1] >= 1.1 * lengths.start]
    some = np.isin(record.step[groups], growing)
    products = centred[some].T @ centred[some]
    together = float(products[0, 1] / math.sqrt(products[0, 0] * products[1, 1] or 1))
    if together < TOGETHER:
        return None
    return Found(
        lengths.onset(GROWTH * lengths.start),
        f"completions grew from {lengths.start:,.0f} to {lengths.lasting.max():,.0f} tokens, and within a group the "
        f"longer ones earn more (correlation {together:.2f})",
    )


def _collapse(run: RunSeries) -> Found | None:
    """Return a sign if the reward falls suddenly and stays down, and not because the data got harder."""
    reward = run.usable("reward")
    if reward is None:
        return None
    size = len(reward.values)
    width, split = max(2, math.ceil(LASTING * size)), np.arange(1, size - max(2, size // BLOCKS) + 1)
    before, after, soon = (
        reward.mean(np.maximum(0, split - width), split),
        reward.mean(split, np.full(len(split), size)),
        reward.mean(split, np.minimum(size, split + width)),
    )
    drop, height = before - after, np.maximum(np.abs(before), before - reward.lasting.min())
    error = reward.noise * np.sqrt(1 / np.minimum(split, width) + 1 / (size - split))
    falls = (drop > 0) & (np.minimum(drop, before - soon) >= FALL * height) & (drop >= NOISES * error)
    falls &= ~_came_back(reward, split, after + drop / 4, before - drop / 4)
    if not falls.any():
        return None
    # of all splits that show a fall, the one at which the steps on both sides differ most
    place = int(np.argmax(np.where(falls, drop * np.sqrt(split * (size - split)), -np.inf)))
    onset = int(reward.steps[split[place]])
    said = f"the mean reward fell from {before[place]:.3g} to {after[place]:.3g} and stayed there"
    sides = (run.steps < onset, run.steps >= onset)
    return _fall(run, sides, onset, float(drop[place]), said, drop[place] >= (1 - LEFT) * height[place])


def _came_back(reward: Series, split: Counts, low: Floats, high: Floats) -> Mask:
    """Return at which splits the reward had fallen from ``high`` to ``low`` before, so that it comes and goes."""
    level, width = reward.lasting, len(reward.values) - len(reward.lasting)
    fell = (np.maximum.accumulate(level) >= high[:, None]) & (level <= low[:, None])
    return np.asarray((fell & (np.arange(len(level)) < split[:, None] - width)).any(axis=1))


def _decline(run: RunSeries) -> Found | None:
    """Return a sign if the reward falls from its best to the end without coming back, and not suddenly."""
    reward = run.usable("reward")
    if reward is None or _collapse(run):
        return None
    blocks, size = reward.blocks, len(reward.values)
    best = int(blocks[: BLOCKS - 2].argmax())
    top, drop = float(blocks[best]), float(blocks[best]) - reward.end
    comes_back = np.diff(blocks[best:]).max() > drop / 2
    if drop < max(DECLINE * max(abs(top), top - blocks.min()), reward.error) or drop <= 0 or comes_back:
        return None
    begin = best * size // BLOCKS
    at, until = (int(reward.steps[place]) for place in (begin, min(begin + 2 * size // BLOCKS, reward.last)))
    said = f"the mean reward fell from {top:.3g} to {reward.end:.3g}, its end, without coming back"
    sides = ((run.steps >= at) & (run.steps < until), run.steps >= reward.steps[reward.last])
    falls = -np.diff(blocks[best:])
    if falls.max() >= drop / 2:  # most is lost at once, in a run too short to tell a collapse from noise
        at = int(reward.steps[(best + 1 + int(falls.argmax())) * size // BLOCKS])
    return _fall(run, sides, at, drop, said, False)


def _fall(run: RunSeries, sides: tuple[Mask, Mask], onset: int, drop: float, said: str, is_all: bool) -> Found | None:
    """Return the finding for a fall of the reward. It is no sign unless prompts seen before and after share it.

    Without such prompts harder data look alike. A fall that leaves next to nothing, ``is_all``, is a sign then.
    """
    if run.record is None:
        return Found(onset, f"{said}; if the prompts got harder, that looks alike")
    fall = _fall_of_prompts(run.record, sides)
    if fall is None:
        return Found(onset, f"{said}; other prompts came at that time, and harder ones would look alike", is_all)
    return Found(onset, f"{said}, on the same prompts") if fall >= FALL * drop else None


def _fall_of_prompts(record: RunRecord, sides: tuple[Mask, Mask]) -> float | None:
    """Return by how much the mean reward fell on prompts seen before and after. ``None`` for too few of them."""
    means: list[Floats] = []
    for side in sides:
        some = side & (record.trials > 0)
        means.append(ratio(record.by_prompt(np.where(some, record.shares, 0)), record.by_prompt(some)))
    changes = means[0] - means[1]
    known = changes[~np.isnan(changes)]
    return float(known.mean()) if len(known) >= LEAST_PROMPTS else None


def _hacking(run: RunSeries) -> Found | None:
    """Return a sign of reward hacking: one reward rises to its best while another, which is no shaping term, falls."""
    usable = {name: each for name, each in run.rewards.items() if each.usable}
    rising = [name for name, each in usable.items() if _rises(each)]
    tops = {name: float(each.blocks.max()) for name, each in usable.items() if not SHAPING.search(name)}
    lost = {name: max(LOST * abs(top), usable[name].error) for name, top in tops.items()}
    falling = [name for name, top in tops.items() if top - usable[name].end >= lost[name] > 0]
    if not (rising and falling):
        return None
    own, other, top = usable[rising[0]], usable[falling[0]], tops[falling[0]]
    return Found(
        own.onset((float(own.blocks.min()) + own.end) / 2),
        f"reward hacking: {rising[0]} rose from {own.start:.3g} to {own.end:.3g}, its best, while {falling[0]} fell "
        f"from {top:.3g} to {other.end:.3g}",
    )


def _rises(each: Series) -> bool:
    low, height = each.blocks.min(), np.ptp(each.blocks)
    begins_low, ends_best = each.start <= low + LOW * height, each.end >= low + BEST * height
    return bool(begins_low and ends_best and each.end - each.start >= each.error)


def _shaping(run: RunSeries) -> Found | None:
    """Return a sign if phantom groups train the rest of the reward while the outcome does not rise."""
    alarm = ShapingAlarm()
    for step, found in () if run.record is None else shaping_steps(run.record):
        if said := alarm.add(found, step):
            return Found(step, said)
    return None


def _kl(run: RunSeries) -> Found | None:
    kl = run.usable("kl")
    if kl is None or kl.lasting.max() < KL:
        return None
    said = f"the KL divergence from the reference reached {kl.lasting.max():.2g} nats a token"
    return Found(kl.onset(KL), f"{said}, {kl.end:.2g} at the end")


def _entropy(run: RunSeries) -> Found | None:
    entropy = run.usable("entropy")
    if entropy is None:
        return None
    later = entropy.lasting[len(entropy.values) // BLOCKS :]
    top, least = float(later.max(initial=0)), max(ENTROPY_GROWTH * entropy.start, entropy.start + ENTROPY_LEAST)
    if top < least:
        return None
    said = f"the entropy rose from {entropy.start:.2g} to {top:.2g} nats a token: answers become noise"
    return Found(entropy.onset(least), said)


def _frozen(run: RunSeries) -> Found | None:
    entropy, reward = run.usable("entropy"), run.usable("reward")
    if entropy is None or reward is None or reward.end >= STILL * float(reward.lasting.max()):
        return None
    left = ENTROPY_LEFT * entropy.start
    if entropy.start <= 0 or entropy.end >= left:
        return None
    said = f"the entropy fell from {entropy.start:.2g} to {entropy.end:.2g} while the reward fell"
    return Found(Series(entropy.steps, -entropy.values).onset(-left), said)


def _repeats(run: RunSeries) -> Found | None:
    """Return a sign if many groups of a step have the same prompt, unless a doubt says that they may be one group."""
    record = run.record
    if record is None or record.visits or any(REGROUPED.search(doubt) for doubt in record.doubts):
        return None
    pairs, counts = np.unique(np.stack([record.step, record.prompt], axis=1), axis=0, return_counts=True)
    repeated = int((counts - 1).sum())
    if not repeated or repeated < REPEATED * len(record.step):
        return None
    said = f"{repeated:,} of {len(record.step):,} groups have a prompt that another group of their step has"
    return Found(int(pairs[counts > 1][0][0]), said)


SIGNS: dict[str, tuple[Callable[[RunSeries], Found | None], str]] = {
    "not finite": (_not_finite, "{back}; look at that batch, clip the gradient, lower the learning rate, or use bf16."),
    "all wrong": (
        lambda run: _unlearnable(run).get("all wrong"),
        "Check the verifier, the reward function and the answer format on some completions; then take easier prompts.",
    ),
    "all right": (
        lambda run: _unlearnable(run).get("all right"),
        "Take harder prompts first: these have next to nothing left to teach.",
    ),
    "zero variance": (
        lambda run: _unlearnable(run).get("zero variance"),
        "Take prompts that are solved now and then, or graded rewards.",
    ),
    "truncation": (
        _truncation,
        "Raise the limit of completion tokens, mask cut completions, or stop rewarding length.",
    ),
    "length": (
        _length,
        "Read long completions: take length out of the reward, or penalise it (Dr. GRPO, overlong shaping).",
    ),
    "collapse": (_collapse, "{back}; lower the learning rate, or raise the KL coefficient."),
    "decline": (_decline, "{back}; lower the learning rate, or raise the KL coefficient."),
    "farming": (
        _hacking,
        "{back}; read completions, and train on what fell, or make it a condition of what rose.",
    ),
    "shaping": (_shaping, f"{{back}}. {REMEDY}"),
    "kl": (_kl, "{back}; lower the learning rate, or raise the KL coefficient."),
    "entropy": (_entropy, "{back}; lower the learning rate, or the temperature that you train with."),
    "frozen": (
        _frozen,
        "Lower the learning rate, or add an entropy bonus, before the policy gives one answer only.",
    ),
    "repeats": (_repeats, "Remove duplicates from the data, or let the sampler draw without replacement."),
}
"""For each kind of sign: the function that detects it, and the remedy, in which ``back`` is the step to resume from."""

UNLEARNABLE = ("all wrong", "all right", "zero variance")
"""Kinds under which nothing can be learned. The last two are not reported after another sign, because it causes
them."""
