"""HORA's claims about single batches: expected hits, hard-first rules, pre-rollouts, priors, theory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise

from apportion.lab.report.results import SeedInterval
from benchmarks.evidence.cell import Cell
from benchmarks.evidence.claim import Claim, Finding, Values, Verdict, difference, headline, sign
from benchmarks.evidence.hora_hits_measured import BUCKETS, SEEDS, hits
from benchmarks.evidence.hora_pass_at import tally
from benchmarks.evidence.hora_theory_measured import rare, theory

BASES = ("easy", "medium", "hard")
EPOCHS = ("at the start", "after 1 epoch", "after 2 epochs")
LEARNED = {"counts": "counts", "empirical_bayes": "empirical Bayes", "gp": "Gaussian process"}
CALIBRATED = 0.05
"""Predicted hits count as calibrated if they are off by less than this, whatever the pre-rollouts were."""

CELLS: Mapping[str, Cell] = {
    **{f"hora_hits.{base}": Cell(partial(hits, base), 2.5, SEEDS) for base in BASES},
    "hora_hits.theory": Cell(theory, 0.2),
    "hora_hits.rare": Cell(rare, 0.2),
}
ALONG = tuple(f"hora_hits.{base}" for base in BASES)

LAB = (
    "Three of the lab's bases take the place of Qwen2.5 models. Exact p is read at the start of a run with uniform "
    "groups of 8 and after each of two passes over its 512 prompts. Batches have 64 prompts and 8 rollouts a prompt, "
    "of which 4 are pre-rollouts. Expectations are exact, given 40 draws of the pre-rollouts of each batch. Intervals "
    "are over five runs, each with its own prompts."
)


def states(values: Mapping[str, Values]) -> Iterator[tuple[str, str, Values]]:
    """Yield the base, the time and the values of every state of a run."""
    for base in BASES:
        for epoch, found in zip(EPOCHS, values[f"hora_hits.{base}"]["epochs"], strict=True):
            yield base, epoch, found


def less(found: Values, mine: str, control: str, metric: str) -> SeedInterval:
    """Return the difference of two rules in points of a metric, paired by seed; "uniform" is the common control."""
    own = found["gains"][mine][metric]
    return difference(own, [0.0] * len(own) if control == "uniform" else found["gains"][control][metric])


def span(found: Sequence[SeedInterval]) -> str:
    """Return the range of the means as text."""
    means = [each.mean for each in found]
    return f"{min(means):+.2f} to {max(means):+.2f}"


def named(right: Sequence[bool], epochs: Sequence[str] = EPOCHS) -> str:
    """Return the states that are marked as text: "hard at the start, ...", "all states" or "no state"."""
    names = [f"{base} {epoch}" for base in BASES for epoch in epochs]
    marked = [name for name, mark in zip(names, right, strict=True) if mark]
    return "all states" if len(marked) == len(names) else ", ".join(marked) or "no state"


def points(found: SeedInterval) -> str:
    return f"{found.mean:+.2f} ± {found.half_width:.2f}"


def gain_rows(
    values: Mapping[str, Values], columns: Mapping[str, tuple[str, str]], control: str = "uniform"
) -> list[list[object]]:
    """Return a row for each state: the gains over ``control`` of rules and metrics by column."""
    return [
        [base, epoch, *(points(less(found, rule, control, metric)) for rule, metric in columns.values())]
        for base, epoch, found in states(values)
    ]


def more_hits(values: Mapping[str, Values]) -> Finding:
    over = [less(found, "pre_4", "random", "overall") for _, _, found in states(values)]
    own = [less(found, "pre_4", "random", "extra") for _, _, found in states(values)]
    columns = {
        "HORA": ("pre_4", "overall"),
        "random prompts": ("random", "overall"),
        "HORA, extra alone": ("pre_4", "extra"),
        "random prompts, extra alone": ("random", "extra"),
    }
    return Finding(
        f"prompts with a right rollout, HORA less its control: {span(over)} points; among the extra rollouts alone "
        f"{span(own)}",
        tally([sign(each) for each in (*over, *own)]),
        f"Both are clear in: {named([sign(a) > 0 and sign(b) > 0 for a, b in zip(over, own, strict=True)])}. The "
        "control deals the same extra rollouts to random prompts. The table has gains over uniform groups in points, "
        "which are prompts in 100. "
        f"On other prompts of the same bases they were {headline('gradient_variance', 'easy | hora', 'gain, points')}, "
        f"{headline('gradient_variance', 'medium | hora', 'gain, points')} and "
        f"{headline('gradient_variance', 'hard | hora', 'gain, points')} before training.",
        ("base", "policy", *columns),
        gain_rows(values, columns),
    )


def toward_hard(values: Mapping[str, Values]) -> Finding:
    rows, signs = [], []
    for base, epoch, found in states(values):
        prompts, rollouts = found["figure_3"]["prompts"], found["figure_3"]["rollouts"]
        per_prompt = [8 * extra / share if share else 0.0 for share, extra in zip(prompts, rollouts, strict=True)]
        falling = all(a > b for a, b in pairwise(per_prompt))
        signs.append(1 if falling else -1)
        rows.append(
            [base, epoch, *(f"{s:.0%} / {n:.1f}" for s, n in zip(prompts, per_prompt, strict=True))],
        )
    names = [f"{low}" if low == high else f"{low} to {high}" for low, high in BUCKETS]
    unsolved = [found["figure_3"]["rollouts"][0] for _, _, found in states(values)]
    return Finding(
        f"prompts without a right pre-rollout get {min(unsolved):.0%} to {max(unsolved):.0%} of the extra rollouts",
        tally(signs),
        "It holds where the extra rollouts of a prompt fall from each group of prompts to the next. The table has the "
        "share of the prompts, and the extra rollouts of one of them, by right pre-rollouts of 8. Uniform groups "
        "would give 8 more to each.",
        ("base", "policy", *names),
        rows,
    )


def more_mixed(values: Mapping[str, Values]) -> Finding:
    found = [less(each, "pre_4", "uniform", "mixed") for _, _, each in states(values)]
    columns = {"HORA": ("pre_4", "mixed"), "random prompts": ("random", "mixed"), "exact p": ("exact", "mixed")}
    return Finding(
        f"mixed groups, HORA less uniform groups: {span(found)} points",
        tally([sign(each) for each in found]),
        "A mixed group has a right and a wrong rollout; other groups have no gradient. A prompt whose pre-rollouts are "
        "all right may still fail, and a wrong rollout would make its group mixed. The control deals the extra "
        "rollouts to random prompts. The last column has the extra rollouts that are best for hits if p is known.",
        ("base", "policy", *columns),
        gain_rows(values, columns),
    )


def beyond_hard_first(values: Mapping[str, Values]) -> Finding:
    over = [less(found, "pre_4", "hardest", "overall") for _, _, found in states(values)]
    own = [less(found, "pre_4", "hardest", "extra") for _, _, found in states(values)]
    mixed = [less(found, "pre_4", "hardest", "mixed") for _, _, found in states(values)]
    columns = {
        "HORA": ("pre_4", "overall"),
        "hardest first": ("hardest", "overall"),
        "by failures": ("failures", "overall"),
        "no right one first, empirical Bayes": ("unhit", "overall"),
        "HORA, mixed": ("pre_4", "mixed"),
        "hardest first, mixed": ("hardest", "mixed"),
    }
    return Finding(
        f"HORA less hardest first, in points: prompts with a right rollout {span(over)}, mixed groups {span(mixed)}, "
        f"hits among the extra rollouts {span(own)}",
        tally([sign(each) for each in over]),
        "The verdict is about prompts with a right rollout in the whole group. Hit utility counts right rollouts "
        "among the extra ones, also for a prompt that was right before, and this is the last of the three figures. A "
        "mixed group has a right and a wrong rollout. The table has gains over uniform groups.",
        ("base", "policy", *columns),
        gain_rows(values, columns),
    )


def share_of_pre_rollouts(values: Mapping[str, Values]) -> Finding:
    others = ("pre_1", "pre_2", "pre_6")
    found = {name: [less(each, "pre_4", name, "overall") for _, _, each in states(values)] for name in others}
    signs = [sign(each) for own in found.values() for each in own]
    columns = {f"{n} of 8": (f"pre_{n}", "overall") for n in (1, 2, 4, 6)}
    return Finding(
        "prompts with a right rollout, 4 of 8 less others, in points: "
        + ", ".join(f"{name[-1]}: {span(own)}" for name, own in found.items()),
        Verdict.FAILS if max(map(sign, found["pre_2"])) <= 0 and min(map(sign, found["pre_2"])) < 0 else tally(signs),
        "It fails if 2 of 8 is ahead in some state and behind in none. The table has gains over uniform groups.",
        ("base", "policy", *columns),
        gain_rows(values, columns),
    )


def priors(values: Mapping[str, Values]) -> Finding:
    later = [found for _, epoch, found in states(values) if epoch != EPOCHS[0]]
    own = {name: [less(found, name, "pre_4", "extra") for found in later] for name in LEARNED}
    whole = [less(found, "empirical_bayes", "pre_4", "overall") for found in later]
    ahead = [max(sign(each[n]) for each in own.values()) for n in range(len(later))]
    fixed, learned = (
        [headline("real_run", f"{prior}, hits", f"epoch {epoch}") for epoch in (1, 2, 7)]
        for prior in ("one half for all", "empirical Bayes")
    )
    recorded = [1 if bounds(b)[0] > bounds(a)[1] else 0 for a, b in zip(fixed, learned, strict=True)]
    columns = {
        "Beta(1, 1)": ("pre_4", "extra"),
        "counts": ("counts", "extra"),
        "empirical Bayes": ("empirical_bayes", "extra"),
        "Gaussian process": ("gp", "extra"),
        "empirical Bayes, shuffled": ("shuffled", "extra"),
        "exact p": ("exact", "extra"),
        "Beta(1, 1), whole group": ("pre_4", "overall"),
        "empirical Bayes, whole group": ("empirical_bayes", "overall"),
    }
    return Finding(
        "hits among the extra rollouts, less those of Beta(1, 1), in points: "
        + ", ".join(f"{LEARNED[name]} {span(each)}" for name, each in own.items())
        + f". Recorded run, hits over uniform's at the eighth visit: {fixed[-1]}, with empirical Bayes {learned[-1]}",
        tally([-each if each else 1 for each in (*ahead, *recorded)]),
        "The claim fails where a learned prior is clearly ahead in hits among the extra rollouts, which HORA "
        f"maximises. That is so in {sum(each > 0 for each in ahead)} of {len(ahead)} states of the lab "
        f"({named([each > 0 for each in ahead], EPOCHS[1:])}) and at "
        f"{sum(recorded)} of {len(recorded)} later visits of the recorded run. In an epoch success rises by up to "
        f"{max(risen(values)):.2f} in the lab, so that what was learned is out of date. By prompts with a right one "
        f"in the whole group, empirical Bayes differs by {span(whole)} points. Shuffled beliefs are dealt to other "
        "prompts. The table has gains over uniform groups.",
        ("base", "policy", *columns),
        gain_rows(values, columns),
    )


def bounds(text: str) -> tuple[float, float]:
    """Return the bounds of an interval in a table: "1.03 [1.02, 1.04]"."""
    low, high = text.split("[")[1].rstrip("]").split(",")
    return float(low), float(high)


def risen(values: Mapping[str, Values]) -> list[float]:
    """Return by how much the mean success rises from each state of a run to its next."""
    found = [[each["success"] for each in values[f"hora_hits.{base}"]["epochs"]] for base in BASES]
    return [later - before for own in found for before, later in pairwise(own)]


def calibration(values: Mapping[str, Values]) -> Finding:
    rows, signs, worst, learned = [], [], [], []
    for base, epoch, found in states(values):
        own, fitted = found["calibration"]["uniform"], found["calibration"]["empirical_bayes"]
        errors = [a - b for a, b in zip(own["predicted"], own["true"], strict=True)]
        signs.append(1 if max(map(abs, errors)) < CALIBRATED else -1)
        worst.append(errors[0])
        learned.append(fitted["predicted"][0] - fitted["true"][0])
        cells = (f"{a:.2f} / {b:.2f}" for a, b in zip(own["predicted"], own["true"], strict=True))
        rows.append([base, epoch, *cells, f"{fitted['predicted'][0]:.2f}"])
    return Finding(
        "without a right pre-rollout, the predicted less the true chance of a hit in 4 more: "
        f"{min(worst):+.2f} to {max(worst):+.2f}",
        tally(signs),
        f"It holds in a state where no prediction is off by {CALIBRATED} or more: {named([s > 0 for s in signs])}. "
        "The table has predicted and true "
        "chances by right pre-rollouts of 4, and the prediction of a learned prior without any right one. Its error "
        f"there is {min(learned, key=abs):+.2f} to {max(learned, key=abs):+.2f}. At the start it has learned nothing.",
        ("base", "policy", *(f"{right} right" for right in range(5)), "0 right, learned prior"),
        rows,
    )


def exact(values: Mapping[str, Values]) -> Finding:
    found = values["hora_hits.theory"]
    right = [1 if found[key] == 1 else -1 for key in ("concave", "optimal")]
    return Finding(
        f"concave in {found['concave']:.1%} of 10,000 beliefs; greedy is as good as the best of all allocations in "
        f"{found['optimal']:.1%} of 300 batches",
        Verdict.HOLDS if min(right) > 0 and found["formula_error"] < 1e-6 else Verdict.FAILS,
        f"The formula of the hit utility differs from numerical integration by at most {found['formula_error']:.0e}. "
        "The batches have 2 to 4 prompts and up to 8 extra rollouts, so that all allocations can be tried.",
    )


def without_reward(values: Mapping[str, Values]) -> Finding:
    found = values["hora_hits.rare"]
    rows = [
        [f"p = {p}", f"{each['without_reward']:.1%}", f"{each['moved']:.2%}", f"{each['gain']:+.3f}"]
        for p, each in found["equal"].items()
    ]
    idle = [each["moved"] for p, each in found["equal"].items() if float(p) <= 0.01]
    needed = found["even"] < 1 or max(idle) > 0.05 or min(each["gain"] for each in found["equal"].values()) < 0
    return Finding(
        f"of {found['plans']} batches whose pre-rollouts are all wrong or all right, {found['even']:.1%} get an even "
        f"split; at p of 0.01 or less HORA moves {max(idle):.3%} of the extra rollouts",
        Verdict.HOLDS if needed else Verdict.FAILS,
        "It fails if HORA is uniform allocation until rewards appear, and loses no hits while they are rare. The "
        "paper's reason is the format of answers, which has no reward of its own here. The table is for batches of 64 "
        "prompts that are all equally hard: how often no pre-rollout is right, the extra rollouts that change prompts, "
        "and the gain over uniform groups in points.",
        ("all prompts", "batches without reward", "moved", "gain, points"),
        rows,
    )


CLAIMS: tuple[Claim, ...] = (
    Claim(
        where="Core claim, hits",
        claim="HORA finds a right rollout for more prompts than other uses of the same rollouts.",
        figure="no figure for hits in the text that we have",
        setting=LAB,
        judge=more_hits,
        cells=ALONG,
    ),
    Claim(
        where="Figure 3",
        claim="HORA moves rollouts from saturated prompts to prompts with few right pre-rollouts.",
        figure="only a plot, over 196 optimizer steps",
        setting=f"{LAB} For this claim 8 of 16 rollouts are pre-rollouts, as in the figure.",
        judge=toward_hard,
        cells=ALONG,
    ),
    Claim(
        where="Abstract, motivation",
        claim="Rollouts that leave saturated prompts give more groups that teach something.",
        figure="a motivation, without a figure",
        setting=f"{LAB} The abstract says that uniform groups give saturated prompts too much. This is our reading "
        "of what would be gained.",
        judge=more_mixed,
        cells=ALONG,
    ),
    Claim(
        where="Section 4.2, question 1, hits",
        claim="Hit utility is needed beyond sending the rest to the hardest prompts.",
        figure="the text that we have gives no number",
        setting=f"{LAB} Hardest first splits the rest evenly among the prompts with the fewest right pre-rollouts. By "
        "failures deals it in proportion to the wrong ones.",
        judge=beyond_hard_first,
        cells=ALONG,
    ),
    Claim(
        where="Section 4.2, question 2, hits",
        claim="Half of the budget is a good share of pre-rollouts.",
        figure="the text that we have gives no number; Figure 3 has 8 pre-rollouts",
        setting=LAB,
        judge=share_of_pre_rollouts,
        cells=ALONG,
    ),
    Claim(
        where="Abstract, priors",
        claim="The fixed prior is competitive with learned priors.",
        figure="no learned prior uniformly dominates (Figure 10)",
        setting=f"{LAB} The learned priors watched the same run. Empirical Bayes and VIP's Gaussian process see how "
        "often each operation is in a problem, in place of MPNet features and hidden states. The recorded run is a "
        "GRPO run of Qwen2.5-Math-1.5B, with 8 extra rollouts after each group of 8.",
        judge=priors,
        cells=ALONG,
    ),
    Claim(
        where="Method, premise",
        claim="The uniform prior gives a reliable posterior chance of a hit.",
        figure="an assumption, without a figure",
        setting=LAB,
        judge=calibration,
        cells=ALONG,
    ),
    Claim(
        where="Method, optimality",
        claim="Hit utility is concave, so that greedy allocation is optimal.",
        figure="a statement about all batches",
        setting="The package's solver against a search through all allocations, under random posteriors.",
        judge=exact,
        cells=("hora_hits.theory",),
    ),
    Claim(
        where="Appendix, warm-up",
        claim="A warm-up with uniform groups helps HORA until rewards appear.",
        figure="plain GRPO until the mean format reward stays high; the text that we have breaks off there",
        setting="Batches of 1 to 64 prompts, with 1 to 8 pre-rollouts of 8 or 16. Only correctness is rewarded.",
        judge=without_reward,
        cells=("hora_hits.rare",),
    ),
)
