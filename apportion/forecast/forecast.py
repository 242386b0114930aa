"""What an epoch at the sampled policy will be: dead groups, what they cost, and what would help.

p is the success rate of a prompt, n the rollouts of a group, v = p (1 - p) the variance of a reward. A group is dead
with probability p^n + (1 - p)^n. Of a single rollout a prompt only E[p] is known, so Jensen's inequality bounds E[p^n +
(1 - p)^n] from below by its value at E[p], and nothing bounds it from above but 1.

The signal of an estimator with advantages A is E[A r], the expected step along a prompt's own success, and its noise is
E[A^2]. ``signal`` is E[A r]^2 / E[A^2] a rollout, over E[v], that of a baseline that is known before (p itself):

- rloo, dr_grpo: (n - 1) / n.
- grpo, which divides by the standard deviation s of the group: E[s]^2 / (P(mixed) E[v]).
- reinforce with a baseline from history: 1, at any n.

It takes gradient norms as alike, as VIP does (arXiv 2602.01601, Assumption 4.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from apportion.allocators import HORA
from apportion.allocators.vip import SMALLEST_LOW, gradient_variance, minimise_noise
from apportion.checks import check_choice, check_integer
from apportion.diagnosis.code_change import BASELINE, CodeChange
from apportion.forecast.rates import FITS, LEVEL, RATES, RateSample, fit_rates
from apportion.replay.intervals import Spanned, spanned
from apportion.types import Counts, Floats, Prompt, Rollout

SIZES = (1, 2, 4, 8, 16, 32)
"""The group sizes of a forecast."""
ESTIMATORS = ("grpo", "dr_grpo", "rloo", "reinforce")
MOST_GROUP = 1024
ENOUGH = 0.9
"""The smallest group size with this share of the largest signal is best, because it leaves rollouts for more
prompts."""
LEAST_DEAD = 0.1
DRAWN, HIGH = 1000, 64
WIDER = ((2, 1), (1, 2), (4, 1), (2, 2), (1, 4), (8, 1), (4, 2), (2, 4), (16, 1), (1, 8))
"""Larger probes, by rising cost: factors of the prompts and of the rollouts of each."""


@dataclass(frozen=True)
class Dead:
    """The expected share of dead groups of ``n`` rollouts with its 90% interval, and the shares of both kinds."""

    n: int
    value: float
    low: float
    high: float
    all_right: float
    all_wrong: float


@dataclass(frozen=True)
class EpochCost:
    """What an epoch of groups of ``n`` costs under a choice: a group for each prompt, or as many mixed groups.

    ``rollouts`` has an interval, and is inf where no group may be mixed. ``tokens``, ``hours`` and ``cost`` are nan if
    unknown.
    """

    choice: str
    n: int
    rollouts: Spanned
    tokens: float
    hours: float
    cost: float


@dataclass(frozen=True)
class Split:
    """Which prompts get the rollouts under a splitting rule, and its effects relative to equal counts.

    ``low``, ``middle`` and ``high`` are its mean rollouts for prompts with p below 1/4, between, and above 3/4; nan if
    there are none. ``variance`` is RLOO's, for a mean over prompts, ``signal`` the sum of n v, for a mean over
    rollouts, and ``hits`` the groups with a right rollout: ratios to equal counts.
    """

    rule: str
    low: float
    middle: float
    high: float
    variance: float
    signal: float
    hits: float


@dataclass(frozen=True)
class MoreProbes:
    """A probe of ``prompts`` with ``rollouts`` of each.

    It is expected to halve the interval at ``n``, to ``half`` its width.
    """

    n: int
    prompts: int
    rollouts: int
    half: float


@dataclass(frozen=True)
class Forecast:
    """A forecast from ``probed`` prompts of ``least`` to ``most`` rollouts.

    Args:
        success: mean success rate.
        only_mean: whether one rollout a prompt leaves all but the mean open.
        dead: dead groups, for each group size.
        signal: of a rollout, by estimator, for each group size; see the head of this module.
        best: the least group size with 90% of the largest signal, by estimator.
        chosen: mixed groups among the better half of the prompts, by one epoch of groups of ``group_size``.
        group_size: n of the rules and the lines below.
        splits: VIP, by one epoch of outcomes, and HORA, which needs none. Neither gives more than 64 rollouts, so there
            are none for larger groups.
        epoch: what an epoch of ``prompts`` costs.
        more: what would halve the widest interval, None if 16 times the rollouts do not.
        change: what to set; None where fewer than a tenth of the groups are dead.
    """

    probed: int
    least: int
    most: int
    success: Spanned
    only_mean: bool
    dead: tuple[Dead, ...]
    signal: dict[str, tuple[float, ...]]
    best: dict[str, int]
    chosen: Spanned
    group_size: int
    splits: tuple[Split, ...]
    prompts: int
    epoch: tuple[EpochCost, ...]
    more: MoreProbes | None
    change: CodeChange | None


def forecast(
    sample: RateSample,
    *,
    group_size: int = 8,
    estimators: Sequence[str] = ESTIMATORS,
    prompts: int | None = None,
    tokens: float = np.nan,
    tokens_per_second: float | None = None,
    price_per_hour: float | None = None,
) -> Forecast:
    """Return what an epoch at the policy of ``sample`` will be.

    Args:
        sample: rollouts of prompts that are a random draw from all.
        group_size: n of the run, at least 2.
        estimators: of ``ESTIMATORS``, whose signal is compared.
        prompts: of an epoch, by default those of the sample.
        tokens: of a completion, on average.
        tokens_per_second: of all GPUs together, for hours.
        price_per_hour: of all GPUs together, for money.

    Raises ValueError for settings out of range.

    >>> found = forecast(RateSample.of([0] * 40 + [2] * 20 + [4] * 40, [4] * 100))
    >>> found.dead[2].value, found.dead[2].low < 0.8 < found.dead[2].high
    (0.8, True)
    """
    check_integer("group_size", group_size, 2, "a group of one is never mixed")
    if group_size > MOST_GROUP:
        raise ValueError(f"group_size must be at most {MOST_GROUP:,}, got {group_size:,}; lower it")
    for estimator in estimators:
        check_choice("estimators", estimator, ESTIMATORS, "name one whose signal has a formula")
    for name, value in (("tokens_per_second", tokens_per_second), ("price_per_hour", price_per_hour)):
        if value is not None and not 0 < value < np.inf:
            raise ValueError(f"{name} must be above 0 and finite, got {value}; give that of all GPUs together")
    fits, probed = fit_rates(sample), int(sample.prompts.sum())
    number = probed if prompts is None else check_integer("prompts", prompts, 1, "an epoch has a prompt")
    sizes = sorted({*SIZES, group_size})
    dead = dead_groups(sample, fits, sizes)
    signal = {name: tuple(_signal(fits.mean(axis=0), n, name) for n in sizes) for name in estimators}
    own = next(each for each in dead if each.n == group_size)
    mixed = Spanned(1 - own.value, 1 - own.high, 1 - own.low)
    chosen = _spanned(np.array([_chosen(each, group_size) for each in fits]))
    speed = np.nan if tokens_per_second is None else 3600 * tokens_per_second
    price = np.nan if price_per_hour is None else price_per_hour

    def choice(name: str, n: int, share: Spanned) -> EpochCost:
        ends = (share.value, share.high, share.low)
        rollouts = Spanned(*(number * n / each if each > 0 else np.inf for each in ends))
        hours = rollouts.value * tokens / speed
        return EpochCost(name, n, rollouts, rollouts.value * tokens, hours, hours * price)

    whole = Spanned(1.0, 1.0, 1.0)
    return Forecast(
        probed=probed,
        least=int(sample.trials.min()),
        most=int(sample.trials.max()),
        success=_success(sample, fits),
        only_mean=bool(sample.trials.max() == 1),
        dead=dead,
        signal=signal,
        best={name: sizes[int(np.argmax(np.array(own) >= ENOUGH * max(own)))] for name, own in signal.items()},
        chosen=chosen,
        group_size=group_size,
        splits=_splits(fits.mean(axis=0), group_size),
        prompts=number,
        epoch=(
            *(choice("even", n, whole) for n in sizes),
            choice("refilled", group_size, mixed),
            choice("chosen", group_size, chosen),
        ),
        more=_more(sample, fits, sizes[-1]),
        change=BASELINE if own.value >= LEAST_DEAD else None,
    )


def _spanned(values: Floats) -> Spanned:
    return spanned(float(values.mean()), values, LEVEL)


def _success(sample: RateSample, fits: Floats) -> Spanned:
    """Return the mean success rate of the sample. The ends of its interval come from the fits."""
    value = float(np.average(sample.successes / sample.trials, weights=sample.prompts))
    _, low, high = _spanned(fits @ RATES)
    return Spanned(value, min(low, value), max(high, value))


def dead_groups(sample: RateSample, fits: Floats, sizes: Sequence[int]) -> tuple[Dead, ...]:
    """Return the dead groups of each size. Sizes within the sample are counted, and larger ones are estimated."""
    found, most, success = [], np.ones(2), _success(sample, fits)
    for n in sizes:
        kinds = np.stack([fits @ RATES**n, fits @ (1 - RATES) ** n])
        counted = sample.alike(n)
        shares = np.minimum(most, kinds.mean(axis=1)) if counted is None else np.array(counted)
        most = shares if n > 1 else most  # larger groups are never dead more often
        _, low, high = _spanned(kinds.sum(axis=0))
        if sample.trials.max() == 1:
            nearest = min(max(0.5, success.low), success.high)
            low, high = nearest**n + (1 - nearest) ** n, 1.0
        right, wrong = shares.tolist()
        value = 1.0 if n == 1 else right + wrong
        found.append(Dead(n, value, min(low, value), min(1.0, max(high, value)), right, wrong))
    return tuple(found)


def outcomes_of(weights: Floats, n: int) -> Floats:
    """Return P(rate g and k of ``n`` right), [G, n + 1]. Rate g has the weight ``weights`` [G]."""
    row = np.ones((len(RATES), 1))
    for _ in range(n):
        row = np.pad(row * (1 - RATES[:, None]), ((0, 0), (0, 1))) + np.pad(row * RATES[:, None], ((0, 0), (1, 0)))
    return np.asarray(weights[:, None] * row)


def _signal(weights: Floats, n: int, estimator: str) -> float:
    if estimator == "reinforce":
        return 1.0
    if estimator != "grpo" or n == 1:
        return (n - 1) / n
    k = np.arange(n + 1) / n
    found = outcomes_of(weights, n).sum(axis=0)
    variance = weights @ (RATES * (1 - RATES))
    return float((found @ np.sqrt(k * (1 - k))) ** 2 / (found[1:-1].sum() * variance)) if variance > 0 else 0.0


def _chosen(weights: Floats, n: int) -> float:
    """Return the share of mixed groups of ``n`` in the half of the prompts that ``n`` outcomes call likeliest mixed."""
    found = outcomes_of(weights, n)
    share = found.sum(axis=0)
    mixed = (1 - RATES**n - (1 - RATES) ** n) @ found / np.maximum(share, 1e-300)
    order = np.argsort(-mixed)
    taken = np.clip(0.5 - (np.cumsum(share[order]) - share[order]), 0, share[order])
    return float(taken @ mixed[order] / taken.sum())


def _splits(weights: Floats, n: int) -> tuple[Split, ...]:
    """Return VIP's split after an epoch of groups of ``n``, and HORA's in the first epoch, for ``DRAWN`` prompts."""
    if n > HIGH:
        return ()
    rng = np.random.default_rng(0)
    p = rng.choice(RATES, DRAWN, p=weights)
    found = outcomes_of(weights, n)
    variance = (RATES * (1 - RATES)) @ found / np.maximum(found.sum(axis=0), 1e-300)
    seen = rng.binomial(n, p)
    made = []
    if n >= SMALLEST_LOW:
        made.append(_split("vip", p, minimise_noise(variance[seen], n * DRAWN, "rloo", SMALLEST_LOW, HIGH), n))
    rule = HORA(rollouts_per_prompt=n)
    batch = rule.start([Prompt(str(q)) for q in range(DRAWN)])
    while plan := rule.plan(batch):
        right = rng.binomial(plan.counts, p)
        batch = batch.add(plan, [[Rollout(i < k) for i in range(c)] for k, c in zip(right, plan.counts, strict=True)])
    return (*made, _split("hora", p, batch.asked, n))


def _split(name: str, p: Floats, counts: Counts, n: int) -> Split:
    parts = (counts[p < 0.25], counts[(p >= 0.25) & (p <= 0.75)], counts[p > 0.75])
    even, v = np.full_like(counts, n), p * (1 - p)
    pairs = (
        (gradient_variance(p, counts).sum(), gradient_variance(p, even).sum()),
        (counts @ v, n * v.sum()),
        ((1 - (1 - p) ** counts).sum(), (1 - (1 - p) ** n).sum()),
    )
    ratios = [float(above / below) if below > 0 else np.nan for above, below in pairs]
    return Split(name, *(float(part.mean()) if len(part) else np.nan for part in parts), *ratios)


def _more(sample: RateSample, fits: Floats, n: int) -> MoreProbes | None:
    """Return the cheapest probe that is expected to halve the interval at ``n``, the widest, if the fits are right."""
    if len(set(sample.trials.tolist())) > 1:
        return None
    prompts, trials = int(sample.prompts.sum()), int(sample.trials[0])

    def half(found: Floats) -> float:
        _, low, high = _spanned(found @ (RATES**n + (1 - RATES) ** n))
        return (high - low) / 2

    now = half(fits)
    for more, longer in WIDER:
        size = trials * longer
        expected = outcomes_of(fits.mean(axis=0), size).sum(axis=0) * prompts * more
        wider = RateSample(np.arange(size + 1), np.full(size + 1, size), np.maximum(expected, 1e-9))
        if size <= n and (found := half(fit_rates(wider, FITS // 2))) <= now / 2:
            return MoreProbes(n, prompts * more, size, found)
    return None
