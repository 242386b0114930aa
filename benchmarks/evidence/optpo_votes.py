"""The claims of the paper on OptPO about its votes, on recorded ones and on the lab's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from apportion.lab.report.results import SeedInterval
from benchmarks.evidence.cell import Cell
from benchmarks.evidence.claim import Claim, Finding, Values, Verdict, headline, sign
from benchmarks.evidence.optpo import comparable, parsed, several
from benchmarks.evidence.optpo_votes_measured import ERRORS, SEEDS, M, lab, recorded

SAMPLING: Mapping[str, tuple[float, float]] = {"plain": (1.0, 1.0), "cold": (0.6, 1.0), "paper": (0.6, 0.95)}
"""Temperature and top-p of the lab's votes, by a name. The paper's are "paper"."""
CELLS: Mapping[str, Cell] = {
    **{f"optpo_votes.{name}": Cell(partial(recorded, name), 0.2) for name in ("game24_cot", "game24_standard")},
    **{f"optpo_votes.lab_{name}": Cell(partial(lab, *how), 0.4, tuple(SEEDS)) for name, how in SAMPLING.items()},
}
NAMES = {
    "optpo_votes.game24_cot": "Game of 24 with chain of thought",
    "optpo_votes.game24_standard": "Game of 24 without",
    "optpo_votes.lab_plain": "lab, temperature 1",
    "optpo_votes.lab_cold": "lab, temperature .6",
    "optpo_votes.lab_paper": "lab, temperature .6, top-p .95",
}
"""The sets of votes by their cells."""
SETS = tuple(NAMES)
ALPHA = 0.05
SETTING = (
    "Votes without learning: 200 recorded questions of the Game of 24 (GPT-4, 100 samples each, 10 orders), and 640 "
    "prompts of the lab's medium base with 64 votes each. No language model is trained."
)


def show(found: Sequence[float], form: str = ".1%") -> str:
    """Return a mean and its 95% half width as text."""
    return f"{format(found[0], form)} ± {format(found[1], form.lstrip('+'))}"


def span(values: Iterable[float]) -> str:
    """Return the least and the largest of ``values`` as text, in percent."""
    found = [*values]
    return f"{min(found):.1%} to {max(found):.1%}"


def against(found: Sequence[float], limit: float) -> Verdict:
    """Judge "at most ``limit``" from a mean and its half width."""
    if found[0] + found[1] <= limit:
        return Verdict.HOLDS
    return Verdict.FAILS if found[0] - found[1] > limit else Verdict.OPEN


def judge_recorded_error(cells: Mapping[str, Values]) -> Finding:
    rows, verdicts, means = [], [], []
    for name in SETS:
        for rule in ("N32_error_0.05", "N16_error_0.05"):
            found = cells[name]["rules"][rule]
            verdicts.append(against(found["disagree"], ALPHA))
            means.append(found["disagree"][0])
            rows.append([NAMES[name], rule[1:3], show(found["disagree"]), show(found["right_less_full"], "+.1%")])
    return Finding(
        f"{span(means)} of the labels differ from the full vote's",
        several(verdicts),
        "The control is the full vote of 64. A label can only be as right as its vote: the last column is the change "
        "of right labels by stopping.",
        ("votes", "N", "differs from the full vote", "right, less the full vote"),
        rows,
    )


def judge_lower(cells: Mapping[str, Values]) -> Finding:
    found = [cells[name]["lower_boundary"] for name in SETS]
    least, boundary = min(each["least"] for each in found), found[0]["boundary"]
    reached = least <= boundary
    return Finding(
        f"least log Lambda at kappa > 1: {least:.2f}; the boundary log B is {boundary:.2f}",
        Verdict.HOLDS if reached else Verdict.FAILS,
        "The leader has at least as many votes as the runner-up, so Lambda is at least 1 and B is below 1. The "
        "boundary for the runner-up is never crossed while kappa > 1. beta acts only through A.",
    )


def judge_kappa(cells: Mapping[str, Values]) -> Finding:
    shares = {name: cells[name]["kappa_at_most_1"] for name in SETS}
    spread = cells["optpo_theory.four_choices"]["spread"]["kappa_at_most_1"]
    verdicts = [against(each, 0.05) for each in (*shares.values(), spread)]
    return Finding(
        "kappa <= 1 at N = 32 in " + ", ".join(f"{show(each)} ({NAMES[name]})" for name, each in shares.items()),
        several(verdicts),
        "The claim holds for a set if the interval lies below 5% of the votes. Many distinct answers raise m, and "
        f"with it kappa. With four choices and spread wrong answers kappa <= 1 in {show(spread)} of simulated votes.",
    )


def judge_factor(cells: Mapping[str, Values]) -> Finding:
    rows, better, high = [], [], []
    for name in SETS:
        each = cells[name]
        errors = {factor: float(error) for factor, error in each["error_by_factor"].items()}
        better.append(errors["0.6"] < errors["1.0"])
        high.append(each["majority_share"][0] > each["right_samples"][0])
        rows.append(
            [NAMES[name], show(each["majority_share"]), show(each["right_samples"])]
            + [f"{errors[factor]:.3f}" for factor in ("0.4", "0.6", "0.8", "1.0")]
        )
    verdict = Verdict.HOLDS if all(high) and all(better) else Verdict.FAILS
    return Finding(
        f"the majority's share is above the share of right samples in {sum(high)} of {len(high)} sets; the factor 0.6 "
        f"estimates p_0 better than 1 in {sum(better)} of {len(better)}",
        Verdict.CONDITIONS if verdict is Verdict.FAILS and all(high) and any(better) else verdict,
        "The four right columns are the mean absolute error of factor x majority share against the share of right "
        "samples. The best factor depends on the model and the task.",
        ("votes", "majority's share", "right samples", "x 0.4", "x 0.6", "x 0.8", "x 1"),
        rows,
    )


def judge_exceedances(cells: Mapping[str, Values]) -> Finding:
    rows, verdicts, means = [], [], []
    for name in SETS:
        for least in (32, 16):
            once, five = (cells[name]["rules"][f"N{least}_{end}"] for end in ("exceed_1", "error_0.05"))
            verdicts.append(Verdict.FAILS if against(once["disagree"], ALPHA) is Verdict.HOLDS else Verdict.HOLDS)
            means.append(once["disagree"][0])
            shown = [text for each in (once, five) for text in (f"{each['samples'][0]:.1f}", show(each["disagree"]))]
            rows.append([NAMES[name], least, *shown])
    return Finding(
        f"with one exceedance {span(means)} of the labels differ from the full vote's",
        several(verdicts),
        "Five exceedances are needed in a set if one exceedance does not keep the difference from the full vote below "
        ".05. Every sample counts, those before N too, so one exceedance already asks for N samples.",
        ("votes", "N", "1: samples", "1: differs", "5: samples", "5: differs"),
        rows,
    )


def judge_table_4(cells: Mapping[str, Values]) -> Finding:
    rows, flat, ends = [], [], []
    for name in SETS:
        rules = cells[name]["rules"]
        savings = [1 - rules[f"N32_error_{error:g}"]["samples"][0] / M for error in ERRORS]
        lost = rules[f"N32_error_{ERRORS[-1]:g}"]["right_less_full"]
        flat.append(Verdict.HOLDS if savings[-1] > savings[0] and lost[0] + lost[1] >= 0 else Verdict.FAILS)
        ends.append((savings[0], savings[-1]))
        rows.append([NAMES[name], *(f"{each:.1%}" for each in savings), show(lost, "+.1%")])
    learnt = [parsed(headline("label_free_settings", f"alpha_beta_{error}", "- paper")) for error in ("0.01", "0.1")]
    tight, loose = (span(each) for each in zip(*ends, strict=True))
    return Finding(
        f"savings are {tight} at .01 and {loose} at .1; learning, mean@16 less that at .05: {learnt[0].signed} at .01, "
        f"{learnt[1].signed} at .1",
        several([*map(comparable, learnt), *flat]),
        "Holds for a set of votes if the saving rises from .01 to .1 and no right labels are lost beyond noise; holds "
        "for learning if the interval excludes a loss of .03. Learning is from "
        "benchmarks/results/label_free_settings.md.",
        ("votes", *(f"saved at {error:g}" for error in ERRORS), "right labels lost at .1"),
        rows,
    )


def judge_harder(cells: Mapping[str, Values]) -> Finding:
    rows, fine = [], []
    for name in SETS:
        each = cells[name]
        bands, questions = each["samples_by_band"], each["questions_by_band"]
        shown = (f"{b:.1f} ({n})" if b is not None else "-" for b, n in zip(bands, questions, strict=True))
        rows.append([NAMES[name], *shown])
        fine.append(each["harder_correlation"] < -0.2)
    correlations = ", ".join(f"{cells[name]['harder_correlation']:+.2f} ({NAMES[name]})" for name in SETS)
    return Finding(
        f"correlation of a question's samples with its share of right samples: {correlations}",
        several([Verdict.HOLDS if each else Verdict.FAILS for each in fine]),
        "The claim holds for a set if the correlation is below -.2. Where the model agrees on a wrong answer, OptPO "
        "stops early too, so samples follow agreement and not difficulty. The table has samples, and questions in "
        "brackets.",
        ("votes", "below .2 right", ".2 to .8", "above .8"),
        rows,
    )


def judge_filters(cells: Mapping[str, Values]) -> Finding:
    found = {name: cells[name]["rules"]["N32_error_0.05"]["right_less_full"] for name in SETS}
    signs = [sign(SeedInterval(*each)) for each in found.values()]
    verdict = Verdict.HOLDS if set(signs) == {1} else Verdict.CONDITIONS if 1 in signs else Verdict.OPEN
    small = max(each[0] + each[1] for each in found.values())
    return Finding(
        "right labels with stopping less without: "
        + ", ".join(f"{show(each, '+.2%')} ({NAMES[name]})" for name, each in found.items()),
        Verdict.FAILS if verdict is Verdict.OPEN and small < 0.01 else verdict,
        "The label of a stopped vote is compared with the full vote's on the same samples. The claim does not hold if "
        "every interval excludes a gain of one point.",
    )


def judge_optimal(cells: Mapping[str, Values]) -> Finding:
    rows, better = [], []
    for name in SETS:
        samples, differ = (cells[name]["calibrated_less_paper"][key] for key in ("samples", "disagree"))
        less, more = samples[0] + samples[1] < 0, differ[0] - differ[1] > 0
        better.append(less and not more)
        mine = cells[name]["rules"]["N16_error_0.05"]["samples"]
        rows.append([NAMES[name], show(mine, ".1f"), show(samples, "+.1f"), show(differ, "+.2%")])
    verdict = Verdict.FAILS if any(better) else Verdict.OPEN
    return Finding(
        f"another rule takes fewer samples without more disagreement in {sum(better)} of {len(better)} sets",
        verdict,
        "The other rule is the package's `calibrated` with eps .01. An optimal rule takes the fewest samples at an "
        "error, so one set with a better rule is enough. OptPO has N = 16 here, which is its floor. `calibrated` was "
        "learned on the Game of 24 among others, and not on the lab.",
        ("votes", "OptPO: samples", "calibrated less OptPO: samples", "disagreement"),
        rows,
    )


CLAIMS: tuple[Claim, ...] = (
    Claim(
        where="Section 4.1",
        claim="On votes of models at most 5% of the labels change by stopping.",
        figure="alpha = beta = 0.05",
        setting=SETTING,
        cells=SETS,
        judge=judge_recorded_error,
    ),
    Claim(
        where="Section 3.2",
        claim="The lower boundary B stops votes in favour of the runner-up.",
        figure='"select S(t) if Lambda <= B"',
        setting=SETTING,
        cells=SETS,
        judge=judge_lower,
    ),
    Claim(
        where="Section 3.2",
        claim="kappa is above 1 in practice.",
        figure='"in practice we ensure p0 > 1/m so kappa > 1"',
        setting=SETTING + " m is the number of distinct answers so far, which the paper does not define.",
        cells=(*SETS, "optpo_theory.four_choices"),
        judge=judge_kappa,
    ),
    Claim(
        where="Section 4.1",
        claim="The majority's share overstates accuracy, and 0.6 times it is a more realistic p0.",
        figure="degradation factor 0.6",
        setting=SETTING,
        cells=SETS,
        judge=judge_factor,
    ),
    Claim(
        where="Section 4.1",
        claim="The boundary must be exceeded five times for the guarantee.",
        figure='"5 times across the rollouts for rigorous guarantees and robust early-stopping"',
        setting=SETTING,
        cells=SETS,
        judge=judge_exceedances,
    ),
    Claim(
        where="Section 4.4, Table 4",
        claim="Results are stable from alpha = beta = 0.01 to 0.1, and savings rise at the loose end.",
        figure="MATH-500: savings 32.90%, 32.69%, 32.57%, 35.26%, 35.25%; mean@16 72.0, 72.1, 72.3, 71.9, 72.2",
        setting=SETTING + " Learning: medium base of the lab, N = 16, five seeds.",
        cells=SETS,
        judge=judge_table_4,
    ),
    Claim(
        where="Section 1",
        claim="Easy questions stop early, and hard questions get more samples.",
        figure='"easy instances establish consensus quickly, while only hard instances require extensive sampling"',
        setting=SETTING,
        cells=SETS,
        judge=judge_harder,
    ),
    Claim(
        where="Section 4.2",
        claim="Stopping early gives better labels than the full vote, because it leaves harmful samples out.",
        figure='"filters out harmful samples that occur due to no early-stopping"',
        setting=SETTING,
        cells=SETS,
        judge=judge_filters,
    ),
    Claim(
        where="Abstract, Section 5",
        claim="The stopping rule is statistically optimal.",
        figure='"statistically optimal stopping"',
        setting=SETTING,
        cells=SETS,
        judge=judge_optimal,
    ),
)
