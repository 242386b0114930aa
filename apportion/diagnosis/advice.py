"""What would have helped: the saving of each change, with its interval and the condition under which it fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan

import numpy as np

from apportion.diagnosis import code_change
from apportion.diagnosis.code_change import CodeChange, choose_change
from apportion.diagnosis.health import UNLEARNABLE, RunHealth
from apportion.diagnosis.walks import (
    LEAST_CANDIDATES,
    choose_mixed,
    choose_unmastered,
    group_size,
    vip_variances,
    walk_batches,
)
from apportion.diagnosis.waste import EQUAL, MIXED, kinds_of
from apportion.predictors import EmpiricalBayes
from apportion.predictors.embeddings import Embedder
from apportion.records.run_record import RunRecord
from apportion.replay.foresight import MOST_GROUPS, sample_of
from apportion.replay.intervals import Spanned, per_unit, ratios_over_prompts, share
from apportion.types import Counts, Floats, Mask

LEAST_PROMPTS = 30
LEAST_SAVING = 0.01
LEAST_DEAD = 0.1
"""A baseline is advised from this share of dead groups on."""
LEAST_TO_SPLIT = 2
"""Least number of prompts in a step among which rollouts can be split."""
MIXED_SHARE = "share of mixed groups"
"""Each step counts the groups that the rule takes, so without the rule this is not 1 minus the share of dead groups."""
VARIANCE_MEASURE = "RLOO's gradient variance over the run's"
LEVEL = 0.05
"""The probability, at most, that anything is recommended if nothing helps; each of k changes gets LEVEL / k."""

OBJECTIVE = (
    "A choice changes the objective: prompts that are left out lose their weight. In a public comparison such a rule "
    "won on a model of .6B parameters and lost on one of 67B. The recorded policy was trained without it. Watch the "
    "accuracy on held-out problems."
)
VARIANCE = (
    "It lowers the variance of the gradient, not the number of dead groups, and holds for RLOO if gradient norms are "
    "alike. In this library's experiments VIP's learning curve could not be told from uniform's at equal rollouts."
)
BASELINE = (
    "It needs log-probabilities: free in verl, at most one forward pass in TRL. Its effect was measured in this "
    "library's lab, not on this run."
)
INFORMED = "It holds for a choice by P(mixed) and adds to that. " + OBJECTIVE


@dataclass(frozen=True)
class Learning:
    """What a change did to learning: the mean success over a run in this library's lab, less that of uniform groups.

    ``area`` is that difference, the area under the learning curve; None if it was not measured. ``text`` says it in a
    line.
    """

    area: float | None
    text: str


LEARNED = {
    "baseline": Learning(
        0.072,
        "dead groups get a gradient, too; mean success over a run in the lab +0.072 ± 0.017 at groups of 4",
    ),
    "vip": Learning(0.0, "no effect on learning that shows: mean success over a run in the lab -0.005 ± 0.003"),
    "unknown": Learning(None, "its effect on learning is unknown"),
    "choose": Learning(
        -0.049, "another choice, MoPPS, did not gain in the lab: mean success over a run -0.049 ± 0.038"
    ),
}
"""Effects on learning, as docs/results.md has them."""


UNMEASURED = Spanned(nan, nan, nan)


@dataclass(frozen=True)
class Advice:
    """One change, and what it would have saved on this run.

    Args:
        change: what to do.
        measure: the quantity that ``before`` and ``after`` are.
        condition: when it fails.
        code: how the change is written for TRL and for verl.
        learning: what the change did to learning elsewhere.
        before, after: its value in the recorded run, or without the change, and with it.
        saving: share of the rollouts that the same number of mixed groups, or the same variance, would not have cost.
        recommended: whether the lower end of the interval is above ``LEAST_SAVING``, or the lab says that it helps.
        text: the statement, with all of these numbers.
    """

    change: str
    measure: str
    condition: str
    code: CodeChange
    learning: Learning
    before: float = nan
    after: float = nan
    saving: Spanned = UNMEASURED
    recommended: bool = False
    text: str = ""


@dataclass(frozen=True)
class AdviceList:
    """The changes that would help, by their effect on learning, then on variance, then on rollouts; and the others.

    Args:
        recommended, considered: the changes that would help, and the others.
        confidence: of the intervals. All together are right with a probability of 95%.
        prompts, groups: that the savings were measured on; ``sampled`` if these are a random part.
        joined: whether steps were joined to ``LEAST_CANDIDATES`` groups, because a step has fewer.
        problem: why nothing is advised; "" otherwise.
    """

    recommended: tuple[Advice, ...]
    considered: tuple[Advice, ...]
    confidence: float
    prompts: int
    groups: int
    sampled: bool
    joined: bool
    problem: str


def advice_of(
    record: RunRecord,
    embedder: Embedder | None = None,
    rates: Mapping[str, float] | None = None,
    health: RunHealth | None = None,
) -> AdviceList:
    """Return what would have helped in this run. Every decision is made by what was known before its batch.

    ``embedder`` and ``rates`` are known of prompts that were never seen. A run of more than 64,000 groups is measured
    on a random sample of its prompts. Nothing is advised for a sick run.
    """
    part = sample_of(record, MOST_GROUPS)
    informed = embedder is not None or bool(rates)
    prompts = len(np.unique(part.prompt))
    sampled = prompts < len(np.unique(record.prompt))
    if problem := _sick(health) or _problem(part, informed):
        return AdviceList((), (), 1 - LEVEL, prompts, len(part.step), sampled, False, problem)
    batches, size = walk_batches(part), group_size(part)
    size_of_step = 0.0 if part.visits else float(np.median(np.unique(part.step, return_counts=True)[1]))
    joined = 0 < size_of_step < LEAST_CANDIDATES
    everything, own = np.ones(len(part.step), bool), choose_mixed(part, batches)
    choose = Advice(
        "Choose half of the candidates by P(mixed)",
        MIXED_SHARE,
        OBJECTIVE,
        choose_change(size, part.binary),
        LEARNED["choose"],
    )
    tried = [(choose, everything, own)]
    if part.binary:
        retire = Advice(
            "Retire prompts at a mean of .9, retest later",
            MIXED_SHARE,
            OBJECTIVE,
            code_change.RETIRE,
            LEARNED["unknown"],
        )
        tried.append((retire, everything, choose_unmastered(part, batches)))
    if informed:
        name = "embeddings" if not rates else "known rates" if embedder is None else "embeddings and known rates"
        inform = Advice(
            f"Give the belief {name}",
            f"{MIXED_SHARE} among the chosen",
            INFORMED,
            choose_change(size, part.binary, embedder is not None, bool(rates)),
            LEARNED["unknown"],
        )
        tried.append((inform, own, choose_mixed(part, batches, lambda: EmpiricalBayes(embedder, rates))))
    confidence = 1 - LEVEL / (len(tried) + 1)
    found = [_mixed(part, batches, change, pair, confidence) for change, *pair in tried]
    found += [_vip(part, batches, confidence, size_of_step), _baseline(part)]
    ranked = sorted(found, key=_rank)
    return AdviceList(
        tuple(each for each in ranked if each.recommended),
        tuple(each for each in ranked if not each.recommended),
        confidence,
        prompts,
        len(part.step),
        sampled,
        joined,
        "",
    )


def _rank(each: Advice) -> tuple[float, bool, float]:
    """Return the sort key of an advice.

    The effect on learning is first, then variance, then rollouts. An unknown effect comes just below none.
    """
    area = -1e-3 if each.learning.area is None else each.learning.area
    return -area, each.measure != VARIANCE_MEASURE, -float(np.nan_to_num(each.saving.value, nan=-np.inf))


def _sick(health: RunHealth | None) -> str:
    """Return the reason why a run with signs gets no advice."""
    if health is None or not health.signs:
        return ""
    kinds = ", ".join(sign.kind for sign in health.signs)
    if all(sign.kind in UNLEARNABLE for sign in health.signs):
        return f"nothing is left to learn here ({kinds}): other counts, choices and baselines do not change that"
    return f"the run is sick ({kinds}), and what samples better would deepen it; treat that first"


def _problem(record: RunRecord, informed: bool) -> str:
    usable = record.trials >= 2
    if not usable.any():
        return "advice needs groups with two rewards or more, this run has none"
    visits = record.by_prompt(usable)
    if not informed and (visits >= 1).sum() >= LEAST_PROMPTS and (visits >= 2).sum() == 0:
        return "every prompt was visited once, so nothing could have been known before; give embeddings or known rates"
    again = int((visits >= (1 if informed else 2)).sum())
    if again < LEAST_PROMPTS:
        return (
            f"advice needs {LEAST_PROMPTS} prompts that were visited {'' if informed else 'twice '}with two rewards "
            f"or more, this run has {again}"
        )
    return ""


def mixed_columns(record: RunRecord, batches: Sequence[Counts], pair: Sequence[Mask]) -> Floats:
    """Return six columns, [N, 6]: mixed groups, groups and requested rollouts, each without and with the choice.

    ``pair`` has the groups [N] without and with it. Each batch has the same weight in both, that of the groups that
    the choice took. So a choice does not gain by taking fewer groups when the whole run stands badly. Groups of fewer
    than two rewards are left out.
    """
    kinds = kinds_of(record)
    counted = kinds <= EQUAL
    without, with_it = (each & counted for each in pair)
    weights = np.zeros(len(record.step))
    for places in batches:
        weights[places] = with_it[places].sum() / max(1, without[places].sum())
    own = np.stack([kinds == MIXED, counted, record.asked], axis=1)
    return np.concatenate([own * (weights * without)[:, None], own * with_it[:, None]], axis=1)


def fewer_rollouts(sums: Floats) -> Floats:
    """Return the share of rollouts saved at equal mixed groups, [...], from sums of ``mixed_columns``, [..., 6]."""
    mixed, _, asked, mixed_then, _, asked_then = np.moveaxis(sums, -1, 0)
    return np.asarray(1 - (mixed / asked) / (mixed_then / asked_then))


def _mixed(
    record: RunRecord, batches: Sequence[Counts], change: Advice, pair: Sequence[Mask], confidence: float
) -> Advice:
    columns = mixed_columns(record, batches, pair)
    saving = _spanned(record, columns, fewer_rollouts, confidence)
    mixed, groups, _, mixed_then, groups_then, _ = columns.sum(axis=0).tolist()
    before, after = (above / below if below else nan for above, below in ((mixed, groups), (mixed_then, groups_then)))
    told = (
        f"the share of mixed groups, with every step counted by the groups that the rule takes there, would have been "
        f"{after:.2f} in place of {before:.2f}, so that the same number of mixed groups would have "
        f"cost {share(saving.value)} fewer rollouts"
    )
    return _measured(change, before, after, saving, told)


def _baseline(record: RunRecord) -> Advice:
    """Return the advice to replace the group's mean by a baseline of each prompt. It applies if groups are dead."""
    dead = float(record.dead.sum() / max(1, (record.dead | record.mixed).sum()))
    change = "Give each prompt a baseline from its history in place of its group's mean (REINFORCE)"
    text = (
        f"{change}: the {share(dead)} of the groups that are dead get a gradient. Their rewards are equal to the "
        "group's mean, but not to a baseline from earlier steps. Their share will not fall."
    )
    found = Advice(change, "share of dead groups", BASELINE, code_change.BASELINE, LEARNED["baseline"])
    return replace(found, before=dead, after=0.0, recommended=dead >= LEAST_DEAD, text=text)


def _vip(record: RunRecord, batches: Sequence[Counts], confidence: float, size_of_step: float) -> Advice:
    planned, recorded = vip_variances(record, batches)
    size = float(record.trials[record.trials >= 2].mean())

    def saved(sums: Floats) -> Floats:
        ratio = sums[..., 0] / sums[..., 1]
        return np.asarray(1 - size / (1 + (size - 1) / ratio))

    saving = _spanned(record, np.stack([planned, recorded], axis=1), saved, confidence)
    ratio = float(planned.sum() / recorded.sum()) if recorded.sum() > 0 else nan
    fewer = f"{share(saving.value)} fewer rollouts"
    change = Advice(
        "Split the rollouts by predicted variance (VIP)", VARIANCE_MEASURE, VARIANCE, code_change.VIP, LEARNED["vip"]
    )
    found = _measured(
        change,
        1.0,
        ratio,
        saving,
        f"RLOO's gradient variance would have been {ratio:.2f} times that of the recorded counts at equal rollouts, "
        f"which {fewer} would have reached",
    )
    if 0 < size_of_step < LEAST_TO_SPLIT:
        said = (
            f"{change.change}: a step has {size_of_step:g} prompt{'s' * (size_of_step != 1)}, so nothing can be split; "
            f"with steps joined to {LEAST_CANDIDATES} prompts {fewer}"
        )
        return replace(found, recommended=False, text=f"{said}.")
    return found


def _measured(change: Advice, before: float, after: float, saving: Spanned, told: str) -> Advice:
    """Return ``change`` with its measured saving. ``told`` says it in words, without the interval."""
    recommended, ends = bool(saving.low >= LEAST_SAVING), f"[{share(saving.low)}, {share(saving.high)}]"
    text = f"{told} {ends}" if recommended else f"no saving beyond noise, {share(saving.value)} {ends}"
    if np.isnan(saving.value):
        text = "cannot be measured on this run"
    text = f"{change.change}: {text}."
    return replace(change, before=before, after=after, saving=saving, recommended=recommended, text=text)


def _spanned(record: RunRecord, columns: Floats, statistic: Callable[[Floats], Floats], confidence: float) -> Spanned:
    by_prompt = per_unit(record.prompt, columns.astype(np.float64), len(record.ids))
    return ratios_over_prompts(by_prompt[record.by_prompt() > 0], statistic, confidence)
