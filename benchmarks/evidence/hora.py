"""HORA's claims about training: pass@K, entropy, hard-first rules, the share of pre-rollouts, priors."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from benchmarks.evidence.cell import Cell
from benchmarks.evidence.claim import Claim, Finding, Values, Verdict, difference, headline, interval, sign
from benchmarks.evidence.hora_measured import FORKS_SEEDS, forks, forks_start, tuned, untuned
from benchmarks.evidence.hora_pass_at import (
    COMPARABLE,
    LARGEST,
    above_base,
    better_pass_at,
    falls_below_base,
    forks_pass_at,
    gains,
    pass_at,
    same_pass_at_1,
    tally,
)
from benchmarks.evidence.learning import SEEDS, SWEEP_SEEDS

UNTUNED = ("uniform", "random", "hardest", "pre_1", "pre_2", "pre_6", "empirical_bayes", "gp")
PRIORS = {"empirical_bayes": "empirical Bayes", "gp": "Gaussian process"}

CELLS: Mapping[str, Cell] = {
    **{
        f"hora.{estimator}": Cell(partial(tuned, "pre_4", estimator), 3.0, (*SEEDS, *SWEEP_SEEDS))
        for estimator in ("rloo", "grpo")
    },
    **{f"hora.{rule}": Cell(partial(untuned, rule), 1.3, SEEDS) for rule in UNTUNED},
    **{f"hora.forks_{rule}": Cell(partial(forks, rule), 1.5, FORKS_SEEDS) for rule in ("uniform", "pre_4")},
    "hora.forks_start": Cell(forks_start, 0.2),
}

LAB = (
    "The lab's hard base takes the place of Qwen2.5 models, and 500 held-out problems that of the benchmarks. A run "
    "has 12,800 rollouts, 8 a prompt; HORA draws 4 of the 8 first. Pass@K is exact, computed from p."
)
ONE_RATE = f"{LAB} Every rule has the rate 1e-3, which the sweeps chose for HORA and for uniform groups."


def entropy(values: Mapping[str, Values]) -> Finding:
    lines, signs = [], []
    for name, mine, control in (
        ("hard base", "hora.rloo", "hora.uniform"),
        ("forks base", "hora.forks_pre_4", "hora.forks_uniform"),
    ):
        found = difference(values[mine]["entropy"], values[control]["entropy"])
        lines.append(
            f"{name} {interval(values[mine]['entropy'])} less {interval(values[control]['entropy'])}: {found.signed}"
        )
        signs.append(sign(found))
    solutions = difference(values["hora.forks_pre_4"]["solutions"], values["hora.forks_uniform"]["solutions"])
    return Finding(
        "nats a token at the end, HORA less uniform 8. " + "; ".join(lines),
        tally(signs),
        f"On the forks base the right answers effectively in use differ by {solutions.signed}. The length of a "
        "completion is fixed by its problem here, so the claim about lengths cannot be tried.",
    )


def beyond_hard_first(values: Mapping[str, Values]) -> Finding:
    mine = values["hora.rloo"]
    area, end = (difference(mine[key], values["hora.hardest"][key]) for key in ("area", "end"))
    names = {
        "HORA": "hora.rloo",
        "hardest first": "hora.hardest",
        "random prompts": "hora.random",
        "uniform": "hora.uniform",
    }
    return Finding(
        f"area: HORA less hardest first {area.signed}; success at the end {end.signed}",
        tally([sign(area)]) if sign(area) else tally([sign(end)]),
        "The verdict is that of the area, or of the end if the areas cannot be told apart. The table has both "
        "controls: the same extra rollouts for random prompts, and uniform groups.",
        ("rule", "area", "end", "pass@64", "pass@1,024"),
        [_row(name, values[cell]) for name, cell in names.items()],
    )


def not_random(values: Mapping[str, Values]) -> Finding:
    mine, control = values["hora.rloo"], values["hora.random"]
    area, found = difference(mine["area"], control["area"]), gains(mine, control)
    return Finding(
        f"area {area.signed}; pass@1,024 {found[LARGEST].signed}",
        tally([sign(area)]),
        f"A gain in area of {area.half_width:.3f} could be told from none. At equal rollouts the table of all methods "
        f"has HORA at {headline('methods', 'hora', 'area - baseline')} and uniform 8 at "
        f"{headline('methods', 'uniform_8', 'area - baseline')}, both less uniform 4.",
    )


def share_of_pre_rollouts(values: Mapping[str, Values]) -> Finding:
    cells = {1: "hora.pre_1", 2: "hora.pre_2", 4: "hora.rloo", 6: "hora.pre_6", 8: "hora.uniform"}
    half = values["hora.rloo"]["area"]
    found = {n: difference(half, values[cell]["area"]) for n, cell in cells.items() if n != 4}
    signs = [sign(each) for each in found.values()]
    # Half is the best choice if it beats every other share; another share that beats it refutes that.
    return Finding(
        "area with 4 of 8 less that with " + ", ".join(f"{n}: {each.signed}" for n, each in found.items()),
        Verdict.FAILS if min(signs) < 0 else tally(signs),
        "With 8 of 8 nothing is left to allocate: these are uniform groups.",
        ("pre-rollouts of 8", "area", "end", "pass@64", "pass@1,024"),
        [_row(str(n), values[cell]) for n, cell in cells.items()],
    )


def priors(values: Mapping[str, Values]) -> Finding:
    fixed = values["hora.rloo"]
    area = {name: difference(values[f"hora.{name}"]["area"], fixed["area"]) for name in PRIORS}
    widest = {name: gains(values[f"hora.{name}"], fixed)[LARGEST] for name in PRIORS}
    signs = [sign(each) for each in (*area.values(), *widest.values())]
    narrow = all(each.mean + each.half_width < COMPARABLE for each in (*area.values(), *widest.values()))
    verdict = Verdict.FAILS if max(signs) > 0 else Verdict.HOLDS if narrow else Verdict.OPEN
    rows = [_row(text, values[f"hora.{name}"]) for name, text in PRIORS.items()]
    return Finding(
        "area less that of Beta(1, 1): " + ", ".join(f"{PRIORS[name]} {each.signed}" for name, each in area.items()),
        verdict,
        f"It holds if no learned prior can be more than {COMPARABLE} ahead in area or in pass@1,024, and fails if one "
        "is clearly ahead. The control is the fixed prior, in the first row. With discounted counts for a prior "
        f"the table of all methods has an area of {headline('methods', 'hora_learned', 'area - baseline')}, and with "
        f"Beta(1, 1) {headline('methods', 'hora', 'area - baseline')}, both less uniform 4.",
        ("prior", "area", "end", "pass@64", "pass@1,024"),
        [_row("Beta(1, 1)", fixed), *rows],
    )


def _row(name: str, found: Values) -> list[object]:
    return [
        name,
        interval(found["area"]),
        interval(found["end"]),
        *(interval(pass_at(found, k)) for k in (64, LARGEST)),
    ]


CLAIMS: tuple[Claim, ...] = (
    Claim(
        where="Abstract, GRPO",
        claim="HORA improves pass@K over GRPO with the same number of rollouts.",
        figure="better in 10 of 12 pairs of model and benchmark, one tie, one saturated",
        setting=LAB,
        judge=partial(better_pass_at, "grpo"),
        cells=("controls.start", "controls.uniform_8_grpo", "hora.grpo"),
    ),
    Claim(
        where="Abstract, pass@1",
        claim="HORA keeps pass@1 comparable.",
        figure="no figure in the abstract; with RLOO +0.9, +1.5, -0.7 and -1.4 points",
        setting=LAB,
        judge=same_pass_at_1,
        cells=("controls.uniform_8_grpo", "hora.grpo", "controls.uniform_8_rloo", "hora.rloo"),
    ),
    Claim(
        where="Figure 4 and appendix table, RLOO",
        claim="HORA improves pass@K under RLOO too.",
        figure="pass@256 92.0 to 94.2 (MATH500) and 97.5 to 100.0 (AMC23); "
        "pass@1,024 70.0 to 73.3 and 73.3 to 73.3 (AIME)",
        setting=LAB,
        judge=partial(better_pass_at, "rloo"),
        cells=("controls.start", "controls.uniform_8_rloo", "hora.rloo"),
    ),
    Claim(
        where="Figure 2, HORA",
        claim="A policy trained with HORA has a higher pass@K than the base at every K.",
        figure="strictly above the base at every K up to 1,024",
        setting=LAB,
        judge=partial(above_base, "hora.grpo", "controls.start"),
        cells=("controls.start", "hora.grpo"),
    ),
    Claim(
        where="Figure 2, GRPO",
        claim="A policy trained with uniform groups falls below the base at large K.",
        figure="below the base from K = 64 on MATH500; pass@1,024 66.7 against 70.0 on AIME 2025",
        setting=f"{LAB} The forks base has several right answers a problem, and runs of 8,192 rollouts.",
        judge=falls_below_base,
        cells=(
            "controls.start",
            "controls.uniform_8_grpo",
            "controls.uniform_8_rloo",
            "hora.forks_start",
            "hora.forks_uniform",
        ),
    ),
    Claim(
        where="Abstract, our second task",
        claim="HORA improves pass@K where a problem has several right answers.",
        figure="the paper has no such split; better in 10 of 12 pairs overall",
        setting="The lab's forks base: longer problems with 6.7 right answers on average. A run has 8,192 rollouts, 8 "
        "a prompt, under RLOO, at the rate that is best for uniform groups of 4. Three seeds.",
        judge=forks_pass_at,
        cells=("hora.forks_start", "hora.forks_uniform", "hora.forks_pre_4"),
    ),
    Claim(
        where="Section 4.1, Figure 9",
        claim="HORA keeps more exploration: a higher token entropy.",
        figure="only a plot; the text that we have gives no number",
        setting=f"{LAB} Entropy is the mean of -log pi over sampled tokens of 200 held-out problems, 8 completions "
        "each.",
        judge=entropy,
        cells=("hora.rloo", "hora.uniform", "hora.forks_pre_4", "hora.forks_uniform"),
    ),
    Claim(
        where="Section 4.2, question 1, training",
        claim="Hit utility trains better than sending the rest to the hardest prompts.",
        figure="the text that we have gives no number",
        setting=f"{ONE_RATE} Hardest first splits the rest evenly among the prompts with the fewest right "
        "pre-rollouts.",
        judge=beyond_hard_first,
        cells=("hora.rloo", "hora.hardest", "hora.random", "hora.uniform"),
    ),
    Claim(
        where="Section 4.2, a control of ours",
        claim="It matters for training which prompts get the extra rollouts.",
        figure="the paper has no such control",
        setting=f"{ONE_RATE} The control deals HORA's extra rollouts to random prompts.",
        judge=not_random,
        cells=("hora.rloo", "hora.random"),
    ),
    Claim(
        where="Section 4.2, question 2, training",
        claim="Half of the budget is a good share of pre-rollouts.",
        figure="the text that we have gives no number; Figure 3 has 8 pre-rollouts",
        setting=ONE_RATE,
        judge=share_of_pre_rollouts,
        cells=("hora.rloo", "hora.pre_1", "hora.pre_2", "hora.pre_6", "hora.uniform"),
    ),
    Claim(
        where="Figures 5 and 10, training",
        claim="The fixed prior Beta(1, 1) is as good as learned priors.",
        figure="pass@1,024 on AIME 2025: 70.0, and at most 66.7 with learned priors",
        setting=f"{ONE_RATE} The learned priors are empirical Bayes and VIP's Gaussian process. They "
        "see how often each operation is in a problem, in place of MPNet features and hidden states.",
        judge=priors,
        cells=("hora.rloo", *(f"hora.{name}" for name in PRIORS)),
    ),
)
