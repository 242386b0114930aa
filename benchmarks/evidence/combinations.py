"""What happens when decisions of several papers are combined, each beside the best of its parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import numpy as np

from apportion.lab.report.results import SeedInterval
from benchmarks.evidence.cell import Cell
from benchmarks.evidence.claim import Claim, Finding, Values, Verdict, difference, headline, interval, sign
from benchmarks.evidence.combinations_measured import arm
from benchmarks.evidence.learning import SEEDS

MINUTES = {
    "vip": 1.1,
    "weights": 1.1,
    "weights_vip": 1.1,
    "optimal": 1.3,
    "vip_optimal": 1.3,
    "weights_optimal": 1.3,
    "weights_vip_optimal": 1.3,
    "single_optimal": 2.6,
    "single_optimal_retire": 2.6,
    "single_batch": 2.6,
    "single_batch_mixed": 2.6,
    "reuse": 1.1,
    "vip_reuse": 1.1,
    "tokens_uniform": 1.1,
    "tokens_even": 1.1,
    "tokens_vip_rollouts": 1.1,
    "tokens_vip": 1.1,
    "tokens_hora": 1.2,
    "ar3po_by_rloo": 1.3,
    "ar3po_by_sequential": 1.3,
    "hora_by_rloo": 1.2,
    "hora_by_sequential": 1.2,
    "reinforce_ada_by_rloo": 1.1,
    "reinforce_ada_by_sequential": 1.1,
}
"""The arms, and how many minutes each takes."""
CELLS: Mapping[str, Cell] = {
    **{f"combinations.{name}": Cell(partial(arm, name), minutes, SEEDS) for name, minutes in MINUTES.items()},
    "combinations.ar3po_by_rloo_rollouts": Cell(partial(arm, "ar3po_by_rloo", weighting="rollout"), 1.3, SEEDS),
}

Measured = Mapping[str, Values]
Areas = Mapping[str, Sequence[float]]
ALONE = ("weights", "vip", "optimal")
FACTORIAL = ("uniform", *ALONE, "weights_vip", "vip_optimal", "weights_optimal", "weights_vip_optimal")
WORDS = {
    "uniform": "uniform 8, RLOO (control)",
    "weights": "which: SPO's weights",
    "vip": "how many: VIP",
    "optimal": "baseline: optimal",
    "weights_vip": "SPO's weights, VIP",
    "vip_optimal": "VIP's belief, optimal baseline",
    "weights_optimal": "SPO's weights, optimal baseline",
    "weights_vip_optimal": "all three",
    "single_optimal": "single rollouts, optimal baseline",
    "single_optimal_retire": "the same, retire and retest",
    "single_batch": "single rollouts, batch_optimal",
    "single_batch_mixed": "the same, P(mixed)",
    "reuse": "uniform 8 with reuse",
    "vip_reuse": "VIP with reuse",
    "tokens_uniform": "8 rollouts each (control)",
    "tokens_even": "an even split of tokens",
    "tokens_vip_rollouts": "VIP, budget in rollouts",
    "tokens_vip": "VIP, budget in tokens",
    "tokens_hora": "HORA, budget in tokens",
}
CONTROL, SMALL = "controls.uniform_8_rloo", "controls.uniform_4_rloo"
HERE = (
    "Hard base of the lab, 12,800 rollouts, five seeds. Learning rates are those that an earlier sweep chose for each "
    "rule alone. They were not tuned again for the combinations."
)
NONE = "none: no paper tried it"


def together(found: Iterable[SeedInterval]) -> Verdict:
    """Return the verdict on "it gains" from the intervals of its gains in several settings."""
    signs = {sign(each) for each in found}
    if signs == {1}:
        return Verdict.HOLDS
    if 1 in signs:
        return Verdict.CONDITIONS
    return Verdict.FAILS if -1 in signs else Verdict.OPEN


def effect(areas: Areas, decision: str) -> list[float]:
    """Return by how much ``decision`` raises the area for each seed, averaged over the other two decisions."""
    others = [name for name in ALONE if name != decision]
    gains = []
    for context in ((), (others[0],), (others[1],), others):
        gains.append(np.subtract(areas[_arm_of({*context, decision})], areas[_arm_of(set(context))]))
    return np.mean(gains, axis=0).tolist()


def _arm_of(decisions: set[str]) -> str:
    return "_".join(name for name in ALONE if name in decisions) or "uniform"


def _of(measured: Measured, name: str) -> Values:
    return measured[CONTROL if name == "uniform" else f"combinations.{name}"]


def _areas(measured: Measured, names: Sequence[str], key: str = "area") -> dict[str, list[float]]:
    return {name: list(_of(measured, name)[key]) for name in names}


def _power(found: SeedInterval) -> str:
    return f"{found.half_width:.3f}" if found.half_width is not None else "unknown"


def _rows(measured: Measured, names: Sequence[str], control: str, key: str = "area") -> list[list[object]]:
    areas = _areas(measured, [*names, control], key)
    return [
        [
            WORDS[name],
            interval(areas[name]),
            "-" if name == control else difference(areas[name], areas[control]).signed,
            interval(_of(measured, name)["end"]),
            _to_80(_of(measured, name)["to_80"]),
        ]
        for name in names
    ]


def _to_80(values: Sequence[float | None]) -> str:
    reached = [value for value in values if value is not None]
    return f"{np.mean(reached):,.0f}" if len(reached) == len(values) else f"{len(reached)} of {len(values)} runs"


COLUMNS = ["rule", "area", "less the control", "success at the end", "rollouts to 80%"]


def all_three(measured: Measured) -> Finding:
    """Judge all three decisions together by the best of them alone."""
    areas = _areas(measured, FACTORIAL)
    best = max(ALONE, key=lambda name: np.mean(areas[name]))
    found = difference(areas["weights_vip_optimal"], areas[best])
    return Finding(
        f"{found.signed} of area against the best part ({WORDS[best]})",
        together([found]),
        f"The best part alone gains {difference(areas[best], areas['uniform']).signed} over uniform. At the lab's best "
        "group size, single rollouts, an earlier study had the same result on other seeds: the optimal baseline gains "
        f"{headline('methods_decisions', 'single_optimal', 'area - baseline')} over uniform 4, with SPO's weights "
        f"{headline('methods_decisions', 'single_optimal_spo_weights', 'area - baseline')}, and with Neyman's counts, "
        f"too, {headline('methods_decisions', 'all_three', 'area - baseline')}.",
        COLUMNS,
        _rows(measured, FACTORIAL, "uniform"),
    )


def main_effect(decision: str) -> Callable[[Measured], Finding]:
    """Return a judge of one decision, averaged over the four combinations of the two others."""

    def judge(measured: Measured) -> Finding:
        areas = _areas(measured, FACTORIAL)
        found = SeedInterval.of(effect(areas, decision))
        others = [name for name in ALONE if name != decision]
        gains = {}
        for context in (set(), {others[0]}, {others[1]}, set(others)):
            gains[_arm_of(context)] = difference(areas[_arm_of(context | {decision})], areas[_arm_of(context)])
        above, below = (sum(sign(gain) == side for gain in gains.values()) for side in (1, -1))
        return Finding(
            f"{found.signed} of area",
            together([found]),
            f"This is the mean over four comparisons of the same seeds. {above} of these 4 intervals lie above 0 "
            f"and {below} below. A mean change of {_power(found)} would have shown.",
            ["added to", "change of the area"],
            [[WORDS[name], gain.signed] for name, gain in gains.items()],
        )

    return judge


def added(combined: str, parts: Sequence[str], why: str) -> Callable[[Measured], Finding]:
    """Return a judge of ``combined`` by the best of its ``parts``."""

    def judge(measured: Measured) -> Finding:
        areas = _areas(measured, [combined, *parts])
        best = max(parts, key=lambda name: np.mean(areas[name]))
        found = difference(areas[combined], areas[best])
        return Finding(
            f"{found.signed} of area against {WORDS[best]}",
            together([found]),
            f"{why} A difference of {_power(found)} would have shown.",
            COLUMNS,
            _rows(measured, [*parts, combined], best),
        )

    return judge


def spend_tokens(rule: str, others: Sequence[str]) -> Callable[[Measured], Finding]:
    """Return a judge of ``rule``, which spends tokens, by equal rollouts at equal tokens; ``others`` are shown."""

    def judge(measured: Measured) -> Finding:
        names = ("tokens_uniform", *others, rule)
        areas = _areas(measured, names, "area_of_tokens")
        found = difference(areas[rule], areas["tokens_uniform"])
        beside = "; ".join(f"{WORDS[name]} {difference(areas[rule], areas[name]).signed}" for name in others)
        return Finding(
            f"{found.signed} of area over tokens",
            together([found]),
            f"A difference of {_power(found)} would have shown. Less other rules at equal tokens: {beside}.",
            COLUMNS,
            _rows(measured, names, "tokens_uniform", "area_of_tokens"),
        )

    return judge


STOPPING = {
    "ar3po": ("AR3PO without reuse", "ar3po"),
    "hora": ("HORA", "hora"),
    "reinforce_ada": ("Reinforce-Ada, every rollout in the loss", "reinforce_ada, all in the loss"),
}
"""Rules that stop by outcomes, and their rows in benchmarks/results/bias.md."""


BIASED = {"rloo": "rloo", "rloo_rollouts": "rloo, equal weights of rollouts"}


def unbiased(rule: str, biased: Sequence[str]) -> Callable[[Measured], Finding]:
    """Return a judge of the unbiased estimator by the ``biased`` ones, under the same stopping rule."""

    def judge(measured: Measured) -> Finding:
        areas = _areas(measured, [f"{rule}_by_{each}" for each in ("sequential", *biased)])
        mine = areas[f"{rule}_by_sequential"]
        gains = {each: difference(mine, areas[f"{rule}_by_{each}"]) for each in biased}
        row = STOPPING[rule][1]
        words = {"sequential": "sequential, equal weights of rollouts", **BIASED}
        control = measured[SMALL]["area"] if SMALL in measured else None
        beside = f" Less uniform 4 with RLOO: {difference(mine, control).signed}." if control else ""
        return Finding(
            ", ".join(f"{gain.signed} of area against {words[each]}" for each, gain in gains.items()),
            together(gains.values()),
            f"With RLOO the expected gradient of a prompt with p = 0.1 is {headline('bias', row, 'p = 0.1')} times the "
            f"true one, and with p = 0.5 {headline('bias', row, 'p = 0.5')} times (benchmarks/results/bias.md). "
            f"A difference of {_power(gains[biased[0]])} would have shown.{beside}",
            ["estimator", "area", "sequential, less this one", "success at the end"],
            [
                [
                    words[each],
                    interval(areas[f"{rule}_by_{each}"]),
                    gains[each].signed if each in gains else "-",
                    interval(_of(measured, f"{rule}_by_{each}")["end"]),
                ]
                for each in ("sequential", *biased)
            ],
        )

    return judge


def _cells(*names: str) -> list[str]:
    return [CONTROL if name == "uniform" else f"combinations.{name}" for name in names]


def _effect_claim(decision: str, claim: str) -> Claim:
    return Claim(
        where="One decision beside the others",
        claim=claim,
        figure=NONE,
        setting=HERE + " 16 prompts a step, 8 rollouts a prompt on average, in all eight combinations.",
        cells=_cells(*FACTORIAL),
        judge=main_effect(decision),
    )


def _unbiased_claim(rule: str, biased: Sequence[str] = ("rloo",)) -> Claim:
    return Claim(
        where=f"Unbiased under adaptive stopping, {STOPPING[rule][0]}",
        claim="If outcomes decide the counts, an unbiased estimator learns faster than a biased one.",
        figure=NONE,
        setting=HERE + " 16 prompts a step. The unbiased estimator is `sequential` with equal weights of rollouts, the "
        "biased one RLOO with equal weights of prompts, unless the table says otherwise.",
        cells=[
            *_cells(*(f"{rule}_by_{each}" for each in ("sequential", *biased))),
            *([SMALL] if rule == "ar3po" else []),  # AR3PO takes about 4 rollouts a prompt
        ],
        judge=unbiased(rule, biased),
    )


def _tokens_claim(rule: str, others: Sequence[str], name: str) -> Claim:
    return Claim(
        where=f"A budget in tokens, {name}",
        claim=f"At equal tokens, {name} with a budget in tokens learns faster than equal numbers of rollouts.",
        figure=NONE,
        setting="Hard base of the lab, 96,000 tokens, five seeds, 16 prompts a step, 61 tokens a prompt, RLOO. A "
        "completion takes 3 to 11 tokens, decided by the problem.",
        cells=_cells("tokens_uniform", *others, rule),
        judge=spend_tokens(rule, others),
    )


CLAIMS: tuple[Claim, ...] = (
    Claim(
        where="Three decisions",
        claim="SPO's choice of prompts, VIP's counts and the optimal baseline together learn faster than the best of "
        "the three alone.",
        figure=NONE,
        setting=HERE + " 16 prompts a step, 8 rollouts a prompt on average. Beside the optimal baseline, counts follow "
        "VIP's belief with the variance of a fixed baseline (`Neyman`), because VIP has no formula for it.",
        cells=_cells(*FACTORIAL),
        judge=all_three,
    ),
    _effect_claim("optimal", "The optimal baseline raises the area, averaged over the other two decisions."),
    _effect_claim("vip", "Counts by VIP's belief raise the area, averaged over the other two decisions."),
    _effect_claim("weights", "SPO's choice of prompts raises the area, averaged over the other two decisions."),
    Claim(
        where="Retire and retest, single rollouts",
        claim="Single rollouts with the optimal baseline learn faster if mastered prompts are retired and retested.",
        figure=NONE,
        setting=HERE + " 32 prompts a step with one rollout each. A prompt is retired after one right rollout.",
        cells=_cells("single_optimal", "single_optimal_retire"),
        judge=added(
            "single_optimal_retire",
            ("single_optimal",),
            "With groups of 4 and RLOO an earlier study found a change of "
            f"{headline('methods_decisions', 'retire', 'area - baseline')}.",
        ),
    ),
    Claim(
        where="P(mixed), single rollouts",
        claim="Single rollouts with `batch_optimal` learn faster if prompts that are likely mixed are chosen.",
        figure=NONE,
        setting=HERE + " 32 prompts a step with one rollout each. P(mixed) is that of a group of 4.",
        cells=_cells("single_batch", "single_batch_mixed"),
        judge=added(
            "single_batch_mixed",
            ("single_batch",),
            "With groups of 4 and RLOO an earlier study found a change of "
            f"{headline('methods_decisions', 'mixed', 'area - baseline')}.",
        ),
    ),
    Claim(
        where="AR3PO's reuse under VIP's counts",
        claim="VIP's counts with reuse of correct responses learn faster than either alone.",
        figure=NONE,
        setting=HERE + " 16 prompts a step, 8 rollouts a prompt on average, RLOO. A reused response is in the baseline "
        "only, as in AR3PO's Option II.",
        cells=_cells("uniform", "vip", "reuse", "vip_reuse"),
        judge=added(
            "vip_reuse",
            ("uniform", "vip", "reuse"),
            "The comparison is with the best of uniform 8, VIP, and uniform 8 with reuse.",
        ),
    ),
    _tokens_claim("tokens_vip", ("tokens_vip_rollouts",), "VIP"),
    _tokens_claim("tokens_hora", ("tokens_even",), "HORA"),
    _unbiased_claim("ar3po", ("rloo", "rloo_rollouts")),
    _unbiased_claim("hora"),
    _unbiased_claim("reinforce_ada"),
)
