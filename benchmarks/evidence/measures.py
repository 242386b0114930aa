"""What is measured for each row of ``claims.toml``: from the values of the cells to effects.

``MEASURES`` has by row what the verdict follows from, and ``BESIDE`` what stands beside it, as controls do. A measure
is a function of ``m``, the values by the name of their cell.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, product
from typing import Any

import numpy as np

from apportion.lab.report.results import SeedInterval
from apportion.types import Floats
from benchmarks.common import headline
from benchmarks.evidence import language_model_runs as model
from benchmarks.evidence import printed
from benchmarks.evidence.cell import Values
from benchmarks.evidence.rules import Effect, exact, instances, share

Measured = Mapping[str, Values]
Measure = Callable[[Measured], Iterable[Effect]]
PLACES = {"points": (100.0, "+.1f"), "": (1.0, "+.3f")}
LOSS, SMALL_LOSS = -0.03, -0.02
"""The largest loss of mean@16, and of success in the lab, that still counts as comparable."""


def at(m: Measured, path: str) -> Any:
    """Return what lies at ``cell: key/key`` of the values; a key of a list is that of each of its members."""
    cell, _, keys = path.partition(": ")
    found: Any = m[cell]
    for key in keys.split("/") if keys else ():
        found = [each[key] for each in found] if isinstance(found, list) else found[key]
    return found


def over_seeds(name: str, values: Sequence[float], form: str = "+.3f", **bounds: float) -> Effect:
    """Return the effect of values, one a seed."""
    found = SeedInterval.of([float(each) for each in values])
    half = found.half_width or 0.0
    return Effect(name, found.mean, found.mean - half, found.mean + half, len(values), form=form, **bounds)


def given(name: str, found: Sequence[float], form: str = "+.3f", **bounds: float) -> Effect:
    """Return the effect of a mean and its half width, or of a figure and the ends of its interval."""
    low, high = (found[0] - found[1], found[0] + found[1]) if len(found) == 2 else found[1:]
    return Effect(name, found[0], low, high, form=form, **bounds)


def numbers(text: str) -> list[float]:
    """Return the numbers with a point in a text.

    >>> numbers("49.5% ± 1.2%")
    [49.5, 1.2]
    """
    return [float(each) for each in re.findall(r"[-+]?\d+\.\d+", text)]


def tabled(name: str, text: str, **bounds: float) -> Effect:
    """Return the effect of a cell of a table with five seeds: "49.5% ± 1.2%" or "+0.025 ± 0.042"."""
    mean, half = numbers(text)
    scale, form = (100, ".1%") if "%" in text else (1, "+.3f")
    return Effect(name, mean / scale, (mean - half) / scale, (mean + half) / scale, 5, form=form, **bounds)


def paired(mine: Sequence[float], control: Sequence[float] | float) -> tuple[Floats, Floats]:
    """Return the values of the seeds that both have. Seeds count from 0, and the control may be one figure for all.

    >>> paired([1.0, 2.0, 3.0], [0.5, 0.5])
    (array([1., 2.]), array([0.5, 0.5]))
    """
    both = len(mine) if np.ndim(control) == 0 else min(len(mine), np.size(control))
    return np.asarray(mine)[:both], np.broadcast_to(control, np.shape(control) or both)[:both]


def less(name: str, mine: str, control: str, unit: str = "", **bounds: float) -> Measure:
    """Return a measure of a difference, paired by seed. The control may be one figure for all seeds."""
    scale, form = PLACES[unit]

    def measure(m: Measured) -> Iterator[Effect]:
        yield over_seeds(
            name, scale * np.subtract(*paired(at(m, mine), at(m, control))), form, **(bounds or {"above": 0.0})
        )

    return measure


def saved(name: str, mine: str, base: str, **bounds: float) -> Measure:
    """Return a measure of the share of ``base`` that is saved, paired by seed."""

    def measure(m: Measured) -> Iterator[Effect]:
        yield over_seeds(name, 1 - np.divide(*paired(at(m, mine), at(m, base))), ".1%", **(bounds or {"above": 0.0}))

    return measure


# VIP, what a policy learns


def level(name: str, path: str, form: str = ".3f") -> Measure:
    """Return a measure of a figure as it is: over seeds, or one for all."""

    def measure(m: Measured) -> Iterator[Effect]:
        found = at(m, path)
        yield over_seeds(name, found, form) if isinstance(found, list) else exact(name, found, form)

    return measure


METRICS = {"Pass@32": ("pass_32", "pass_at/32"), "Mean@32": ("mean", "pass_at/1"), "Maj@32": ("maj_32", "maj_32")}
OTHERS = {"8, Dr. GRPO": "8_dr_grpo", "16, RLOO": "16_rloo", "16, Dr. GRPO": "16_dr_grpo"}
HEURISTICS = {"inverse accuracy": "inverse_accuracy_8_rloo", "inverse variance": "inverse_variance_8_rloo"}


def vip_over_uniform(rule: str, at: str, name: str = "") -> list[Measure]:
    return [
        less(f"{name}{metric}", f"vip_learning.{rule}_{at}: {mine}", f"controls.uniform_{at}: {theirs}", "points")
        for metric, (mine, theirs) in METRICS.items()
    ]


def vip_over_arm(mine: str, other: str, name: str = "") -> list[Measure]:
    return [
        less(f"{name}{metric}", f"vip_learning.{mine}: {key}", f"vip_learning.{other}: {key}", "points")
        for metric, (key, _) in METRICS.items()
    ]


def vip_area(rule: str, other: str = "controls.uniform_8_rloo", name: str = "area") -> Measure:
    return less(name, f"vip_learning.{rule}: area", f"{other}: area", "points")


def in_training(key: str) -> list[Measure]:
    gp, uniform = "vip_learning.signals_gp_", "vip_learning.signals_uniform_"
    return [less(f"{n} a prompt, mean {key}", f"{gp}{n}: {key}", f"{uniform}{n}: {key}") for n in (8, 16)]


def higher_evaluations(m: Measured) -> Iterator[Effect]:
    mine, control = (np.array(at(m, f"{cell}_8_rloo: curve")) for cell in ("vip_learning.gp", "controls.uniform"))
    yield exact("evaluations with a higher mean curve", float((mine > control)[1:].sum()), ".0f")


# VIP, prediction, assumptions, allocation

PHASES = ("1 to 10", "11 to 30", "31 to 55")
RIVALS = ("moving average", "ridge")
LABS = {"hard base": "vip_prediction.lab_hard", "medium base": "vip_prediction.lab_medium"}


def predicted(m: Measured) -> Iterator[Effect]:
    for (setting, cell), rival, phase in product(LABS.items(), RIVALS, PHASES):
        errors = m[cell]["errors"]
        gap = np.subtract(errors["gp"]["exact p"][phase], errors[rival]["exact p"][phase])
        yield over_seeds(f"{setting}, {rival}, steps {phase}", gap, below=0.0)
    for rival, phase in product(RIVALS, PHASES):
        found = m["vip_prediction.recorded"]["gp less"][rival]["group"][phase]
        yield given(f"recorded run, {rival}, steps {phase}", found, below=0.0)


def predicted_means(m: Measured) -> Iterator[Effect]:
    for setting, cell, target in (
        *((setting, cell, "exact p") for setting, cell in LABS.items()),
        ("recorded run", "vip_prediction.recorded", "group"),
    ):
        for name, found in m[cell]["errors"].items():
            whole = found[target]["all"]
            label = f"{setting}, {name}"
            yield over_seeds(label, whole, ".3f") if isinstance(whole, list) else exact(label, whole, ".3f")


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for their number, after Holm (1979), in their order.

    >>> [round(p, 2) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted


def assumption_settings(m: Measured, kinds: Sequence[str]) -> Iterator[tuple[str, Values]]:
    for kind in kinds:
        note = ", sum of entries" if kind == "sum of entries" else ""
        for base in ("hard", "medium"):
            for point, own in m[f"vip_assumptions.lab_{base}"].items():
                yield f"{base} base, {int(point):,} rollouts{note}", own[kind]
        for task, own in m["vip_assumptions.model"].items():
            if kind in own:
                yield f"SmolLM2, {task}", own[kind]


def rejected(*kinds: str) -> Measure:
    """Return a measure of tests by shuffles: a setting is refuted if all its own tests reject after Holm."""

    def measure(m: Measured) -> Iterator[Effect]:
        found = list(assumption_settings(m, kinds))
        adjusted = iter(holm([test["by shuffles"] for _, own in found for test in own["tests"].values()]))
        for name, own in found:
            worst = max(next(adjusted) for _ in own["tests"])
            both = " and ".join(f"{test} {_p(each['p'])}" for test, each in own["tests"].items())
            text = f"{name}: {both}; the larger p by shuffles, after Holm:"
            yield exact(text, worst, ".3f", decided=-(worst < 0.05))

    return measure


def _p(value: float) -> str:
    return "below 1e-300" if value < 1e-300 else f"{value:.0e}" if value < 0.001 else f"{value:.3f}"


def mean_correlation(m: Measured) -> Iterator[Effect]:
    for name, own in assumption_settings(m, ["correlation"]):
        yield exact(f"{name}, mean correlation", own["mean"], "+.2f")


def rejected_again(*tests: str) -> Measure:
    def measure(m: Measured) -> Iterator[Effect]:
        found = m["vip_assumptions.again"].values()
        samples = sum(own["runs"] for own in found)
        for test in tests:
            number = sum(own[test] for own in found)
            yield exact(
                f"samples of eight other runs of the lab, of {samples}, that {test}'s test rejects", number, ".0f"
            )

    return measure


def identity(m: Measured) -> Iterator[Effect]:
    for estimator, name in (("dr_grpo", "Dr. GRPO"), ("rloo", "RLOO")):
        for p, (ratio, error, _) in m["vip_assumptions.formula"][estimator].items():
            yield given(f"{name}, p = {p}", (ratio, 1.96 * error), ".3f", above=0.95, below=1.05)


def lab_variance(_: Measured) -> Iterator[Effect]:
    for band in ("0.05 to 0.2", "0.2 to 0.4", "0.4 to 0.6", "0.6 to 0.8", "0.8 to 0.9", "0.9 to 0.95", "0.95 to 0.99"):
        found = numbers(headline("gradient_variance", band, "total variance"))
        yield given(f"lab, p of {band}: times the formula", found, ".2f")


def relaxed(m: Measured) -> Iterator[Effect]:
    cell = m["vip_allocation.relaxed"]
    found = [cell[name] for name in ("rloo", "dr_grpo")]
    wrong = sum(each["instances"] for each in found if each["largest"] > 1e-9)
    yield instances("bisection above another solver", wrong, sum(each["instances"] for each in found))


def rounded(key: str, name: str) -> Measure:
    def measure(m: Measured) -> Iterator[Effect]:
        cells = (m[f"vip_allocation.{each}"] for each in ("rloo", "dr_grpo"))
        found = [own for cell in cells for setting, own in cell.items() if setting != "example"]
        yield instances(name, sum(own[key] for own in found), sum(own["instances"] for own in found))

    return measure


def rounded_example(m: Measured) -> Iterator[Effect]:
    loss = m["vip_allocation.rloo"]["example"]["paper"]
    yield exact("an example, above the optimum by", loss, ".2%", decided=-(loss > 1e-9))


def shapes_by_p(m: Measured) -> Iterator[Effect]:
    counts = m["vip_allocation.counts_by_p"]["counts"]
    middle = len(m["vip_allocation.counts_by_p"]["p"]) // 2

    def peaks(own: Sequence[float]) -> bool:
        return all(a <= b for a, b in pairwise(own[: middle + 1])) and all(a >= b for a, b in pairwise(own[middle:]))

    right = {
        "VIP, RLOO": peaks(counts["VIP, RLOO"]),
        "VIP, Dr. GRPO": peaks(counts["VIP, Dr. GRPO"]),
        "inverse accuracy": all(a >= b for a, b in pairwise(counts["inverse accuracy"])),
        "inverse variance": peaks([-n for n in counts["inverse variance"]]),
    }
    for name, own in right.items():
        first, half, last = counts[name][0], counts[name][middle], counts[name][-1]
        text = f"{name}: {first}, {half}, {last} at p of 0.02, 0.5 and 0.98; as claimed"
        yield exact(text, float(own), ".0f", decided=1 if own else -1)


STEPS = {"1.5B": 2781.2 + 627.68 + 263.9, "7B": 3134.4 + 1388.8 + 713.5}
"""Seconds of the paper's training step without VIP: the sums of its Table 4."""


def overhead(_: Measured) -> Iterator[Effect]:
    setup, update = (float(headline("gp", "17,000", f"ours: {what}, s").split()[0]) for what in ("setup", "update"))
    column = "milliseconds: median (least to most)"
    solved = float(headline("solver", "512 | ours, rloo", column).split()[0]) / 1000
    for name, step in STEPS.items():
        yield exact(f"share of the paper's step, {name}", (setup + update + solved) / step, ".4%", below=0.0112)


def lab_overhead(m: Measured) -> Iterator[Effect]:
    own = m["vip_allocation.overhead"]["gp"]
    yield exact("share of the lab's step", sum(own[key] for key in ("predict", "plan", "update")) / own["step"], ".1%")


GRADED = {"hard base": "vip_graded.variance_hard", "medium base": "vip_graded.variance_medium"}


def graded_formula(m: Measured) -> Iterator[Effect]:
    for policy, cell in GRADED.items():
        for band, own in m[cell]["over formula"].items():
            for kind in ("norm", "vector"):
                median = own[kind][1]
                name = f"{policy}, mean reward {band}, {kind}: median over prompts"
                yield exact(name, median, above=1 / 1.5, below=1.5)


def graded_variance(rules: Sequence[str], **bounds: float) -> Measure:
    def measure(m: Measured) -> Iterator[Effect]:
        for (policy, cell), rule in product(GRADED.items(), rules):
            yield over_seeds(f"{policy}, {rule.replace(' | ', ', visits: ')}", m[cell]["ratios"][rule], ".2f", **bounds)

    return measure


TOOLS = {"Dr. GRPO": "vip_tools.dr_grpo", "RLOO": "vip_tools.rloo"}
BELIEFS = {"VIP, default belief": "vip", "VIP, GP": "vip_gp"}


def tools(cells: Mapping[str, str], rules: Mapping[str, str], keys: Sequence[str]) -> list[Measure]:
    return [
        less(f"{name}, {rule}: {key}", f"{cell}: {own}/after/{key}", f"{cell}: uniform/after/{key}")
        for (name, cell), (rule, own), key in product(cells.items(), rules.items(), keys)
    ]


# HORA

PRINTED_K = ("8", "64", "256", "1024")


def pass_at(mine: str, control: str, ks: Sequence[str] = PRINTED_K, name: str = "", **bounds: float) -> list[Measure]:
    return [less(f"{name}K = {int(k):,}:", f"{mine}: pass_at/{k}", f"{control}: pass_at/{k}", **bounds) for k in ks]


def value_less(mine: str, control: str, name: str, key: str = "area", **bounds: float) -> Measure:
    return less(name, f"{mine}: {key}", f"{control}: {key}", **bounds)


EPOCHS = ("at the start", "after 1 epoch", "after 2 epochs")


def states(m: Measured) -> Iterator[tuple[str, Values]]:
    for base in ("easy", "medium", "hard"):
        for epoch, found in zip(EPOCHS, m[f"hora_hits.{base}"]["epochs"], strict=True):
            yield f"{base} {epoch}", found


def hits(mine: str, control: str, kind: str, name: str, later: bool = False, **bounds: float) -> Measure:
    """Return a measure of the difference of two rules in points, in each state of a run, or in later states alone."""

    def measure(m: Measured) -> Iterator[Effect]:
        for state, found in states(m):
            if later and state.endswith(EPOCHS[0]):
                continue
            own = found["gains"][mine][kind]
            other = np.zeros(len(own)) if control == "uniform" else found["gains"][control][kind]
            yield over_seeds(f"{name}, {state}", np.subtract(own, other), "+.2f", **(bounds or {"above": 0.0}))

    return measure


def toward_hard(m: Measured) -> Iterator[Effect]:
    for state, found in states(m):
        prompts, extra = found["figure_3"]["prompts"], found["figure_3"]["rollouts"]
        each = [8 * own / part if part else 0.0 for part, own in zip(prompts, extra, strict=True)]
        falling = all(a > b for a, b in pairwise(each))
        name = f"{state}: extra rollouts of prompts without a right one"
        yield exact(name, extra[0], ".0%", decided=1 if falling else -1)


def recorded_priors(_: Measured) -> Iterator[Effect]:
    for epoch in (1, 2, 7):
        mine, fixed = (
            numbers(headline("real_run", f"{prior}, hits", f"epoch {epoch}"))
            for prior in ("empirical Bayes", "one half for all")
        )
        half = float(np.hypot(mine[2] - mine[0], fixed[2] - fixed[0]))
        name = f"recorded run, visit {epoch + 1}, empirical Bayes, hits over uniform's"
        yield given(name, (mine[0] - fixed[0], half), below=0.01)


def calibrated(m: Measured) -> Iterator[Effect]:
    for state, found in states(m):
        own = found["calibration"]["uniform"]
        for right, (a, b) in enumerate(zip(own["predicted"], own["true"], strict=True)):
            yield exact(
                f"{state}, {right} right of 4: predicted less true chance", a - b, "+.2f", above=-0.05, below=0.05
            )


def hora_theory(m: Measured) -> Iterator[Effect]:
    found = m["hora_hits.theory"]
    yield instances("concave", round((1 - found["concave"]) * 10_000), 10_000)
    yield instances("greedy as good as the best of all allocations", round((1 - found["optimal"]) * 300), 300)


def without_reward(m: Measured) -> Iterator[Effect]:
    found = m["hora_hits.rare"]
    uneven = round((1 - found["even"]) * found["plans"])
    yield instances("batches without a right or without a wrong one, an uneven split", uneven, found["plans"])
    for p, each in found["equal"].items():
        if float(p) <= 0.01:
            yield exact(f"p = {p}: extra rollouts that change prompts", each["moved"], ".3%", below=0.05)


# AR3PO


def rollouts(m: Measured) -> Iterator[Effect]:
    yield given("recorded run", m["ar3po.recorded"]["rollouts"]["2x4"], ".2f", below=8.0)
    yield over_seeds("lab", m["ar3po.reuse"]["rollouts_per_prompt"], ".2f", below=8.0)


def bands(m: Measured) -> Iterator[Effect]:
    recorded, lab = m["ar3po.recorded"]["rollouts_by_band"], m["ar3po.reuse"]["bands"]
    for name, own in (("recorded run", recorded), ("lab", lab)):
        falls = bool((np.diff(own) < 0).all())
        yield exact(f"{name}, hardest band {own[0]:.2f}, easiest", own[-1], decided=1 if falls else -1)
    yield exact("recorded run, hardest band less 6.95:", recorded[0] - 6.95, "+.2f", above=-0.5, below=0.5)
    yield exact("recorded run, easiest band less 4:", recorded[-1] - 4, "+.2f", above=-0.1, below=0.1)


def dapo_saving(m: Measured) -> Iterator[Effect]:
    mine, theirs = (m[f"ar3po.{name}"]["reached"]["0.8"] for name in ("reuse", "dapo"))
    yield over_seeds("rollouts to a success of .8, times fewer:", np.divide(theirs, mine), ".2f", above=1.0)


def dapo_groups(m: Measured) -> Iterator[Effect]:
    mine, theirs = m["ar3po.reuse"]["rollouts_per_prompt"], m["ar3po.dapo"]["per_group_in_loss"]
    yield over_seeds("for each prompt of an update, times fewer:", np.divide(theirs, mine), ".2f")


def unsolved(m: Measured) -> Iterator[Effect]:
    run, lab = m["ar3po.recorded"], m["ar3po.reuse"]
    yield given("recorded run, after reuse", run["after"], ".3f", below=0.2)
    yield over_seeds("lab, before less after reuse", np.subtract(lab["without"], lab["after"]), above=0.0)


def unsolved_before(m: Measured) -> Iterator[Effect]:
    yield given("recorded run, before reuse", m["ar3po.recorded"]["without"], ".3f")


def stages_signal(m: Measured) -> Iterator[Effect]:
    run = m["ar3po.recorded"]
    sizes, mine = sorted(map(int, run["uniform"])), run["rollouts"]["2x4"][0]
    for key, own, name in (
        ("hits", run["hits"], "prompts with a correct response"),
        ("mixed", run["mixed"]["2x4"], "groups with both outcomes"),
    ):
        even = float(np.interp(mine, sizes, [run["uniform"][str(n)][key] for n in sizes]))
        yield exact(f"{name}, less those of uniform with equal rollouts:", own - even, "+.1%", above=0.0)


def stage_weights(m: Measured) -> Iterator[Effect]:
    found = m["ar3po.stages"]
    for (p, low), (q, high) in pairwise(zip(found["at"], found["2x4"]["ratio"], strict=True)):
        yield exact(
            f"gradient over the true one at {p:g}, {low:.2f}, less that at {q:g}:", low - high, "+.2f", above=0.0
        )


def store(m: Measured) -> Iterator[Effect]:
    size, time = m["ar3po.memory"], m["ar3po.lookup"]
    fits = min(own["prompts_in_a_gib"] for own in size.values())
    yield exact("prompts that fit a GiB, of 1,209 needed:", fits, ",.0f", above=m["ar3po.recorded"]["prompts"])
    steps = [time[name]["ms_a_step_4096_tokens"] for name in time]
    yield exact("time with 100,000 prompts over that with 1,000:", steps[-1] / steps[0], below=2.0)


def store_size(m: Measured) -> Iterator[Effect]:
    yield exact("MiB per 1,000 prompts", m["ar3po.memory"]["ids"]["mib_per_1000_prompts"], ".0f")
    steps = [own["ms_a_step_4096_tokens"] for own in m["ar3po.lookup"].values()]
    yield exact("ms a step with 128 prompts", max(steps), ".0f")


def accounted(m: Measured) -> Iterator[Effect]:
    runs = [m[f"ar3po.{name}"] for name in ("reuse", "staged", "dapo", "uniform_5")]
    steps = sum(sum(own["steps"]) for own in runs)
    wrong = sum(round((1 - part) * n) for own in runs for part, n in zip(own["exact"], own["steps"], strict=True))
    yield instances("steps that do not add up", wrong, steps)


# OptPO

VOTES = {
    "Game of 24 with chain of thought": "optpo_votes.game24_cot",
    "Game of 24 without": "optpo_votes.game24_standard",
    "lab, temperature 1": "optpo_votes.lab_plain",
    "lab, temperature .6": "optpo_votes.lab_cold",
    "lab, temperature .6, top-p .95": "optpo_votes.lab_paper",
}


def optpo(mine: str, control: str, name: str, key: str = "mean_16", **bounds: float) -> Measure:
    return less(name, f"optpo.learn_{mine}: {key}", f"optpo.learn_{control}: {key}", **bounds)


def optpo_saved(mine: str, base: str, name: str, key: str = "rollouts") -> Measure:
    return saved(name, f"optpo.learn_{mine}: {key}", f"optpo.learn_{base}: {key}")


def label_free(updates: Sequence[str], columns: Mapping[str, tuple[str, float]]) -> Measure:
    """Return a measure of a committed table: each column by its name there, with its lower bound."""

    def measure(_: Measured) -> Iterator[Effect]:
        for update, (name, (column, above)) in product(updates, columns.items()):
            yield tabled(f"N = 16, {update}: {name}", headline("label_free", f"{update} | optpo", column), above=above)

    return measure


RL = ("grpo", "ppo", "reinforce++")
SAVES_AT_NO_LOSS = {"rollouts saved": ("rollouts saved", 0.0), "mean@16": ("- TTRL", LOSS)}


def retained(_: Measured) -> Iterator[Effect]:
    gained = tabled("", headline("label_free_settings", "N_32", "- paper"))
    more = tabled("", headline("label_free_settings", "N_32", "rollouts saved"))
    saving, half = 1 - 1 / (1 - more.mean), (more.high - more.low) / 2
    yield Effect("rollouts saved", saving, saving - half, saving + half, 5, above=0.0, form=".1%")
    yield Effect("mean@16", -gained.mean, -gained.high, -gained.low, 5, above=LOSS)


def at_equal_tokens(other: str, name: str) -> Measure:
    def measure(m: Measured) -> Iterator[Effect]:
        mine, theirs, ahead = m["optpo.learn_optpo"], m[f"optpo.learn_{other}"], []
        for seed in range(len(mine["mean_16"])):
            spent = min(mine["tokens"][seed], theirs["tokens"][seed])
            a, b = (
                float(np.interp(spent, each["tokens_by_seed"][seed], each["mean_16_by_seed"][seed]))
                for each in (mine, theirs)
            )
            ahead.append(a - b)
        yield over_seeds(name, ahead, above=0.0)

    return measure


def rl_over_sft(_: Measured) -> Iterator[Effect]:
    sft = tabled("", headline("label_free", "sft | optpo", "mean@16"))
    for name in RL:
        mine = tabled("", headline("label_free", f"{name} | optpo", "mean@16"))
        gap, half = mine.mean - sft.mean, float(np.hypot(mine.high - mine.mean, sft.high - sft.mean))
        yield Effect(f"{name} mean@16", gap, gap - half, gap + half, 5, above=0.0)


def ties(m: Measured) -> Iterator[Effect]:
    kept, mine = m["optpo.learn_optpo_ties"]["mean_16"], m["optpo.learn_optpo"]["mean_16"]
    yield over_seeds("mean@16 with L(M) as label less without:", np.subtract(*paired(kept, mine)), above=0.0)


def tie_shares(m: Measured) -> Iterator[Effect]:
    found = m["optpo_votes.lab_plain"]["ties"]["64"]
    yield exact("votes of 64 that tie", found[0], ".1%")
    yield exact("L(M) right in", found[1], ".1%")


def shared(_: Measured) -> Iterator[Effect]:
    found = numbers(headline("shared_votes", "all, mixed | optpo, N = 16", "gain in 8 rounds"))
    yield given("agreement at OptPO's samples, shared less OptPO, points", found, "+.1f", above=0.0)
    yield tabled("24 shared votes less TTRL with 64: mean@16", headline("label_free_votes", "shared_24", "- ttrl"),
                 above=LOSS)  # fmt: skip


def votes(name: str, path: str, form: str = ".1%", **bounds: float) -> Measure:
    """Return a measure of [mean, half width] at ``path`` of each set of votes."""

    def measure(m: Measured) -> Iterator[Effect]:
        for where, cell in VOTES.items():
            yield given(f"{name}{where}:", at(m, f"{cell}: {path}"), form, **bounds)

    return measure


def lower_boundary(m: Measured) -> Iterator[Effect]:
    found = [m[cell]["lower_boundary"] for cell in VOTES.values()]
    least, boundary = min(each["least"] for each in found), found[0]["boundary"]
    name = f"the boundary log B is {boundary:.2f}; least log Lambda at kappa > 1:"
    yield exact(name, least, below=boundary)


def choice_kappa(m: Measured) -> Iterator[Effect]:
    yield given(
        "four choices, simulated:", m["optpo_theory.four_choices"]["spread"]["kappa_at_most_1"], ".1%", below=0.05
    )


def factor(m: Measured) -> Iterator[Effect]:
    for where, cell in VOTES.items():
        own = m[cell]
        gap = own["majority_share"][0] - own["right_samples"][0]
        half = float(np.hypot(own["majority_share"][1], own["right_samples"][1]))
        yield given(f"{where}: majority's share less share of right samples", (gap, half), "+.1%", above=0.0)
    for where, cell in VOTES.items():
        errors = {key: float(error) for key, error in m[cell]["error_by_factor"].items()}
        yield exact(f"{where}: error of p_0 with .6 less that with 1", errors["0.6"] - errors["1.0"], "+.3f", below=0.0)


def table_4(m: Measured) -> Iterator[Effect]:
    for error in ("0.01", "0.1"):
        text = headline("label_free_settings", f"alpha_beta_{error}", "- paper")
        yield tabled(f"learning, mean@16 at {error} less that at .05:", text, above=LOSS)
    for where, cell in VOTES.items():
        tight, loose = (m[cell]["rules"][f"N32_error_{error}"] for error in ("0.01", "0.1"))
        gap = (tight["samples"][0] - loose["samples"][0]) / 64
        yield exact(f"{where}: saving at .1 less that at .01", gap, "+.1%", above=0.0)
        yield given(f"{where}: right labels at .1 less the full vote's", loose["right_less_full"], "+.1%", above=-0.01)


def table_4_savings(m: Measured) -> Iterator[Effect]:
    for where, cell in VOTES.items():
        for error in ("0.01", "0.1"):
            saving = 1 - m[cell]["rules"][f"N32_error_{error}"]["samples"][0] / 64
            yield exact(f"{where}: saving at {error}", saving, ".1%")


def harder(m: Measured) -> Iterator[Effect]:
    for where, cell in VOTES.items():
        yield exact(f"{where}: correlation", m[cell]["harder_correlation"], "+.2f", below=-0.2)


def better_rule(m: Measured) -> Iterator[Effect]:
    for where, cell in VOTES.items():
        samples, differ = (m[cell]["calibrated_less_paper"][key] for key in ("samples", "disagree"))
        beaten = samples[0] + samples[1] < 0 and differ[0] - differ[1] <= 0
        ahead = samples[0] - samples[1] > 0 and differ[0] + differ[1] >= 0
        name = f"{where}: disagreement {differ[0]:+.2%} ± {differ[1]:.2%}, samples of `calibrated` less OptPO's"
        yield Effect(name, samples[0], samples[0] - samples[1], samples[0] + samples[1],
                     decided=-1 if beaten else int(ahead), form="+.1f")  # fmt: skip


def kept_alpha(cell: str, prefix: str) -> Measure:
    def measure(m: Measured) -> Iterator[Effect]:
        for name, each in m[cell].items():
            if name.endswith("alpha 0.05"):
                where = name.split(", alpha")[0]
                yield given(f"{prefix}{where}:", each["wrong"], ".1%", below=0.05)

    return measure


def full_vote_wrong(m: Measured) -> Iterator[Effect]:
    for name, each in m["optpo_theory.promise"].items():
        if name.endswith("alpha 0.05"):
            yield given(f"full vote wrong, {name.split(', alpha')[0]}:", each["full_wrong"], ".1%")


def processor_time(m: Measured) -> Iterator[Effect]:
    mine, full = (m[f"optpo.learn_{name}"]["rollout_seconds"] for name in ("optpo", "ttrl_64"))
    yield over_seeds("CPU seconds for rollouts over those of 64 votes", np.divide(mine, full), ".3f")


def gpqa(m: Measured) -> Iterator[Effect]:
    for key, name in (("spread", "wrong votes spread over three choices"), ("one", "one choice has all wrong votes")):
        yield given(f"saved if {name}:", m["optpo_theory.four_choices"][key]["continue"]["saved"], ".1%", above=0.4)


# A language model


def model_gain(rule: str, control: str) -> Measure:
    def measure(m: Measured) -> Iterator[Effect]:
        mine, theirs = ([model.area(each) for each in model.runs_of(m, own)] for own in (rule, control))
        yield over_seeds(f"area over {control}", np.subtract(mine, theirs), above=0.0)

    return measure


def model_seconds(rule: str, control: str) -> Measure:
    def measure(m: Measured) -> Iterator[Effect]:
        mine, theirs = model.runs_of(m, rule), model.runs_of(m, control)
        shortest = min(each["cpu_seconds"][-1] for each in (*mine, *theirs))
        a, b = ([model.at_seconds(each, shortest) for each in own] for own in (mine, theirs))
        yield over_seeds(f"success at equal processor seconds over {control}", np.subtract(a, b))

    return measure


def model_prediction(m: Measured) -> Iterator[Effect]:
    found = [each["predictors"] for each in model.runs_of(m, model.CONTROL)]
    mine = [each["GP as printed"]["exact"] for each in found]
    for rival in RIVALS:
        gap = np.subtract(mine, [each[rival]["exact"] for each in found])
        yield over_seeds(f"MAE less that of {rival}", gap, below=0.0)


def model_errors(m: Measured) -> Iterator[Effect]:
    found = [each["predictors"] for each in model.runs_of(m, model.CONTROL)]
    for name in ("GP as printed", *RIVALS, "empirical Bayes"):
        yield over_seeds(f"MAE, {name}", [each[name]["exact"] for each in found], ".3f")


PAPERS_NORM = "mean over tokens"


def norm_correlation(m: Measured) -> Iterator[Effect]:
    for place, each in model.checkpoints(m).items():
        own = each["tests"][PAPERS_NORM]
        p = f"Fisher {model.p_value(own['fisher'])}, Edgington {model.p_value(own['edgington'])}"
        yield given(f"{place}: {p}; mean correlation", own["correlation"], "+.2f", above=-0.1, below=0.1)


def norm_outcomes(m: Measured) -> Iterator[Effect]:
    for place, each in model.checkpoints(m).items():
        differ = 0
        for part in each["by_success"]:
            for kind in ("parameters", "logits", "squared"):
                right, wrong = part[kind]["right"], part[kind]["wrong"]
                differ += bool(right and wrong and (right[2] < wrong[1] or wrong[2] < right[1]))
        yield exact(f"{place}: norms with intervals apart", float(differ), ".0f", decided=-bool(differ))


def norm_variance(m: Measured) -> Iterator[Effect]:
    found = model.checkpoints(m)
    for place, each in found.items():
        own = each["tests"][PAPERS_NORM]
        larger = max(own["levene"], own["obrien"])
        name = f"{place}: Levene {model.p_value(own['levene'])}, O'Brien {model.p_value(own['obrien'])}; the larger"
        yield exact(name, larger, ".2g", decided=-(larger < 0.05 / 2 / len(found)))


def norm_formula(part: str, **bounds: float) -> Measure:
    def measure(m: Measured) -> Iterator[Effect]:
        for place, each in model.checkpoints(m).items():
            if each["variance"][PAPERS_NORM][part]:
                yield given(f"{place}, {part}: ratio", each["variance"][PAPERS_NORM][part], ".2f", **bounds)

    return measure


def norm_allocation(rule: str, **bounds: float) -> Measure:
    def measure(m: Measured) -> Iterator[Effect]:
        for place, each in model.checkpoints(m).items():
            yield given(f"{place}, {rule}: x", each["allocation"][rule], ".2f", **bounds)

    return measure


# Combinations

ALONE = ("weights", "vip", "optimal")
COMBINED = "controls.uniform_8_rloo"


def arm(name: str) -> str:
    return COMBINED if name == "uniform" else f"combinations.{name}"


def main_effect(decision: str) -> Measure:
    others = [name for name in ALONE if name != decision]

    def area(m: Measured, decisions: set[str]) -> Any:
        return at(m, f"{arm('_'.join(name for name in ALONE if name in decisions) or 'uniform')}: area")

    def measure(m: Measured) -> Iterator[Effect]:
        contexts: list[set[str]] = [set(), {others[0]}, {others[1]}, set(others)]
        gains = [np.subtract(*paired(area(m, {*context, decision}), area(m, context))) for context in contexts]
        yield over_seeds("area", np.mean(gains, axis=0), above=0.0)

    return measure


def best_of(combined: str, parts: Sequence[str], name: str = "area against {}") -> Measure:
    """Return a measure of a combination's area less that of the best of its ``parts``."""

    def measure(m: Measured) -> Iterator[Effect]:
        best = max(parts, key=lambda part: np.mean(at(m, f"{arm(part)}: area")))
        yield from value_less(arm(combined), arm(best), name.format(best))(m)

    return measure


all_three = best_of("weights_vip_optimal", ALONE, "area against the best part ({})")


def of_tokens(mine: str, control: str) -> Measure:
    return value_less(arm(mine), arm(control), f"area over tokens against {control}", "area_of_tokens")


def unbiased(rule: str, biased: str, name: str = "rloo") -> Measure:
    return value_less(arm(f"{rule}_by_sequential"), arm(f"{rule}_by_{biased}"), f"area against {name}")


def combined(mine: str, control: str, name: str, key: str = "mean_16", **bounds: float) -> Measure:
    return less(name, f"optpo_combined.{mine}: {key}", f"optpo_combined.{control}: {key}", **bounds)


def all_votes_bias(m: Measured) -> Iterator[Effect]:
    for rule in ("optpo", "calibrated"):
        found = m["optpo_combined.bias"][f"{rule}, all"]["reward_less_first"]
        yield given(f"{rule}: mean reward of all votes less that of the first 16", found, above=0.0)


def pairs_lower(metric: str, first: int, table: str = printed.OPTPO_TABLE_1) -> Measure:
    def measure(_: Measured) -> Iterator[Effect]:
        found = printed.optpo_pairs(table)
        change = found[:, first + 1] - found[:, first]
        up, down = int((change > 1e-9).sum()), int((change < -1e-9).sum())
        yield share(f"{metric}: higher in {up}, lower in", down, len(change), below=0.1)

    return measure


def impossible_savings(_: Measured) -> Iterator[Effect]:
    savings = printed.optpo_pairs()[:, 4]
    above = savings[savings > 50]
    possible = len(savings) - len(above)
    yield exact("savings that stopping can give, at most 50%:", float(possible), ".0f", decided=1)
    for each in above:
        yield exact("a saving that it cannot give:", float(each) / 100, ".2%", decided=-1)


UPDATES = {"grpo": "", "ppo": "_ppo", "reinforce++": "_reinforce_plus_plus", "sft": "_sft"}
MEASURES: Mapping[str, Sequence[Measure]] = {
    "vip-1": vip_over_uniform("gp", "8_rloo"),
    "vip-2": [each for name, where in OTHERS.items() for each in vip_over_uniform("gp", where, f"{name}: ")],
    "vip-3": [vip_area("gp_8_rloo")],
    "vip-4": [vip_area("gp_8_rloo")],
    "vip-5": [*vip_over_uniform("exact", "8_rloo"), vip_area("exact_8_rloo")],
    "vip-6": [e for name, arm in HEURISTICS.items() for e in vip_over_arm("gp_8_rloo", arm, f"less {name}, ")],
    "vip-7": vip_over_arm("gp_8_rloo", "ridge_8_rloo"),
    "vip-8": [
        *vip_over_uniform("gp", "8_rloo", "less uniform, "),
        *(e for n, arm in (HEURISTICS | {"ridge": "ridge_8_rloo"}).items()
          for e in vip_over_arm("gp_8_rloo", arm, f"less {n}, ")),
    ],
    "vip-9": [vip_area("belief_8_rloo")],
    "vip-10": [predicted],
    "vip-11": [rejected("correlation")],
    "vip-12": [rejected("variance", "sum of entries")],
    "vip-13": [identity],
    "vip-14": [relaxed],
    "vip-15": [rounded("not feasible", "not feasible")],
    "vip-16": [rounded_example, rounded("paper worse", "random, above the optimum")],
    "vip-17": [shapes_by_p],
    "vip-18": [overhead],
    "vip-19": [graded_formula],
    "vip-20": [graded_variance([f"graded gp as printed | {visits}" for visits in (1, 2, 4)], below=1.0)],
    "vip-21": [value_less("vip_graded.learn_graded_gp", "vip_graded.learn_uniform", "area, graded GP"),
               value_less("vip_graded.learn_running", "vip_graded.learn_uniform", "area, running variance")],
    "vip-22": [printed.one_difference],
    "vip-23": [printed.vip_pairs_lower],
    "vip-24": [printed.vip_by_model],
    "vip-25": [printed.vip_table_9],
    "vip-26": tools({"Dr. GRPO": TOOLS["Dr. GRPO"]}, BELIEFS, ["em"]),
    "vip-27": tools({"RLOO": TOOLS["RLOO"]}, BELIEFS, ["em"]),
    "vip-28": tools(TOOLS, BELIEFS, ["em", "f1", "precision"]),
    "vip-29": in_training("reward"),
    "vip-30": in_training("absolute advantage"),
    "hora-1": pass_at("hora.grpo", "controls.uniform_8_grpo"),
    "hora-2": [
        *pass_at("hora.grpo", "controls.uniform_8_grpo", ["1"], "GRPO, ", above=-0.015),
        *pass_at("hora.rloo", "controls.uniform_8_rloo", ["1"], "RLOO, ", above=-0.015),
    ],
    "hora-3": pass_at("hora.rloo", "controls.uniform_8_rloo"),
    "hora-4": pass_at("hora.grpo", "controls.start", ["1", *PRINTED_K]),
    "hora-5": [
        value_less("controls.uniform_8_grpo", "controls.start", "hard base, GRPO", "pass_at/1024", below=0.0),
        value_less("controls.uniform_8_rloo", "controls.start", "hard base, RLOO", "pass_at/1024", below=0.0),
        value_less("hora.forks_uniform", "hora.forks_start", "forks base, RLOO", "pass_at/1024", below=0.0),
    ],
    "hora-6": pass_at("hora.forks_pre_4", "hora.forks_uniform", ["1", "64", "1024"]),
    "hora-7": [
        value_less("hora.rloo", "hora.uniform", "hard base", "entropy"),
        value_less("hora.forks_pre_4", "hora.forks_uniform", "forks base", "entropy"),
    ],
    "hora-8": [value_less("hora.rloo", "hora.hardest", "area"),
               value_less("hora.rloo", "hora.hardest", "success at the end", "end")],
    "hora-9": [value_less("hora.rloo", "hora.random", "area")],
    "hora-10": [value_less("hora.rloo", f"hora.{o}", f"area, 4 of 8 less {n}:")
                for n, o in ((1, "pre_1"), (2, "pre_2"), (6, "pre_6"), (8, "uniform"))],
    "hora-11": [
        each for key, name in (("empirical_bayes", "empirical Bayes"), ("gp", "Gaussian process"))
        for each in (value_less(f"hora.{key}", "hora.rloo", f"area, {name}", below=0.015),
                     *pass_at(f"hora.{key}", "hora.rloo", ["1024"], f"{name}, ", below=0.015))
    ],
    "hora-12": [hits("pre_4", "random", "overall", "prompts with a right rollout"),
                hits("pre_4", "random", "extra", "among the extra rollouts")],
    "hora-13": [toward_hard],
    "hora-14": [hits("pre_4", "uniform", "mixed", "groups with both outcomes")],
    "hora-15": [hits("pre_4", "hardest", "overall", "prompts with a right rollout")],
    "hora-16": [hits("pre_4", "pre_2", "overall", "4 of 8 less 2 of 8")],
    "hora-17": [
        *(hits(prior, "pre_4", "extra", name, later=True, below=1.0) for prior, name in
          (("counts", "counts"), ("empirical_bayes", "empirical Bayes"), ("gp", "Gaussian process"))),
        recorded_priors,
    ],
    "hora-18": [calibrated],
    "hora-19": [hora_theory],
    "hora-20": [without_reward],
    "hora-21": pass_at("hora_hits.long_pre_8", "hora_hits.long_uniform"),
    "hora-22": [less("K = 1,024:", "hora_hits.long_uniform: pass_at/1024", "hora_hits.long_uniform: base", below=0.0)],
    "hora-23": [value_less("hora_hits.long_pre_8", "hora_hits.long_hardest", name, key) for key, name in (
        ("hits", "prompts in 100 with a right rollout, untrained"), ("area", "area"))],
    "ar3po-1": [rollouts],
    "ar3po-2": [bands],
    "ar3po-3": [less("success after 100 steps", "ar3po.reuse: equal_steps", "controls.uniform_8_grpo: end",
                     above=SMALL_LOSS)],
    "ar3po-4": [value_less("ar3po.reuse", "controls.uniform_8_grpo", "area against GRPO 8"),
                value_less("ar3po.reuse", "ar3po.uniform_5", "area against uniform 5")],
    "ar3po-5": [value_less("ar3po.reuse", "ar3po.dapo", "success at the end", "end", above=SMALL_LOSS), dapo_saving],
    "ar3po-6": [unsolved],
    "ar3po-7": [stages_signal, value_less("ar3po.staged", "ar3po.uniform_5", "area against uniform 5")],
    "ar3po-8": [stage_weights],
    "ar3po-9": [value_less("ar3po.reuse", "ar3po.staged", "area, hard base"),
                less("area, medium base", "ar3po.paired: reuse/area", "ar3po.paired: staged/area")],
    "ar3po-10": [less("area", "ar3po.paired: reuse/area", "ar3po.paired: replay/area")],
    "ar3po-11": [value_less("ar3po.reuse", "ar3po.shape_4x2", "area against 4x2"),
                 value_less("ar3po.reuse", "controls.uniform_8_grpo", "area against 1x8")],
    "ar3po-12": [store],
    "ar3po-13": [accounted],
    "ar3po-14": [value_less("ar3po.reuse", "ar3po.option_1", "area, hard base"),
                 less("area, medium base", "ar3po.paired: reuse/area", "ar3po.option_1_medium: area")],
    "optpo-1": [
        optpo_saved("optpo", "ttrl_64", "tokens saved", "tokens"), optpo_saved("optpo", "ttrl_64", "rollouts saved"),
        optpo("optpo", "ttrl_64", "mean@16", above=LOSS), optpo("optpo", "ttrl_64", "pass@16", "pass_16", above=LOSS),
    ],
    "optpo-2": [optpo("optpo", "ttrl_32", "OptPO less TTRL with 32 votes: mean@16")],
    "optpo-3": [optpo("optpo", "ttrl_64", "N = 32: mean@16"), label_free(RL, {"mean@16": ("- TTRL", 0.0)})],
    "optpo-4": [pairs_lower("mean@16", 0), pairs_lower("pass@16", 2)],
    "optpo-5": [impossible_savings],
    "optpo-6": [retained],
    "optpo-7": [at_equal_tokens("ttrl_64", "mean@16 at equal tokens less that of 64 votes"),
                at_equal_tokens("ttrl_32", "of 32 votes")],
    "optpo-8": [label_free(RL, SAVES_AT_NO_LOSS)],
    "optpo-9": [optpo(f"optpo{end}", f"ttrl_32{end}", name) for name, end in UPDATES.items()],
    "optpo-10": [label_free(["sft"], SAVES_AT_NO_LOSS)],
    "optpo-11": [rl_over_sft],
    "optpo-12": [optpo_saved("optpo_cold", "ttrl_64_cold", "rollouts saved"),
                 optpo("optpo_cold", "ttrl_64_cold", "mean@16", above=LOSS)],
    "optpo-13": [ties],
    "optpo-14": [shared],
    "optpo-15": [votes("N = 32, ", "rules/N32_error_0.05/disagree", below=0.05),
                 votes("N = 16, ", "rules/N16_error_0.05/disagree", below=0.05)],
    "optpo-16": [lower_boundary],
    "optpo-17": [votes("", "kappa_at_most_1", below=0.05), choice_kappa],
    "optpo-18": [factor],
    "optpo-19": [votes("N = 32, ", "rules/N32_exceed_1/disagree", above=0.05),
                 votes("N = 16, ", "rules/N16_exceed_1/disagree", above=0.05)],
    "optpo-20": [table_4],
    "optpo-21": [harder],
    "optpo-22": [votes("", "rules/N32_error_0.05/right_less_full", "+.2%", above=0.01)],
    "optpo-23": [better_rule],
    "optpo-24": [kept_alpha("optpo_theory.wald", "")],
    "optpo-25": [kept_alpha("optpo_theory.promise", "")],
    "optpo-26": [gpqa],
    "optpo-27": [less("pass@1", "optpo.greedy_optpo: pass_1", "optpo.greedy_ttrl_64: pass_1", above=LOSS)],
    "optpo-28": [pairs_lower("pass@1", 0, printed.OPTPO_PASS_1)],
    "model-1": [norm_correlation],
    "model-2": [norm_outcomes],
    "model-3": [norm_variance],
    "model-4": [norm_formula("all", above=0.8, below=1.25)],
    "model-5": [norm_allocation("VIP", below=1.0)],
    "model-6": [model_gain("vip_8", "uniform_8")],
    "model-7": [model_prediction],
    "model-8": [model_gain("optimal", "uniform_8")],
    "model-9": [model_gain("optimal", "uniform_4")],
    "model-10": [model_gain("optimal", "zero")],
    "model-11": [model_gain("mixed_8", "uniform_8")],
    "model-12": [model_gain("spo", "uniform_8")],
    "combinations-1": [all_three],
    "combinations-2": [main_effect("optimal")],
    "combinations-3": [main_effect("vip")],
    "combinations-4": [main_effect("weights")],
    "combinations-5": [best_of("single_optimal_retire", ["single_optimal"])],
    "combinations-6": [best_of("single_batch_mixed", ["single_batch"])],
    "combinations-7": [best_of("vip_reuse", ["uniform", "vip", "reuse"])],
    "combinations-8": [of_tokens("tokens_vip", "tokens_uniform")],
    "combinations-9": [of_tokens("tokens_hora", "tokens_uniform")],
    "combinations-10": [unbiased("ar3po", "rloo"),
                        unbiased("ar3po", "rloo_rollouts", "rloo, equal weights of rollouts")],
    "combinations-11": [unbiased("hora", "rloo")],
    "combinations-12": [unbiased("reinforce_ada", "rloo")],
    "combinations-13": [
        saved("rollouts saved", "optpo_combined.learn_calibrated_05: rollouts", "optpo_combined.learn_optpo: rollouts"),
        combined("learn_calibrated_05", "learn_optpo", "mean@16", above=LOSS),
    ],
    "combinations-14": [combined("learn_calibrated_05", "learn_ttrl_24", "mean@16 less TTRL with 24 votes")],
    "combinations-15": [all_votes_bias],
    "combinations-16": [combined("retain_all", "retain_first", "all, RLOO"),
                        combined("retain_sequential", "retain_first", "all, sequential")],
}  # fmt: skip
BESIDE: Mapping[str, Sequence[Measure]] = {
    "vip-1": [*vip_over_uniform("exact", "8_rloo", "exact p: "),
              *vip_over_uniform("shuffled", "8_rloo", "shuffled p: ")],
    "vip-3": [vip_area("gp_8_rloo", "controls.uniform_4_rloo", "area over uniform 4"),
              less("area, uniform 4 over uniform 8", "controls.uniform_4_rloo: area", "controls.uniform_8_rloo: area",
                   "points")],
    "vip-4": [higher_evaluations],
    "vip-5": vip_over_arm("exact_8_rloo", "shuffled_8_rloo", "less shuffled p, "),
    "vip-6": [vip_area("gp_8_rloo", f"vip_learning.{arm}", f"area less {name}") for name, arm in HEURISTICS.items()],
    "vip-7": [vip_area("gp_8_rloo", "vip_learning.ridge_8_rloo")],
    "vip-9": [vip_area("exact_8_rloo", name="area, exact p")],
    "vip-10": [predicted_means],
    "vip-11": [mean_correlation, rejected_again("Fisher", "Edgington")],
    "vip-12": [rejected_again("Levene", "O'Brien")],
    "vip-13": [lab_variance],
    "vip-18": [lab_overhead],
    "vip-20": [graded_variance(["exact", "least, known gradients", "exact, shuffled"])],
    "vip-21": [value_less("vip_graded.learn_shuffled", "vip_graded.learn_uniform", "area, the same at random prompts")],
    "vip-23": [printed.vip_maj_lower],
    "vip-26": [*tools({"Dr. GRPO": TOOLS["Dr. GRPO"]}, {"VIP, shuffled belief": "vip_shuffled"}, ["em"]),
               level("EM before training", "vip_tools.dr_grpo: uniform/before/em"),
               level("EM, uniform", "vip_tools.dr_grpo: uniform/after/em")],
    "vip-27": [*tools({"RLOO": TOOLS["RLOO"]}, {"VIP, shuffled belief": "vip_shuffled"}, ["em"]),
               level("EM before training", "vip_tools.rloo: uniform/before/em"),
               level("EM, uniform", "vip_tools.rloo: uniform/after/em")],
    "vip-29": in_training("success"),
    "hora-1": [value_less("hora.grpo", "controls.uniform_8_grpo", "area")],
    "hora-3": [value_less("hora.rloo", "controls.uniform_8_rloo", "area")],
    "hora-7": [
        *(level(f"{name}: entropy, nats a token", f"hora.{cell}: entropy") for name, cell in (
            ("hard base, HORA", "rloo"), ("hard base, uniform", "uniform"), ("forks base, HORA", "forks_pre_4"),
            ("forks base, uniform", "forks_uniform"))),
        value_less("hora.forks_pre_4", "hora.forks_uniform", "forks base, right answers in use", "solutions"),
    ],
    "hora-8": [value_less("hora.rloo", "hora.uniform", "area less uniform 8")],
    "hora-9": pass_at("hora.rloo", "hora.random", ["1024"], "pass@K, "),
    "hora-15": [hits("pre_4", "hardest", "extra", "among the extra rollouts"),
                hits("pre_4", "hardest", "mixed", "groups with both outcomes")],
    "hora-16": [hits("pre_4", "pre_1", "overall", "4 of 8 less 1 of 8"),
                hits("pre_4", "pre_6", "overall", "4 of 8 less 6 of 8")],
    "hora-21": [value_less("hora_hits.long_pre_8", "hora_hits.long_uniform", "area"),
                level("prompts in 100 with a right rollout, untrained, less uniform's", "hora_hits.long_pre_8: hits")],
    "ar3po-2": [level("hardest band, if success rates are Beta with the paper's 5.7 and .30",
                      "ar3po.arithmetic: rollouts_low", ".2f")],
    "ar3po-3": [less("less uniform 5", "ar3po.reuse: equal_steps", "ar3po.uniform_5: equal_steps")],
    "ar3po-4": [value_less("ar3po.reuse", "controls.uniform_8_rloo", "area against uniform 8, RLOO"),
                value_less("ar3po.reuse", "controls.uniform_4_rloo", "area against uniform 4, RLOO")],
    "ar3po-5": [dapo_groups, value_less("ar3po.reuse", "ar3po.dapo", "area"),
                value_less("ar3po.uniform_5", "ar3po.dapo", "area, uniform 5 less DAPO")],
    "ar3po-6": [unsolved_before, level("lab, before reuse", "ar3po.reuse: without"),
                level("lab, after reuse", "ar3po.reuse: after")],
    "ar3po-7": [level("groups with both outcomes, recorded run", "ar3po.recorded: mixed/2x4", ".1%")],
    "ar3po-9": [value_less("ar3po.reuse", "ar3po.staged", "success at the end, hard base", "end")],
    "ar3po-12": [store_size],
    "ar3po-14": [less("area, medium base, Option I less no reuse", "ar3po.option_1_medium: area",
                      "ar3po.paired: staged/area")],
    "optpo-2": [optpo_saved("ttrl_32", "optpo", "rollouts that 32 votes save over OptPO"),
                optpo("ttrl_32", "ttrl_64", "32 votes less 64"), optpo("ttrl_16", "ttrl_64", "16 votes less 64"),
                *(level(f"{n} votes", f"optpo.learn_ttrl_{n}: mean_16") for n in (8, 4))],
    "optpo-7": [processor_time],
    "optpo-9": [optpo(f"optpo{end}", f"ttrl_64{end}", f"{name}, less 64 votes") for name, end in UPDATES.items()],
    "optpo-12": [optpo("optpo_cold", "ttrl_32_cold", "less TTRL with 32 votes: mean@16")],
    "optpo-13": [tie_shares],
    "optpo-15": [votes("N = 32, right labels less the full vote's, ", "rules/N32_error_0.05/right_less_full", "+.1%")],
    "optpo-20": [table_4_savings],
    "optpo-23": [
        votes(f"{name}, {what}, ", f"rules/{rule}/{key}", form)
        for rule, name in (("N8_exceed_1", "N = 8 and one exceedance"), ("calibrated_0.03", "`calibrated` at .03"))
        for key, what, form in (("samples", "samples", ".1f"), ("disagree", "disagreement", ".1%"))
    ],
    "optpo-25": [full_vote_wrong],
    "model-4": [norm_formula("below half"), norm_formula("above half"), norm_formula("apart")],
    "model-5": [norm_allocation("VIP, shuffled"), norm_allocation("Neyman"), norm_allocation("best")],
    "model-7": [model_errors],
    **{f"model-{n}": [model_seconds(rule, control)] for n, rule, control in (
        (6, "vip_8", "uniform_8"), (8, "optimal", "uniform_8"), (9, "optimal", "uniform_4"), (10, "optimal", "zero"),
        (11, "mixed_8", "uniform_8"), (12, "spo", "uniform_8"))},
    "combinations-1": [less("area, the optimal baseline alone over uniform", "combinations.optimal: area",
                            f"{COMBINED}: area")],
    "combinations-8": [of_tokens("tokens_vip", "tokens_vip_rollouts")],
    "combinations-9": [of_tokens("tokens_hora", "tokens_even")],
    "combinations-10": [less("area less uniform 4 with RLOO", f"{arm('ar3po_by_sequential')}: area",
                             "controls.uniform_4_rloo: area")],
    "combinations-13": [combined("learn_calibrated_05", "learn_ttrl_64", "mean@16 less TTRL with 64 votes")],
    "combinations-14": [saved("rollouts that 24 votes save", "optpo_combined.learn_ttrl_24: rollouts",
                              "optpo_combined.learn_calibrated_05: rollouts")],
}  # fmt: skip
